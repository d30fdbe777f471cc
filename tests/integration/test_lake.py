"""New code over all of history beside a running stream, and on existing tables; late and bad lines.

Real broker, bucket, producer and streams.

`./test --all tests/integration/test_lake.py` runs it; Delta comes from Maven.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from load import create_topic, load, survey
from pyarrow.parquet import read_table
from tests.integration.server_process import STRATA, Server
from tests.integration.test_run import BAD, made_up
from tests.spark_scratch import scratch

from stratalog.adapters.network import TcpNetwork
from stratalog.cli.pipeline import table_files
from stratalog.client.aio import Client
from stratalog.client.idempotent import IdempotentPipeline

PIPELINE = Path(__file__).parent.parent.parent / "pipelines" / "access_log"
HISTORY = 3000
PATIENCE_S = 600
TIER = [
    "file.delete.delay.ms=0",
    "log.initial.task.delay.ms=200",
    "log.retention.check.interval.ms=500",
    "remote.log.manager.task.interval.ms=200",
]

pytestmark = [pytest.mark.big, pytest.mark.xdist_group("spark"), pytest.mark.timeout(2400)]


def fill(server: Server, log: Path) -> None:
    """History: lines whose segments go to the bucket as they close."""

    async def run() -> None:
        async with await Client.connect(TcpNetwork(), server.address) as client:
            seen = survey([log], lambda _: None)
            await create_topic(client, "access_log", seen)
            async with IdempotentPipeline(client) as pipeline:
                assert await load(pipeline, "access_log", [log], seen, lambda _: None) == HISTORY

    asyncio.run(run())


def took(line: str) -> str:
    """Return the line with the request's duration, as some servers write it."""
    return line if line in BAD else f"{line} 0.250"


@contextmanager
def producing(server: Server):
    """Feed `strata produce` without a pause; yield the lines so far. At the exit all lines are acknowledged."""
    command = [*STRATA, "produce", "access_log", "-b", server.address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    enough = threading.Event()
    sent: list[str] = []

    def feed() -> None:
        assert process.stdin is not None
        while not enough.wait(0.05):
            sent.extend(map(took, made_up(HISTORY + len(sent), 1)))
            process.stdin.write(sent[-1] + "\n")
            process.stdin.flush()
        process.stdin.close()

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield sent
    finally:
        enough.set()
        feeding.join(60)
        assert process.wait(120) == 0


@contextmanager
def lake(code: Path, table: Path, server: Server, tier_url: str, *options: str):
    """A stream of lake.py that never pauses, in a process of its own."""
    command = [sys.executable, str(code / "lake.py"), str(table), "--memory", "768m"]
    command += ["--bootstrap-server", server.address, "--tier-url", tier_url, *options]
    with (table.parent / f"{table.name}.log").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **scratch(table.parent)},
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # also its JVM, which would end a little later
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)


def numbers(table: Path, version: int | None = None) -> list[int]:
    """Return the offsets of all rows of DIR/lines, in order."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    found = DeltaTable(str(table), version=version).to_pyarrow_table(columns=["offset"])
    return sorted(found["offset"].to_pylist())


def both(directory: Path) -> list[int]:
    return sorted(numbers(directory / "lines") + numbers(directory / "bad_lines"))


def wait_for(what, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = monotonic() + PATIENCE_S
    while not what():
        assert process.poll() is None, log.read_text()[-3000:]
        assert monotonic() < deadline, log.read_text()[-3000:]
        sleep(0.5)


def older_code(place: Path) -> Path:
    """The pipeline of before, without the duration of requests."""
    shutil.copytree(PIPELINE, place, ignore=shutil.ignore_patterns("__pycache__"))
    parse = place / "parse.py"
    text = parse.read_text()
    assert text.count('    "took_ms",\n') == 1
    parse.write_text(text.replace('    "took_ms",\n', ""))
    return place


def test_history_over_new_code_beside_a_stream_that_never_pauses(tmp_path):
    """Goal: old table and new table each have every record once, and the new one's two halves meet at the switch."""
    log, bucket = tmp_path / "history.log", (tmp_path / "bucket").as_uri()
    log.write_text("\n".join(made_up(0, HISTORY)))
    old, new = tmp_path / "old", tmp_path / "new"
    said = new / "_state" / "state.json"

    def backfilled() -> bool:
        return said.exists() and json.loads(said.read_text()).get("backfilled") is True

    with ExitStack() as running:
        server = running.enter_context(Server(tmp_path, [f"tier.url={bucket}", *TIER]))
        fill(server, log)
        older = older_code(tmp_path / "older")
        first = running.enter_context(lake(older, old, server, bucket))
        wait_for(lambda: len(both(old)) >= HISTORY, first, tmp_path / "old.log")
        with producing(server) as sent:
            wait_for(lambda: len(both(old)) > HISTORY, first, tmp_path / "old.log")
            before = len(both(old))
            with lake(PIPELINE, new, server, bucket, "--backfill") as second:
                wait_for(backfilled, second, tmp_path / "new.log")
                assert len(both(old)) > before, "the old stream must continue during the backfill"
                begun = new / "_state" / "checkpoint" / "offsets" / "0"
                wait_for(begun.exists, second, tmp_path / "new.log")
                second.kill()
        switch = json.loads(said.read_text())["switch"]["access_log"]["0"]
        count = HISTORY + len(sent)
        with lake(PIPELINE, new, server, bucket, "--once") as third:
            assert third.wait(PATIENCE_S) == 0, (tmp_path / "new.log").read_text()[-3000:]
        wait_for(lambda: len(both(old)) >= count, first, tmp_path / "old.log")
    assert HISTORY < switch < count
    assert both(old) == both(new) == list(range(count))
    at_first = numbers(new / "lines", 0) + numbers(new / "bad_lines", 0)
    assert sorted(at_first) == list(range(switch))

    rows = DeltaTable(str(new / "lines")).to_pyarrow_table(columns=["offset", "took_ms"])
    said_took = dict(zip(rows["offset"].to_pylist(), rows["took_ms"].to_pylist(), strict=True))
    assert {value for offset, value in said_took.items() if offset < HISTORY} == {None}
    assert {value for offset, value in said_took.items() if offset >= HISTORY} == {250.0}
    assert "took_ms" not in [field.name for field in DeltaTable(str(old / "lines")).schema().fields]


