"""Name the current leaders in one Fetch answer, for partitions that this broker does not lead (KIP-951).

In: partitions of an answer. Out: their leaders, and the leaders' addresses. It changes nothing.
"""

from collections.abc import Collection
from typing import Final
from uuid import UUID

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.errors import ErrorCode
from stratalog.wire.messages.fetch import NO_LEADER_ID_AND_EPOCH, LeaderIdAndEpoch, NodeEndpoint

__all__ = ["addresses", "leader_to_name"]

_LEADERS_FROM: Final = 16
"""The first version of Fetch whose response has the leaders' addresses."""
_LED_ELSEWHERE: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


def leader_to_name(
    cluster: ClusterView, version: int, code: ErrorCode, topic: str | UUID, index: int
) -> LeaderIdAndEpoch:
    """Return the current leader of a partition that is refused with `code`; none where it does not matter."""
    if code not in _LED_ELSEWHERE or version < _LEADERS_FROM:
        return NO_LEADER_ID_AND_EPOCH
    leader = cluster.current_leader(topic, index)
    if leader is None:
        return NO_LEADER_ID_AND_EPOCH
    return LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)


def addresses(cluster: ClusterView, listener: str, node_ids: Collection[int]) -> list[NodeEndpoint]:
    """Return the addresses of these brokers, as clients of `listener` reach them."""
    return [
        NodeEndpoint(node_id=node, host=host, port=port, rack=rack)
        for node, host, port, rack in cluster.live_brokers(listener)
        if node in node_ids
    ]
