"""A denied command names the ACL that it needs: the test adds what the line says until the command is permitted."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

import pytest
import typer
from tests.integration.server_process import strata

from stratalog.cli.app import app
from stratalog.cli.shared.denials import NEEDED
from stratalog.testing.broker import TemporaryBroker

MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
WORD: Final = "planted-password"
SETTINGS: Final = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{MODULE} required "
    f'user_admin="{WORD}" user_alice="{WORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
TO_END: Final = "--from beginning --until-end"
ACL: Final = "--principal User:bob --operation read --topic x"
CASES: Final = [
    f"acl add {ACL}",
    "acl check User:bob read --topic x",
    "acl list",
    f"acl remove {ACL}y",
    "broker drain 1",
    "broker list",
    "broker undrain 1",
    "config alter --topic TOPIC -s retention.ms=1000000",
    'config alter --broker "" -s log.retention.ms=1000000',
    "config describe --topic TOPIC",
    "config describe --broker 1",
    f"consume TOPIC {TO_END}",
    f"consume TOPIC {TO_END} --group g",
    f"consume TOPIC 'odd name' {TO_END}",
    "get TOPIC --partition 0 --offset 0",
    "group delete GROUP",
    "group describe GROUP",
    "group reset-offsets GROUP --topic TOPIC --to beginning",
    "log dirs",
    "partition elect",
    "partition elect TOPIC",
    "partition list TOPIC",
    "partition reassign --wait",
    "perf consume TOPIC --num-records 1",
    "perf produce TOPIC --num-records 1",
    "produce TOPIC",
    "quorum add 7 CONTROLLER://127.0.0.1:1",
    "quorum describe",
    "quorum remove 7",
    "quota list",
    "quota remove --user zed",
    "quota set --user bob --producer-byte-rate 1000",
    "topic alter TOPIC --partitions 9",
    "topic alter TOPIC -s retention.ms=1000000",
    "topic create NEW",
    "topic delete TOPIC",
    "topic describe TOPIC",
    "topic move TOPIC --partition 0 --to /none",
    "topic trim TOPIC --before end",
    "txn abort TOPIC --partition 0 --start 0",
    "txn describe x",
    "txn find-hanging --topic TOPIC",
    "user alter alice --password-file WORD",
    "user create carol --password-file WORD",
    "user delete dave",
    "user list",
]
OTHER_ENDS: Final = {
    "quorum add 7 CONTROLLER://127.0.0.1:1",
    "quorum remove 7",
    "quota remove --user zed",
    f"consume TOPIC 'odd name' {TO_END}",
    "topic move TOPIC --partition 0 --to /none",
    "txn abort TOPIC --partition 0 --start 0",
    "txn describe x",
    "user alter alice --password-file WORD",
    "user delete dave",
}
"""Commands that end with another error once they are permitted."""
WITHOUT: Final = {
    "check",
    "cluster info",
    "console",
    "group list",
    "profile create",
    "tail",
    "token create",
    "token expire",
    "token list",
    "token renew",
    "topic list",
    "txn list",
}
"""Commands that list what the client may see, have remedies of their own, or run on."""


class Clients:
    """`strata` as a super user, and as a user without rights."""

    def __init__(self, place: Path, address: str) -> None:
        self._place, self._address = place, address
        self.acls: list[list[str]] = []
        """What `admin` has permitted."""

    def run(self, user: str, *words: str) -> tuple[int, str]:
        done = self._done(user, words)
        return done.returncode, done.stderr

    def rows(self, *words: str, code: int = 0) -> Any:
        """Return what `alice` gets as JSON."""
        done = self._done("alice", (*words, "--json"))
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def _done(self, user: str, words: Sequence[str]) -> CompletedProcess[str]:
        config = self._place / f"{user}.properties"
        config.write_text(
            f"bootstrap.servers={self._address}\nsecurity.protocol=SASL_PLAINTEXT\n"
            f"sasl.mechanism=PLAIN\nsasl.jaas.config={MODULE} required "
            f'username="{user}" password="{WORD}";\n'
        )
        return strata("--config", str(config), *words, stdin="x\n")

    def admin(self, *words: str) -> None:
        code, said = self.run("admin", *words)
        assert code == 0, said


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryBroker]:
    with TemporaryBroker(SETTINGS) as started:
        clients = Clients(tmp_path_factory.mktemp("admin"), started.address)
        clients.admin("acl", "add", *ACL.split(), "--topic", "xy")
        yield started


@pytest.fixture
def clients(broker: TemporaryBroker, tmp_path: Path) -> Iterator[Clients]:
    made = Clients(tmp_path, broker.address)
    yield made
    for acl in made.acls:
        made.run("admin", "acl", "remove", *acl)


def denied(said: str) -> str:
    """Return the line of a denial; "" where there is none."""
    found = [line for line in said.splitlines() if "AUTHORIZATION_FAILED" in line]
    assert len(found) <= 1, said
    return found[0] if found else ""


@pytest.mark.parametrize("case", CASES)
def test_what_a_denial_names_permits_the_command(
    clients: Clients, tmp_path: Path, case: str
) -> None:
    topic, group = f"t{CASES.index(case)}", f"g{CASES.index(case)}"
    if "TOP" in case:
        clients.admin("topic", "create", topic)
        clients.admin("produce", topic)
    if "GROUP" in case:
        clients.admin("topic", "create", topic, "--if-not-exists")
        clients.admin("produce", topic)
        clients.admin("group", "reset-offsets", group, "--topic", topic, "--to", "beginning")
    word = tmp_path / "word"
    word.write_text(WORD)
    names = {"TOPIC": topic, "TOP.*": f"{topic}.*", "GROUP": group, "WORD": str(word)}
    words = [names.get(one, one) for one in shlex.split(case)]
    code, said = clients.run("alice", *words)
    while line := denied(said):
        assert code == 2
        remedy = shlex.split(line.partition("; permit it with: ")[2])
        assert remedy[:5] == ["strata", "acl", "add", "--principal", "User:alice"], line
        assert remedy[3:] not in clients.acls, line
        clients.acls.append(remedy[3:])
        clients.admin(*remedy[1:])
        code, said = clients.run("alice", *words)
    assert clients.acls, said
    if case == "broker drain 1":
        clients.admin("broker", "undrain", "1")
    if case == "topic alter TOPIC --partitions 9":
        assert "alter-configs" not in clients.acls[0], "no more than it needs"
    assert (code == 0) == (case not in OTHER_ENDS), said


def test_every_command_that_asks_a_cluster_has_its_rights() -> None:
    found = set()

    def walk(command: Any, path: str) -> None:
        for name, one in getattr(command, "commands", {}).items():
            walk(one, f"{path} {name}".strip())
        if any(one.name == "bootstrap_server" for one in command.params):
            found.add(path)

    walk(typer.main.get_command(app), "")
    assert found == NEEDED.keys() | WITHOUT
    assert {one for one in NEEDED if not any(case.startswith(one) for case in CASES)} == {"tail"}


def test_a_right_to_describe_shows_a_topic_and_a_group_without_the_rest(
    clients: Clients,
) -> None:
    clients.admin("topic", "create", "seen")
    clients.admin("produce", "seen")
    clients.admin("group", "reset-offsets", "g", "--topic", "seen", "--to", "beginning")
    acl = ["--principal", "User:alice", "--operation", "describe", "--topic", "seen"]
    acl += ["--group", "g"]
    clients.acls.append(acl)
    clients.admin("acl", "add", *acl)
    code, said = clients.run("alice", "topic", "describe", "seen")
    assert code == 0
    assert "bytes are not shown: they need describe on the cluster" in said
    assert "settings are not shown: they need describe-configs on the topic" in said
    code, said = clients.run("alice", "group", "describe", "g")
    assert (code, said) == (0, "ages are not shown: they need read on the topic\n")
    (row,) = clients.rows("topic", "describe", "seen")["partitions"]
    assert (row["records"], row["bytes"]) == (1, None)
    group = clients.rows("group", "describe", "g")
    assert (group["lag"], group["lag_seconds"]) == (1, None)
    assert group["partitions"][0]["seconds"] is None
    # Names that match a pattern are not known to the command.
    said = clients.run("alice", "consume", "-r", "see.", *TO_END.split())[1]
    assert said.endswith("strata acl add --principal User:alice --operation read --topic TOPIC\n")
    found = clients.rows("check", code=1)
    remedies = {one["check"]: (one["seen"], one["remedy"]) for one in found}
    for one in ("controllers", "disks"):
        assert "CLUSTER_AUTHORIZATION_FAILED" in remedies[one][0]
        assert remedies[one][1] == "strata acl add --operation describe --cluster"


@pytest.mark.parametrize("kind", ["plain text", "TLS"])
def test_a_principal_that_the_broker_alone_knows_is_a_placeholder(
    kind: str, tmp_path: Path
) -> None:
    settings = {name: SETTINGS[name] for name in ("authorizer.class.name", "super.users")}
    with TemporaryBroker(settings, tls=kind == "TLS") as broker:
        config = tmp_path / "client.properties"
        config.write_text("")
        if kind == "TLS":
            authority = broker.authority.certificate
            config.write_text(f"security.protocol=SSL\nssl.truststore.location={authority}\n")
        done = strata("--config", str(config), "topic", "create", "t", "-b", broker.address)
    name = "NAME" if kind == "TLS" else "ANONYMOUS"
    acl = f"strata acl add --principal User:{name} --operation create --topic t"
    assert done.stderr == f"strata: TOPIC_AUTHORIZATION_FAILED; permit it with: {acl}\n"


def test_a_user_that_may_only_write_is_denied_nothing(tmp_path: Path) -> None:
    """`produce` reads the topic's settings only where it may: each try would be a denial in the audit."""
    audit = tmp_path / "audit.log"
    with TemporaryBroker(SETTINGS | {"audit.log.path": str(audit)}) as broker:
        clients = Clients(tmp_path, broker.address)
        clients.admin("topic", "create", "t", "-c", "retention.ms=1000")
        permit = ("acl", "add", "--principal", "User:alice", "--topic", "t", "--operation")
        clients.admin(*permit, "write")
        code, said = clients.run("alice", "produce", "t")
        assert code == 0, said
        assert "denied" not in {
            json.loads(line)["event"] for line in audit.read_text().splitlines()
        }
        clients.admin(*permit, "describe-configs")
        code, said = clients.run("alice", "produce", "t", "--timestamp", "1")
        assert code == 0, said
        assert "retention.ms=1000" in said
