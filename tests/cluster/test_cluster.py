"""Goal: no acknowledged record is lost or moved, whatever happens to the nodes. Method: runs from seeds (`run.py`).

`python -m tests.cluster` runs hundreds, and `--bugs` plants bugs.
"""

from collections import Counter

import pytest
from tests.cluster.__main__ import found_after
from tests.cluster.run import check_counts, run_seed

FOUND_A_FAULT = 184
"""A node that lost power led with its shorter log: its earlier incarnation had been elected meanwhile."""
SEEDS = (0, 1, 2, 3, FOUND_A_FAULT)
QUICKLY_FOUND = ("acknowledged before the ISR",)


def test_acknowledged_records_stay() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += run_seed(seed)
    check_counts(counts)


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_a_planted_bug_is_found(name: str) -> None:
    assert found_after(name, 0, 10) is not None
