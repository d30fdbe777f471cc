"""`strata check` on real brokers: what is well, what is wrong, and the exit codes for a monitor."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster_processes import ClusterProcesses
from tests.integration.server_process import Server, strata

from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority

QUICK = ("node.id=1", "offsets.topic.num.partitions=1", "monitor.listener=127.0.0.1:0")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("check")
    bucket = f"tier.url={(place / 'bucket').as_uri()}"
    with Server(place, (*QUICK, bucket)) as started:
        yield started


def until(there: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.2)


def checked(code: int, *words: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by check."""
    done = strata("check", "--json", *words)
    assert done.returncode == code, done.stdout + done.stderr
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(done.stdout):
        rows.setdefault(row["check"], []).append(row)
    return rows


def test_a_healthy_node_passes_every_check(one: Server) -> None:
    monitor = json.loads((one.place / "ready.json").read_text())["monitor_port"]
    rows = checked(0, "-b", one.address, "--monitor", f"127.0.0.1:{monitor}")
    assert list(rows) == [
        "port",
        "controllers",
        "clock",
        "partitions",
        "disks",
        "settings",
        "bucket",
        "ready",
    ]
    assert "answers in" in rows["port"][0]["seen"]
    assert [row["of"] for row in rows["clock"]] == ["controller 1", f"monitor 127.0.0.1:{monitor}"]
    assert all(row["state"] == "ok" for row in (*rows["clock"], *rows["ready"], *rows["bucket"]))
    table = strata("check", "-b", one.address)
    assert table.returncode == 0, table.stderr
    assert "0 bad" in table.stderr


def test_what_cannot_be_asked_is_one_line_or_a_finding(one: Server, tmp_path: Path) -> None:
    done = strata("check", "-b", "127.0.0.1:1")
    assert (done.returncode, "127.0.0.1:1" in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    (row,) = checked(1, "-b", one.address, "--monitor", "127.0.0.1:1")["ready"]
    assert (row["state"], "monitor.listener" in row["remedy"]) == ("bad", True)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = strata("check", "-b", one.address, "--tier", empty.as_uri())
    assert (done.returncode, "holds no bucket" in done.stderr) == (2, True), done.stderr
    assert "bucket" not in checked(0, "-b", one.address, "--tier", "none")
    for wrong in ("ftp://there", "host:port"):
        done = strata("check", "-b", one.address, "--monitor", wrong)
        named = f"--monitor {wrong!r}: this is not accepted" in done.stderr
        assert (done.returncode, named) == (2, True), done.stderr


def test_a_bucket_that_is_gone_is_wrong_where_it_would_be_seen(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    # The broker claims it once, and not again during the test.
    rare = "remote.log.manager.task.interval.ms=900000"
    with Server(tmp_path, (*QUICK, rare, f"tier.url={bucket.as_uri()}")) as server:
        until((bucket / "stratalog").exists, "the claim of the bucket")
        (row,) = checked(0, "-b", server.address)["bucket"]
        assert row["state"] == "ok"
        bucket.rename(tmp_path / "elsewhere")
        (row,) = checked(1, "-b", server.address)["bucket"]
        assert (row["state"], "removed or emptied" in row["seen"]) == ("bad", True)
        meta = server.data / "meta.properties"
        meta.rename(tmp_path / "kept")  # as if the broker ran on another machine
        (row,) = checked(0, "-b", server.address)["bucket"]
        assert (row["state"], "not readable from here" in row["seen"]) == ("warning", True)


@pytest.mark.timeout(400)
def test_a_dead_broker_and_a_setting_of_its_own_are_found(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path) as nodes:
        created = strata("topic", "create", "spread", "--partitions", "3", "-b", nodes.address)
        assert created.returncode == 0, created.stderr
        nodes.stop([3])
        file = nodes.directory(3) / "server.properties"
        file.write_text(file.read_text() + "num.partitions=7\n")
        nodes.start([3])

        def is_well() -> bool:
            return strata("check", "-b", nodes.address).returncode == 0

        until(is_well, "the cluster is well again")
        rows = checked(0, "-b", nodes.address)
        (unequal,) = rows["settings"]
        assert (unequal["of"], unequal["state"]) == ("num.partitions", "warning")
        assert "broker 3: 7" in unequal["seen"]
        assert strata("check", "--strict", "-b", nodes.address).returncode == 1
        nodes.kill(2)

        def is_fenced() -> bool:
            rows = json.loads(strata("check", "--json", "-b", nodes.address).stdout)
            ports = [row for row in rows if row["check"] == "port" and row["state"] == "bad"]
            parts = [row for row in rows if row["check"] == "partitions" and row["state"] == "bad"]
            return [row["of"] for row in ports] == ["broker 2"] and bool(parts)

        until(is_fenced, "broker 2 is found dead")


@pytest.mark.parametrize(("days", "state"), [(400, "ok"), (3, "warning")])
def test_a_certificate_that_ends_soon_is_a_warning(tmp_path: Path, days: int, state: str) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.issue("server", days=days)
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(server.pem)}
    with TemporaryBroker(settings, directory=tmp_path / "data") as broker:
        config = tmp_path / "client.properties"
        trusted = f"ssl.truststore.location={authority.certificate}\n"
        config.write_text(f"security.protocol=SSL\n{trusted}")
        done = strata("--config", str(config), "check", "--json", "-b", broker.address)
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in json.loads(done.stdout) if row["check"] == "tls"]
    assert row["state"] == state, row
    assert f"ends in {days - 1} days" in row["seen"] or f"ends in {days} days" in row["seen"]
