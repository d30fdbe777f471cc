"""Goal: a cluster over three racks that loses a rack loses no acknowledged record.

`python -m tests.cluster.racks` does the same with 200 brokers.
"""

import pytest
from tests.cluster.bugs import planted
from tests.cluster.checks import Broken
from tests.cluster.racks import play

BROKERS = 6
PARTITIONS = 12


def test_a_lost_rack_takes_no_acknowledged_record_with_it() -> None:
    found = play(1, BROKERS, PARTITIONS)
    assert found.ledger.acknowledged > 200
    assert len(found.steps) == 5


def test_a_record_that_was_acknowledged_before_the_isr_is_missed() -> None:
    with planted("acknowledged before the isr"), pytest.raises(Broken, match="AckedRecordsSurvive"):
        play(1, BROKERS, PARTITIONS)
