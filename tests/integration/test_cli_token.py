"""Delegation tokens by `strata token`, against a real broker: rows, JSON, wrong words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.server_process import strata
from tests.integration.test_cli_json import wrong_keys
from tests.integration.test_delegation_tokens import (
    PLAIN_MODULE,
    SCRAM_MODULE,
    SETTINGS,
    WORD,
)

from stratalog.testing.broker import TemporaryBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker(SETTINGS) as started:
        yield started


class Asking:
    """`strata` with one client's settings."""

    def __init__(self, path: Path, broker: TemporaryBroker, mechanism: str, jaas: str) -> None:
        path.write_text(
            f"bootstrap.servers={broker.address}\nsecurity.protocol=SASL_PLAINTEXT\n"
            f"sasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        )
        self._config = path

    def rows(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.text(*words, "--json"))
        assert wrong_keys(found) == set()
        return found

    def text(self, *words: str, code: int = 0) -> str:
        done = strata("--config", str(self._config), *words)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 and done.stdout else done.stderr


def user(tmp_path: Path, broker: TemporaryBroker, name: str) -> Asking:
    jaas = f'{PLAIN_MODULE} required username="{name}" password="{WORD}";'
    return Asking(tmp_path / f"{name}.properties", broker, "PLAIN", jaas)


def test_a_token_is_created_listed_used_renewed_and_ended(
    tmp_path: Path, broker: TemporaryBroker
) -> None:
    admin, alice = (user(tmp_path, broker, name) for name in ("admin", "alice"))
    (made,) = alice.rows("token", "create", "--renewer", "User:bob", "--lifetime", "2h")
    token, key = made["token"], made.pop("key")
    assert (made["owner"], made["requester"], made["renewers"]) == (
        "User:alice",
        "User:alice",
        ["User:bob"],
    )
    assert alice.rows("token", "list") == [made]
    assert alice.rows("token", "list", "--keys") == [{**made, "key": key}]
    assert key not in alice.text("token", "list")
    assert alice.text("token", "list", "--owner", "User:carol") == "no tokens\n"

    jaas = f'{SCRAM_MODULE} required username="{token}" password="{key}" tokenauth="true";'
    agent = Asking(tmp_path / "agent.properties", broker, "SCRAM-SHA-256", jaas)
    assert agent.rows("cluster", "info")
    assert "not with a token" in agent.text("token", "list", code=2)

    assert f"{token} ends at 20" in alice.text("token", "renew", token, "--for", "1h")
    assert "lack" not in alice.text("token", "expire", token, "--in", "10m")
    create = ("acl", "add", "--principal", "User:bob", "--operation", "create-tokens")
    admin.text(*create, "--user-principal", "User:alice")
    (acl,) = admin.rows("acl", "list", "--user-principal", "User:alice")
    assert (acl["resource"], acl["operation"]) == ("USER", "CREATE_TOKENS")
    (other,) = user(tmp_path, broker, "bob").rows("token", "create", "--owner", "User:alice")
    assert (other["owner"], other["requester"]) == ("User:alice", "User:bob")
    for one in (token, other["token"]):
        assert alice.text("token", "expire", one) == f"token {one} ended\n"
    assert alice.rows("token", "list") == []


def test_wrong_words_are_one_line_with_the_remedy(tmp_path: Path, broker: TemporaryBroker) -> None:
    carol = user(tmp_path, broker, "carol")
    for words, remedy in (
        (("create", "--renewer", "bob"), "accepted: User:NAME"),
        (("create", "--owner", "Group:x"), "accepted: User:NAME"),
        (("create", "--lifetime", "soon"), "--lifetime: 'soon' is no time"),
        (("create", "--lifetime", "0s"), "accepted: 1ms and more"),
        (("renew", "none"), "strata token list"),
        (("expire", "none", "--in", "x"), "--in: 'x' is no time"),
    ):
        said = carol.text("token", *words, code=2)
        assert remedy in said
        assert len(said.splitlines()) == 1
    assert "CREATE_TOKENS" in carol.text("token", "create", "--owner", "User:alice", code=2)
    erin, admin = user(tmp_path, broker, "erin"), user(tmp_path, broker, "admin")
    (made,) = erin.rows("token", "create")
    said = admin.text("token", "renew", made["token"], code=2)
    assert "only the token's owner and its renewers may change it" in said
    jaas = f'{SCRAM_MODULE} required username="{made["token"]}" password="x" tokenauth="true";'
    agent = Asking(tmp_path / "agent.properties", broker, "SCRAM-SHA-256", jaas)
    assert "the delegation token may have ended" in agent.text("token", "list", code=2)
    never = {"delegation.token.expiry.check.interval.ms": "3600000"}
    with TemporaryBroker(SETTINGS | never) as still:
        alice = user(tmp_path, still, "alice")
        (made,) = alice.rows("token", "create", "--lifetime", "1ms")
        said = alice.text("token", "renew", made["token"], code=2)
        assert "the token has expired; create another one" in said
    with TemporaryBroker(SETTINGS | {"delegation.token.secret.key": ""}) as off:
        said = user(tmp_path, off, "alice").text("token", "list", code=2)
        assert "delegation.token.secret.key" in said
