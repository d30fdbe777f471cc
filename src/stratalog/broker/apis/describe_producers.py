"""DescribeProducers (key 61), versions 0-0.

From KIP-664.
"""

from typing import NamedTuple

from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.hosting import Hosting
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.producers import ProducerState as Remembered
from stratalog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    hosting: Hosting


async def handle(call: Call[DescribeProducersRequest, Needs]) -> DescribeProducersResponse:
    """Return the idempotent producers that each partition's log remembers, each partition once."""
    rows: dict[str, dict[int, PartitionResponse]] = {}
    async for topic in call.pace.each(call.body.topics):
        by_index = rows.setdefault(topic.name, {})
        async for index in call.pace.each(topic.partition_indexes):
            if index not in by_index:
                by_index[index] = _partition(call, topic.name, index)
    return DescribeProducersResponse(
        topics=[
            TopicResponse(name=name, partitions=list(by_index.values()))
            async for name, by_index in call.pace.each(rows.items())
        ]
    )


def _partition(
    call: Call[DescribeProducersRequest, Needs], topic: str, index: int
) -> PartitionResponse:
    try:
        call.authorize(Operation.READ, Resource.TOPIC, topic)
        hosted = call.needs.hosting.get(topic, index)
        hosted.check_hosted()
        hosted.replica.check_leader()
    except Rejected as error:
        return PartitionResponse(
            partition_index=index,
            error_code=error.code,
            error_message=error.message,
            active_producers=[],
        )
    return PartitionResponse(
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        active_producers=[
            _producer(producer_id, state) for producer_id, state in hosted.log.producers.items()
        ],
    )


def _producer(producer_id: int, state: Remembered) -> ProducerState:
    _first, last_sequence, _base, _last, timestamp = (
        state.batches[-1] if state.batches else (-1, -1, -1, -1, -1)
    )
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=state.epoch,
        last_sequence=last_sequence,
        last_timestamp=timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.transaction_start,
    )
