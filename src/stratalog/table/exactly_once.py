"""Write each row of a query once: transactions of tasks, which one decision commits.

In: a client, the sink's options, the transactions of a batch's tasks. Out: committed transactions, all of a batch or
none; the batch's losing attempts aborted. It never writes a row.

A batch takes these steps, and its writer may die between any two of them:

1. Each task calls `finish`: an earlier decision's transactions are committed before a task begins its own, which aborts
   what is open under its transactional id. A batch that is decided is not written again.
2. Each task calls `begin`, and writes its rows. The transaction stays open: it is prepared. An attempt that is so late
   that its batch is decided meanwhile aborts itself: the driver may have looked for it too early.
3. The driver calls `commit`: it checks that all transactions are open still, writes the decision, commits each
   transaction, writes that they are committed, and aborts what else is open of the query.

Transactional ids are `<prefix>-<query>-<task>-<attempt>`. Where the coordinator has KIP-939, a prepared transaction
stays open until it is ended. Elsewhere its time-out may abort it after the decision.
"""

import re
from asyncio import Semaphore, TaskGroup
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog.client.aio import Client
from stratalog.client.transactional import LOST, Producer, Transaction, begin, end, patiently
from stratalog.client.transactions import describe_transaction, list_transactions
from stratalog.errors import Rejected, UserError
from stratalog.table.decisions import Decision, Decisions, Prepared
from stratalog.wire.ids import TopicPartition

__all__ = ["BATCH_JOB", "ExactlyOnce", "Guarantee", "abort_ids", "open_ids", "queries_of"]

T = TypeVar("T")

BATCH_JOB: Final = 0
"""The only batch of a job that is no stream."""
_OPEN: Final = "Ongoing"
_AT_ONCE: Final = 32
_NOTHING_WRITTEN_MS: Final = 1
"""The time-out of a producer that only fences the one before: no broker refuses it as too long."""
_ID = re.compile(
    r"(?P<prefix>.+)-(?P<query>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})-[0-9]+-[0-9]+"
)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The options of exactly once. `timeout_ms` counts where the coordinator lacks KIP-939."""

    prefix: str
    decisions_topic: str
    timeout_ms: int
    fail_on_half_committed: bool


class ExactlyOnce:
    """The transactions of one query, or of one job."""

    def __init__(self, client: Client, guarantee: Guarantee, query: str) -> None:
        self._client = client
        self._guarantee = guarantee
        self._query = query
        self._decisions = Decisions(client, guarantee.decisions_topic)

    async def finish(self) -> Decision | None:
        """Commit what an earlier driver has decided; return the query's newest decision.

        Raises UserError where a decided transaction was aborted, unless the options ask to write the batch again.
        """
        while True:
            decision = await self._newest()
            if decision is None or decision.is_ended:
                return decision
            lost = await self.end_decided(decision)
            if not lost:
                await self._decisions.write_ended(decision)
                return decision
            if await self._newest() != decision:
                continue  # another task has finished it meanwhile, and begun a transaction under an old id
            if self._guarantee.fail_on_half_committed:
                raise UserError(_half_committed(decision, lost))
            await self._decisions.remove(decision)

    async def begin(self, task: int, attempt: int, batch: int) -> Transaction:
        """Begin a task attempt's transaction of a batch.

        Its first `add` raises UserError where the batch is decided by then: another attempt was quicker.
        """
        transactional_id = f"{self._guarantee.prefix}-{self._query}-{task}-{attempt}"
        timeout_ms = self._guarantee.timeout_ms
        begun = await begin(self._client, transactional_id, timeout_ms=timeout_ms, two_phase=True)
        return _Attempt(self._client, transactional_id, begun.producer, self, batch)

    async def is_decided(self, batch: int) -> bool:
        """Return whether a batch is decided. A job that has ended forgets its decision."""
        decision = await self._newest()
        return decision is not None and decision.batch >= batch

    async def commit(self, batch: int, prepared: Iterable[Prepared]) -> None:
        """Decide a batch and commit its transactions; abort all others of the query.

        A batch that is decided keeps its first writing. Raises UserError where a transaction is no longer open.
        """
        decision = await self.finish()
        wanted = Decision(self._query, batch, self._guarantee.prefix, tuple(prepared))
        if wanted.transactions and (decision is None or decision.batch < batch):
            await self.check_open(wanted)
            await self.decide(wanted)
            lost = await self.end_decided(wanted)
            if lost:
                raise UserError(_half_committed(wanted, lost))
            await self.note_ended(wanted)
        await self.abort_others()

    async def abort(self) -> None:
        """Commit what is decided, and abort what else is open of the query."""
        await self.finish()
        await self.abort_others()

    async def forget(self) -> None:
        """Remove a job's decision, once its transactions are committed."""
        decision = await self._newest()
        if decision is not None and decision.is_ended:
            await self._decisions.remove(decision)

    async def _newest(self) -> Decision | None:
        return await patiently(lambda: self._decisions.newest(self._query))

    # The steps of a commit

    async def check_open(self, wanted: Decision) -> None:
        """Raise UserError unless each transaction is open, by the producer that wrote it."""

        async def check(one: Prepared) -> None:
            name = wanted.id_of(one)
            call = describe_transaction(name)
            found = await patiently(lambda: self._client.on_transaction_coordinator(name, call))
            if found.state == _OPEN and one.producer[:2] == (
                found.producer_id,
                found.producer_epoch,
            ):
                return
            raise UserError(
                f"batch {wanted.batch} is not committed: its transaction {name} is no longer open "
                f"({found.state or 'unknown'}); a time-out (kafka.transaction.timeout.ms is "
                f"{self._guarantee.timeout_ms}) or another driver of the query has ended it. Start the query again: it "
                "writes the batch again"
            )

        await _each(check, wanted.transactions)

    async def decide(self, wanted: Decision) -> None:
        """Write the decision: from here on the batch is committed."""
        await self._decisions.write(wanted)

    async def end_decided(self, decision: Decision) -> list[str]:
        """Commit each transaction of a decision; return the ids of those that were aborted."""
        lost: list[str] = []

        async def commit(one: Prepared) -> None:
            name = decision.id_of(one)
            try:
                await end(self._client, name, one.producer, commit=True)
            except Rejected as error:
                if error.code not in LOST:
                    raise
                lost.append(name)

        await _each(commit, decision.transactions)
        return sorted(lost)

    async def note_ended(self, decision: Decision) -> None:
        """Write that all transactions of a decision are committed."""
        await self._decisions.write_ended(decision)

    async def abort_others(self) -> None:
        """Abort the open transactions of the query, and fence their producers. All that are decided have ended."""
        start = f"{self._guarantee.prefix}-{self._query}-"
        names = await patiently(lambda: open_ids(self._client, start))
        await abort_ids(self._client, names)


