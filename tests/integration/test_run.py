"""The job of ./run on a generated log: its results, its continuation, and that it leaves nothing behind."""

import asyncio
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest
from broker import running_broker
from brokers import running_cluster
from load import Survey, load
from pyarrow.dataset import dataset
from secured import mutual_tls
from tests.integration.run_job import JOB, PIPELINE, answer, job, processes_that_name
from tests.integration.server_process import Server

from stratalog.adapters.network import TcpNetwork
from stratalog.cli.node.serving import read_properties
from stratalog.cli.pipeline import spark_environment
from stratalog.client.aio import Client
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.client.security import PLAIN, security_of
from stratalog.errors import Unavailable, UserError

START = datetime(2024, 2, 27, tzinfo=UTC)
LINES = 3000
BAD = ("\x00\x01 garbage", "GET / no host no time", '"' * 40, "")
FAR_AHEAD = "31/Dec/9999:23:00:00 -0500"
AGENTS = ("Mozilla/5.0", 'odd "quoted" agent', "agent é 中文", "-", "x" * 2000)

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def _java(tmp_path_factory):
    try:
        spark_environment(tmp_path_factory.mktemp("java"), master="local")
    except UserError as error:
        pytest.skip(str(error))


def made_up(first: int, count: int) -> list[str]:
    """Lines `first` to `first + count` of a log that spans days; every hundredth is bad, one is far ahead."""
    lines = []
    for number in range(first, first + count):
        if number % 100 == 50:
            lines.append(BAD[number // 100 % len(BAD)])
            continue
        time = f"{START + timedelta(seconds=97 * number):%d/%b/%Y:%H:%M:%S +0000}"
        time = FAR_AHEAD if number == LINES - 40 else time
        status = (200, 200, 200, 301, 404, 500)[number % 6]
        size = "-" if number % 7 == 0 else number
        lines.append(
            f'10.{number % 9}.0.1 - - [{time}] "GET /p/{number % 13}?q={number} HTTP/1.1" '
            f'{status} {size} "-" "{AGENTS[number % len(AGENTS)]}"'
        )
    return lines


def statuses(lines: list[str]) -> dict[str, int]:
    return dict(
        Counter(
            found[1] for found in (re.search(r'HTTP/1.1" (\d+) ', line) for line in lines) if found
        )
    )


def test_a_log_passes_broker_bucket_and_pipeline_and_a_second_update_continues(tmp_path):
    """Goal: ./run keeps its promises on one log, and a second update reads only new records."""
    lines = made_up(0, LINES)
    bad = sum(line in BAD for line in lines)
    log = tmp_path / "made-up.log.gz"
    log.write_bytes(gzip.compress("\n".join(lines).encode()))
    kept = tmp_path / "kept"

    result = answer(job("--json", "--keep", kept, log))
    assert result["records_in"] == result["records_out"] == LINES
    assert result["from_bucket"] + result["from_broker"] == LINES
    assert result["from_broker"] > 0
    assert result["from_bucket"] > LINES / 2
    assert result["bucket_only_records"] == result["from_bucket"]
    assert result["tiered_segments"] >= 3
    assert result["local_bytes"] < result["bucket_bytes"]
    assert result["status"] == dict(sorted(statuses(lines).items()))
    assert result["bad_lines"] == bad
    assert (
        list(result["seconds"]) == "broker load tier pipeline page stop bucket_only total".split()
    )
    page = (kept / "report.html").read_text()
    assert "made-up.log.gz" in page
    assert "31 Dec 9999" in page
    assert not processes_that_name(kept)

    more = made_up(LINES, 100)
    rows = go_on(kept, more)
    assert rows["raw"] == LINES + 100
    assert rows["bad_lines"] == bad + 1
    assert rows["parsed"] == LINES + 100 - bad - 1
    offsets = dataset(kept / "pipeline" / "warehouse" / "raw", format="parquet").to_table(
        ["offset"]
    )
    assert sorted(offsets["offset"].to_pylist()) == list(range(LINES + 100))
    assert sorted(new_offsets(kept)) == list(range(LINES, LINES + 100))


@pytest.mark.big
def test_the_counts_are_the_same_where_the_leader_of_three_brokers_is_killed(tmp_path):
    lines = made_up(0, LINES)
    log = tmp_path / "made-up.log"
    log.write_text("\n".join(lines), encoding="utf-8")
    result = answer(job("--json", "--brokers", "3", "--keep", tmp_path / "kept", log))
    assert result["killed_broker"] in {1, 2, 3}
    assert result["records_in"] == result["records_out"] == LINES
    assert result["bucket_only_records"] == result["from_bucket"] > LINES / 2
    assert result["status"] == dict(sorted(statuses(lines).items()))
    assert result["bad_lines"] == sum(line in BAD for line in lines)
    assert not processes_that_name(tmp_path)


@pytest.mark.big
@pytest.mark.parametrize("brokers", [1, 3])
def test_the_counts_are_the_same_over_mutual_tls(tmp_path, brokers):
    lines = made_up(0, LINES)
    log = tmp_path / "made-up.log"
    log.write_text("\n".join(lines), encoding="utf-8")
    kept = tmp_path / "kept"
    done = job("--json", "--secure", "--brokers", str(brokers), "--keep", kept, log)
    result = answer(done)
    assert "Mutual TLS" in done.stderr
    assert result["records_in"] == result["records_out"] == LINES
    assert 0 < result["from_broker"] < LINES / 2 < result["bucket_only_records"]
    assert result["status"] == dict(sorted(statuses(lines).items()))
    assert result["bad_lines"] == sum(line in BAD for line in lines)
    assert ("killed_broker" in result) == (brokers > 1)
    assert not processes_that_name(tmp_path)


def refuses_strangers(address, secured):
    """Assert that each of these addresses serves clients with a certificate of the run, and no others."""
    trusting = {name: text for name, text in secured.clients.items() if "keystore" not in name}

    async def brokers(one, security):
        async with await Client.connect(
            TcpNetwork(), one, timeout_s=5, security=security
        ) as client:
            return (await client.metadata()).brokers

    for one in address.split(","):
        assert asyncio.run(brokers(one, secured.security))
        for refused in (PLAIN, security_of(trusting)):
            with pytest.raises(Unavailable):
                asyncio.run(brokers(one, refused))


def test_a_secured_runs_broker_serves_only_clients_with_its_certificates(tmp_path):
    secured = mutual_tls(tmp_path / "keys")
    bucket = (tmp_path / "bucket").as_uri()
    with running_broker(tmp_path / "data", bucket, tmp_path / "log", secured) as broker:
        refuses_strangers(broker.address, secured)
        broker.stop()


def test_every_listener_of_a_secured_runs_cluster_refuses_plain_text(tmp_path):
    """Method: clients of each kind ask each node; bytes without TLS end a connection to a controller, too."""
    secured = mutual_tls(tmp_path / "keys")
    bucket = (tmp_path / "bucket").as_uri()
    with running_cluster(tmp_path / "data", bucket, 3, secured) as cluster:
        refuses_strangers(cluster.address, secured)
        for node in cluster.directory.processes:
            listeners = read_properties(cluster.directory.properties(node))["listeners"]
            port = int(listeners.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
                stream.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
                assert stream.recv(100)[:1] in {b"", b"\x15"}  # the end, or TLS's alert
        cluster.stop()


def go_on(kept: Path, more: list[str]) -> dict[str, int]:
    """Start a broker on the job's data, append, run the pipeline again; return the rows by table."""
    log = kept / "more.log"
    log.write_text("\n".join(more), encoding="utf-8")
    for path in (kept / "pipeline" / "warehouse" / "raw").glob("*.parquet"):
        os.utime(path, (0, 0))
    tier_url = (kept / "bucket").as_uri()
    with Server(kept, [f"tier.url={tier_url}"]) as server:

        async def append() -> int:
            async with (
                await Client.connect(TcpNetwork(), server.address) as client,
                IdempotentPipeline(client) as pipeline,
            ):
                seen = Survey(
                    0, 0, int(START.timestamp() * 1000), int(START.timestamp() * 1000) + 1
                )
                return await load(pipeline, "access_log", [log], seen, lambda _: None)

        assert asyncio.run(append()) == len(more)
        settings = {
            "stratalog.kafka.bootstrap.servers": server.address,
            "stratalog.tier.url": tier_url,
        }
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = [sys.executable, "-m", "stratalog.cli.main", "pipeline", "run", str(PIPELINE)]
        command += ["--state", str(kept / "pipeline"), "--master", "local[2]", "--json", *conf]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, cwd=kept, check=False
        )
        assert done.returncode == 0, done.stderr
    rows: dict[str, int] = json.loads(done.stdout)["tables"]
    return rows


def new_offsets(kept: Path) -> list[int]:
    """Return the offsets in the files that the second update wrote."""
    raw = kept / "pipeline" / "warehouse" / "raw"
    files = [str(path) for path in raw.glob("*.parquet") if path.stat().st_mtime > 0]
    offsets: list[int] = dataset(files, format="parquet").to_table(["offset"])["offset"].to_pylist()
    return offsets


@contextmanager
def started(place: Path):
    """The job, in a temporary directory of its own."""
    process = subprocess.Popen(
        JOB,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "status", "when"),
    [(signal.SIGINT, 130, "*/data.ready"), (signal.SIGTERM, 143, "*/pipeline/warehouse/raw")],
)
def test_ending_early_leaves_nothing_behind(tmp_path, number, status, when):
    """Goal: no process and no file is left, whether the broker has just started or Spark is at work."""
    with started(tmp_path) as process:
        deadline = monotonic() + 300
        while not list(tmp_path.glob(when)):
            assert process.poll() is None, process.stderr.read()
            assert monotonic() < deadline
            sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == status
    assert "Traceback" not in said
    assert not processes_that_name(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.big
def test_a_log_of_only_bad_lines_is_a_warning_and_exit_code_1(tmp_path):
    log = tmp_path / "sys.log"
    log.write_text("Nov 22 10:00:00 host kernel: up\n" * 40 + "\n")
    kept = tmp_path / "kept"
    done = job("--json", "--keep", kept, log)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "./run: none of 41 lines is in the combined format (no time 40, empty 1): is this a web server's access log?"
    )
    assert json.loads(done.stdout)["bad_reasons"] == {"no time": 40, "empty": 1}
    assert "no time: 40" in (kept / "report.html").read_text()


def test_a_users_error_is_one_line(tmp_path):
    (tmp_path / "taken" / "bucket").mkdir(parents=True)
    (tmp_path / "log").touch()
    for arguments, reason in (
        ([tmp_path / "nowhere.log"], "nowhere.log: No such file or directory"),
        ([tmp_path], "not a regular file"),
        (["--keep", tmp_path / "taken", tmp_path / "log"], "bucket is there already"),
        (["--keep", tmp_path / "log"], "File exists"),
        (["--brokers", "2"], "--brokers: 2 is not accepted; accepted: 1, or 3 to 9"),
    ):
        done = job(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("./run: ")
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
    done = job(PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 2
    assert done.stderr.startswith("./run: Java is missing")
    assert done.stderr.count("\n") == 1
