"""CreatePartitions (key 37), versions 0-3.

v1 the same. v2 flexible. v3 may answer that a quota is exceeded (KIP-599).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.throttling import Throttling
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import Extended, MorePartitions
from stratalog.quorum.topics import PARTITIONS_PER_REQUEST_MAX
from stratalog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_STRICT_FROM: Final = 3
"""The first version that refuses partitions beyond the client's quota (KIP-599)."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController
    throttling: Throttling


async def handle(call: Call[CreatePartitionsRequest, Needs]) -> CreatePartitionsResponse:
    """Add partitions to topics; each topic has its own error. Answer once the broker hosts the partitions."""
    results: list[Extended] = []
    is_strict = call.version >= _STRICT_FROM
    mutations = call.needs.throttling.mutations(call.session, is_strict=is_strict)
    async for part in call.pace.bundles(call.body.topics, lambda topic: topic.name):
        denied = [topic.name for topic in part if not _may_alter(call, topic.name)]
        code = ErrorCode.topic_authorization_failed
        results += [Extended(name, code) for name in dict.fromkeys(denied)]
        requested = [await _more(call, topic) for topic in part if topic.name not in denied]
        try:
            results += await call.needs.local_controller.create_partitions(
                requested, mutations.charge, validate_only=call.body.validate_only
            )
        except Rejected as error:
            results += [Extended(one.topic, error.code, error.message) for one in requested]
    return CreatePartitionsResponse(
        throttle_time_ms=mutations.throttle_ms(),
        results=[
            CreatePartitionsTopicResult(
                name=one.topic, error_code=one.error, error_message=one.message
            )
            async for one in call.pace.each(results)
        ],
    )


def _may_alter(call: Call[CreatePartitionsRequest, Needs], name: str) -> bool:
    return call.allows(Operation.ALTER, Resource.TOPIC, name)


async def _more(
    call: Call[CreatePartitionsRequest, Needs], topic: CreatePartitionsTopic
) -> MorePartitions:
    if topic.assignments is None:
        return MorePartitions(topic.name, topic.count)
    # The controller refuses too many topics, so it need not see all of them.
    assignments = [
        tuple(one.broker_ids)
        async for one in call.pace.each(topic.assignments[: PARTITIONS_PER_REQUEST_MAX + 1])
    ]
    return MorePartitions(topic.name, topic.count, tuple(assignments))
