"""DeleteTopics (key 20), versions 1-6.

v1 throttle time. v3 a separate error where deletion is disabled. v4 flexible. v5 error messages; may answer
that a quota is exceeded (KIP-599). v6 topic ids.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.throttling import Mutations, Throttling
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import Deleted
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

_DISABLED: Final = ErrorCode.topic_deletion_disabled
_DISABLED_FROM: Final = 3
_STRICT_FROM: Final = 5
"""The first version that refuses topics beyond the client's quota (KIP-599)."""
_BY_ID_FROM: Final = 6


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    config: BrokerConfig
    local_controller: LocalController
    metadata: ClusterImage
    throttling: Throttling


async def handle(call: Call[DeleteTopicsRequest, Needs]) -> DeleteTopicsResponse:
    """Delete topics by name or id; each has its own error."""
    body = call.body
    deleted_topics: list[Deleted] = []
    both: list[Deleted] = []
    wanted: Sequence[str | UUID] = body.topic_names
    if call.version >= _BY_ID_FROM:
        wanted = []
        async for topic in call.pace.each(body.topics):
            if topic.name is not None and topic.topic_id != ZERO_ID:  # an ambiguous entry
                why = "a name and an id"
                both.append(Deleted(topic.name, topic.topic_id, ErrorCode.invalid_request, why))
            else:
                wanted.append(topic.topic_id if topic.name is None else topic.name)
    is_strict = call.version >= _STRICT_FROM
    mutations = call.needs.throttling.mutations(call.session, is_strict=is_strict)
    ids = call.needs.metadata.image.topic_ids_by_name
    async for part in call.pace.bundles(
        wanted, lambda topic: topic if isinstance(topic, UUID) else ids.get(topic, topic)
    ):
        deleted_topics += await _delete(call, part, mutations)
    deleted_topics += both
    return DeleteTopicsResponse(
        throttle_time_ms=mutations.throttle_ms(),
        responses=[
            DeletableTopicResult(
                name=deleted.name,
                topic_id=deleted.topic_id,
                error_code=deleted.error,
                error_message=deleted.message,
            )
            async for deleted in call.pace.each(deleted_topics)
        ],
    )


async def _delete(
    call: Call[DeleteTopicsRequest, Needs], wanted: Sequence[str | UUID], mutations: Mutations
) -> list[Deleted]:
    try:
        if not call.needs.config.bool("delete.topic.enable"):
            code = _DISABLED if call.version >= _DISABLED_FROM else ErrorCode.invalid_request
            raise Rejected(code, "delete.topic.enable is false")
        denied = {one: error for one in wanted if (error := _denied(call, one)) is not None}
        deleted = list(denied.values())
        if len(denied) < len(wanted):
            deleted += await call.needs.local_controller.delete_topics(
                [one for one in wanted if one not in denied], mutations.charge
            )
        return deleted  # noqa: TRY300 - both parts of the answer
    except Rejected as error:
        return [_refused(topic, error) for topic in wanted]


def _denied(call: Call[DeleteTopicsRequest, Needs], wanted: str | UUID) -> Deleted | None:
    """Return the answer for a topic that the client may not delete, with the name only if the client may know it."""
    if call.authorizer is None or call.allows_cluster(Operation.DELETE):
        return None
    image = call.needs.metadata.image
    found = image.topics_by_id.get(wanted) if isinstance(wanted, UUID) else image.topic(wanted)
    name = wanted if isinstance(wanted, str) else found.name if found is not None else None
    if name is None:
        return None  # the controller does not know the id either
    sees = call.allows(Operation.DESCRIBE, Resource.TOPIC, name)
    if call.allows(Operation.DELETE, Resource.TOPIC, name) and (sees or isinstance(wanted, UUID)):
        return None
    if sees and found is None:
        return None
    error = ErrorCode.topic_authorization_failed
    if isinstance(wanted, UUID):
        return Deleted(name if sees else None, wanted, error)
    return Deleted(name, error=error)


def _refused(topic: str | UUID, error: Rejected) -> Deleted:
    if isinstance(topic, UUID):
        return Deleted(topic_id=topic, error=error.code, message=error.message)
    return Deleted(name=topic, error=error.code, message=error.message)
