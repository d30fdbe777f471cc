"""Divide ranges of offsets into tasks of similar size, with one exact seam between bucket and broker.

In: the range to read of each partition, and its live segments in a pinned manifest. Out: tasks, each of one partition
and from one place. It is a pure function: the same input gives the same plan.

The seam: an offset that a live segment of the pinned manifest covers is read from the bucket, any other from the
broker (even if the broker archived it meanwhile and deleted its local copy). Every offset of a range is in exactly
one task. A segment larger than a task is cut by bytes of its data. The task finds the index entries in its cut, so
that planning reads no object: an entry belongs to the cut that has its first byte.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from uuid import UUID

from stratalog.kernels.missing import Missing
from stratalog.tier.bucket.leases import Lease
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.wire.ids import TopicIdPartition

TASK_BYTES = 128 << 20
SMALLEST_TASK_BYTES = 8 << 20
TASKS_WANTED = 8
"""Below TASKS_WANTED * TASK_BYTES tasks get smaller, so that several cores have work."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [first, end) of one partition. `gaps`: offsets may be absent (the topic is compacted)."""

    topic: str
    topic_id: UUID
    partition: int
    first: int
    end: int
    gaps: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    """Time range: records older than the first (epoch ms), or not older than the second, are left out."""
    keys: frozenset[bytes] | None = None
    """Records with another key, or none, are left out; None: no condition."""

    @property
    def bounds_times(self) -> bool:
        """Whether the range excludes some timestamps."""
        return self.since_ms is not None or self.until_ms is not None

    def may_hold(self, min_timestamp: int, max_timestamp: int, *, exact: bool) -> bool:
        """Return whether records with these timestamps may be in the range; `exact`: no record is older than the least.

        Timestamps need not rise with offsets, so only bounds on all records of a span can rule it out.
        """
        if self.since_ms is not None and max_timestamp < self.since_ms:
            return False
        return self.until_ms is None or not exact or min_timestamp < self.until_ms


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a segment object: index entries whose position in the data is in [from_byte, to_byte)."""

    segment: RemoteSegment
    from_byte: int
    to_byte: int


@dataclass(frozen=True, slots=True)
class PlannedLease:
    """The read lease of a query, put at `put_ms` (epoch ms)."""

    lease: Lease
    put_ms: int


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Read consecutive pieces; only offsets of `wanted` count. `lease` keeps the objects meanwhile."""

    wanted: Range
    pieces: tuple[Piece, ...]
    lease: PlannedLease | None = None


@dataclass(frozen=True, slots=True)
class BrokerTask:
    """Fetch `wanted` from the partition's leader."""

    wanted: Range


Task = BucketTask | BrokerTask


@dataclass(frozen=True, slots=True)
class LatestTask:
    """Read the current table of one partition: `parts` are all its tasks, in the order of offsets (`latest.py`)."""

    parts: tuple[Task, ...]

    @property
    def wanted(self) -> Range:
        """The whole range."""
        return replace(self.parts[0].wanted, end=self.parts[-1].wanted.end)


def plan(
    ranges: Sequence[tuple[Range, Sequence[RemoteSegment]]],
    *,
    has_broker: bool,
    min_tasks: int | None,
    max_records: int | None = None,
    ruled_out: Collection[str] = (),
    missing: Callable[[Missing], None] | None = None,
) -> list[Task]:
    """Return tasks for all of `ranges` (with their segments in the order of offsets), in their order; at least about
    `min_tasks`, none of more than `max_records` offsets.

    `ruled_out` are paths of segments that have no requested record: they cover their offsets, and no task reads them.
    `missing` receives offsets that are in no live segment where there is no broker. Without it Missing is raised.
    """

    def opened(part: Range, segments: Sequence[RemoteSegment]) -> list[RemoteSegment]:
        return [one for one in segments if _may_hold(part, one) and one.path not in ruled_out]

    cold: list[tuple[Range, list[RemoteSegment]]] = []
    order: list[tuple[Range, list[RemoteSegment] | None]] = []
    for wanted, live in ranges:
        for cut in _in_parts(wanted, max_records):
            for part, segments in _seam(cut, live):
                if segments is not None:
                    cold.append((part, opened(part, segments)))
                elif not has_broker:
                    name = f"{part.topic}-{part.partition} in the bucket"
                    gap = Missing(name, part.first, part.end)
                    if missing is None:
                        raise gap
                    missing(gap)
                    continue
                order.append((part, segments))
    hot = [part for part, segments in order if segments is None]
    cold_bytes = sum(segment.entry.data_size for _, segments in cold for segment in segments)
    # Ranges cut by offsets are small enough: cutting their segments by bytes, too, would create empty tasks.
    limit = max(1, cold_bytes) if max_records else _task_bytes(cold_bytes, min_tasks, len(hot))
    offsets = sum(part.end - part.first for part in hot)
    tasks: list[Task] = []
    for part, segments in order:
        if segments is None:
            tasks += _hot_tasks(part, offsets, min_tasks)
        else:
            tasks += _cold_tasks(part, opened(part, segments), limit)
    return tasks


