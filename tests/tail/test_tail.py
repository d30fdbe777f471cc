"""Goal: `strata tail` reads each line once, in order by log. Method: histories from seeds (`model.py`), planted bugs.

`python -m tests.tail --seeds 10000` runs thousands, and `--bugs` plants each bug.
"""

from collections import Counter

import pytest
from tests.tail.__main__ import found_after
from tests.tail.bugs import BUGS
from tests.tail.model import STEPS, run_seed


def test_each_line_comes_once_in_order_by_log() -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        counts += run_seed(seed)
    assert all(counts[step] for step in STEPS), counts


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert found_after(name, 0, 300) is not None
