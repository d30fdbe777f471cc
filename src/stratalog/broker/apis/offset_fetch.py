"""OffsetFetch (key 9), versions 1-10.

v1 each partition has the group's error. v2 null topics means all, group-level error. v5 leader epoch. v6 flexible. v7
require stable. v8 several groups at once (KIP-709). v9 member epoch (KIP-848). v10 topic ids instead of names.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import (
    NO_TOPIC_ID,
    FetchedOffset,
    FetchedTopic,
    FetchTopic,
    OffsetFetch,
    OffsetFetchAnswer,
)
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_GROUP_ERROR_FROM = 2
_SEVERAL_FROM = 8
_TOPIC_IDS_FROM = 10


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    groups: Groups


async def handle(call: Call[OffsetFetchRequest, Needs]) -> OffsetFetchResponse:
    """Return each group's committed offsets once; -1 for a partition without one."""
    body = call.body
    if call.version >= _SEVERAL_FROM:
        groups = call.pace.once(body.groups, lambda group: group.group_id)
        return OffsetFetchResponse(groups=[await _group(call, one) async for one in groups])
    error, found = await _fetch(call, body.group_id, body.topics)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=one.index,
                        committed_offset=one.offset,
                        committed_leader_epoch=one.leader_epoch,
                        metadata=one.metadata,
                        error_code=one.error,
                    )
                    async for one in call.pace.each(topic.partitions)
                ],
            )
            async for topic in call.pace.each(found)
        ],
        error_code=error,
    )


async def _group(
    call: Call[OffsetFetchRequest, Needs], group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    """Answer for one of several groups."""
    error, found = await _fetch(call, group.group_id, group.topics)
    if call.version >= _TOPIC_IDS_FROM:
        found = await _by_id(call, found)
    topics = []
    async for topic in call.pace.each(found):
        unknown = call.version >= _TOPIC_IDS_FROM and topic.name == ""
        topics.append(
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=one.index,
                        committed_offset=one.offset,
                        committed_leader_epoch=one.leader_epoch,
                        metadata=one.metadata,
                        error_code=ErrorCode.unknown_topic_id if unknown else one.error,
                    )
                    async for one in call.pace.each(topic.partitions)
                ],
            )
        )
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)


async def _fetch(
    call: Call[OffsetFetchRequest, Needs],
    group: str,
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
) -> tuple[ErrorCode, Sequence[FetchedTopic]]:
    """Return a group's error and its offsets, topics in the order of the request."""
    if topics is None:
        answer = await _ask(call, group, None)
        return answer.error, answer.topics
    pieces: dict[int, list[FetchedTopic]] = {}
    error = ErrorCode.none
    async for share in call.pace.shares(topics, lambda topic: topic.partition_indexes):
        wanted = tuple(_wanted(call, topic, indexes) for _, topic, indexes in share)
        answer = await _ask(call, group, wanted)
        error = answer.error
        if error is not ErrorCode.none and call.version >= _GROUP_ERROR_FROM:
            return error, ()
        for (place, *_), found in zip(share, answer.topics, strict=True):
            pieces.setdefault(place, []).append(found)
    return error, [await _whole(call, found) async for found in call.pace.each(pieces.values())]


async def _whole(
    call: Call[OffsetFetchRequest, Needs], pieces: Sequence[FetchedTopic]
) -> FetchedTopic:
    """Return a topic whose partitions were looked up some hundreds at a time."""
    if len(pieces) == 1:
        return pieces[0]
    every = [one for piece in pieces async for one in call.pace.each(piece.partitions)]
    return replace(pieces[0], partitions=tuple(every))


async def _ask(
    call: Call[OffsetFetchRequest, Needs], group: str, wanted: tuple[FetchTopic, ...] | None
) -> OffsetFetchAnswer:
    """Return the group's offsets of the requested topics, or of all (None) that the client may describe."""
    allowed = wanted and tuple(one for one in wanted if _may_describe(call, one.name))
    request = OffsetFetch(group, allowed, require_stable=call.body.require_stable)
    try:
        call.authorize(Operation.DESCRIBE, Resource.GROUP, group)
        answer = await call.needs.groups.fetch_offsets(request)
    except Rejected as error:
        return OffsetFetchAnswer(group, error.code, _refused(wanted or (), error.code))
    if wanted is None:
        seen = tuple(one for one in answer.topics if call.shows(Resource.TOPIC, one.name))
        return replace(answer, topics=seen)
    if allowed == wanted or answer.error:
        return answer
    answered = iter(answer.topics)
    denied = _refused(wanted, ErrorCode.topic_authorization_failed)
    topics = [next(answered) if _may_describe(call, one.name) else one for one in denied]
    return replace(answer, topics=tuple(topics))


def _may_describe(call: Call[OffsetFetchRequest, Needs], topic: str) -> bool:
    """Return whether the client may see offsets of the topic; "" is a topic id without a topic."""
    return topic == "" or call.allows(Operation.DESCRIBE, Resource.TOPIC, topic)


def _refused(wanted: tuple[FetchTopic, ...], error: ErrorCode) -> tuple[FetchedTopic, ...]:
    """Return each requested partition with `error` and no offset (Kafka: `OffsetFetchResponse.groupError`)."""
    return tuple(
        FetchedTopic(
            topic.name,
            topic.topic_id,
            tuple(FetchedOffset(index, -1, -1, "", error) for index in topic.partitions),
        )
        for topic in wanted
    )


def _wanted(
    call: Call[OffsetFetchRequest, Needs],
    topic: OffsetFetchRequestTopic | OffsetFetchRequestTopics,
    indexes: Sequence[int],
) -> FetchTopic:
    """Return the topic with its id, so that commits for an earlier topic of that name do not count."""
    image = call.needs.cluster.image
    partitions = tuple(indexes)
    if isinstance(topic, OffsetFetchRequestTopics) and call.version >= _TOPIC_IDS_FROM:
        found = image.topics_by_id.get(topic.topic_id)
        return FetchTopic("" if found is None else found.name, partitions, topic.topic_id)
    found = image.topic(topic.name)
    return FetchTopic(topic.name, partitions, NO_TOPIC_ID if found is None else found.id)


async def _by_id(
    call: Call[OffsetFetchRequest, Needs], found: Sequence[FetchedTopic]
) -> list[FetchedTopic]:
    """Return each topic with its id. Unknown requested ids, which have no name, come last."""
    image = call.needs.cluster.image
    topics, unknown = [], []
    async for topic in call.pace.each(found):
        if topic.name == "":
            unknown.append(topic)
            continue
        topic_id = topic.topic_id
        if topic_id == NO_TOPIC_ID:
            topic_id = image.topic_ids_by_name.get(topic.name, NO_TOPIC_ID)
        if topic_id != NO_TOPIC_ID:
            topics.append(replace(topic, topic_id=topic_id))
    return topics + unknown
