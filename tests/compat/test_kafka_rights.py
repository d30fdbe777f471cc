"""Goal: ACLs, users, quotas and tokens of a real Apache Kafka count on our server, on the same directory, and back.

Method: Apache Kafka with an authorizer and SCRAM gets users, ACLs, quotas and a delegation token. Our server starts on
its directory with its properties: it lists the same, the same users and tokens log in, and the same requests are
denied. We add to all four. Then Apache Kafka starts there again. `strata` asks both.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.compat.apache_kafka import properties
from tests.compat.test_kafka_directories import UNSERVED, kafka, ours_on
from tests.compat.tools import java_tool
from tests.integration.server_process import strata
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports

pytestmark = [pytest.mark.timeout(900), pytest.mark.serial, pytest.mark.big]
TIMEOUT_S = 60
WORD = "planted-password"
MODULES = "org.apache.kafka.common.security"
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
    f'username="admin" password="{WORD}" user_admin="{WORD}";',
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "delegation.token.secret.key": "planted-secret",
}


class Asking:
    """`strata` as admin, and producers of other users."""

    def __init__(self, place: Path, address: str) -> None:
        self.address = address
        self._place = place
        self._config = place / "client.properties"
        self._config.write_text(
            f"bootstrap.servers={address}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={MODULES}.plain.PlainLoginModule required username="admin" password="{WORD}";\n'
        )

    def run(self, *words: str) -> str:
        done = strata("--config", str(self._config), *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add(self, user: str, topic: str) -> None:
        """Let a user log in, write a topic below a rate, and not from another host."""
        secret = self._place / "secret"
        secret.write_text(WORD)
        self.run(
            "user", "create", user, "--password-file", str(secret), "--mechanism", "SCRAM-SHA-256"
        )
        writer = ("--principal", f"User:{user}", "--operation", "write")
        self.run("acl", "add", *writer, "--topic", topic)
        self.run(
            "acl",
            "add",
            *writer,
            "--topic",
            topic[:2],
            "--prefixed",
            "--deny",
            "--host",
            "10.9.9.9",
        )
        self.run("quota", "set", "--user", user, "--producer-byte-rate", "1000000")

    def add_token(self) -> None:
        """Create a token, and wait until the broker knows it."""
        (made,) = json.loads(self.run("token", "create", "--json"))
        wait_for(lambda: made["token"] in self.run("token", "list"), "a new token")

    def log_in_with_tokens(self) -> None:
        """Log in with each token."""
        for one in json.loads(self.run("token", "list", "--keys", "--json")):
            config = self._place / "token.properties"
            config.write_text(
                f"bootstrap.servers={self.address}\nsecurity.protocol=SASL_PLAINTEXT\n"
                "sasl.mechanism=SCRAM-SHA-256\n"
                f"sasl.jaas.config={MODULES}.scram.ScramLoginModule required "
                f'username="{one["token"]}" password="{one["key"]}" tokenauth="true";\n'
            )
            done = strata("--config", str(config), "topic", "list", "--json")
            assert done.returncode == 0, done.stderr
            assert {one["topic"] for one in json.loads(done.stdout)} >= {"books", "lamps"}

    def all(self) -> list[Any]:
        """Return every ACL, user, quota and token, which has its key."""
        lists = ("acl list", "user list", "quota list", "token list --keys")
        found = [json.loads(self.run(*words.split(), "--json")) for words in lists]
        return [sorted(rows, key=repr) for rows in found]

    def write(self, user: str, topic: str, password: str = WORD) -> str:
        """Return the error of a record, "" for none."""
        errors: list[str] = []
        login = {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password,
        }
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "security.protocol": "SASL_PLAINTEXT",
                "log_level": 0,
                "message.timeout.ms": 10_000,
                **login,
            }
        )
        producer.produce(
            topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else "")
        )
        assert producer.flush(TIMEOUT_S) == 0
        return errors[0]


def check(asking: Asking, user: str, topic: str, other: str) -> None:
    assert asking.write(user, topic) == ""
    assert asking.write(user, other) == "TOPIC_AUTHORIZATION_FAILED"
    assert asking.write(user, topic, "wrong") == "_MSG_TIMED_OUT"


def test_acls_users_quotas_and_tokens_count_on_both(tmp_path: Path) -> None:
    ports = free_ports(2)
    file = tmp_path / "server.properties"
    file.write_text(properties(tmp_path, ports, SETTINGS))
    storage = "kafka.tools.StorageTool"
    cluster_id = java_tool(storage, "random-uuid").stdout.split()[-1]
    features = [word for name in UNSERVED for word in ("--feature", f"{name}=0")]
    first = ("--add-scram", f"SCRAM-SHA-256=[name=first,password={WORD}]")
    words = ("format", "-t", cluster_id, "-c", str(file), "--standalone", *features, *first)
    done = java_tool(storage, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    with kafka(file, ports[0]) as address:
        theirs = Asking(tmp_path, address)
        for topic in ("books", "lamps"):
            theirs.run("topic", "create", topic)
        theirs.add("alice", "books")
        theirs.add_token()
        check(theirs, "alice", "books", "lamps")
        before = theirs.all()
        assert [len(rows) for rows in before] == [2, 2, 1, 1]
    with ours_on(file, ports[0]) as address:
        ours = Asking(tmp_path, address)
        assert ours.all() == before
        check(ours, "alice", "books", "lamps")
        ours.log_in_with_tokens()
        ours.add("bob", "lamps")
        ours.add_token()
        check(ours, "bob", "lamps", "books")
        after = ours.all()
        assert [len(rows) for rows in after] == [4, 3, 2, 2]
    with kafka(file, ports[0]) as address:
        back = Asking(tmp_path, address)
        assert back.all() == after
        back.log_in_with_tokens()
        check(back, "alice", "books", "lamps")
        check(back, "bob", "lamps", "books")
