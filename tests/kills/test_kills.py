"""Goal: no acknowledged record is lost, moved or repeated, whatever happens to real processes. Method: `rounds.py`.

A few rounds here, thirty with `--all`; `python -m tests.kills --rounds 500` runs more.
"""

import random
from pathlib import Path

import pytest
from tests.compat.tools import kafka_lib
from tests.kills.producers import Librdkafka, Verifiable
from tests.kills.rounds import FAULTS_OF, run

pytestmark = pytest.mark.timeout(300)


def check(place: Path, on: str, rounds: int, nodes: int = 3) -> None:
    """Run rounds, of which the first ones bring each fault in turn."""
    kafka_lib()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    counts = run(place, rounds, seed, [Librdkafka, Verifiable], nodes, on=on)
    first = FAULTS_OF[on][1][:rounds]
    assert all(counts[fault.__name__] >= 1 for fault in first)
    assert sum(counts[fault.__name__] for fault in FAULTS_OF[on][1]) == rounds


@pytest.mark.parametrize(("on", "rounds"), [("processes", 3), ("machines", 2)])
def test_acknowledged_records_survive_each_fault(tmp_path: Path, on: str, rounds: int) -> None:
    check(tmp_path, on, rounds)


@pytest.mark.big
@pytest.mark.serial
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("on", "rounds", "nodes"), [("machines", 30, 3), ("machines", 13, 5), ("proxied", 10, 3)]
)
def test_acknowledged_records_survive_many_faults(
    tmp_path: Path, on: str, rounds: int, nodes: int
) -> None:
    check(tmp_path, on, rounds, nodes)
