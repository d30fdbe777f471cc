"""Goal: a node that sends damaged answers ends no other node, and no answer to a client becomes untrue.

Method: runs in which nodes lie (`lying_run.py`), with answers of one API alone and of all. `python -m tests.cluster
--lies` runs hundreds.
"""

from collections import Counter

import pytest
from tests.cluster.__main__ import outcome
from tests.cluster.bugs import planted
from tests.cluster.lying_run import LyingRun
from tests.cluster.run import run_seed
from tests.cluster.schedule import LIE, Fault

from stratalog.wire.apis import APIS

SEEDS, SEED = range(2), 4
KEYS = {api.name: key for key, api in APIS.items()}
GROUPS = {
    "of leaders": ("fetch",),
    "of voters": ("vote",),
    "of voters to a leader": ("begin_quorum_epoch", "end_quorum_epoch"),
    "of the controller to a new broker": (
        "broker_registration",
        "controller_registration",
        "assign_replicas_to_dirs",
        "allocate_producer_ids",
    ),
    "of the controller": ("broker_heartbeat", "alter_partition"),
    "of coordinators and their partitions": ("write_txn_markers", "add_partitions_to_txn"),
}
"""The APIs whose answers nodes of a cluster read. FetchSnapshot, Envelope and ListOffsets have tests of their own."""
LIES_S, ALWAYS, OFTEN = 9.0, 0.9, 0.5
FAULTS = [
    Fault(0.5, "stop", 1, 0.5, 0.5),
    Fault(3.5, "stop", 2, 0.5, 0.5),
    Fault(6.5, "stop", 3, 0.5, 0.5),
]


def lies(choice: float) -> list[Fault]:
    return [Fault(0.0, LIE, node, LIES_S, choice) for node in (1, 2, 3)]


def test_answers_stay_true_where_nodes_lie() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += run_seed(seed, kind=LyingRun)
    assert counts["damaged answers"] > 10, "nothing was tried"


def kind_of(group: str) -> type[LyingRun]:
    class OfThese(LyingRun):
        apis = tuple(KEYS[api] for api in GROUPS[group])

    return OfThese


@pytest.mark.parametrize("group", GROUPS)
def test_answers_of_a_few_apis_are_damaged_again_and_again(group: str) -> None:
    is_rare = group != "of leaders"
    faults = [*lies(ALWAYS if is_rare else OFTEN), *FAULTS]
    counts = run_seed(SEED, faults, kind=kind_of(group))
    missing = [api for api in GROUPS[group] if not counts[f"lies of {api}"]]
    assert not missing, "nothing was tried"


def test_a_follower_that_checks_no_crc_is_found() -> None:
    """Damage in fetched records alone shows it in about half of the seeds; among all lies it is seldom."""
    faults, kind = [*lies(OFTEN), *FAULTS], kind_of("of leaders")
    with planted("damaged batches appended"):
        found = [str(outcome(seed, faults, kind=kind)) for seed in range(SEED, SEED + 4)]
    assert any("replicas differ" in one for one in found)
