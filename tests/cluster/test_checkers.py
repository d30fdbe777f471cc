"""Goal: the checkers of the cluster's runs see a fault, and a failing list of faults is made short."""

from math import inf
from random import Random

import pytest
from tests.cluster.checks import Broken
from tests.cluster.clients import Ledger
from tests.cluster.linear import Operation, is_linearizable, presence, register
from tests.cluster.schedule import Fault, draw, shorter
from tests.cluster.transactions import Transaction, TransactionalProducer, committed_in

from stratalog.wire.markers import Ended, Marker
from stratalog.wire.records import Record, build_batch


@pytest.mark.parametrize(
    ("history", "is_ordered"),
    [
        ([("write", 1, 0, 1), ("read", 1, 2, 3)], True),
        ([("write", 1, 0, 1), ("read", None, 2, 3)], False),
        ([("write", 1, 0, 3), ("read", None, 1, 2)], True),
        ([("write", 1, 0, 1), ("write", 2, 2, 3), ("read", 1, 4, 5)], False),
        ([("write", 1, 0, 5), ("write", 2, 0, 5), ("read", 1, 6, 7)], True),
        ([("write", 1, 0, inf), ("read", None, 1, 2), ("read", 1, 3, 4)], True),
        ([("write", 1, 0, inf), ("read", 1, 1, 2), ("read", None, 3, 4)], False),
        ([("write", 1, 0, 1), ("read", None, -5, 3)], True),
    ],
)
def test_a_register_has_an_order_or_none(history, is_ordered) -> None:
    operations = [Operation(*one) for one in history]
    assert is_linearizable(operations, register, None) is is_ordered


@pytest.mark.parametrize(
    ("history", "is_ordered"),
    [
        ([("create", 0, 1), ("delete", 2, 3), ("create", 4, 5)], True),
        ([("create", 0, 1), ("create", 2, 3)], False),
        ([("delete", 0, 1)], False),
        ([("delete", 0, inf), ("create", 1, 2), ("create", 3, 4)], True),
        ([("create", 0, inf), ("delete", 1, 2)], True),
    ],
)
def test_a_topic_has_an_order_or_none(history, is_ordered) -> None:
    operations = [Operation(kind, None, *times) for kind, *times in history]
    assert is_linearizable(operations, presence, False) is is_ordered


def test_a_list_of_faults_is_made_short() -> None:
    faults = draw(Random(1), 3)
    needed = {faults[3], faults[9]}

    def fails(some: list[Fault]) -> bool:
        return needed <= set(some)

    assert set(shorter(faults, fails)) == needed


def test_the_ledger_sees_a_lost_and_a_moved_record() -> None:
    ledger = Ledger("t", 1)
    ledger.sent |= {b"a", b"b"}
    ledger.note(0, 0, b"a", "acknowledged")
    ledger.check(0, {0: b"a", 1: b"b"})
    with pytest.raises(Broken, match="lost at 0"):
        ledger.check(0, {0: b"b"})
    with pytest.raises(Broken, match="offset 0: b'b' read, b'a' before"):
        ledger.note(0, 0, b"b", "read")


def transactional(producer_id: int, value: bytes) -> bytes:
    record = Record(0, 0, None, value)
    return bytes(
        build_batch([record], producer_id=producer_id, producer_epoch=0, transactional=True)
    )


def test_only_markers_commit_records() -> None:
    data = transactional(1, b"a") + transactional(2, b"b") + transactional(3, b"c")
    for producer, commits in ((1, True), (2, False)):
        data += bytes(Ended(producer, 0, Marker(commits, 0)).batch(0))
    assert committed_in(data) == ([b"a"], {3})


@pytest.mark.parametrize(
    ("outcome", "visible", "problem"),
    [
        ("committed", {0: [b"a"], 1: [b"b"]}, None),
        ("committed", {0: [], 1: []}, "not seen"),
        ("aborted", {0: [b"a"], 1: [b"b"]}, "seen"),
        ("unknown", {0: [b"a"], 1: []}, "in part"),
        ("unknown", {0: [], 1: []}, None),
    ],
)
def test_a_transaction_is_whole_or_absent(outcome, visible, problem) -> None:
    writer = TransactionalProducer.__new__(TransactionalProducer)
    writer.id = "w"
    writer.transactions = [Transaction(1, {0: [b"a"], 1: [b"b"]}, None, outcome)]
    if problem is None:
        writer.check_values(visible)
    else:
        with pytest.raises(Broken, match=problem):
            writer.check_values(visible)
