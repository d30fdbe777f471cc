"""Goal: Porcupine refuses a history without an order, and agrees with our own search on the history of a run."""

from math import inf
from random import Random

import pytest
from tests.cluster.linear import Operation, presence, register
from tests.cluster.registers import HistoryOf
from tests.cluster.run import finished
from tests.cluster.second_opinion import damaged, differ, own_verdicts, program, verdicts

pytestmark = [pytest.mark.big, pytest.mark.timeout(400)]
SEED = 4


def history(name: str, *operations: tuple[str, object, float, float]) -> HistoryOf:
    rule, initial = (presence, False) if name.startswith("topic") else (register, None)
    return HistoryOf(name, rule, initial, [Operation(*one) for one in operations])


def test_porcupine_refuses_planted_histories() -> None:
    histories = [
        history("new value read", ("write", 1, 0, 1), ("read", 1, 2, 3)),
        history("old value read", ("write", 1, 0, 1), ("read", None, 2, 3)),
        history("read during the write", ("write", 1, 0, 3), ("read", None, 1, 2)),
        history("unanswered", ("write", 1, 0, inf), ("read", 1, 1, 2), ("read", None, 3, 4)),
        history("topic created", ("create", None, 0, 1), ("read", True, 2, 3)),
        history("topic created twice", ("create", None, 0, 1), ("create", None, 2, 3)),
    ]
    expected = {
        "new value read": "Ok",
        "old value read": "Illegal",
        "read during the write": "Ok",
        "unanswered": "Illegal",
        "topic created": "Ok",
        "topic created twice": "Illegal",
    }
    assert verdicts(program(), histories) == expected
    assert own_verdicts(histories) == expected


def test_both_judge_the_history_of_a_run_and_refuse_it_with_another_answer() -> None:
    histories = finished(SEED).histories()
    assert sum(len(one.operations) for one in histories) > 30, "too little was asked"
    theirs = verdicts(program(), histories)
    assert set(theirs.values()) == {"Ok"}
    assert not differ(theirs, own_verdicts(histories))
    altered = [damaged(one, Random(one.name)) for one in histories]
    theirs = verdicts(program(), altered)
    assert "Illegal" in theirs.values()
    assert not differ(theirs, own_verdicts(altered))
