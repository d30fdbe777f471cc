"""Run programs over an object store in every order, with every fault, and return how each run ended.

In: programs (generators of `tier.commit.Operation`, restarted as often as needed) and a bucket. Out: every state in
which all programs have ended. It never samples: two orders that reach one state continue as one, so small worlds are
searched completely.

A program's local state is the sequence of results that it received. So a state is: those sequences, the objects, the
requests whose answer was lost and that may still arrive, and the confirmed commits. Sequences and buckets get numbers
in the order of their discovery, so that states are small.

Faults, each spent from a budget: a request times out before it has happened, after it has happened, or happens at any
later moment; a list shows the bucket as it was at the start.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stratalog.errors import Corrupt, Fenced, Unavailable
from stratalog.tier.bucket.commit import Delete, Exists, Get, List, PutAbsent


@dataclass(frozen=True)
class Confirmed:
    """A program yields this when a commit has returned: the version that the program now relies on."""

    version: int
    epoch: int
    write_id: str
    entries: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How a program ended: its value, or the failure's class name."""

    value: Any


class State(NamedTuple):
    """`bucket` and `locals` are the world's numbers; `confirmed` is the set of commits that programs saw succeed."""

    bucket: int
    locals: tuple[int, ...]
    late: tuple[Any, ...] = ()
    confirmed: frozenset[Confirmed] = frozenset()
    faults: int = 0
    stale_lists: int = 0


TIMED_OUT = "timed out"


class World:
    """Every run of `programs` from a bucket of `objects`."""

    def __init__(
        self,
        objects: dict[str, bytes],
        programs: Sequence[Callable[[], Any]],
        *,
        faults: int = 0,
        stale_lists: int = 0,
    ) -> None:
        self.programs = programs
        self.faults = faults
        self.stale_lists = stale_lists
        self.states = 0
        self._buckets: list[frozenset[tuple[str, bytes]]] = []
        self._bucket_numbers: dict[frozenset[tuple[str, bytes]], int] = {}
        self._results: dict[tuple[int, Any], tuple[int, Any]] = {}
        self._histories: list[tuple[int, tuple[Any, ...]]] = []
        self._steps: list[Any] = []
        self._history_numbers: dict[tuple[int, Any], int] = {}
        self._start = self._bucket(frozenset(objects.items()))

    def ends(self) -> Iterator[State]:
        """Yield every state in which all programs have ended and no late request remains."""
        started = tuple(
            self._local((-1, number), number, ()) for number in range(len(self.programs))
        )
        first = State(self._start, started, (), frozenset(), self.faults, self.stale_lists)
        seen = {first}
        stack = [first]
        while stack:
            state = stack.pop()
            self.states += 1
            last = True
            for after in self._following(state):
                last = False
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
            if last:
                yield state

    def value(self, state: State, number: int) -> Any:
        """Return how a program ended."""
        step = self._steps[state.locals[number]]
        assert isinstance(step, Ended)
        return step.value

    def objects(self, state: State) -> dict[str, bytes]:
        """Return the bucket's objects."""
        return dict(self._buckets[state.bucket])

    def _following(self, state: State) -> Iterator[State]:
        for at, operation in enumerate(state.late):
            bucket, _ = self._perform(state.bucket, operation)
            yield state._replace(bucket=bucket, late=state.late[:at] + state.late[at + 1 :])
        for number, local in enumerate(state.locals):
            step = self._steps[local]
            if isinstance(step, Ended):
                continue
            if isinstance(step, Confirmed):
                confirmed = state._replace(confirmed=state.confirmed | {step})
                yield self._resumed(confirmed, number, None)
                continue
            bucket, result = self._perform(state.bucket, step)
            yield self._resumed(state._replace(bucket=bucket), number, result)
            if isinstance(step, List) and state.stale_lists:
                _, stale = self._perform(self._start, step)
                spent = state._replace(stale_lists=state.stale_lists - 1)
                yield self._resumed(spent, number, stale)
            if state.faults:
                spent = state._replace(faults=state.faults - 1)
                yield self._resumed(spent, number, TIMED_OUT)
                if isinstance(step, PutAbsent | Delete):
                    yield self._resumed(spent._replace(bucket=bucket), number, TIMED_OUT)
                    late = tuple(sorted((*state.late, step), key=repr))
                    yield self._resumed(spent._replace(late=late), number, TIMED_OUT)

    def _resumed(self, state: State, number: int, result: Any) -> State:
        before = state.locals[number]
        history = (*self._histories[before][1], result)
        after = self._local((before, result), number, history)
        return state._replace(locals=(*state.locals[:number], after, *state.locals[number + 1 :]))

    def _local(self, key: tuple[int, Any], number: int, history: tuple[Any, ...]) -> int:
        if key not in self._history_numbers:
            self._history_numbers[key] = len(self._histories)
            self._histories.append((number, history))
            self._steps.append(_resume(self.programs[number](), history))
        return self._history_numbers[key]

    def _bucket(self, objects: frozenset[tuple[str, bytes]]) -> int:
        if objects not in self._bucket_numbers:
            self._bucket_numbers[objects] = len(self._buckets)
            self._buckets.append(objects)
        return self._bucket_numbers[objects]

    def _perform(self, bucket: int, operation: Any) -> tuple[int, Any]:
        key = (bucket, operation)
        if key not in self._results:
            objects, result = _perform(self._buckets[bucket], operation)
            self._results[key] = (self._bucket(objects), result)
        return self._results[key]


def _resume(program: Any, history: tuple[Any, ...]) -> Any:
    """Return a program's next operation after these results, or how it ended."""
    try:
        step = next(program)
        for result in history:
            lost = result == TIMED_OUT
            step = program.throw(Unavailable("timed out")) if lost else program.send(result)
    except StopIteration as end:
        return Ended(end.value)
    except (Fenced, Unavailable, Corrupt) as failure:
        return Ended(type(failure).__name__)
    return step


def _perform(objects: frozenset[tuple[str, bytes]], operation: Any) -> tuple[Any, Any]:
    bucket = dict(objects)
    match operation:
        case PutAbsent(path, data):
            if path in bucket:
                return objects, False
            return objects | {(path, data)}, True
        case Get(path):
            return objects, bucket.get(path)
        case Exists(path):
            return objects, path in bucket
        case List(prefix):
            return objects, tuple(sorted(path for path in bucket if path.startswith(prefix)))
        case Delete(paths):
            gone = set(paths)
            return frozenset(item for item in objects if item[0] not in gone), None
    raise AssertionError(operation)
