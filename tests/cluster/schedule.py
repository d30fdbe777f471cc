"""The faults of a run as a list, which a seed draws before the run begins.

In: a source of chance. Out: faults, each with its moment, its node and its length. A shorter list runs as well, so a
list that breaks a property can be made shorter.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

FAULTS = 14
AT_MOST_APART_S = 5.0
LONGEST_S = 10.0
KINDS = {
    "kill": 4,
    "loss of power": 4,
    "pause": 3,
    "cut": 3,
    "cut in one direction": 3,
    "bad network": 3,
    "slow disk": 2,
    "stalled disk": 2,
    "slow bucket": 1,
    "full disk": 1,
    "failed directory": 1,
    "clock step": 1,
    "stop": 1,
    "lost election": 1,
    "voter leaves": 1,
    "lost disk": 1,
    "last replica": 2,
    "late proposal": 2,
}
"""The kinds of faults, and how often each is drawn beside the others."""


LATE_ARCHIVER = "late archiver"
"""A story for runs with a bucket (module late_archiver), which comes last: it needs a cluster that is whole."""
LIE = "lies"
"""A node damages some of its answers to other nodes: in runs of that kind (module lying_run)."""
REST_S = 5.0


class Fault(NamedTuple):
    """`choice` is in [0, 1): each kind uses the number for its own decisions."""

    at_s: float
    kind: str
    node: int
    lasts_s: float
    choice: float

    def shown(self) -> str:
        return (
            f"{self.at_s:6.2f} s: {self.kind} of node {self.node}, {self.lasts_s:.2f} s, "
            f"choice {self.choice:.2f}"
        )


def draw(chance: Random, nodes: int) -> list[Fault]:
    """Return the faults of one run, in the order of their moments."""
    faults = []
    at_s = 0.0
    for _ in range(FAULTS):
        at_s += chance.choice((0.0, chance.uniform(0, 1), chance.uniform(0, AT_MOST_APART_S)))
        (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
        lasts_s = chance.choice((chance.uniform(0, 1), chance.uniform(0, LONGEST_S)))
        faults.append(Fault(at_s, kind, chance.randint(1, nodes), lasts_s, chance.random()))
    return faults


def late_archiver(chance: Random, after: Sequence[Fault]) -> Fault:
    """Return the story of a late archiver, which begins once the other faults have ended."""
    end_s = max(one.at_s + one.lasts_s for one in after)
    return Fault(end_s + REST_S, LATE_ARCHIVER, chance.randint(1, 3), 0.0, chance.random())


def shorter(faults: Sequence[Fault], fails: Callable[[list[Fault]], bool]) -> list[Fault]:
    """Return a part of the list that still fails: it leaves out halves, then quarters, and at last single faults."""
    left = list(faults)
    size = len(left) // 2
    while size:
        at = 0
        while at < len(left):
            without = left[:at] + left[at + size :]
            if fails(without):
                left = without
            else:
                at += size
        size //= 2
    return left
