"""Ask a leader for offsets of partitions that this broker follows.

In: a connection to the leader's broker, partitions with their leader epochs. Out: an offset or an error for each. It
changes no log.

Kafka: `RemoteLeaderEndPoint.fetchOffset`.
"""

from collections.abc import Collection, Mapping

from stratalog.client.peer import Peer
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.epochs import NO_OFFSET
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

__all__ = ["ask_offsets", "read_offsets"]


async def ask_offsets(
    peer: Peer, node_id: int, timestamp: int, leader_epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | Rejected]:
    """Return the offset of `timestamp` (negative: EARLIEST, LATEST_TIERED, …) in each partition, -1 for none.

    `node_id` is this broker. A Rejected has the leader's error for that partition. Raises Unavailable, Rejected.
    """
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, index), epoch in leader_epochs.items():
        row = ListOffsetsPartition(
            partition_index=index, current_leader_epoch=epoch, timestamp=timestamp
        )
        topics.setdefault(topic, []).append(row)
    rows = [ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()]

    def read(response: ListOffsetsResponse) -> dict[TopicPartition, int | Rejected]:
        return read_offsets(response, timestamp, leader_epochs)

    return await peer.read(ListOffsetsRequest(replica_id=node_id, topics=rows), read)


def read_offsets(
    response: ListOffsetsResponse, timestamp: int, wanted: Collection[TopicPartition]
) -> dict[TopicPartition, int | Rejected]:
    """Return what the response says. Raises Corrupt where it answers another question."""
    found: dict[TopicPartition, int | Rejected] = {}
    for answered in response.topics:
        for one in answered.partitions:
            error = ErrorCode(one.error_code)
            key = TopicPartition(answered.name, one.partition_index)
            found[key] = (
                one.offset
                if error is ErrorCode.none
                else Rejected(error, f"{key}: timestamp {timestamp}")
            )
            if error is ErrorCode.none and one.offset < NO_OFFSET:
                raise Corrupt(f"{key}: offset {one.offset}")
    if found.keys() != set(wanted):
        raise Corrupt(
            f"offsets of {len(found)} partitions, others than the {len(wanted)} asked for"
        )
    return found
