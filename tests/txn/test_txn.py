"""Goal: transactions keep what the model says, whatever ends them. Method: runs from seeds (`run.py`), planted bugs.

`python -m tests.txn --seeds 500` runs hundreds, and `--bugs` plants each bug.
"""

from collections import Counter

import pytest
from tests.txn.__main__ import found_after
from tests.txn.bugs import BUGS
from tests.txn.run import check_counts, run_seed


def test_readers_see_what_the_model_allows() -> None:
    counts: Counter[str] = Counter()
    for seed in range(4):
        counts += run_seed(seed)
    check_counts(counts)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert found_after(name, 0, 10) is not None