class _Attempt(Transaction):
    """A task attempt's transaction.

    Its first partition opens it at the coordinator. A driver that decides the batch later finds it open, and aborts
    it. A driver that has decided before may not, so the attempt itself looks once it is open.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        producer: Producer,
        once: ExactlyOnce,
        batch: int,
    ) -> None:
        super().__init__(client, transactional_id, producer)
        self._once = once
        self._batch = batch

    async def add(self, partition: TopicPartition) -> None:
        is_first = not self.partitions
        await super().add(partition)
        if is_first and await self._once.is_decided(self._batch):
            raise UserError(
                f"batch {self._batch} is decided without {self.transactional_id}: another attempt of the task was "
                "quicker"
            )


async def abort_ids(client: Client, names: Iterable[str]) -> None:
    """Abort the open transactions of transactional ids, and fence their producers."""

    async def fence(name: str) -> None:
        await begin(client, name, timeout_ms=_NOTHING_WRITTEN_MS, two_phase=False)

    await _each(fence, names)


async def open_ids(client: Client, start: str) -> list[str]:
    """Return the transactional ids that begin with `start` and have an open transaction."""
    call = list_transactions(states=[_OPEN], pattern=re.escape(start) + ".*")
    found = {one.transactional_id for some in await client.on_each(call) for one in some}
    return sorted(name for name in found if name.startswith(start))


def queries_of(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Return transactional ids by (prefix, query) of the sink's; other ids are left out."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        parts = _ID.fullmatch(name)
        if parts is not None:
            found.setdefault((parts["prefix"], parts["query"]), []).append(name)
    return found


def _half_committed(decision: Decision, lost: Sequence[str]) -> str:
    return (
        f"batch {decision.batch} of query {decision.query} was decided, but {len(lost)} of its "
        f"{len(decision.transactions)} transactions were aborted before they were committed, {lost[0]} first: their "
        "rows are missing. A cluster without KIP-939 aborts them after kafka.transaction.timeout.ms. To go on, set "
        "failOnHalfCommitted=false: the batch is written again, and the rows of its committed transactions are there "
        "twice"
    )


async def _each(work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Run `work` on each item, on some at once; raise the first failure."""
    limit = Semaphore(_AT_ONCE)

    async def one(item: T) -> None:
        async with limit:
            await work(item)

    try:
        async with TaskGroup() as group:
            for item in items:
                group.create_task(one(item))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
