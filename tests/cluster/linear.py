"""Whether a history of operations on one object has an order that explains every answer (linearizability).

In: operations with the times of call and answer, and the object's rule. Out: whether an order exists. Wing and Gong's
search, with a memory of the states that failed.

An operation without an answer may take effect at any time after its call, or never. An operation whose sender repeats
the request may take effect more than once before its answer. Each answered operation takes effect at least once
between call and answer.
"""

from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import NamedTuple


class Operation(NamedTuple):
    """`returned` is infinite for one without an answer. Times in seconds."""

    kind: str
    value: Hashable
    called: float
    returned: float = inf


Apply = Callable[[Hashable, Operation], list[Hashable]]
"""The rule: (state, operation) -> the state after, alone in a list; none where the answer contradicts the state."""


def register(state: Hashable, one: Operation) -> list[Hashable]:
    """The rule of a value that is written and read."""
    if one.kind == "write":
        return [one.value]
    return [state] if state == one.value else []


def presence(state: Hashable, one: Operation) -> list[Hashable]:
    """The rule of a thing that is created once and deleted once; `state` says whether the thing exists."""
    if one.kind == "read":
        return [state] if state == one.value else []
    return [not state] if state == (one.kind == "delete") else []


def is_linearizable(history: Sequence[Operation], apply: Apply, initial: Hashable) -> bool:
    """Return whether some order explains the history."""
    answered = sum(1 << at for at, one in enumerate(history) if one.returned < inf)
    begin = (0, initial)
    seen = {begin}
    open_ = [begin]
    while open_:
        done, state = open_.pop()
        if done == answered:
            return True
        left = [at for at in range(len(history)) if answered >> at & 1 and not done >> at & 1]
        first_answer = min(history[at].returned for at in left)
        for at, one in enumerate(history):
            if done >> at & 1 or one.called > first_answer:
                continue
            for after in apply(state, one):
                steps = [(done, after)]
                if answered >> at & 1:
                    steps.append((done | 1 << at, after))
                for step in steps:
                    if step not in seen:
                        seen.add(step)
                        open_.append(step)
    return False
