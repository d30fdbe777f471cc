"""Ask coordinators about a partition before a transaction's first batch there: have it added, or verify that it is.

In: a partition that this broker leads, a transactional id and its producer. Out: nothing, or the error that the
producer gets. It appends nothing, and decides nothing about transactions.

A batch that comes late, after its transaction's end, would open a transaction that nothing ends (KIP-890). So the
first batch waits for the coordinator's answer. The questions of one turn of the event loop are one request for each
coordinator.

A client of the first protocol has named the partition before: the coordinator verifies that. A marker that comes
meanwhile makes the answer worthless. A client of the second one names none, and the question adds the partition to its
transaction. A marker that comes meanwhile usually ends the transaction before. One that ends this transaction has a
higher epoch, so the log refuses the batch (INVALID_PRODUCER_EPOCH).

Kafka: `AddPartitionsToTxnManager`, `VerificationStateEntry`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from stratalog.broker.coordination.broker_peers import BrokerPeers
from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.transactions import TRANSACTIONS_TOPIC, Transactions
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import Done, Failure
from stratalog.config import BrokerConfig
from stratalog.coordinators.placement import partition_for
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

A = TypeVar("A")
_PASSING: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.network_exception,
        ErrorCode.not_coordinator,
    }
)
"""Errors after which a producer repeats its batch: it gets NOT_ENOUGH_REPLICAS, which every client repeats."""
_ENDING: Final = (ErrorCode.concurrent_transactions,)
"""The producer's transaction before has its last markers on their way: the next one begins in a moment."""
_RETRY_S: Final = 0.02
_TRIES: Final = 6
"""As Kafka's `add.partitions.to.txn.retry.backoff.ms` and `.max.ms`: a producer's own backoff is 100 ms."""
_NOT_IN_IT: Final = (ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state)
_Codes = dict[tuple[str, TopicPartition], ErrorCode]
_Key = tuple[HostedPartition, int, int]
"""Partition, producer id, producer epoch."""


class _Question(NamedTuple):
    """Whether a partition is part of the transaction that a producer has open; `adds`: have it be from now on."""

    transactional_id: str
    producer: tuple[int, int]
    partition: TopicPartition
    answer: asyncio.Future[ErrorCode]
    adds: bool

    @property
    def key(self) -> tuple[str, TopicPartition]:
        return self.transactional_id, self.partition


class _Pending(NamedTuple):
    """A question that is on its way, and how many markers of the producer the log had before; None: markers of this
    transaction have a higher epoch.
    """

    answer: asyncio.Future[ErrorCode]
    markers: int | None


