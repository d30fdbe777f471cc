"""Rows written once, on a real broker: a batch whose driver or tasks die at any step, with and without KIP-939.

Method: a writer of two tasks and a driver run in this process, and `Died` is raised before or after one step; another
one of the same query then runs the batch again, as Spark does from its checkpoint. A reader of committed records sees
each row once.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.waiting import wait_for

from stratalog import read
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.transactional import begin
from stratalog.errors import UserError
from stratalog.table.decisions import Decisions, Prepared
from stratalog.table.exactly_once import ExactlyOnce, open_ids, queries_of
from stratalog.table.sink import Write, abort_batch, commit_batch, commit_job, prepare_rows
from stratalog.table.sink_options import SinkOptions, parse_sink_options
from stratalog.testing import TemporaryBroker

TASKS = 2
ROWS = 30
NUMBERS = count()
STEPS = ["finish", "begin", "check_open", "decide", "end_decided", "note_ended", "abort_others"]
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.two.phase.commit.enable": "true",
    "transaction.max.timeout.ms": "2000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}


class Died(BaseException):
    """The process of a task or of the driver is gone."""


@pytest.fixture(scope="module", params=["KIP-939", "ordinary"])
def broker(request: pytest.FixtureRequest) -> Iterator[TemporaryBroker]:
    own = SETTINGS if request.param == "KIP-939" else {"transaction.state.log.num.partitions": "2"}
    with TemporaryBroker(own) as made:
        yield made


class Query:
    """A query of a topic of its own; `run` writes and commits a batch as Spark does."""

    def __init__(self, address: str, **options: str) -> None:
        self.topic = f"once-{next(NUMBERS)}"
        self.id = str(uuid4())
        self.address = address
        self.make(AdminClient({"bootstrap.servers": address}))
        self.options = options_of(address, topic=self.topic, **options)

    def make(self, admin: AdminClient) -> None:
        admin.create_topics([NewTopic(self.topic, 3, 1)])[self.topic].result(30)

    def task(
        self, batch: int, task: int, attempt: int = 0, *, writing: int = 0, rows: int = ROWS
    ) -> Prepared | None:
        """Write the task's rows of a batch; return its transaction. `writing` marks the rows."""
        values = [f"{batch}/{task}/{row}/{writing}" for row in range(rows)]
        found = pa.table({"key": values, "value": values}).to_batches(max_chunksize=7)
        guarantee = self.options.exactly_once
        assert guarantee is not None
        write = Write(self.id, batch, 1, task)
        return prepare_rows(found, self.options, guarantee, write, attempt)[1]

    def commit(self, batch: int, prepared: list[Prepared | None]) -> None:
        assert self.options.exactly_once is not None
        known = [one for one in prepared if one is not None]
        commit_batch(self.options, self.options.exactly_once, self.id, batch, known)

    def run(self, batch: int, *, writing: int = 0) -> None:
        self.commit(batch, [self.task(batch, task, writing=writing) for task in range(TASKS)])

    def values(self) -> list[str]:
        """Return what a reader of committed records sees."""
        reader = read(self.topic, bootstrap_servers=self.address, isolation="read_committed")
        return [one.decode() for one in reader.read_all().column("value").to_pylist()]

    def on_client(self, work: Callable[[Client], Awaitable[Any]]) -> Any:
        async def with_client() -> Any:
            async with await Client.connect(TcpNetwork(), self.address) as client:
                return await work(client)

        return asyncio.run(with_client())

    def open(self) -> list[str]:
        return list(self.on_client(lambda client: open_ids(client, f"stratalog-{self.id}-")))


def options_of(address: str, **options: str) -> SinkOptions:
    given = {name.replace("__", "."): text for name, text in options.items()}
    where = {"kafka.bootstrap.servers": address, "deliveryGuarantee": "exactly-once"}
    return parse_sink_options({**where, "kafka.transaction.timeout.ms": "2000", **given})


