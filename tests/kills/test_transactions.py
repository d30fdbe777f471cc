"""Goal: transactions survive the kills of their coordinator and of leaders: each is there once, whole, or never.

Method: `transactions.py`, three rounds.
"""

from pathlib import Path

import pytest
from tests.kills.transactions import run

pytestmark = pytest.mark.timeout(300)


def test_transactions_survive_killed_coordinators_and_leaders(tmp_path: Path) -> None:
    outcomes, seconds = run(tmp_path, 3)
    assert len(seconds) == 3
    assert outcomes["committed"] >= 6
    assert outcomes["aborted"]