class Verification:
    """The questions of one broker. Create and use it on the event loop."""

    def __init__(
        self,
        cluster: ClusterView,
        transactions: Transactions,
        peers: BrokerPeers,
        config: BrokerConfig,
    ) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._peers = peers
        self.configure(config)
        self._pending: dict[_Key, _Pending] = {}
        self._questions: list[_Question] = []
        self._asking: set[asyncio.Task[None]] = set()

    def configure(self, in_effect: BrokerConfig) -> None:
        """Apply whether to verify at all."""
        self._is_enabled = in_effect.bool("transaction.partition.verification.enable")

    def close(self) -> None:
        """Send no further request; waiting batches get NOT_ENOUGH_REPLICAS."""
        for task in self._asking:
            task.cancel()
        self._peers.close()

    def is_needed(
        self, hosted: HostedPartition, producer: tuple[int, int], *, adds: bool = False
    ) -> bool:
        """Return whether a transactional batch of this producer would be the first of its transaction in this log.

        `adds`: the client has not added the partition itself. No setting switches that question off.
        """
        if not self._is_enabled and not adds:
            return False
        state = hosted.log.producers.get(producer[0])
        return state is None or state.transaction_start < 0 or state.epoch != producer[1]

    def is_answered(
        self, hosted: HostedPartition, transactional_id: str, producer: tuple[int, int]
    ) -> bool:
        """Return whether a batch needs no question: this broker coordinates, and has added the partition.

        False where an earlier batch of the producer waits for its question: batches keep their order.
        """
        if (hosted, *producer) in self._pending:
            return False
        return self._transactions.has_added(transactional_id, producer, hosted.name)

    def submit(  # noqa: PLR0913 - what the client's version allows
        self,
        hosted: HostedPartition,
        transactional_id: str,
        producer: tuple[int, int],
        then: Callable[[], None],
        failed: Done,
        *,
        abortable: bool,
        adds: bool = False,
    ) -> None:
        """Call `then` once the partition is known to be part of the transaction, or `failed` with `Rejected`.

        `adds`: the partition becomes part of it first.

        Neither is called before this returns. Batches of one producer keep their order. `then` may raise Rejected.
        The codes: INVALID_TXN_STATE (TRANSACTION_ABORTABLE where the client knows that: `abortable`),
        INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING; NOT_ENOUGH_REPLICAS where the coordinator has no answer.
        """
        key = (hosted, *producer)
        pending = self._pending.get(key)
        if pending is None:
            answer = self._ask(transactional_id, producer, hosted.name, adds=adds)
            pending = self._pending[key] = _Pending(
                answer, None if adds else _markers(hosted, producer[0])
            )
            # It runs right before the calls below: a batch that comes between them would be out of order.
            answer.add_done_callback(lambda _answer: self._pending.pop(key))
        pending.answer.add_done_callback(
            partial(_go_on, key, pending.markers, then, failed, abortable)
        )

    async def run(
        self,
        hosted: HostedPartition,
        transactional_id: str,
        producer: tuple[int, int],
        then: Callable[[], asyncio.Future[A]],
        *,
        abortable: bool,
        adds: bool = False,
    ) -> A:
        """Call `then` as `submit` does, or at once where no question is needed; return its result."""
        if not self.is_needed(hosted, producer, adds=adds):
            return await then()
        result: asyncio.Future[A] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not result.done():  # else the caller has gone
                then().add_done_callback(ended)

        def ended(work: asyncio.Future[A]) -> None:
            # The caller may have gone: then no other code looks at the error.
            error = work.exception()
            if error is not None:
                failed(error)
            elif not result.done():
                result.set_result(work.result())

        def failed(error: Failure) -> None:
            if not result.done():
                assert error is not None, "a failure has an error"
                result.set_exception(error)

        self.submit(
            hosted, transactional_id, producer, begin, failed, abortable=abortable, adds=adds
        )
        return await result

    def _ask(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partition: TopicPartition,
        *,
        adds: bool,
    ) -> asyncio.Future[ErrorCode]:
        loop = asyncio.get_running_loop()
        if not self._questions:
            loop.call_soon(self._send)
        answer: asyncio.Future[ErrorCode] = loop.create_future()
        self._questions.append(_Question(transactional_id, producer, partition, answer, adds))
        return answer

    def _send(self) -> None:
        questions, self._questions = self._questions, []
        # A request may name an id once: its verifying questions are a request of their own.
        by_coordinator: defaultdict[tuple[int | None, bool], list[_Question]] = defaultdict(list)
        for one in questions:
            by_coordinator[self._coordinator(one.transactional_id), one.adds].append(one)
        for (node_id, _adds), some in by_coordinator.items():
            task = asyncio.create_task(self._ask_at(node_id, some))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def _coordinator(self, transactional_id: str) -> int | None:
        topic = self._cluster.topic(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        index = partition_for(transactional_id, len(topic.partitions))
        return topic.partitions[index].leader

    async def _ask_at(self, node_id: int | None, questions: list[_Question]) -> None:
        codes: _Codes = {}
        left, tries = questions, _TRIES
        try:
            while left and tries:
                codes |= await self._codes(node_id, left)
                left = [one for one in left if one.adds and codes.get(one.key) in _ENDING]
                tries -= 1
                if left and tries:
                    await asyncio.sleep(_RETRY_S)
        finally:
            for one in questions:
                one.answer.set_result(codes.get(one.key, ErrorCode.network_exception))

    async def _codes(self, node_id: int | None, questions: list[_Question]) -> _Codes:
        """Return the coordinator's answers; none for a question that it has not answered."""
        try:
            if node_id is None:
                raise Rejected(ErrorCode.coordinator_not_available, "no broker coordinates")
            if node_id != self._cluster.node_id:
                return await self._remote_answers(node_id, questions)
            async with asyncio.TaskGroup() as group:
                answers = {one.key: group.create_task(self._local_answer(one)) for one in questions}
            return {key: task.result() for key, task in answers.items()}
        except Unavailable:
            return {}
        except Rejected as error:
            return {one.key: error.code for one in questions}

    async def _local_answer(self, one: _Question) -> ErrorCode:
        try:
            if one.adds:
                await self._transactions.add_partitions(
                    one.transactional_id, one.producer, frozenset({one.partition}), implicitly=True
                )
                return ErrorCode.none
            is_part = await self._transactions.verify(
                one.transactional_id, one.producer, one.partition
            )
        except Rejected as error:
            return error.code
        return ErrorCode.none if is_part else ErrorCode.transaction_abortable

    async def _remote_answers(self, node_id: int, questions: list[_Question]) -> _Codes:
        topics: dict[tuple[str, int, int], dict[str, list[int]]] = {}
        for one in questions:
            named = topics.setdefault((one.transactional_id, *one.producer), {})
            named.setdefault(one.partition.topic, []).append(one.partition.partition)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    verify_only=not questions[0].adds,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in named.items()
                    ],
                )
                for (transactional_id, producer_id, epoch), named in topics.items()
            ]
        )
        response = await self._peers.get(node_id).request(request)
        if response.error_code:
            raise Rejected(ErrorCode(response.error_code), "the coordinator refuses to verify")
        return {
            (found.transactional_id, TopicPartition(topic.name, one.partition_index)): ErrorCode(
                one.partition_error_code
            )
            for found in response.results_by_transaction
            for topic in found.topic_results
            for one in topic.results_by_partition
        }


def _go_on(
    key: _Key,
    markers: int | None,
    then: Callable[[], None],
    failed: Done,
    abortable: bool,  # noqa: FBT001 - bound by `submit`
    answer: asyncio.Future[ErrorCode],
) -> None:
    hosted, producer_id, epoch = key
    code = answer.result()
    is_old = markers is not None and _markers(hosted, producer_id) != markers
    if code is ErrorCode.none and is_old:
        code = ErrorCode.transaction_abortable  # the transaction that was asked about has ended
    if code is ErrorCode.transaction_abortable and not abortable:
        code = ErrorCode.invalid_txn_state
    try:
        if code is not ErrorCode.none:
            raise _refusal(code, f"{hosted.name}: producer {producer_id} of epoch {epoch}")
        then()
    except Rejected as error:
        failed(error.with_traceback(None))


def _refusal(code: ErrorCode, what: str) -> Rejected:
    if code in _PASSING:
        return Rejected(ErrorCode.not_enough_replicas, f"{what} is not verified: {code.name}")
    if code is ErrorCode.producer_fenced:
        return Rejected(ErrorCode.invalid_producer_epoch, f"{what} is not the newest one")
    if code in _NOT_IN_IT:
        return Rejected(code, f"{what} has not added the partition to its transaction")
    return Rejected(code, f"{what}: {code.name}")


def _markers(hosted: HostedPartition, producer_id: int) -> int:
    state = hosted.log.producers.get(producer_id)
    return 0 if state is None else state.markers
