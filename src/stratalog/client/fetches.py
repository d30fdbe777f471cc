"""Fetch, as `Call`s: record batches of one partition, or of several that one broker leads.

In: offsets, sizes, the time to wait. Out: calls in the manner of `calls.py`. It never decodes a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from stratalog.client.calls import READ_UNCOMMITTED, Call, asking, error_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import ZERO_ID, TopicPartition
from stratalog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

OTHER_TOPIC = frozenset(
    {
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Error codes for a topic id that does not, or no longer, belong to the name."""


_NO_SESSION = -1
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class FetchSpan:
    """What to fetch: one partition from `offset`. `max_bytes` is a hint: the first batch comes whole.

    A broker of another `leader_epoch` refuses the fetch (KIP-320); -1 asks for no check.
    """

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int = 1 << 20
    max_wait_ms: int = 500
    min_bytes: int = 1
    isolation: int = READ_UNCOMMITTED
    leader_epoch: int = -1


class FetchedPartition(NamedTuple):
    """The answer for one partition. `records` are whole batches.

    `aborted`: (producer id, first offset) of each aborted transaction among them, for a reader of committed records.
    """

    error_code: int
    high_watermark: int
    records: memoryview
    aborted: Sequence[tuple[int, int]] = ()


def fetch(span: FetchSpan) -> Call[FetchedPartition]:
    """Fetch record batches of one partition. The answer's `error_code` is the partition's."""
    whole = fetch_each([span], span.max_bytes)

    def read(body: FetchResponse) -> FetchedPartition:
        found = whole.read(body).get(TopicPartition(span.topic, span.partition))
        if found is None:
            raise Rejected(
                ErrorCode.unknown_server_error, f"no answer for {span.topic}-{span.partition}"
            )
        return found

    return Call(whole.api_key, whole.build, read, highest=whole.highest)


def fetch_each(
    spans: Sequence[FetchSpan],
    max_bytes: int,
    throttled: Callable[[int], object] = lambda _ms: None,
) -> Call[dict[TopicPartition, FetchedPartition]]:
    """Fetch record batches of partitions that one broker leads, without a fetch session, up to `max_bytes`. The first
    span has the time and the bytes to wait for. Each answer has its own `error_code`.

    `throttled` is called with the time of each answer for which a client quota mutes the connection, in ms.
    """
    first = spans[0]
    by_topic: dict[tuple[str, UUID], list[FetchPartition]] = {}
    for span in spans:
        wanted = FetchPartition(
            partition=span.partition,
            current_leader_epoch=span.leader_epoch,
            fetch_offset=span.offset,
            partition_max_bytes=span.max_bytes,
        )
        by_topic.setdefault((span.topic, span.topic_id), []).append(wanted)
    names = {topic_id: name for name, topic_id in by_topic if topic_id != ZERO_ID}
    request = FetchRequest(
        max_wait_ms=first.max_wait_ms,
        min_bytes=first.min_bytes,
        max_bytes=max_bytes,
        isolation_level=first.isolation,
        session_epoch=_NO_SESSION,
        topics=[
            FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
            for (name, topic_id), partitions in by_topic.items()
        ],
    )

    def read(body: FetchResponse) -> dict[TopicPartition, FetchedPartition]:
        if body.throttle_time_ms:
            throttled(body.throttle_time_ms)
        if body.error_code:
            raise Rejected(error_of(body.error_code), f"fetch of {first.topic}-{first.partition}")
        return {
            TopicPartition(names.get(topic.topic_id, topic.topic), one.partition_index): _fetched(
                one
            )
            for topic in body.responses
            for one in topic.partitions
        }

    # From version 13 on a topic is named by its id alone.
    return asking(request, read, highest=17 if len(names) == len(by_topic) else 12)


def _fetched(found: PartitionData) -> FetchedPartition:
    records = found.records if found.records is not None else _NOTHING
    assert isinstance(records, memoryview), "a response that was read has its records in one piece"
    aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
    return FetchedPartition(found.error_code, found.high_watermark, records, aborted)
