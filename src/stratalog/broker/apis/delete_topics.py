"""DeleteTopics (key 20), versions 1-6.

v1 throttle time. v3 an error of its own where deletion is disabled. v4 flexible. v5 error messages. v6 topic ids.
"""

from typing import Final
from uuid import UUID

from stratalog.broker.api import Api, Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import Deleted
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_DISABLED: Final = ErrorCode.topic_deletion_disabled
_DISABLED_FROM: Final = 3


async def handle(call: Call[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    """Delete by name or id; each topic has its own error."""
    body = call.body
    both: list[DeleteTopicState] = []  # a name and an id: which of them is meant?
    wanted: list[str | UUID]
    if call.version >= 6:
        both = [
            topic for topic in body.topics if topic.name is not None and topic.topic_id != ZERO_ID
        ]
        wanted = [
            topic.name if topic.name is not None else topic.topic_id
            for topic in body.topics
            if topic not in both
        ]
    else:
        wanted = list(body.topic_names)
    try:
        if not call.broker.config.bool("delete.topic.enable"):
            code = _DISABLED if call.version >= _DISABLED_FROM else ErrorCode.invalid_request
            raise Rejected(code, "delete.topic.enable is false")
        deleted_topics = await call.broker.delete_topics(wanted)
    except Rejected as error:
        deleted_topics = [_refused(topic, error) for topic in wanted]
    deleted_topics += [
        Deleted(topic.name, topic.topic_id, ErrorCode.invalid_request, "a name and an id")
        for topic in both
    ]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=deleted.name,
                topic_id=deleted.topic_id,
                error_code=deleted.error,
                error_message=deleted.message,
            )
            for deleted in deleted_topics
        ]
    )


def _refused(topic: str | UUID, error: Rejected) -> Deleted:
    if isinstance(topic, UUID):
        return Deleted(topic_id=topic, error=error.code, message=error.message)
    return Deleted(name=topic, error=error.code, message=error.message)


API = Api("DeleteTopics", 20, (1, 6), handle)
