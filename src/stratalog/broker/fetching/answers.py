"""Build the answer to one fetch from what was gathered.

In: a gathering. Out: an encoded answer, of which several fetches may share the topics. It reads no log.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

from stratalog.broker.coordination.led_elsewhere import addresses, leader_to_name
from stratalog.broker.fetching.gathering import Brought, Gathering, Preferred
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.errors import Rejected
from stratalog.ports import Buffer
from stratalog.replication.fetch_sessions import PartitionKey
from stratalog.wire.fetch import EncodedResponse, EncodedTopics, encode_topics
from stratalog.wire.messages.fetch import (
    NO_EPOCH_END_OFFSET,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    PartitionData,
)

__all__ = ["Found", "found", "found_in_slices", "response"]

_Filled = tuple[HostedPartition, int, int]
"""A partition that had records for a fetch: their bytes and their number."""


class Found(NamedTuple):
    """The result of one fetch: each partition's answer, the partitions that had records, and the encoded topics."""

    partitions: list[PartitionData]
    filled: list[_Filled]
    topics: EncodedTopics


def found(gathering: Gathering) -> Found:
    """Return everything gathered so far."""
    filled: list[_Filled] = []
    gathered = zip(gathering.requested, gathering.hosted, gathering.brought, strict=True)
    partitions = [
        _partition(gathering, key, hosted, brought, filled)
        for (key, _), hosted, brought in gathered
    ]
    return Found(partitions, filled, _encoded(gathering, partitions, range(len(partitions))))


async def found_in_slices(gathering: Gathering) -> Found:
    """Return what `found` returns; the thread for large requests encodes it."""
    filled: list[_Filled] = []
    call = gathering.call
    gathered = zip(gathering.requested, gathering.hosted, gathering.brought, strict=True)
    partitions = [
        _partition(gathering, key, hosted, brought, filled)
        async for (key, _), hosted, brought in call.pace.each(gathered)
    ]
    encode = partial(_encoded, gathering, partitions, range(len(partitions)))
    return Found(partitions, filled, await call.needs.large.run(encode))


def response(gathering: Gathering, found: Found, times: int = 1) -> EncodedResponse:
    """Return the answer: everything found, or in an incremental session only the partitions that changed.

    A consumer over its quota receives no partition, and its session stays as it is (KIP-219). `times` consumers get the
    answer, where none has a quota.
    """
    follower = gathering.follower
    throttling = gathering.call.needs.throttling
    if throttling.is_on and follower is None:
        size = sum(size for _, size, _ in found.filled)
        throttle_ms = throttling.fetched(gathering.call.session, size)
        if throttle_ms:
            session_id, _, error = gathering.fetch.pass_over()
            nothing = encode_topics((), gathering.call.version)
            return EncodedResponse(error, session_id, nothing, throttle_ms)
    if follower is not None:
        for hosted, size, _ in found.filled:
            follower.sent(hosted, size)
    else:
        for hosted, size, records in found.filled:
            hosted.metrics.bytes_out += size * times
            hosted.metrics.messages_out += records * times
    now_ms = gathering.call.needs.clock.steady_ms()
    session_id, places, error = gathering.fetch.answer(
        found.partitions, now_ms, gathering.may_pass_over
    )
    topics = found.topics
    if len(places) < len(found.partitions):
        topics = _encoded(gathering, found.partitions, places)
    return EncodedResponse(error, session_id, topics)


def _partition(
    gathering: Gathering,
    key: PartitionKey,
    hosted: HostedPartition | None,
    brought: Brought,
    filled: list[_Filled],
) -> PartitionData:
    """Return the answer for one partition; where records were found, note it in `filled`."""
    if isinstance(brought, Rejected):
        return _refused(gathering, key, brought)
    assert hosted is not None, "a partition that was read is hosted"
    if isinstance(brought, EpochEndOffset):
        return _answer(gathering, hosted, (), brought)
    if isinstance(brought, Preferred):
        return _answer(gathering, hosted, (), preferred=brought.node_id)
    if brought.pieces:
        filled.append((hosted, brought.size, brought.next_offset - brought.first_offset))
    # An encoder asks a large piece for nothing but its length, so one in a file passes as a buffer up to the socket.
    records = cast(Sequence[Buffer], brought.pieces)
    return _answer(gathering, hosted, records, aborted=brought.aborted or ())


def _answer(
    gathering: Gathering,
    hosted: HostedPartition,
    records: Sequence[Buffer],
    diverging: EpochEndOffset = NO_EPOCH_END_OFFSET,
    aborted: Sequence[tuple[int, int]] = (),
    preferred: int = -1,
) -> PartitionData:
    return PartitionData(
        partition_index=hosted.name.partition,
        error_code=0,
        high_watermark=hosted.high_watermark,
        last_stable_offset=hosted.last_stable_offset,
        log_start_offset=hosted.log.log_start_offset,
        diverging_epoch=diverging,
        aborted_transactions=_listed(aborted) if gathering.read_committed else None,
        preferred_read_replica=preferred,
        records=records,
    )


def _listed(aborted: Sequence[tuple[int, int]]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=one, first_offset=at) for one, at in aborted]


def _refused(gathering: Gathering, key: PartitionKey, error: Rejected) -> PartitionData:
    call = gathering.call
    return PartitionData(
        partition_index=key.partition,
        error_code=error.code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        current_leader=leader_to_name(call.needs.cluster, call.version, error.code, *key),
        aborted_transactions=[] if gathering.read_committed else None,
        records=(),
    )


def _encoded(
    gathering: Gathering, found: Sequence[PartitionData], places: Sequence[int]
) -> EncodedTopics:
    call, requested = gathering.call, gathering.requested
    by_topic: dict[UUID | str, list[PartitionData]] = {}
    leaders: set[int] = set()
    for place in places:
        (topic, _), _ = requested[place]
        one = found[place]
        by_topic.setdefault(topic, []).append(one)
        if one.error_code:
            leaders.add(one.current_leader.leader_id)
    topics = [
        FetchableTopicResponse(topic_id=topic, partitions=partitions)
        if isinstance(topic, UUID)
        else FetchableTopicResponse(topic=topic, partitions=partitions)
        for topic, partitions in by_topic.items()
    ]
    listener = call.session.listener.name
    endpoints = addresses(call.needs.cluster, listener, leaders) if leaders else ()
    return encode_topics(topics, call.version, endpoints)
