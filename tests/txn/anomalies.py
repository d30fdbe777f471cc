"""The anomalies of Jepsen's Kafka workload, each as a checker with its name, over the history of one run.

In: what clients did: transactions with the records that they sent and read, and how they ended. Out: for each anomaly a
line for each case. It never runs a client.

Definitions: jepsen.tests.kafka. A write cycle (G0) alone is no fault: Kafka lets transactions interleave in a
partition's log. It is counted, not forbidden.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple


class End(Enum):
    """How an operation ended, as far as its client knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class At(NamedTuple):
    """A record that a client sent (`offset` is None without an acknowledgement) or read."""

    partition: int
    offset: int | None
    value: bytes


@dataclass(slots=True)
class Operation:
    """One transaction, or one poll of a reader. `session`: the client's; a new one may begin anywhere in the log."""

    session: str
    sent: list[At] = field(default_factory=list)
    read: list[At] = field(default_factory=list)
    end: End = End.UNKNOWN


History = list[Operation]
Checker = Callable[[History], Iterator[str]]


def aborted_read(history: History) -> Iterator[str]:
    """A value was read, and its transaction was aborted (G1a)."""
    aborted = {at.value for one in history if one.end is End.ABORTED for at in one.sent}
    for one in history:
        for at in one.read:
            if at.value in aborted and not _is_own(one, at):
                yield f"{at.value!r} at {_place(at)}"


def lost_write(history: History) -> Iterator[str]:
    """A committed value was never read, though values behind it in its partition were."""
    seen = {(at.partition, at.value) for at in _all_read(history)}
    last: dict[int, int] = {}
    for at in _all_read(history):
        last[at.partition] = max(last.get(at.partition, -1), at.offset or 0)
    for one in history:
        for at in one.sent if one.end is End.COMMITTED else ():
            is_passed = at.offset is not None and at.offset < last.get(at.partition, -1)
            if is_passed and (at.partition, at.value) not in seen:
                yield f"{at.value!r} at {_place(at)}"


def duplicate(history: History) -> Iterator[str]:
    """A value is at two offsets."""
    places: dict[bytes, set[tuple[int, int | None]]] = defaultdict(set)
    for at in _all_read(history):
        places[at.partition.to_bytes(4) + at.value].add((at.partition, at.offset))
    for value, found in places.items():
        if len(found) > 1:
            yield f"{value[4:]!r} at {sorted(found)}"


def inconsistent_offsets(history: History) -> Iterator[str]:
    """An offset has two values."""
    values: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for one in history:
        for at in (*one.sent, *one.read):
            if at.offset is not None:
                values[at.partition, at.offset].add(at.value)
    for place, found in values.items():
        if len(found) > 1:
            yield f"{place} has {sorted(found)}"


def nonmonotonic_poll(history: History) -> Iterator[str]:
    """A session read an offset after a higher one."""
    for session, found in _by_session(history, lambda one: one.read):
        for before, at in pairwise(found):
            if (at.offset or 0) <= (before.offset or 0):
                yield f"{session} read {_place(at)} after {_place(before)}"


def poll_skip(history: History) -> Iterator[str]:
    """A session read past an offset that has a committed value."""
    known: dict[int, set[int]] = defaultdict(set)
    for at in _all_read(history):
        known[at.partition].add(at.offset or 0)
    for session, found in _by_session(history, lambda one: one.read):
        for before, at in pairwise(found):
            between = range((before.offset or 0) + 1, at.offset or 0)
            for offset in sorted(known[at.partition].intersection(between)):
                yield f"{session} read {_place(at)} after {_place(before)}, and not {offset}"


def nonmonotonic_send(history: History) -> Iterator[str]:
    """A session's later record has a lower offset than an earlier one in the same partition."""
    for session, found in _by_session(history, lambda one: one.sent):
        for before, at in pairwise(one for one in found if one.offset is not None):
            if (at.offset or 0) <= (before.offset or 0):
                yield f"{session} sent {_place(at)} after {_place(before)}"


