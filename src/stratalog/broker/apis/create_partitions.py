"""CreatePartitions (key 37), versions 0-3.

v1 the same. v2 flexible. v3 may answer that a quota is exceeded, which this broker has none of (KIP-599).
"""

from stratalog.broker.api import Api, Call
from stratalog.quorum.controller import MorePartitions
from stratalog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


async def handle(call: Call[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    """Give topics more partitions; each topic has its own error. Answered once they are hosted."""
    asked = [
        MorePartitions(
            topic.name,
            topic.count,
            None
            if topic.assignments is None
            else tuple(tuple(one.broker_ids) for one in topic.assignments),
        )
        for topic in call.body.topics
    ]
    results = await call.broker.metadata.create_partitions(
        asked, validate_only=call.body.validate_only
    )
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=one.topic, error_code=one.error, error_message=one.message
            )
            for one in results
        ]
    )


API = Api("CreatePartitions", 37, (0, 3), handle)