def rows_of(batch: int, *, writing: int = 0) -> set[str]:
    return {f"{batch}/{task}/{row}/{writing}" for task in range(TASKS) for row in range(ROWS)}


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, step: str, when: str) -> Iterator[None]:
    """Die before or after the first call of a step."""
    real = getattr(ExactlyOnce, step)

    async def died(self: ExactlyOnce, *given: Any) -> Any:
        if when == "after":
            await real(self, *given)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(ExactlyOnce, step, died)
        with pytest.raises(Died):
            yield


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_batch_whose_writer_dies_at_a_step_is_written_once(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    query = Query(broker.address)
    query.run(0)
    with dying(monkeypatch, step, when):
        query.run(1)
    query.run(1, writing=1)
    query.run(2)
    # From its decision on, a batch keeps its first writing.
    early = step in ("finish", "begin", "check_open") or (step, when) == ("decide", "before")
    kept = rows_of(1, writing=1 if early else 0)
    seen = query.values()
    assert Counter(seen) == Counter(rows_of(0) | kept | rows_of(2))
    assert query.open() == []


def test_committed_transactions_of_a_half_ended_batch_stay_and_the_others_follow(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker.address)
    prepared = [query.task(0, task) for task in range(TASKS)]
    real = ExactlyOnce.end_decided

    async def first_only(self: ExactlyOnce, decision: Any) -> list[str]:
        await real(self, replace(decision, transactions=decision.transactions[:1]))
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(ExactlyOnce, "end_decided", first_only)
        with pytest.raises(Died):
            query.commit(0, prepared)
    query.run(0, writing=1)
    assert Counter(query.values()) == Counter(rows_of(0))


def test_attempts_that_lost_are_aborted_with_the_commit(broker: TemporaryBroker) -> None:
    query = Query(broker.address)
    query.task(0, 0, attempt=0, writing=7)
    query.task(0, 9, writing=7)
    winners = [query.task(0, 0, attempt=1), query.task(0, 1)]
    assert len(query.open()) == 4
    query.commit(0, winners)
    assert query.open() == []
    assert Counter(query.values()) == Counter(rows_of(0))


def test_an_attempt_that_begins_after_the_decision_leaves_nothing_open(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculation: the slower copy of a task comes to its first row when the batch is committed."""
    query = Query(broker.address)
    winners = [query.task(0, task) for task in range(TASKS)]
    real = ExactlyOnce.begin

    async def late(self: ExactlyOnce, *given: Any) -> Any:
        assert query.options.exactly_once is not None
        driver = ExactlyOnce(self._client, query.options.exactly_once, query.id)
        await driver.commit(0, [one for one in winners if one is not None])
        return await real(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(ExactlyOnce, "begin", late)
        with pytest.raises(UserError, match=r"batch 0 is decided without .*-0-1: another attempt"):
            query.task(0, 0, attempt=1, writing=7)
    assert query.open() == []
    assert Counter(query.values()) == Counter(rows_of(0))
    query.run(1)
    assert Counter(query.values()) == Counter(rows_of(0) | rows_of(1))


def test_a_task_whose_transaction_was_ended_fails_the_batch(broker: TemporaryBroker) -> None:
    query = Query(broker.address)
    prepared = [query.task(0, task) for task in range(TASKS)]
    query.task(0, 1, writing=7)  # the same attempt's id: another driver of this query
    with pytest.raises(UserError, match=r"batch 0 is not committed: its transaction .*-1-0"):
        query.commit(0, prepared)
    assert query.values() == []
    query.run(0)
    assert Counter(query.values()) == Counter(rows_of(0))


def test_tasks_without_rows_have_no_transaction(broker: TemporaryBroker) -> None:
    query = Query(broker.address)
    assert query.task(0, 0, rows=0) is None
    query.commit(0, [None])
    query.commit(1, [query.task(1, 0, rows=0), query.task(1, 1)])
    assert len(query.values()) == ROWS


def test_a_refused_row_aborts_its_tasks_transaction(broker: TemporaryBroker) -> None:
    query = Query(broker.address)
    guarantee = query.options.exactly_once
    assert guarantee is not None
    rows = pa.table({"value": ["a", "b"], "partition": pa.array([0, 99], pa.int32())}).to_batches()
    with pytest.raises(UserError, match="has no partition 99"):
        prepare_rows(rows, query.options, guarantee, Write(query.id, 0, 1, 0), 0)
    assert query.open() == []


def test_an_aborted_batch_leaves_nothing_open(broker: TemporaryBroker) -> None:
    query = Query(broker.address)
    query.task(0, 0)
    query.task(0, 1)
    assert query.options.exactly_once is not None
    abort_batch(query.options, query.options.exactly_once, query.id)
    assert (query.open(), query.values()) == ([], [])


def test_a_job_is_committed_whole_and_leaves_no_decision(broker: TemporaryBroker) -> None:
    query = Query(broker.address, decisionsTopic="jobs")
    prepared = [one for one in (query.task(0, 0), query.task(0, 1)) if one]
    assert query.options.exactly_once is not None
    assert query.values() == []
    commit_job(query.options, query.options.exactly_once, query.id, prepared)
    assert Counter(query.values()) == Counter(rows_of(0))
    assert query.on_client(lambda client: Decisions(client, "jobs").newest(query.id)) is None


def test_a_reader_of_kafkas_sees_committed_rows_only(broker: TemporaryBroker) -> None:
    query = Query(broker.address)
    query.run(0)
    query.task(1, 0, writing=9)
    settings = {"bootstrap.servers": broker.address, "group.id": query.id, "log_level": 0}
    consumer = Consumer(
        settings | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([query.topic])
        found = consumer.consume(ROWS * TASKS, timeout=30)
        assert {one.value().decode() for one in found} == rows_of(0)
        assert consumer.consume(1, timeout=1) == []
    finally:
        consumer.close()


def lose_one(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide batch 0, commit its first transaction, and abort the second one, as a time-out does."""
    with dying(monkeypatch, "decide", "after"):
        query.run(0)

    async def abort(client: Client) -> None:
        decision = await Decisions(client, "stratalog-decisions").newest(query.id)
        assert decision is not None
        name = decision.id_of(decision.transactions[1])
        await begin(client, name, timeout_ms=1000, two_phase=False)

    query.on_client(abort)


def test_a_half_committed_batch_stops_the_query(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker.address)
    lose_one(query, monkeypatch)
    for _ in range(2):
        with pytest.raises(UserError, match=r"1 of its 2 transactions were aborted.*-1-0 first"):
            query.run(0, writing=1)
    assert set(query.values()) == {row for row in rows_of(0) if row.startswith("0/0/")}


def test_a_query_may_go_on_at_least_once(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker.address, failOnHalfCommitted="false")
    lose_one(query, monkeypatch)
    query.run(0, writing=1)
    query.run(1)
    seen = Counter(query.values())
    twice = Counter(row for row in rows_of(0) if row.startswith("0/0/"))
    assert seen == twice + Counter(rows_of(0, writing=1) | rows_of(1))


def test_ids_of_the_sink_are_recognised() -> None:
    query = "0f8fad5b-d9cb-469f-a165-70867728950e"
    names = [f"my-app-{query}-3-0", f"my-app-{query}-12-1", "billing-1", f"{query}-1-1"]
    assert queries_of(names) == {("my-app", query): names[:2]}


@pytest.mark.parametrize("kip_939", [True, False])
def test_a_decided_batch_outlives_the_time_out_with_kip_939_alone(
    monkeypatch: pytest.MonkeyPatch, *, kip_939: bool
) -> None:
    with TemporaryBroker(SETTINGS | {"transaction.two.phase.commit.enable": kip_939}) as broker:
        query = Query(broker.address)
        with dying(monkeypatch, "decide", "after"):
            query.run(0)
        broker.advance(3_600_000)
        if kip_939:
            query.run(0, writing=1)
            assert Counter(query.values()) == Counter(rows_of(0))
            return
        wait_for(lambda: not query.open(), "the time-out of the transactions")
        with pytest.raises(UserError, match="2 of its 2 transactions were aborted"):
            query.run(0, writing=1)
