"""Users by `strata user` and by `strata storage format --add-scram`; they log in to a real broker."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.integration.server_process import strata

from stratalog.testing.broker import TemporaryBroker

TIMEOUT_S = 20
WORD, OTHER = "planted-password", "another-password"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_admin="{WORD}";',
    "connection.failed.authentication.delay.ms": "1",
}


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    """The properties of a client that logs in by PLAIN."""
    path = tmp_path / "admin.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} required username="admin" password="{WORD}";\n'
    )
    return path


def user(broker: TemporaryBroker, admin: Path, *words: str) -> tuple[int, str, str]:
    done = strata("--config", str(admin), "user", *words, "-b", broker.address)
    return done.returncode, done.stdout, done.stderr


def log_in(address: str, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
    settings = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        "log_level": 0,
    }
    AdminClient(settings).list_topics(timeout=TIMEOUT_S)


def refused(address: str, name: str, password: str) -> None:
    settings = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": password,
        "log_level": 0,
    }
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=1)


def test_users_are_created_altered_listed_and_deleted(tmp_path: Path, admin: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(WORD + "\n")
    second.write_text(OTHER + "\nnot this line\n")
    with TemporaryBroker(SASL) as broker:
        address = broker.address
        both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
        status, output, errors = user(
            broker, admin, "create", "alice", *both, "--password-file", str(first)
        )
        assert (status, output, WORD in errors) == (0, "", False), errors
        rows: list[dict[str, Any]] = json.loads(user(broker, admin, "list", "--json")[1])
        assert rows == [
            {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
            {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
        ]
        log_in(address, "alice", WORD)
        log_in(address, "alice", WORD, "SCRAM-SHA-512")

        words = ("alice", "--password-file", str(second), "--iterations", "8192")
        assert "strata user alter" in user(broker, admin, "create", *words)[2]
        assert user(broker, admin, "alter", *words)[0] == 0
        log_in(address, "alice", OTHER)
        refused(address, "alice", WORD)
        log_in(address, "alice", WORD, "SCRAM-SHA-512")

        assert user(broker, admin, "delete", "alice", "--mechanism", "SCRAM-SHA-512")[0] == 0
        assert user(broker, admin, "delete", "alice")[0] == 0
        assert json.loads(user(broker, admin, "list", "--json")[1]) == []
        refused(address, "alice", OTHER)


def test_wrong_words_are_refused_with_the_remedy(tmp_path: Path, admin: Path) -> None:
    word, empty = tmp_path / "word", tmp_path / "empty"
    word.write_text(WORD)
    empty.write_text("\n")
    with TemporaryBroker(SASL) as broker:
        for words, remedy in (
            (
                ("create", "a", "--mechanism", "PLAIN", "--password-file", str(word)),
                "SCRAM-SHA-512",
            ),
            (("create", "a", "--password-file", str(empty)), "--password-file"),
            (("create", "a", "--password-file", str(tmp_path / "none")), "cannot be read"),
            (("create", "a", "--iterations", "1", "--password-file", str(word)), "4096 to 16384"),
            (("create", "a\n", "--password-file", str(word)), "cannot be printed"),
            (("alter", "a", "--password-file", str(word)), "strata user create"),
            (("delete", "a"), "strata user list"),
            (("delete", "a", "--mechanism", "SCRAM-SHA-256"), "no such credential"),
        ):
            status, _, errors = user(broker, admin, *words)
            assert (status, remedy in errors) == (2, True), (words, errors)
            assert len(errors.splitlines()) == 1
            assert WORD not in errors


def test_a_command_without_a_login_names_the_setting() -> None:
    with TemporaryBroker(SASL) as broker:
        for words in (("topic", "list"), ("get", "t", "k")):
            done = strata(*words, "-b", broker.address)
            remedy = "where its listener asks for a login, set security.protocol=SASL_PLAINTEXT\n"
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert done.stderr.endswith(remedy)


ODD = {
    "a\nb": "'a\\nb'",
    "a\rb": "'a\\rb'",
    "a\x1b[31mb": "'a\\x1b[31mb'",
    "a\u2028b": "'a\\u2028b'",
    "\udcff": "is not UTF-8",  # how Python shows a byte that is not
}
"""Names with a character that cannot be printed, and what the error has of them."""


def test_a_name_with_a_line_break_is_one_line_everywhere(
    tmp_path: Path, admin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit, word = tmp_path / "audit", tmp_path / "word"
    word.write_text(WORD)
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "audit.log.path": str(audit),
    }
    with TemporaryBroker(SASL | rights) as broker:
        for name, shown in ODD.items():
            acl = ("--principal", f"User:{name}", "--operation", "read", "--topic", "t")
            for words in (
                ("user", "create", name, "--password-file", str(word)),
                ("acl", "add", *acl),
                ("quota", "set", "--user", name, "--producer-byte-rate", "1"),
            ):
                done = strata("--config", str(admin), *words, "-b", broker.address)
                assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words
                assert shown.strip("'") in done.stderr, done.stderr
                assert done.stderr[:-1].isprintable()
            done = strata("--config", str(admin), "topic", "create", name, "-b", broker.address)
            assert (done.returncode, done.stderr[:-1].isprintable()) == (2, True), done.stderr
        assert user(broker, admin, "list", "--json")[1] == "[]\n"
        acls = strata("--config", str(admin), "acl", "list", "--json", "-b", broker.address)
        assert acls.stdout == "[]\n"
        assert not audit.read_text()
        refused(broker.address, "a\nb", WORD)
        assert {json.loads(line)["user"] for line in audit.read_text().splitlines()} == {"a\nb"}
    log = capsys.readouterr().out.splitlines()
    assert log
    assert all(line[:2] == "20" for line in log), log  # each line begins with its date


@pytest.mark.parametrize("name", ["a,b", "a=b", "CN=a,OU=b", "a=2C,=3D", "ü;"])
def test_a_name_that_scram_escapes_logs_in(tmp_path: Path, admin: Path, name: str) -> None:
    word, own = tmp_path / "word", tmp_path / "own.properties"
    word.write_text(WORD)
    own.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{name}" password="{WORD}";\n'
    )
    with TemporaryBroker(SASL) as broker:
        assert user(broker, admin, "create", name, "--password-file", str(word))[0] == 0
        log_in(broker.address, name, WORD)
        assert user(broker, own, "list")[0] == 0


def formatted(place: Path, *users: str, settings: str = "") -> tuple[int, str]:
    """Format a directory with first users; return the exit code and what the command says."""
    properties = place / "format.properties"
    properties.write_text(f"log.dirs={place / 'data'}\nnode.id=1\n{settings}")
    words = [word for one in users for word in ("--add-scram", one)]
    done = strata("storage", "format", str(properties), *words)
    return done.returncode, done.stdout + done.stderr


def test_a_cluster_begins_with_the_users_of_the_format(tmp_path: Path, admin: Path) -> None:
    users = (
        f"SCRAM-SHA-256=[name=alice,password={WORD}]",
        f"SCRAM-SHA-512=[name=bob,iterations=8192,password={OTHER}]",
    )
    assert formatted(tmp_path, *users)[0] == 0
    with TemporaryBroker(SASL, directory=tmp_path / "data") as broker:
        log_in(broker.address, "alice", WORD)
        log_in(broker.address, "bob", OTHER, "SCRAM-SHA-512")
        assert user(broker, admin, "delete", "bob")[0] == 0
        broker.restart()
        rows = json.loads(user(broker, admin, "list", "--json")[1])
        assert [row["user"] for row in rows] == ["alice"], "only an empty log takes them"
    status, said = formatted(tmp_path, *users)
    assert (status, "strata user create" in said or "formatted already" in said) == (2, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"PLAIN=[name=a,password={WORD}]", "mechanism 'PLAIN'"),
        (f"SCRAM-SHA-256=name=a,password={WORD}", "brackets"),
        (f"SCRAM-SHA-256=[password={WORD}]", "name is missing"),
        ("SCRAM-SHA-256=[name=a]", "one of password and saltedpassword"),
        (f"SCRAM-SHA-256=[name=a,password={WORD},saltedpassword=YQ==]", "one of password"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YQ==]", "needs its salt"),
        (f"SCRAM-SHA-256=[name=a,password={WORD},iterations=many]", "no number"),
        (f"SCRAM-SHA-256=[name=a,password={WORD},iterations=1]", "4096 to 16384"),
        (f"SCRAM-SHA-256=[name=a,password={WORD},salt=?]", "no base64"),
        (f"SCRAM-SHA-256=[name=a,password={WORD},role=x]", "saltedpassword"),
    ],
)
def test_a_first_user_that_cannot_be_is_refused_without_its_password(
    tmp_path: Path, text: str, reason: str
) -> None:
    status, said = formatted(tmp_path, text)
    assert (status, reason in said) == (2, True), said
    assert WORD not in said
    assert not (tmp_path / "data" / "meta.properties").exists()
