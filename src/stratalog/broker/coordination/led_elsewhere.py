"""Name the current leaders in one Fetch answer, for partitions that this broker does not lead (KIP-951).

In: partitions of an answer. Out: their leaders, and the leaders' addresses. It changes nothing.
"""

from typing import Final
from uuid import UUID

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.errors import ErrorCode
from stratalog.wire.messages.fetch import NO_LEADER_ID_AND_EPOCH, LeaderIdAndEpoch, NodeEndpoint

_LEADERS_FROM: Final = 16
"""The first version of Fetch whose response has the leaders' addresses."""
_LED_ELSEWHERE: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


class LedElsewhere:
    """The leaders of one answer, as clients of `listener` reach them."""

    def __init__(self, cluster: ClusterView, listener: str, version: int) -> None:
        self._cluster = cluster
        self._listener = listener
        self._version = version
        self._leaders: set[int] = set()

    def leader_of(self, code: ErrorCode, topic: str | UUID, index: int) -> LeaderIdAndEpoch:
        """Return the current leader of a partition that is refused with this code; none where it does not matter."""
        if code not in _LED_ELSEWHERE or self._version < _LEADERS_FROM:
            return NO_LEADER_ID_AND_EPOCH
        leader = self._cluster.current_leader(topic, index)
        if leader is None:
            return NO_LEADER_ID_AND_EPOCH
        self._leaders.add(leader.node_id)
        return LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)

    def addresses(self) -> list[NodeEndpoint]:
        """Return the addresses of all leaders that `leader_of` returned."""
        if not self._leaders:
            return []
        return [
            NodeEndpoint(node_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in self._cluster.live_brokers(self._listener)
            if node in self._leaders
        ]
