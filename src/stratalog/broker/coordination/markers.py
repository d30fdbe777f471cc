"""Write the markers that end transactions: into the partitions that this broker leads, or by their leaders.

In: a decided end. Out: every partition of the transaction has its marker. It decides nothing about transactions.

Kafka: `TransactionMarkerChannelManager`, `KafkaApis.handleWriteTxnMarkersRequest`.
"""

import asyncio
from collections.abc import Awaitable, Collection
from typing import Final

import structlog

from stratalog.broker.coordination.broker_peers import BrokerPeers
from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.broker.partitions.hosting import Hosting
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.ports import Clock
from stratalog.wire.batch import BatchHeader, parse_header
from stratalog.wire.ids import TopicPartition
from stratalog.wire.markers import Ended
from stratalog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

_RETRY_S: Final = 0.1
_FENCED: Final = (ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced)
"""A newer producer or coordinator has written to the partition: it needs this marker no more."""
Errors = dict[TopicPartition, ErrorCode]


class Markers:
    """The markers that one broker writes, and those that it has other brokers write."""

    def __init__(
        self,
        cluster: ClusterView,
        hosting: Hosting,
        groups: Groups,
        clock: Clock,
        peers: BrokerPeers,
    ) -> None:
        self._cluster = cluster
        self._hosting = hosting
        self._groups = groups
        self._clock = clock
        self.peers = peers

    async def write_everywhere(self, ended: Ended, partitions: Collection[TopicPartition]) -> None:
        """Return once each partition that still exists has the marker. It tries again until then.

        A leader that does not answer holds up no other one.
        """
        left = set(partitions)
        while left:
            by_leader: dict[int, list[TopicPartition]] = {}
            for one in sorted(left):
                leader = self._leader_of(one)
                if leader is not None:  # else its topic was deleted
                    by_leader.setdefault(leader, []).append(one)
            if len(by_leader) > 1:
                async with asyncio.TaskGroup() as group:
                    for named in by_leader.values():
                        group.create_task(self.write_everywhere(ended, named))
                return
            left = set()
            for leader, named in by_leader.items():
                errors = await self._write_at(leader, ended, named)
                left = {one for one in named if not _is_done(errors.get(one))}
            if left:
                await asyncio.sleep(_RETRY_S)

    def close(self) -> None:
        """Close the connections to other brokers."""
        self.peers.close()

    def _leader_of(self, one: TopicPartition) -> int | None:
        current = self._cluster.current_leader(*one)
        return None if current is None else current.node_id

    async def _write_at(
        self, leader: int, ended: Ended, partitions: Collection[TopicPartition]
    ) -> Errors:
        if leader == self._cluster.node_id:
            return await self.write(ended, partitions)
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=ended.producer_id,
                    producer_epoch=ended.producer_epoch,
                    transaction_result=ended.marker.is_commit,
                    topics=[
                        WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                        for topic, indexes in topics.items()
                    ],
                    coordinator_epoch=ended.marker.coordinator_epoch,
                    transaction_version=ended.version,
                )
            ]
        )
        try:
            response = await self.peers.get(leader).request(request)
        except (Unavailable, Rejected):
            return {}
        return {
            TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
            for marker in response.markers
            for topic in marker.topics
            for one in topic.partitions
        }

    async def write(self, ended: Ended, partitions: Collection[TopicPartition]) -> Errors:
        """Append the marker to partitions that this broker leads; return each one's error once it is committed."""
        wall_ms = self._clock.now_ms()
        batch = ended.batch(wall_ms)
        header = parse_header(batch)
        begun = {
            one: self._begin(ended, one, bytearray(batch), header, wall_ms) for one in partitions
        }
        try:
            return {one: await _outcome(one, work) for one, work in begun.items()}
        except (
            asyncio.CancelledError
        ):  # the client has disconnected: nothing asks for the other outcomes
            for work in begun.values():
                if isinstance(work, asyncio.Future):
                    work.add_done_callback(_retrieved)
            raise

    def _begin(
        self,
        ended: Ended,
        one: TopicPartition,
        batch: bytearray,
        header: BatchHeader,
        wall_ms: int,
    ) -> Awaitable[object] | Rejected | Unavailable:
        try:
            if one.topic == OFFSETS_TOPIC:
                return self._groups.end_transaction(one.partition, ended)
            hosted = self._hosting.get(*one)
            # Waiting for its commit would hold up the next requests of the coordinator's connection.
            hosted.replica.check_min_isr()
            if ended.raises_epoch and hosted.replica.leads:
                hosted.log.producers.check_raised(ended.producer_id, ended.producer_epoch)
            return hosted.commit(memoryview(batch), header, wall_ms, flush=False)
        except (Rejected, Unavailable) as error:
            return error


def _retrieved(work: "asyncio.Future[object]") -> None:
    """Have the loop take a failure for one that was seen."""
    if not work.cancelled():
        work.exception()


async def _outcome(
    one: TopicPartition, work: Awaitable[object] | Rejected | Unavailable
) -> ErrorCode:
    try:
        if isinstance(work, Rejected | Unavailable):
            raise work
        await work
    except Rejected as error:
        return error.code
    except Unavailable as error:
        structlog.get_logger().warning("no marker", partition=str(one), reason=str(error))
        return ErrorCode.kafka_storage_error
    return ErrorCode.none


def _is_done(error: ErrorCode | None) -> bool:
    return error is ErrorCode.none or error in _FENCED
