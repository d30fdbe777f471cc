"""Named profiles by `strata profile`: what they keep, which one a command uses, and what is refused."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.server_process import strata
from tests.integration.test_cli_json import wrong_keys

from stratalog.testing.broker import TemporaryBroker

WORD = "planted-password"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_admin="{WORD}";',
    "connection.failed.authentication.delay.ms": "1",
}


@pytest.fixture(scope="module")
def secured() -> Iterator[str]:
    """The address of a broker that asks for a password."""
    with TemporaryBroker(SASL) as broker:
        assert broker.is_running
        yield broker.address


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """The address of a broker that asks for none."""
    with TemporaryBroker() as broker:
        yield broker.address


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def login(home: Path) -> Path:
    """The properties of a client that logs in."""
    path = home / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} required username="admin" password="{WORD}";\n'
    )
    return path


def done(*words: str) -> str:
    """Run a command that succeeds; return all that it printed."""
    found = strata(*words)
    assert found.returncode == 0, found.stderr
    assert WORD not in found.stdout + found.stderr
    return found.stdout + found.stderr


def refused(*words: str) -> str:
    """Run a command that fails with one line; return it."""
    found = strata(*words)
    assert (found.returncode, found.stdout) == (2, ""), found.stderr
    lines = found.stderr.splitlines()
    assert len(lines) == 1, lines
    assert WORD not in lines[0]
    return lines[0]


def asked(*words: str) -> str:
    """Return the address of the broker that a command asks."""
    (row,) = json.loads(done(*words, "broker", "list", "--json"))
    return f"{row['host']}:{row['port']}"


def test_a_profile_has_brokers_and_login_in_a_file_of_its_owner_alone(
    secured: str, login: Path, home: Path
) -> None:
    done("profile", "create", "prod", str(login), "-b", secured)
    path = home / "config" / "strata" / "profiles.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert WORD in path.read_text()
    assert "topic" in done("--profile", "prod", "topic", "create", "t")
    assert strata("topic", "list", "-b", secured).returncode == 2  # without the login
    rows = json.loads(done("profile", "list", "--json"))
    assert wrong_keys(rows) == set()
    assert rows == [
        {
            "profile": "prod",
            "current": False,
            "bootstrap_servers": secured,
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "PLAIN",
        }
    ]


def test_the_command_line_beats_the_environment_and_both_the_current_profile(
    secured: str, plain: str, login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("profile", "create", "prod", str(login), "-b", secured)
    done("profile", "create", "dev", "-b", plain)
    done("profile", "use", "dev")
    assert asked() == plain
    monkeypatch.setenv("STRATA_PROFILE", "prod")
    assert asked() == secured
    assert asked("--profile", "dev") == plain
    monkeypatch.setenv("STRATA_BOOTSTRAP_SERVER", secured)
    assert asked("--profile", "dev") == plain  # not the address of another cluster
    monkeypatch.delenv("STRATA_PROFILE")
    monkeypatch.setenv("STRATA_CLIENT_CONFIG", str(login))
    assert asked() == secured
    assert asked("--profile", "dev") == plain


def test_an_address_counts_even_where_it_is_the_default(secured: str, login: Path) -> None:
    done("profile", "create", "prod", str(login), "-b", secured)
    # Any broker may listen there, or none; but the profile's must not be asked.
    found = strata("--profile", "prod", "check", "-b", "localhost:9092")
    assert secured.split(":")[1] not in found.stdout + found.stderr


def test_a_profile_is_replaced_deleted_and_no_longer_used(plain: str, secured: str) -> None:
    done("profile", "create", "dev", "-b", "127.0.0.1:1")
    assert "'dev' exists; --replace overwrites it" in refused(
        "profile", "create", "dev", "-b", plain
    )
    done("profile", "create", "dev", "-b", plain, "--replace")
    done("profile", "use", "dev")
    assert asked() == plain
    assert "no profile" in done("profile", "use")
    done("profile", "use", "dev")
    done("profile", "delete", "dev")
    assert "no profiles" in done("profile", "list")
    assert "no profiles" in done("--profile", "", "profile", "list")


def test_secrets_may_stay_references_and_files_are_found_from_everywhere(
    secured: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "client.properties"
    path.write_text(
        f"bootstrap.servers={secured}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} required username="admin" password="${{env:WORD}}";\n'
        "ssl.truststore.location=authority.pem\n"
    )
    assert "variable WORD" in refused("profile", "create", "prod", str(path))
    monkeypatch.setenv("WORD", WORD)
    done("profile", "create", "prod", str(path))
    kept = (home / "config" / "strata" / "profiles.json").read_text()
    assert WORD not in kept
    assert f'"{Path.cwd() / "authority.pem"}"' in kept
    assert asked("--profile", "prod") == secured


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("profile", "create", "a b", "-b", "x:1"), "profile 'a b' is not accepted"),
        (("profile", "create", "dev"), "no brokers; name them with -b"),
        (("profile", "create", "dev", "-b", "x"), "bootstrap.servers: "),
        (("profile", "create", "dev", "/no/such.properties"), "/no/such.properties: No such file"),
        (("profile", "use", "nope"), "no profile 'nope' (none yet); strata profile create nope"),
        (("profile", "delete", "nope"), "no profile 'nope'"),
        (("--profile", "nope", "topic", "list"), "no profile 'nope'"),
        (("--profile", "a", "--config", "b", "topic", "list"), "--config and --profile: both"),
    ],
)
def test_what_is_no_profile_is_one_line(words: tuple[str, ...], said: str) -> None:
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ('{"current": "", "profiles": {}}', 0o644, "other users can read it; chmod 600"),
        ("{", 0o600, "no JSON"),
        ('{"profiles": {"a": 1}, "current": ""}', 0o600, "no profiles; accepted"),
        ('{"profiles": [], "current": ""}', 0o600, "no profiles; accepted"),
        ('{"profiles": {}, "current": "gone"}', 0o600, "no profile 'gone'"),
    ],
)
def test_a_damaged_file_is_one_line(home: Path, text: str, mode: int, said: str) -> None:
    path = home / "config" / "strata" / "profiles.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(mode)
    line = refused("topic", "list")
    assert said in line
    if "'gone'" not in said:
        assert str(path) in line


def test_settings_that_no_client_could_use_are_refused(home: Path) -> None:
    path = home / "client.properties"
    path.write_text("security.protocol=TLS\n")
    assert "security.protocol: 'TLS' is not accepted" in refused(
        "profile", "create", "dev", str(path), "-b", "x:1"
    )
