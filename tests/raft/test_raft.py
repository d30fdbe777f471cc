"""Goal: the quorum's properties hold in every run, and the runs are hard enough to break a quorum with a bug.

Method: runs from seeds (`world.py`), each with faults and then healing; some of the planted bugs (`bugs.py`), each with
a seed that finds it. `python -m tests.raft` runs thousands, and `--bugs` plants all.
"""

from collections import Counter

import pytest
from tests.raft import checks
from tests.raft.__main__ import found_after
from tests.raft.bugs import BUGS
from tests.raft.log import Batch, Log
from tests.raft.world import World, check_counts

SEEDS = 120
PART = 40
FOUND_WITH_LIES = 51, 117, 1316, 2473, 4236
"""Seeds in which a node waited for ever for the leader that a damaged answer had named."""
QUICKLY_FOUND = (
    "damaged batches appended",
    "persisted after the answer",
    "watermark from one replica",
    "epoch not raised",
    "fetch before durable",
    "short snapshot",
)


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_the_properties_of_a_quorum_hold_under_faults(first):
    counts: Counter[str] = Counter()
    for seed in range(first, first + PART):
        counts += World(seed).run()
    check_counts(counts)


def test_the_properties_hold_where_nodes_send_damaged_answers():
    counts: Counter[str] = Counter()
    for seed in (*range(PART), *FOUND_WITH_LIES):
        counts += World(seed, lies=True).run()
    assert counts["answers discarded"] > 100, "nothing was tried"


def test_one_seed_is_one_run():
    assert World(7).run() == World(7).run()


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_a_planted_bug_is_found(name):
    assert found_after(name, 0, 20) is not None


def test_there_are_planted_bugs():
    assert len(BUGS) >= 10


def test_a_leader_has_what_earlier_epochs_committed_and_one_that_begins_late_needs_no_more():
    seen = checks.Checks()
    seen.commits(1, 3, 0, [Batch(0, 1, 3, b"one")])
    seen.leads(3, 2, Log())
    with pytest.raises(checks.Broken, match="LeaderCompleteness"):
        seen.leads(2, 4, Log())
