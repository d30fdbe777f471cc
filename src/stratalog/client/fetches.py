"""Fetch, as `Call`s: record batches of one partition, or of as many as one broker leads.

In: from which offsets, how much, how long to wait. Out: calls in the manner of `calls.py`. It never opens a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stratalog.client.apis import FETCH
from stratalog.client.calls import READ_UNCOMMITTED, Call, error_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.envelope import request
from stratalog.wire.fetch import FetchedPartition
from stratalog.wire.ids import ZERO_ID

OTHER_TOPIC = frozenset(
    {
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""What a broker says of a topic's id that is not, or no longer, its name's."""


@dataclass(frozen=True, slots=True)
class FetchSpan:
    """What to fetch: one partition from `offset`. `max_bytes` is a wish: the first batch comes whole."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int = 1 << 20
    max_wait_ms: int = 500
    min_bytes: int = 1
    isolation: int = READ_UNCOMMITTED


def fetch(span: FetchSpan) -> Call[FetchedPartition]:
    """Record batches of one partition. The answer's `error_code` is the partition's."""
    whole = fetch_each([span], span.max_bytes)

    def read(body: Any) -> FetchedPartition:
        found = whole.read(body).get((span.topic, span.partition))
        if found is None:
            raise Rejected(
                ErrorCode.unknown_server_error, f"no answer for {span.topic}-{span.partition}"
            )
        return found

    return Call(FETCH, whole.build, read, highest=whole.highest)


def fetch_each(
    spans: Sequence[FetchSpan], max_bytes: int
) -> Call[dict[tuple[str, int], FetchedPartition]]:
    """Record batches of partitions that one broker leads, without a fetch session, as long as `max_bytes` last. The
    first span says for how long and how much to wait. Each answer has an `error_code` of its own.
    """
    first = spans[0]
    by_topic: dict[tuple[str, UUID], list[FetchSpan]] = {}
    for span in spans:
        by_topic.setdefault((span.topic, span.topic_id), []).append(span)
    names = {topic_id: name for name, topic_id in by_topic if topic_id != ZERO_ID}

    def build(version: int) -> Any:
        types = request(FETCH, version)
        topics = [
            types.FetchTopic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    types.FetchPartition(
                        partition=span.partition,
                        current_leader_epoch=-1,
                        fetch_offset=span.offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=span.max_bytes,
                    )
                    for span in wanted
                ],
            )
            for (name, topic_id), wanted in by_topic.items()
        ]
        return types.FetchRequest(
            replica_id=-1,
            max_wait=first.max_wait_ms,
            min_bytes=first.min_bytes,
            max_bytes=max_bytes,
            isolation_level=first.isolation,
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=[],
            rack_id="",
        )

    def read(body: Any) -> dict[tuple[str, int], FetchedPartition]:
        if body.error_code:
            raise Rejected(error_of(body.error_code), f"fetch of {first.topic}-{first.partition}")
        return {
            (names.get(topic.topic_id, topic.name), partition.index): partition
            for topic in body.topics
            for partition in topic.partitions
        }

    # From version 13 on a topic is named by its id alone.
    return Call(FETCH, build, read, highest=17 if len(names) == len(by_topic) else 12)
