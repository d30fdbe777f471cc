"""The sink writes each row once on Apache Kafka, which has no KIP-939: a writer that dies, a time-out after a decision.

Method: the steps of a batch that tests/unit/table/test_exactly_once.py tries on our broker, for those between which a
batch is decided.
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.compat.apache_kafka import apache_kafka
from tests.integration.waiting import wait_for
from tests.unit.table.test_exactly_once import Query, dying, lose_one, rows_of

from stratalog.errors import UserError

SETTINGS = {
    "transaction__state__log__num__partitions": "2",
    "transaction__abort__timed__out__transaction__cleanup__interval__ms": "100",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apache_kafka(tmp_path_factory.mktemp("kafka"), **SETTINGS) as found:
        yield found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("step", "when", "writing"),
    [("check_open", "after", 1), ("decide", "after", 0), ("end_decided", "after", 0)],
)
def test_a_batch_whose_writer_dies_is_written_once_on_apache_kafka(
    address: str, monkeypatch: pytest.MonkeyPatch, step: str, when: str, writing: int
) -> None:
    query = Query(address, kafka__transaction__timeout__ms="60000")
    query.run(0)
    with dying(monkeypatch, step, when):
        query.run(1)
    query.run(1, writing=1)
    query.task(2, 5, writing=9)  # an attempt that loses
    query.run(2)
    assert Counter(query.values()) == Counter(rows_of(0) | rows_of(1, writing=writing) | rows_of(2))
    assert query.open() == []


@pytest.mark.timeout(300)
def test_a_batch_that_is_half_aborted_on_apache_kafka_stops_the_query(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(address, kafka__transaction__timeout__ms="60000")
    lose_one(query, monkeypatch)
    with pytest.raises(UserError, match=r"1 of its 2 transactions were aborted.*-1-0 first"):
        query.run(0, writing=1)


@pytest.mark.timeout(300)
def test_a_time_out_before_the_decision_fails_the_batch_on_apache_kafka(address: str) -> None:
    query = Query(address, kafka__transaction__timeout__ms="300")
    prepared = [query.task(0, 0), query.task(0, 1)]
    wait_for(lambda: not query.open(), "the time-outs")
    with pytest.raises(UserError, match=r"batch 0 is not committed.*CompleteAbort"):
        query.commit(0, prepared)
    assert query.values() == []
