"""A broker names each of its certificates that has expired, is not valid yet, or ends soon: at its start, when it reads
new files, and while it runs. `strata check` and `strata console` name it, too.

Apache Kafka 4.3 says nothing of a client's listener, and does not start where the listener between brokers has such a
certificate (`docs/security.md`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.console_process import console_process
from tests.integration.server_process import strata

from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority, Identity

DAY_MS = 86_400_000
EVENT = "certificate to renew"
Store = Callable[[Authority, Identity], dict[str, str]]


def pem(_: Authority, identity: Identity) -> dict[str, str]:
    return {"ssl.keystore.location": str(identity.pem)}


def pkcs12(authority: Authority, identity: Identity) -> dict[str, str]:
    path = authority.pkcs12(identity, "word")
    return {"ssl.keystore.location": str(path), "ssl.keystore.password": "word"}


def text(_: Authority, identity: Identity) -> dict[str, str]:
    key, chain = identity.key.read_text(), identity.certificate.read_text()
    return {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain}


def warned(lines: Any) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == EVENT]


@pytest.mark.parametrize("store", [pem, pkcs12, text])
@pytest.mark.parametrize(
    ("begins", "days", "problem"),
    [
        (0, 400, ""),
        (0, 5, "expires in 5 days"),
        (0, -1, "has expired"),
        (2, 400, "is not valid yet"),
    ],
)
def test_a_start_names_the_certificate(
    tmp_path: Path, store: Store, begins: int, days: int, problem: str
) -> None:
    authority = Authority(tmp_path)
    settings = store(authority, authority.issue("server", begins=begins, days=days))
    with capture_logs() as lines, TemporaryBroker({"listeners": "SSL://127.0.0.1:0", **settings}):
        found = warned(lines)
    if not problem:
        assert not found
        return
    (line,) = found
    file = settings.get("ssl.keystore.location", "ssl.keystore.certificate.chain")
    assert (line["log_level"], line["listener"], line["file"]) == ("warning", "SSL", file)
    which = "certificate 1 of 2" if store is pkcs12 else "the certificate"
    assert line["problem"] == f"{which} {problem}"
    assert line["not_after"].endswith("+00:00")
    assert line["remedy"]


def test_an_authority_that_has_expired_is_named(tmp_path: Path) -> None:
    authority, old = Authority(tmp_path / "good"), Authority(tmp_path / "old", days=-1)
    both = tmp_path / "both.pem"
    both.write_bytes(authority.certificate.read_bytes() + old.certificate.read_bytes())
    settings = pem(authority, authority.issue("server")) | {"ssl.truststore.location": str(both)}
    with capture_logs() as lines, TemporaryBroker({"listeners": "SSL://127.0.0.1:0", **settings}):
        (line,) = warned(lines)
    assert line["file"] == str(both)
    assert line["problem"] == "certificate 2 of 2 has expired"


def test_new_files_and_passing_time_are_named_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("server", days=30)
    with (
        capture_logs() as lines,
        TemporaryBroker({"listeners": "SSL://127.0.0.1:0", **pem(authority, server)}) as broker,
    ):

        def look() -> list[str]:
            lines.clear()
            assert broker._node is not None
            broker._run(broker._node._look_at_keys())
            return [line["problem"] for line in warned(lines)]

        assert look() == []
        broker.advance(20 * DAY_MS)
        assert look() == ["the certificate expires in 10 days"]
        assert look() == []
        broker.advance(20 * DAY_MS)
        assert look() == ["the certificate has expired"]
        assert look() == []
        authority.issue("server", days=400)
        assert look() == []
        authority.issue("server", days=-2)
        assert look() == ["the certificate has expired"]


def test_strata_check_names_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = tmp_path / "client.properties"
    trusted = f"ssl.truststore.location={authority.certificate}\n"
    config.write_text(f"security.protocol=SSL\n{trusted}")
    for begins, days, said in ((0, -1, "expired; renew it"), (2, 9, "yet valid; compare the cl")):
        server = authority.issue("server", begins=begins, days=days)
        settings = {"listeners": "SSL://127.0.0.1:0", **pem(authority, server)}
        with TemporaryBroker(settings) as broker:
            done = strata("--config", str(config), "check", "--json", "-b", broker.address)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.parametrize(
    ("begins", "days", "problem", "remedy"),
    [
        (0, 400, "", ""),
        (0, 5, "expires in 5 days", "renew it"),
        (0, -1, "has expired", "renew it"),
        (2, 400, "is not valid yet", "check this machine's clock"),
    ],
)
def test_a_console_names_its_certificate(
    tmp_path: Path, begins: int, days: int, problem: str, remedy: str
) -> None:
    identity = Authority(tmp_path).issue("console", begins=begins, days=days)
    options = ("--keystore", str(identity.pem))
    with console_process(tmp_path, "127.0.0.1:1", *options) as started:
        warnings = [line for line in started.output.read_text().splitlines() if "warning" in line]
    if not problem:
        assert not warnings
        return
    (line,) = warnings
    assert line.startswith(f"warning: --keystore {identity.pem}: the certificate {problem} (")
    assert line.count("+00:00") == 2
    assert f"; {remedy}" in line
    assert line.endswith(", and restart the console")
