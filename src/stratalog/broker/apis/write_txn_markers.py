"""WriteTxnMarkers (key 27), versions 1-2.

A transaction's coordinator sends it to the partitions' leaders. v1 flexible. v2 the transaction's version (KIP-1228).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.markers import Errors, Markers
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.broker.slices import slices
from stratalog.errors import ErrorCode
from stratalog.wire.ids import TopicPartition
from stratalog.wire.markers import Ended, Marker
from stratalog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_WRITTEN_AT_ONCE: Final = 100
"""Each marker is a write of its own: so many are begun before another client may get a turn."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    markers: Markers


async def handle(call: Call[WriteTxnMarkersRequest, Needs]) -> WriteTxnMarkersResponse:
    """Append each marker to the partitions that this broker leads; answer once all are committed."""
    return WriteTxnMarkersResponse(
        markers=[await _written(call, one) async for one in call.pace.each(call.body.markers)]
    )


async def _written(
    call: Call[WriteTxnMarkersRequest, Needs], one: WritableTxnMarker
) -> WritableTxnMarkerResult:
    marker = Marker(one.transaction_result, one.coordinator_epoch)
    ended = Ended(one.producer_id, one.producer_epoch, marker, one.transaction_version)
    keys = (
        TopicPartition(topic.name, index)
        for topic in one.topics
        for index in topic.partition_indexes
    )
    named = [key async for key in call.pace.once(keys, lambda key: key)]
    if call.allows_cluster(Operation.CLUSTER_ACTION):
        errors: Errors = {}
        async for part in call.pace.each(slices(named, _WRITTEN_AT_ONCE)):
            errors |= await call.needs.markers.write(ended, part)
    else:
        errors = dict.fromkeys(named, ErrorCode.cluster_authorization_failed)
    return WritableTxnMarkerResult(
        producer_id=one.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index,
                        error_code=errors[TopicPartition(topic.name, index)],
                    )
                    async for index in call.pace.each(topic.partition_indexes)
                ],
            )
            async for topic in call.pace.each(one.topics)
        ],
    )