def information_cycle(history: History) -> Iterator[str]:
    """Transactions read from one another in a circle (G1c)."""
    yield from _cycles(history, _read_from(history))


def write_cycle(history: History) -> Iterator[str]:
    """Transactions are before one another in the order of two partitions (G0). Kafka allows it."""
    order: dict[int, dict[int, int]] = defaultdict(dict)
    for number, one in enumerate(history):
        for at in one.sent if one.end is End.COMMITTED else ():
            if at.offset is not None:
                order[at.partition][at.offset] = number
    edges: dict[int, set[int]] = defaultdict(set)
    for offsets in order.values():
        for (_, before), (_, after) in pairwise(sorted(offsets.items())):
            if before != after:
                edges[before].add(after)
    yield from _cycles(history, edges)


FORBIDDEN: dict[str, Checker] = {
    "aborted read": aborted_read,
    "lost write": lost_write,
    "G1c": information_cycle,
    "duplicate": duplicate,
    "poll skip": poll_skip,
    "nonmonotonic poll": nonmonotonic_poll,
    "nonmonotonic send": nonmonotonic_send,
    "inconsistent offsets": inconsistent_offsets,
}
ALLOWED: dict[str, Checker] = {"G0": write_cycle}


def first_anomaly(history: History) -> str | None:
    """Return a line about the first anomaly that must not be; None without one."""
    for name, checker in FORBIDDEN.items():
        for case in checker(history):
            return f"{name}: {case}"
    return None


def _all_read(history: History) -> Iterator[At]:
    return (at for one in history for at in one.read)


def _is_own(one: Operation, at: At) -> bool:
    return any(sent.value == at.value for sent in one.sent)


def _place(at: At) -> str:
    return f"{at.partition}@{at.offset}"


def _by_session(
    history: History, part: Callable[[Operation], Iterable[At]]
) -> Iterator[tuple[str, list[At]]]:
    """Yield each session's records of one partition, in the order of its operations."""
    found: dict[tuple[str, int], list[At]] = defaultdict(list)
    for one in history:
        for at in part(one):
            found[one.session, at.partition].append(at)
    return ((session, records) for (session, _), records in found.items())


def _read_from(history: History) -> dict[int, set[int]]:
    """Return for each committed operation those that read what it wrote."""
    writer = {
        at.value: number
        for number, one in enumerate(history)
        if one.end is not End.ABORTED
        for at in one.sent
    }
    edges: dict[int, set[int]] = defaultdict(set)
    for number, one in enumerate(history):
        for at in one.read if one.end is not End.ABORTED else ():
            source = writer.get(at.value, number)
            if source != number:
                edges[source].add(number)
    return edges


def _cycles(history: History, edges: dict[int, set[int]]) -> Iterator[str]:
    """Yield one line for each group of operations that reach one another (Kosaraju)."""
    order: list[int] = []
    seen: set[int] = set()
    for start in list(edges):
        _visit(start, edges, seen, order)
    back: dict[int, set[int]] = defaultdict(set)
    for source, targets in edges.items():
        for target in targets:
            back[target].add(source)
    seen.clear()
    for start in reversed(order):
        group: list[int] = []
        _visit(start, back, seen, group)
        if len(group) > 1:
            yield " and ".join(_shown(history[number]) for number in sorted(group)[:3])


def _visit(start: int, edges: dict[int, set[int]], seen: set[int], order: list[int]) -> None:
    """Append what `start` reaches and is not seen yet, each after those that it leads to."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(edges.get(start, ()))))]
    while stack:
        at, rest = stack[-1]
        following = next((one for one in rest if one not in seen), None)
        if following is None:
            order.append(at)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(sorted(edges.get(following, ())))))


def _shown(one: Operation) -> str:
    sent = ", ".join(f"{at.value!r} {_place(at)}" for at in one.sent)
    read = ", ".join(f"{at.value!r} {_place(at)}" for at in one.read)
    return f"{one.session} (sent {sent or 'nothing'}; read {read or 'nothing'})"