def update(code: Path, state: Path, tier_url: str, server: Server) -> dict[str, int]:
    """One update of the pipeline; rows by table."""
    settings = {
        "stratalog.kafka.bootstrap.servers": server.address,
        "stratalog.tier.url": tier_url,
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [*STRATA, "pipeline", "run", str(code), "--state", str(state), "--json", *conf]
    done = subprocess.run(
        [*command, "--master", "local[2]", "--memory", "768m"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: dict[str, int] = json.loads(done.stdout)["tables"]
    return rows


def table(state: Path, name: str, columns: list[str]) -> list[dict]:
    """A pipeline's table, null where a file has no such column."""
    files = [read_table(path) for path in table_files(state / "warehouse" / name)]
    return pa.concat_tables(files, promote_options="default").select(columns).to_pylist()


def hour_of(line: str) -> datetime:
    """The hour that a line names, UTC, as Parquet has it: without a zone."""
    time = re.search(r"\[([^]]+)]", line)
    assert time is not None
    moment = datetime.strptime(time[1], "%d/%b/%Y:%H:%M:%S %z")
    return moment.astimezone(UTC).replace(minute=0, second=0, tzinfo=None)


def test_late_lines_with_more_columns_are_added_to_the_existing_tables(tmp_path):
    """Goal: new code on old tables keeps the rows, counts late lines in their own hours, and explains bad lines."""
    log, bucket, state = (
        tmp_path / "history.log",
        (tmp_path / "bucket").as_uri(),
        tmp_path / "state",
    )
    history = made_up(0, HISTORY)
    late = [took(line) for line in made_up(0, 200)]
    log.write_text("\n".join(history))
    with Server(tmp_path, [f"tier.url={bucket}", *TIER]) as server:
        fill(server, log)
        update(older_code(tmp_path / "older"), state, bucket, server)
        subprocess.run(
            [*STRATA, "produce", "access_log", "-b", server.address],
            input="\n".join(late) + "\n",
            text=True,
            check=True,
            timeout=120,
            stdout=subprocess.DEVNULL,
        )
        rows = update(PIPELINE, state, bucket, server)
    good = [line for line in history + late if line not in BAD]
    assert rows["raw"] == HISTORY + len(late)
    assert rows["parsed"] == len(good)

    parsed = table(state, "parsed", ["offset", "took_ms"])
    assert {row["took_ms"] for row in parsed if row["offset"] < HISTORY} == {None}
    assert {row["took_ms"] for row in parsed if row["offset"] >= HISTORY} == {250.0}
    reasons = Counter(row["reason"] for row in table(state, "bad_lines", ["reason"]))
    bad = Counter(line for line in history + late if line in BAD)
    assert reasons["empty"] == bad[""]
    assert reasons["no time"] == bad.total() - bad[""]
    hours = {row["hour"]: row for row in table(state, "by_hour", ["hour", "requests", "late"])}
    wanted = Counter(map(hour_of, good))
    assert {hour: row["requests"] for hour, row in hours.items()} == wanted
    came_late = Counter(hour_of(line) for line in late if line not in BAD)
    assert {hour: row["late"] for hour, row in hours.items() if row["late"]} == came_late
