"""Goal: no acknowledged record is lost, moved or repeated, whatever happens to real processes. Method: `rounds.py`.

A few rounds here; `python -m tests.kills --rounds 500` runs more.
"""

import random
from pathlib import Path

import pytest
from tests.compat.tools import kafka_lib
from tests.kills.producers import Librdkafka, Verifiable
from tests.kills.rounds import FAULTS, run

pytestmark = pytest.mark.timeout(300)


def test_acknowledged_records_survive_each_fault(tmp_path: Path) -> None:
    kafka_lib()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    counts = run(tmp_path, 3, seed, [Librdkafka, Verifiable])
    assert [counts[one.__name__] for one in FAULTS[:3]] == [1, 1, 1]
