"""The console beyond this machine: https, logins, and what is refused without them."""

import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from tests.integration.console_process import Console, console_process
from tests.integration.server_process import strata

from stratalog.cli.node.console import Doors, secured
from stratalog.console.logins import Logins
from stratalog.errors import UserError
from stratalog.ports import PLAINTEXT
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority, Identity

WORD, TOKEN = "planted pässword:1", "planted-token-of-a-script"
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("login")


@pytest.fixture(scope="module")
def authority(place: Path) -> Authority:
    return Authority(place / "keys")


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("console")


@pytest.fixture(scope="module")
def logins(place: Path) -> Path:
    path = place / "logins"
    path.write_text(f"# viewers\nviewer:{WORD}\n\n{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def console(place: Path, identity: Identity, logins: Path) -> Iterator[Console]:
    options = ("--keystore", str(identity.pem), "--logins", str(logins))
    with (
        TemporaryBroker() as broker,
        console_process(place / "console", broker.address, *options) as started,
    ):
        yield started


def asked(console: Console, authority: Authority, **headers: str) -> tuple[int, str, str | None]:
    """Return status, text and challenge of the topics' page."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    link = HTTPSConnection("127.0.0.1", console.port, timeout=TIMEOUT_S, context=context)
    try:
        link.request("GET", "/topics.json", headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read().decode(), answer.getheader("www-authenticate")
    finally:
        link.close()


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def test_users_and_tokens_see_pages_over_https(console: Console, authority: Authority) -> None:
    for header in (basic("viewer", WORD), f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        status, text, _ = asked(console, authority, Authorization=header)
        assert (status, '"topics"' in text) == (200, True), header
    assert "https://127.0.0.1" in console.output.read_text()
    assert "no login" not in console.output.read_text()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !!!",
        basic("viewer", WORD[:-1]),
        basic("viewer", ""),
        basic("other", WORD),
        basic("", ""),
        f"Bearer {TOKEN}x",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer viewer:{WORD}".encode().decode("latin-1"),
        b64encode(f"viewer:{WORD}".encode()).decode(),
        "Digest " + "x" * 4000,
    ],
)
def test_any_other_header_gets_401_and_nothing_of_the_cluster(
    console: Console, authority: Authority, header: str
) -> None:
    headers = {"Authorization": header} if header else {}
    status, text, challenge = asked(console, authority, **headers)
    both = 'Basic realm="strata console", charset="UTF-8", Bearer realm="strata console"'
    assert (status, challenge) == (401, both)
    assert text == "The console asks for a user and a password, or a token.\n"


def test_a_wrong_login_is_a_line_in_the_log_without_the_secret(
    console: Console, authority: Authority
) -> None:
    assert asked(console, authority, Authorization=basic("viewer", "guessed-word"))[0] == 401
    said = console.output.read_text()
    assert "a wrong login from 127.0.0.1" in said
    assert not {"guessed", "viewer", basic("viewer", "guessed-word")} & set(said.split())


def test_plain_http_and_stuck_handshakes_hold_up_no_page(
    console: Console, authority: Authority
) -> None:
    stuck = [socket.create_connection(("127.0.0.1", console.port)) for _ in range(20)]
    with socket.create_connection(("127.0.0.1", console.port), timeout=TIMEOUT_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        try:
            while data := plain.recv(4096):
                received += data
        except ConnectionResetError:
            pass
        assert b"HTTP" not in received
    assert asked(console, authority, Authorization=f"Bearer {TOKEN}")[0] == 200
    for one in stuck:
        one.close()


def test_beyond_this_machine_it_starts_only_with_both(identity: Identity, logins: Path) -> None:
    for words in ((), ("--keystore", str(identity.pem)), ("--logins", str(logins))):
        done = strata("console", "--listen", "0.0.0.0:0", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "strata: --listen 0.0.0.0:0: other machines reach it; accepted: with --keystore and --logins, "
            "or with --insecure\n"
        )
    for host in ("0.0.0.0", "::", "10.0.0.5", "console.example"):
        with pytest.raises(UserError, match="other machines reach it"):
            secured(Doors(None, None, is_open=False), f"{host}:1", host)
        assert secured(Doors(None, None, is_open=True), f"{host}:1", host) == (PLAINTEXT, None)
        keys, found = secured(Doors(identity.pem, logins, is_open=False), f"{host}:1", host)
        assert (keys.protocol, found is None) == ("SSL", False)
    assert secured(Doors(None, None, is_open=False), "[::1]:1", "::1") == (PLAINTEXT, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no login"),
        ("# only this\n", "no login"),
        ("viewer:short\n", "line 1 is not accepted"),
        ("\n:long-enough\n", "line 2 is not accepted"),
        ("short\n", "line 1 is not accepted"),
    ],
)
def test_logins_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"--logins f: {said}") as error:
        Logins.read(text, "--logins f")
    assert "long-enough" not in str(error.value)


def test_a_missing_an_open_and_a_wrong_file_are_one_line(
    tmp_path: Path, identity: Identity, logins: Path
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.write_text(TOKEN)
    open_to_all.chmod(0o644)
    cases = (
        (("--logins", str(tmp_path / "none")), "--logins"),
        (("--logins", str(open_to_all)), "all users can read it; chmod o-rwx"),
        (("--keystore", str(tmp_path / "none"), "--logins", str(logins)), "--keystore: cannot use"),
        (("--keystore", str(identity.certificate)), "--keystore: "),
    )
    for words, said in cases:
        done = strata("console", "--listen", "127.0.0.1:0", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr
        assert TOKEN not in done.stderr
