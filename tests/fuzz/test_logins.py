"""Hundreds of hostile handshakes and logins: none is served, none holds up another client or leaves memory behind.

`python -m tests.fuzz.logins --attempts 20000` is the long run; this one always uses the same seed.
"""

from pathlib import Path

import pytest
from tests.fuzz.logins import MECHANISMS, attack, target

SEED = 18
ATTEMPTS = 300


@pytest.mark.timeout(600)
def test_no_damaged_handshake_or_login_is_served(tmp_path: Path) -> None:
    with target(tmp_path) as running:
        found = attack(running, SEED, ATTEMPTS)
    assert found.total() == ATTEMPTS
    kinds = {kind.partition(":")[0] for kind in found}
    assert kinds == {"hello", "finish", "data", *MECHANISMS}