def by_partition(tasks: Sequence[Task]) -> list[LatestTask]:
    """Return one task for each partition, of its tasks in the order of offsets."""

    def place(task: Task) -> TopicIdPartition:
        return TopicIdPartition(task.wanted.topic_id, task.wanted.partition)

    return [LatestTask(tuple(parts)) for _, parts in groupby(tasks, place)]


def _may_hold(part: Range, segment: RemoteSegment) -> bool:
    entry = segment.entry
    exact = entry.min_timestamp_exact
    return part.may_hold(entry.min_timestamp, entry.max_timestamp, exact=exact)


def _in_parts(wanted: Range, max_records: int | None) -> Iterator[Range]:
    """Yield equal parts of at most `max_records` offsets."""
    length = wanted.end - wanted.first
    cuts = 1 if max_records is None else max(1, ceil(length / max_records))
    for number in range(cuts):
        first, end = (wanted.first + length * at // cuts for at in (number, number + 1))
        yield _cut(wanted, first, end)


def _seam(
    wanted: Range, live: Sequence[RemoteSegment]
) -> Iterator[tuple[Range, list[RemoteSegment] | None]]:
    """Cut a range into runs of consecutive segments, and parts that no segment covers."""
    cursor = wanted.first
    run: list[RemoteSegment] = []
    begin = cursor
    begins = bisect_left(live, wanted.first, key=lambda one: one.entry.last_offset)
    for segment in live[begins:]:
        if segment.entry.base_offset >= wanted.end:
            break
        first, end = (
            max(cursor, segment.entry.base_offset),
            min(wanted.end, segment.entry.last_offset + 1),
        )
        if first >= end:
            continue
        if first > cursor:
            if run:
                yield _cut(wanted, begin, cursor), run
                run = []
            yield _cut(wanted, cursor, first), None
            begin = first
        run.append(segment)
        cursor = end
    if run:
        yield _cut(wanted, begin, cursor), run
    if cursor < wanted.end:
        yield _cut(wanted, cursor, wanted.end), None


def _cut(wanted: Range, first: int, end: int) -> Range:
    return replace(wanted, first=first, end=end)


def _task_bytes(cold_bytes: int, min_tasks: int | None, hot_tasks: int) -> int:
    fair = max(SMALLEST_TASK_BYTES, min(TASK_BYTES, ceil(cold_bytes / TASKS_WANTED)))
    if min_tasks is not None and min_tasks > hot_tasks:
        fair = min(fair, ceil(cold_bytes / (min_tasks - hot_tasks)))
    return max(1, fair)


def _cold_tasks(part: Range, segments: Sequence[RemoteSegment], limit: int) -> Iterator[BucketTask]:
    """Yield small segments together up to `limit` bytes, large ones cut into equal parts of about `limit`."""
    waiting: list[Piece] = []
    waiting_bytes = 0
    for segment in segments:
        data_size = segment.entry.data_size
        cuts = max(1, round(data_size / limit))  # better one larger task than two halves
        edges = [data_size * number // cuts for number in range(cuts + 1)]
        if waiting and (cuts > 1 or waiting_bytes + data_size > limit):
            yield BucketTask(part, tuple(waiting))
            waiting, waiting_bytes = [], 0
        pieces = [Piece(segment, edges[number], edges[number + 1]) for number in range(cuts)]
        if cuts > 1:
            for piece in pieces:
                yield BucketTask(part, (piece,))
        else:
            waiting += pieces
            waiting_bytes += data_size
    if waiting:
        yield BucketTask(part, tuple(waiting))


def _hot_tasks(part: Range, all_offsets: int, min_tasks: int | None) -> Iterator[BrokerTask]:
    """Yield one task, or more in proportion to the offsets where `min_tasks` asks for them (as Spark's Kafka
    source).
    """
    length = part.end - part.first
    cuts = (
        1
        if min_tasks is None
        else max(1, min(length, round(min_tasks * length / max(1, all_offsets))))
    )
    edges = [part.first + length * number // cuts for number in range(cuts + 1)]
    for number in range(cuts):
        yield BrokerTask(_cut(part, edges[number], edges[number + 1]))
