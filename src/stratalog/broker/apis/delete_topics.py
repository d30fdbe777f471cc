"""DeleteTopics (key 20), versions 1-6.

v1 throttle time. v3 an error of its own where deletion is disabled. v4 flexible. v5 error messages. v6 topic ids.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.network.dispatch import Call
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
_BY_ID_FROM: Final = 6


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    config: BrokerConfig
    controller: ControllerChannel
    metadata: ClusterImage


async def handle(call: Call[DeleteTopicsRequest, Needs]) -> DeleteTopicsResponse:
    """Delete by name or id; each topic has its own error."""
    body = call.body
    deleted_topics: list[Deleted] = []
    both: list[Deleted] = []
    wanted: Sequence[str | UUID] = body.topic_names
    if call.version >= _BY_ID_FROM:
        wanted = []
        async for topic in call.pace.each(body.topics):
            if topic.name is not None and topic.topic_id != ZERO_ID:  # which of them is meant?
                why = "a name and an id"
                both.append(Deleted(topic.name, topic.topic_id, ErrorCode.invalid_request, why))
            else:
                wanted.append(topic.topic_id if topic.name is None else topic.name)
    ids = call.needs.metadata.image.topic_ids_by_name
    async for part in call.pace.bundles(
        wanted, lambda topic: topic if isinstance(topic, UUID) else ids.get(topic, topic)
    ):
        deleted_topics += await _delete(call, part)
    deleted_topics += both
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=deleted.name,
                topic_id=deleted.topic_id,
                error_code=deleted.error,
                error_message=deleted.message,
            )
            async for deleted in call.pace.each(deleted_topics)
        ]
    )


async def _delete(
    call: Call[DeleteTopicsRequest, Needs], wanted: Sequence[str | UUID]
) -> list[Deleted]:
    try:
        if not call.needs.config.bool("delete.topic.enable"):
            code = _DISABLED if call.version >= _DISABLED_FROM else ErrorCode.invalid_request
            raise Rejected(code, "delete.topic.enable is false")
        return await call.needs.controller.delete_topics(wanted)
    except Rejected as error:
        return [_refused(topic, error) for topic in wanted]


def _refused(topic: str | UUID, error: Rejected) -> Deleted:
    if isinstance(topic, UUID):
        return Deleted(topic_id=topic, error=error.code, message=error.message)
    return Deleted(name=topic, error=error.code, message=error.message)
