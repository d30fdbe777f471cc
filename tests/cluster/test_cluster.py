"""Goal: no acknowledged record is lost or moved, whatever happens to the nodes. Method: runs from seeds (`run.py`).

`python -m tests.cluster` runs hundreds, and `--bugs` plants bugs.
"""

from collections import Counter

import pytest
from tests.cluster.__main__ import found_after, outcome
from tests.cluster.bugs import BUGS, OF_THE_TIER, planted
from tests.cluster.checks import Broken
from tests.cluster.compacted import NEEDED, NEEDED_WITH_A_BUCKET
from tests.cluster.compacted_run import CompactedRun
from tests.cluster.lax import LaxCompactedRun
from tests.cluster.run import check_counts, run_seed
from tests.cluster.schedule import Fault
from tests.cluster.totals import is_tiered

SEEDS = range(7, 11)
COMPACTED_SEEDS = range(2)
LAX_SEEDS = 2, 5
STORIES = ("last replica", "late proposal", "late archiver")
BUGS_OF_STORIES = (
    ("last replica", "least isr ignored"),
    ("last replica", "elr ignored"),
    ("late proposal", "stale isr"),
    ("late archiver", "archiver not fenced"),
)
QUICKLY_FOUND = ("acknowledged before the isr",)
DEATHS_BESIDE_A_CUT = (
    # The failed directory is of a node without a connection: the controller does not know of the failure.
    pytest.param(
        144,
        [
            Fault(0.43, "stalled disk", node=2, lasts_s=8.1, choice=0.3),
            Fault(3.16, "last replica", node=1, lasts_s=6.0, choice=0.7),
            Fault(4.49, "stalled disk", node=1, lasts_s=3.2, choice=0.5),
        ],
        marks=pytest.mark.big,  # a minute
    ),
    # That node is fenced at the end of the story, and alone eligible.
    (
        232,
        [
            Fault(1.34, "last replica", node=4, lasts_s=0.4, choice=0.5),
            Fault(1.34, "cut in one direction", node=2, lasts_s=7.5, choice=0.9),
            Fault(6.13, "cut in one direction", node=4, lasts_s=10.0, choice=1.0),
            Fault(6.13, "bad network", node=2, lasts_s=9.5, choice=0.4),
        ],
    ),
    # The second node is dead and not fenced when the last one dies: a new controller elects it.
    (235, None),
)


def test_answers_stay_true() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += run_seed(seed)
    check_counts(counts)


def test_answers_stay_true_where_the_history_is_in_a_bucket_that_fails() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += run_seed(seed, tiered=True)
    check_counts(counts)
    assert counts["archived"] > 1000, "too little is in the bucket: nothing was tried"
    assert counts["bucket faults"] > 200


def test_the_last_value_of_each_key_survives_in_a_compacted_topic() -> None:
    counts: Counter[str] = Counter()
    for seed in COMPACTED_SEEDS:
        counts += run_seed(seed, tiered=True, kind=CompactedRun)
    missing = [what for what in (*NEEDED, *NEEDED_WITH_A_BUCKET) if not counts[what]]
    assert not missing, "nothing was tried"


@pytest.mark.parametrize("seed", LAX_SEEDS)
def test_answers_stay_true_on_disks_that_lose_any_change_of_a_directory(seed: int) -> None:
    counts = run_seed(seed, tiered=True, kind=LaxCompactedRun)
    assert counts["loss of power"] > 2, "nothing was tried"


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_a_planted_bug_is_found(name: str) -> None:
    assert found_after(name, 0, 10) is not None


@pytest.mark.parametrize("story", STORIES)
def test_a_story_of_three_nodes_ends_well(story: str) -> None:
    tiered = story == "late archiver"
    assert run_seed(1, [story_of(story)], tiered=tiered)[story] == 1


@pytest.mark.parametrize(("seed", "faults"), DEATHS_BESIDE_A_CUT)
def test_a_story_takes_no_more_replicas_than_kafka_promises(
    seed: int, faults: list[Fault] | None
) -> None:
    run_seed(seed, faults, tiered=is_tiered(seed))


@pytest.mark.parametrize(("story", "bug"), BUGS_OF_STORIES)
def test_a_story_finds_its_bug(story: str, bug: str) -> None:
    with planted(bug):
        tiered = bug in OF_THE_TIER
        found = [outcome(seed, [story_of(story)], tiered=tiered) for seed in (1, 2, 3)]
    assert any(isinstance(one, Broken) for one in found), found


def story_of(kind: str) -> Fault:
    return Fault(2.0, kind, node=1, lasts_s=3.0, choice=0.5)


@pytest.mark.parametrize("name", BUGS)
def test_each_bug_has_its_place_in_the_product(name: str) -> None:
    with planted(name):
        pass
