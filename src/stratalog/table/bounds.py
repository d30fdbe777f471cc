"""Resolve "earliest", JSON and timestamps to offsets, offsets to ranges, and the end of one trigger.

In: a snapshot of the log and options. Out: offsets by topic id and partition. It reads the log only to look up
timestamps.

The rules are Spark's Kafka source's. JSON must name every partition that is read. An offset given by hand must lie in
the log. A timestamp means the first record that is not older. A timestamp past the last record is an error for the
start (or `latest`, where `startingOffsetsByTimestampStrategy` says so), and the end of the log for the end.
"""

from collections.abc import Callable, Mapping
from logging import getLogger
from math import ceil, floor

from stratalog.errors import BadOption, DataLoss
from stratalog.table.log import Extent, Snapshot
from stratalog.table.options import EARLIEST, LATEST, Bound
from stratalog.table.plan import Range
from stratalog.tier.formats.manifest import Manifest
from stratalog.wire.ids import TopicIdPartition

AskTimestamps = Callable[[Mapping[TopicIdPartition, int]], Mapping[TopicIdPartition, int | None]]


def resolve(
    bound: Bound, snapshot: Snapshot, ask: AskTimestamps, option: str, *, late_is_error: bool
) -> dict[TopicIdPartition, int]:
    """Return the offset of `bound` for every partition. Raises BadOption naming `option`."""
    if bound.everywhere is not None:
        return {key: _place(extent, bound.everywhere) for key, extent in snapshot.extents.items()}
    if bound.timestamp is not None or bound.timestamps is not None:
        if bound.timestamps is not None:
            wanted = _by_key(bound.timestamps, snapshot, f"{option}OffsetsByTimestamp")
        else:
            assert bound.timestamp is not None
            wanted = dict.fromkeys(snapshot.extents, bound.timestamp)
        found = ask(wanted)
        for key, offset in found.items():
            if offset is None and late_is_error:
                raise BadOption(
                    f"{_name(snapshot, key)} has no record as young as {wanted[key]}; "
                    "startingOffsetsByTimestampStrategy=latest would begin at the end"
                )
        return {
            key: snapshot.extents[key].end if offset is None else offset
            for key, offset in found.items()
        }
    assert bound.offsets is not None, "a bound means something"
    given = _by_key(bound.offsets, snapshot, f"{option}Offsets")
    return {
        key: _place(snapshot.extents[key], offset) if offset < 0 else offset
        for key, offset in given.items()
    }


def _place(extent: Extent, where: int) -> int:
    assert where in (EARLIEST, LATEST)
    return extent.start if where == EARLIEST else extent.end


def _by_key(
    given: Mapping[str, Mapping[int, int]], snapshot: Snapshot, option: str
) -> dict[TopicIdPartition, int]:
    """Convert values by name and partition to values by key; each partition that is read must have one, and no
    other.
    """
    found: dict[TopicIdPartition, int] = {}
    ids = {topic.name: topic.topic_id for topic in snapshot.topics.values()}
    for name, partitions in given.items():
        for index, value in partitions.items():
            key = TopicIdPartition(ids[name], index) if name in ids else None
            if key is None or key not in snapshot.extents:
                raise BadOption(f"option '{option}' names {name}-{index}, which is not read")
            found[key] = value
    for key in snapshot.extents:
        if key not in found:
            raise BadOption(f"option '{option}' says nothing about {_name(snapshot, key)}")
    return found


def _name(snapshot: Snapshot, key: TopicIdPartition) -> str:
    return f"{snapshot.topics[key[0]].name}-{key[1]}"


def check_order(
    snapshot: Snapshot, first: Mapping[TopicIdPartition, int], end: Mapping[TopicIdPartition, int]
) -> None:
    """Raise BadOption where a partition would end before it begins; a missing offset is data loss instead."""
    for key, extent in snapshot.extents.items():
        if end[key] < first[key] <= extent.end:
            raise BadOption(
                f"{_name(snapshot, key)}: reading would begin at offset {first[key]} and end before it, at {end[key]}"
            )


def ranges(
    snapshot: Snapshot,
    first: Mapping[TopicIdPartition, int],
    end: Mapping[TopicIdPartition, int],
    *,
    fail_on_data_loss: bool,
) -> list[tuple[Range, Manifest | None]]:
    """Return the ranges to read, partition by partition, without empty ones.

    Raises DataLoss where the log lacks an offset of a range.
    """
    found = []
    for key, extent in snapshot.extents.items():
        begin, stop = first[key], end[key]
        topic = snapshot.topics[key[0]]
        if begin < extent.start:
            what = f"{_name(snapshot, key)}: offsets {begin} to {extent.start - 1} are gone"
            lose(f"{what} (the log starts at {extent.start})", fail=fail_on_data_loss)
            begin = extent.start
        if max(begin, stop) > extent.end:
            what = f"{_name(snapshot, key)}: offset {max(begin, stop)} lies behind the log's end {extent.end}"
            lose(what, fail=fail_on_data_loss)
            begin, stop = min(begin, extent.end), min(stop, extent.end)
        if begin < stop:
            was_compacted = extent.manifest is not None and extent.manifest.may_have_gaps
            gaps = topic.gaps or was_compacted
            wanted = Range(topic.name, topic.topic_id, key[1], begin, stop, gaps)
            found.append((wanted, extent.manifest))
    return found


def lose(what: str, *, fail: bool) -> None:
    """Report missing offsets: raise, or log a warning where `failOnDataLoss` is false."""
    if fail:
        raise DataLoss(f"{what}; failOnDataLoss=false reads on without them")
    getLogger("stratalog.spark").warning("%s", what)


def limited(
    first: Mapping[TopicIdPartition, int], end: Mapping[TopicIdPartition, int], max_offsets: int
) -> dict[TopicIdPartition, int]:
    """Return ends after about `max_offsets` offsets in total, divided in proportion to each partition's backlog.

    At least one partition moves, so that a stream with a backlog always advances.
    """
    waiting = {key: end[key] - first[key] for key in end}
    total = sum(waiting.values())
    if total <= max_offsets:
        return dict(end)
    limited_ends = {}
    for key, size in waiting.items():
        share = max_offsets * size / total
        limited_ends[key] = min(end[key], first[key] + (ceil(share) if share < 1 else floor(share)))
    return limited_ends
