"""Find the first offsets of a read, and the records in fetched bytes.

In: a topic, the words of `--from`, fetched bytes. Out: partitions, offsets, records. It never prints.
"""

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from stratalog.client.aio import Client
    from stratalog.client.calls import TopicInfo
    from stratalog.client.reader import Reader
    from stratalog.wire.ids import TopicPartition
    from stratalog.wire.records import Record


def records_from(
    data: memoryview, start: int, aborted: "Sequence[tuple[int, int]]" = ()
) -> "Iterator[tuple[int, Record | None]]":
    """Yield (next offset, record) for each record from `start` on; the record is None where only the offset moves.

    Records of `aborted` transactions, as a Fetch answer lists them, are skipped. Raises Corrupt for a damaged batch.
    """
    from stratalog.wire.finding import records_in

    return records_in(data, start, aborted)


async def existing_topic(client: "Client", name: str) -> "TopicInfo":
    """Return a topic's metadata; raise UserError where there is no such topic, Rejected where the broker refuses."""
    from stratalog.errors import ErrorCode, Rejected, UserError

    topic = (await client.metadata([name])).topics[name]
    if topic.error == ErrorCode.unknown_topic_or_partition:
        raise UserError(
            f"topic {name} does not exist; list topics: strata topic list; create it: strata topic create {name}"
        )
    if topic.error is ErrorCode.invalid_topic_exception:
        from stratalog.quorum.topics import check_topic_name

        check_topic_name(
            name
        )  # raises Rejected with the rule, which Metadata's answer does not have
    if topic.error != ErrorCode.none:
        raise Rejected(topic.error, f"topic {name}: {topic.error.name}")
    return topic


async def chosen_partitions(client: "Client", topic: str, wanted: list[int] | None) -> list[int]:
    """Return the partitions to read; raises UserError for a topic or partition that is not there."""
    from stratalog.errors import UserError

    existing = sorted((await existing_topic(client, topic)).partitions)
    for index in wanted or ():
        if index not in existing:
            raise UserError(f"topic {topic} has no partition {index}; it has {len(existing)}")
    return sorted(set(wanted)) if wanted else existing


async def first_offsets(
    client: "Client", topic: str, partitions: list[int], start: str, *, option: str = "--from"
) -> dict[int, int]:
    """Return the offset that `start` means in each partition of a topic; see `offsets_at`."""
    from stratalog.wire.ids import TopicPartition

    keys = [TopicPartition(topic, index) for index in partitions]
    found = await offsets_at(client, keys, start, option=option)
    return {key.partition: offset for key, offset in found.items()}


async def offsets_at(
    client: "Client",
    keys: "Sequence[TopicPartition]",
    start: str,
    isolation: int = 0,
    *,
    option: str = "--from",
) -> "dict[TopicPartition, int]":
    """Return the offset that `start` means in each partition; the end is the last stable one where `isolation` is 1.

    Raises UserError, which names `option`, for words that are not understood.
    """
    from stratalog.adapters.system import SystemClock
    from stratalog.cli.shared.moments import ACCEPTED, moment_ms
    from stratalog.client.calls import EARLIEST, LATEST
    from stratalog.errors import UserError

    if is_int64(start):
        return dict.fromkeys(keys, int(start))
    words = {"beginning": EARLIEST, "end": LATEST}
    moment = words[start] if start in words else moment_ms(start, SystemClock().now_ms())
    if moment is None:
        raise UserError(
            f"{option}: {start!r} is not accepted; accepted: beginning, end, an offset, {ACCEPTED}"
        )
    listed = await client.list_offsets(dict.fromkeys(keys, moment), isolation=isolation)
    late = [key for key in keys if listed[key].offset < 0]
    ends = {}
    if late:
        ends = await client.list_offsets(dict.fromkeys(late, LATEST), isolation=isolation)
    return {key: (ends[key] if key in ends else listed[key]).offset for key in keys}


def is_int64(text: str) -> bool:
    """Return whether a text is an offset or a time, at most 2**63 - 1."""
    return text.isdecimal() and len(text) <= 19 and int(text) < 1 << 63


async def ranges_of(
    client: "Client", keys: "Iterable[TopicPartition]"
) -> "dict[TopicPartition, tuple[int, int]]":
    """Return the (first offset, end) of each partition; the end is the offset of the next record."""
    from stratalog.client.calls import EARLIEST, LATEST

    wanted = list(keys)
    starts = await client.list_offsets(dict.fromkeys(wanted, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(wanted, LATEST))
    return {key: (starts[key].offset, ends[key].offset) for key in wanted}


@asynccontextmanager
async def ranges_explained(
    client: "Client", reader: "Reader", remedy: str
) -> "AsyncIterator[None]":
    """Turn OFFSET_OUT_OF_RANGE of a reader's polls into a UserError with the partition's range, and `remedy`."""
    from stratalog.errors import ErrorCode, Rejected, UserError

    try:
        yield
    except Rejected as error:
        if error.code is not ErrorCode.offset_out_of_range:
            raise
        outside = [
            f"{key} has offsets {start} to {end}, not {reader.positions[key]}"
            for key, (start, end) in (await ranges_of(client, reader.positions)).items()
            if not start <= reader.positions[key] <= end
        ]
        if not outside:  # the log has grown to the offset since
            raise
        more = f", and {len(outside) - 1} more like it" if len(outside) > 1 else ""
        raise UserError(f"{outside[0]}{more}; {remedy} (OFFSET_OUT_OF_RANGE)") from None
