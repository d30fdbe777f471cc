"""AddPartitionsToTxn (key 24), versions 0-5.

v2 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH. v3 flexible. v4 several transactions, and verification, for
brokers only (KIP-890): a leader adds the partition to which a client of the second protocol writes. v5 is the same.
A partition that is not part of the transaction is TRANSACTION_ABORTABLE, in v4 as in Apache Kafka 4.3.

All partitions of a transaction are added, or none: the others of a refused request get OPERATION_NOT_ATTEMPTED.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.transactions import Transactions
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_FENCED_FROM: Final = 2
_SEVERAL_FROM: Final = 4
_Request = Call[AddPartitionsToTxnRequest, "Needs"]
_Errors = dict[TopicPartition, ErrorCode]


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    transactions: Transactions


async def handle(call: _Request) -> AddPartitionsToTxnResponse:
    """Add partitions to a client's transaction; add or verify those of several for a broker."""
    body = call.body
    if call.version < _SEVERAL_FROM:
        one = AddPartitionsToTxnTransaction(
            transactional_id=body.v3_and_below_transactional_id,
            producer_id=body.v3_and_below_producer_id,
            producer_epoch=body.v3_and_below_producer_epoch,
            topics=body.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _carry_out(call, one))
    if not call.allows_cluster(Operation.CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.cluster_authorization_failed)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=await _carry_out(call, one)
            )
            async for one in call.pace.each(body.transactions)
        ]
    )


async def _carry_out(
    call: _Request, one: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    keys = (TopicPartition(topic.name, index) for topic in one.topics for index in topic.partitions)
    named = [key async for key in call.pace.each(keys)]
    try:
        errors = await _errors(call, one, named)
    except Rejected as error:
        code = error.code
        if code is ErrorCode.producer_fenced and call.version < _FENCED_FROM:
            code = ErrorCode.invalid_producer_epoch
        errors = dict.fromkeys(named, code)
    return [await _result(call, topic, errors) for topic in one.topics]


async def _errors(
    call: _Request, one: AddPartitionsToTxnTransaction, named: Sequence[TopicPartition]
) -> _Errors:
    if call.version < _SEVERAL_FROM:
        call.authorize(Operation.WRITE, Resource.TRANSACTIONAL_ID, one.transactional_id)
    if not one.transactional_id:
        raise Rejected(ErrorCode.invalid_request, "the transactional id is empty")
    producer = (one.producer_id, one.producer_epoch)
    transactions = call.needs.transactions
    if one.verify_only:
        return {
            key: ErrorCode.none
            if await transactions.verify(one.transactional_id, producer, key)
            else ErrorCode.transaction_abortable
            async for key in call.pace.each(named)
        }
    refused = {
        key: error
        async for key in call.pace.each(named)
        if (error := _refusal(call, key)) is not None
    }
    if refused:
        return dict.fromkeys(named, ErrorCode.operation_not_attempted) | refused
    await transactions.add_partitions(
        one.transactional_id,
        producer,
        frozenset(named),
        implicitly=call.version >= _SEVERAL_FROM,
    )
    return dict.fromkeys(named, ErrorCode.none)


def _refusal(call: _Request, key: TopicPartition) -> ErrorCode | None:
    if call.version < _SEVERAL_FROM and not call.allows(Operation.WRITE, Resource.TOPIC, key.topic):
        return ErrorCode.topic_authorization_failed
    if call.version < _SEVERAL_FROM and key.topic in call.needs.cluster.internal_topics:
        return ErrorCode.invalid_topic_exception
    if call.needs.cluster.current_leader(*key) is None:
        return ErrorCode.unknown_topic_or_partition
    return None


async def _result(
    call: _Request, topic: AddPartitionsToTxnTopic, errors: _Errors
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=index,
                partition_error_code=errors[TopicPartition(topic.name, index)],
            )
            async for index in call.pace.each(topic.partitions)
        ],
    )
