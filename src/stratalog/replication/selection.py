"""Choose the replica from which a consumer reads: one of its own rack, or else the leader (KIP-392).

In: a leader's view of a partition, the racks of the active brokers, a consumer's rack and offset. Out: a follower, or
None for the leader. It changes nothing.

Kafka: `ReplicaManager.findPreferredReadReplica`, `RackAwareReplicaSelector`.
"""

from collections.abc import Callable

from stratalog.replication.partition import PartitionReplica

__all__ = ["nearest_follower"]


def nearest_follower(
    replica: PartitionReplica, rack_of: Callable[[int], str | None], rack: str, offset: int
) -> int | None:
    """Return the follower in `rack` that has the most records; None where the leader serves.

    `rack_of` returns the rack of an active broker, None for any other. The leader serves its own rack. A follower
    counts while it is in sync and has `offset`: a consumer would stay behind with one that lags.
    """
    if rack_of(replica.node_id) == rack:
        return None
    near = [
        (follower.log_end_offset, follower.caught_up_ms, node_id)
        for node_id, follower in replica.followers.items()
        if node_id in replica.isr
        and follower.log_start_offset <= offset <= follower.log_end_offset
        and rack_of(node_id) == rack
    ]
    return max(near)[2] if near else None
