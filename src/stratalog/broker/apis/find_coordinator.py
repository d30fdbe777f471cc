"""FindCoordinator (key 10), versions 0-6.

v1 key type. v3 flexible. v4 several keys at once (KIP-699). v5 and v6 change nothing for groups. Share coordinators
(2) do not exist yet: their keys get COORDINATOR_NOT_AVAILABLE.
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.broker.coordination.transactions import TRANSACTIONS_TOPIC, Transactions
from stratalog.broker.network.authorizer import CLUSTER_NAME, DENIED, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.placement import partition_for
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP = 0
_TRANSACTION = 1
_SHARE = 2
_KEY_TYPES = (_GROUP, _TRANSACTION, _SHARE)
_DENIED = tuple(DENIED.values())


class _Found(NamedTuple):
    """The coordinator of a key, or the error that says why it has none."""

    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    groups: Groups
    transactions: Transactions


async def handle(call: Call[FindCoordinatorRequest, Needs]) -> FindCoordinatorResponse:
    """Return the broker that coordinates each key; create the coordinators' topic on first use."""
    body = call.body
    if call.version < 4:
        return FindCoordinatorResponse(**(await _found(call, body.key))._asdict())
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, **(await _found(call, key))._asdict())
            async for key in call.pace.each(body.coordinator_keys)
        ]
    )


async def _found(call: Call[FindCoordinatorRequest, Needs], key: str) -> _Found:
    key_type = call.body.key_type
    try:
        _authorize(call, key, key_type)
        return await _coordinator(call, key, key_type)
    except Rejected as refusal:
        error = refusal.code if refusal.code in _DENIED else ErrorCode.coordinator_not_available
        if key_type not in _KEY_TYPES:
            error = ErrorCode.invalid_request
        return _Found(error_code=error, error_message=refusal.message)


def _authorize(call: Call[FindCoordinatorRequest, Needs], key: str, key_type: int) -> None:
    """Raise Rejected if the client may not know the coordinator."""
    if key_type == _GROUP:
        call.authorize(Operation.DESCRIBE, Resource.GROUP, key)
    elif key_type == _TRANSACTION:
        call.authorize(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, key)
    elif key_type == _SHARE:
        call.authorize(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)


async def _coordinator(
    call: Call[FindCoordinatorRequest, Needs], key: str, key_type: int
) -> _Found:
    """Return the leader of the partition that keeps the key's state. Raises Rejected if it has no active leader."""
    needs = call.needs
    if key_type == _GROUP:
        name = OFFSETS_TOPIC
        await needs.groups.ensure_topic()
    elif key_type == _TRANSACTION:
        name = TRANSACTIONS_TOPIC
        await needs.transactions.ensure_topic()
    else:
        raise Rejected(ErrorCode.coordinator_not_available, "no coordinator here keeps such a key")
    topic = needs.cluster.topic(name)
    if topic is None:  # a client deleted the topic right after its creation
        raise Rejected(ErrorCode.coordinator_not_available, f"{name} was deleted")
    index = partition_for(key, len(topic.partitions))
    leader = needs.cluster.standing(topic.id, index, topic.partitions[index]).leader
    for node, host, port, _rack in call.needs.cluster.live_brokers(call.session.listener.name):
        if node == leader:
            return _Found(node, host, port)
    message = f"{name}-{index} has no leader that is active"
    raise Rejected(ErrorCode.coordinator_not_available, message)
