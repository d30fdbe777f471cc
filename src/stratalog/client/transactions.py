"""Transactions as `Call`s: transactional ids, the producers of partitions, the abort of one transaction.

In: plain arguments. Out: calls in the manner of `calls.py`, whose answers are small dataclasses. It never routes: a
transactional id's calls go to its coordinator, those of partitions to their leaders.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stratalog.client.calls import Call, asking, error_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from stratalog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from stratalog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from stratalog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """A transactional id's last transaction; `started_ms` is epoch ms, -1 before the first one."""

    transactional_id: str
    error: ErrorCode
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition's log remembers; `transaction_start` is -1 without an open transaction.

    `last_timestamp` is epoch ms; `coordinator_epoch` is -1 before the first marker.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int
    transaction_start: int


def list_transactions(
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> Call[list[ListedTransaction]]:
    """Return the transactional ids that one broker coordinates; empty filters and a negative duration: all.

    `pattern`: an expression of RE2 that whole ids match; brokers have it from Apache Kafka 4.1 on.
    """

    def read(body: ListTransactionsResponse) -> list[ListedTransaction]:
        if body.error_code:
            code = error_of(body.error_code)
            raise Rejected(code, f"transactions: {code.name}")
        return [
            ListedTransaction(one.transactional_id, one.producer_id, one.transaction_state)
            for one in body.transaction_states
        ]

    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=pattern,
    )
    return asking(request, read)


def describe_transaction(transactional_id: str) -> Call[DescribedTransaction]:
    """Return the last transaction of an id. Raises Rejected where another broker coordinates the id."""

    def read(body: DescribeTransactionsResponse) -> DescribedTransaction:
        (found,) = body.transaction_states
        error = error_of(found.error_code)
        if error not in (ErrorCode.none, ErrorCode.transactional_id_not_found):
            raise Rejected(error, f"transactional id {transactional_id}: {error.name}")
        return DescribedTransaction(
            transactional_id,
            error,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms,
            frozenset(
                TopicPartition(topic.topic, index)
                for topic in found.topics
                for index in topic.partitions
            ),
        )

    return asking(DescribeTransactionsRequest(transactional_ids=[transactional_id]), read)


def describe_producers(partitions: Iterable[TopicPartition]) -> Call[list[ActiveProducer]]:
    """Return the producers of partitions that one broker leads. Raises Rejected for the first partition it does not."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)

    def read(body: DescribeProducersResponse) -> list[ActiveProducer]:
        found = []
        for topic in body.topics:
            for one in topic.partitions:
                key = TopicPartition(topic.name, one.partition_index)
                if one.error_code:
                    code = error_of(one.error_code)
                    raise Rejected(code, f"{key}: {one.error_message or code.name}")
                found += [_producer(key, state) for state in one.active_producers]
        return found

    request = DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=rows) for name, rows in topics.items()]
    )
    return asking(request, read)


def _producer(key: TopicPartition, state: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        key,
        state.producer_id,
        state.producer_epoch,
        state.coordinator_epoch,
        state.last_timestamp,
        state.current_txn_start_offset,
    )


def abort_transaction(producer: ActiveProducer) -> Call[ErrorCode]:
    """Write the marker that aborts a producer's transaction in one partition, on its leader; return the error.

    A producer that saw no marker yet has no coordinator epoch: 0 is not above any.
    """
    topic, index = producer.partition

    def read(body: WriteTxnMarkersResponse) -> ErrorCode:
        ((found,),) = ([one.partitions for one in marker.topics] for marker in body.markers)
        return error_of(found[0].error_code)

    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
        coordinator_epoch=max(0, producer.coordinator_epoch),
    )
    return asking(WriteTxnMarkersRequest(markers=[marker]), read)
