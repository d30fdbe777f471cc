"""Secrets of logins are compared in constant time, for right, wrong and unknown users alike.

Method: the broker of this process uses a `hmac.compare_digest` that notes the lengths of what it compares.
"""

import hmac
from contextlib import closing
from typing import Any

import pytest
from tests.compat.test_logins import plain, proven, sent
from tests.integration.test_sasl import Raw

from stratalog.console import logins
from stratalog.console.logins import Logins
from stratalog.testing import TemporaryBroker

WORD = "planted-password"
BYTES = {"PLAIN": 32, "SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
"""Of a password's digest, and of SCRAM's stored key."""
compare = hmac.compare_digest


@pytest.mark.parametrize("mechanism", BYTES)
@pytest.mark.parametrize(
    ("user", "password", "code"),
    [("alice", WORD, 0), ("alice", "x", 58), ("alice", WORD + "x", 58), ("mallory", WORD, 58)],
)
def test_each_login_compares_all_bytes(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, user: str, password: str, code: int
) -> None:
    compared: list[tuple[int, int]] = []

    def noted(one: Any, other: Any) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    with TemporaryBroker(users={"alice": WORD}) as broker, closing(Raw(broker)) as raw:
        monkeypatch.setattr(hmac, "compare_digest", noted)
        if mechanism == "PLAIN":
            codes = sent(raw, mechanism, plain(user, password))
        else:
            codes = proven(raw, mechanism, user, password)
    assert codes[-1] == code
    assert compared[0] == (BYTES[mechanism], BYTES[mechanism])


def test_the_consoles_logins_are_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Logins.read("alice:planted-1\nbob:planted-2\nplanted-token\n", "--logins f")
    count = 0

    def noted(one: Any, other: Any) -> bool:
        nonlocal count
        count += 1
        assert (len(one), len(other)) == (32, 32), "digests: lengths would show in the time"
        return compare(one, other)

    monkeypatch.setattr(logins, "compare_digest", noted)
    for given in ("Basic YWxpY2U6cGxhbnRlZC0x", "Basic eDp5", "Bearer x", ""):
        count = 0
        found.accept(given)
        assert count == 3
