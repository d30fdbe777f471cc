"""The reference's demo: records stream into a search engine while a historical query reads the bucket.

Method: the real access log is history; `strata produce --generate` goes on at a rate; the shipped stream takes both to
a real OpenSearch. Meanwhile the test reads the bucket alone, again and again, until it has all of history. Each result
is compared with the lines, and in the end OpenSearch and the log agree on every record.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sinks.opensearch_server import ask, counts_by
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.real_opensearch import opensearch, status_of
from tests.known_log import LOG, STATUS, log_lines
from tests.spark_scratch import scratch

from stratalog import read
from stratalog.errors import UserError

pytestmark = [pytest.mark.big, pytest.mark.timeout(1200), pytest.mark.xdist_group("opensearch")]

TOPIC = "access_log"
STREAM = LOG.with_name("search_stream.py")
RATE = 150
NEW_RECORDS = 500
"""The generator ends once so many of its records are searchable."""
PATIENCE_S = 400
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
REFERENCE = ("index.number_of_replicas=0", "index.refresh_interval=30s", "worker=2")


def strata(broker: BrokerProcess, *words: str) -> list[str]:
    return [sys.executable, "-m", "stratalog.cli.main", *words, "-b", broker.address]


@contextmanager
def running(command: list[str], place: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run one of our programs with its output in files; end it with the block, by force if necessary."""
    with (place / f"{name}.out").open("wb") as out, (place / f"{name}.err").open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=place,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key != "CLASSPATH"}
            | scratch(place),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def ended(process: "subprocess.Popen[bytes]", how: signal.Signals) -> int:
    process.send_signal(how)
    return process.wait(PATIENCE_S)


def until(there: Callable[[], Any], running: "subprocess.Popen[bytes]", errors: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        assert running.poll() is None, errors.read_text()[-3000:]
        assert time.monotonic() < deadline, errors.read_text()[-3000:]
        time.sleep(0.5)


def history(broker: BrokerProcess) -> list[str]:
    """Return every line in the bucket, in order, without the broker; gaps and repeats are errors."""
    values: list[str] = []
    for batch in read(TOPIC, tier_url=broker.bucket_url, columns=["offset", "value"]):
        assert batch["offset"].to_pylist() == list(range(len(values), len(values) + len(batch)))
        values += [value.decode(errors="replace") for value in batch["value"].to_pylist()]
    return values


def searchable(url: str) -> int:
    try:
        ask(url, "POST", f"/{TOPIC}/_refresh")
        return int(ask(url, "GET", f"/{TOPIC}/_count")["count"])
    except UserError:  # 404: the stream has not created the index yet
        return 0


def test_a_stream_into_the_index_and_a_historical_query_at_once(tmp_path: Path) -> None:
    lines = log_lines()
    with (
        broker_process(tmp_path / "broker") as broker,
        opensearch(tmp_path / "opensearch") as server,
    ):
        settings = [word for name, value in TIERED.items() for word in ("-c", f"{name}={value}")]
        made = strata(broker, "topic", "create", TOPIC, "--partitions", "1", *settings)
        subprocess.run(made, check=True, timeout=60)
        subprocess.run(strata(broker, "produce", TOPIC, str(LOG)), check=True, timeout=120)
        where = ["--bootstrap-server", broker.address, "--tier-url", broker.bucket_url]
        sink = [f"--option={one}" for one in REFERENCE]
        into = ["--hosts", server.url, "--checkpoint", str(tmp_path / "checkpoint"), "--every", "1"]
        into += ["--at-most", "4000"]
        generate = ["produce", TOPIC, "--generate", "access-log", "--rate", str(RATE), "--json"]
        with (
            running(
                [sys.executable, str(STREAM), *where, *into, *sink], tmp_path, "stream"
            ) as stream,
            ExitStack() as later,
        ):
            until(lambda: searchable(server.url), stream, tmp_path / "stream.err")
            producer = later.enter_context(running(strata(broker, *generate), tmp_path, "produce"))
            seen: list[tuple[int, int]] = []

            def asked() -> bool:
                values = history(broker)
                known = values[: len(lines)]
                assert known == lines[: len(known)], "history differs from the written lines"
                seen.append((len(values), searchable(server.url)))
                assert producer.poll() is None, (tmp_path / "produce.err").read_text()
                return len(values) >= len(lines) and seen[-1][1] >= len(lines) + NEW_RECORDS

            until(asked, stream, tmp_path / "stream.err")
            assert len({index for _, index in seen}) > 2, "no query ran while the index grew"
            assert Counter(map(status_of, history(broker)[: len(lines)])) == STATUS
            assert ended(producer, signal.SIGINT) == 0
            count = json.loads((tmp_path / "produce.out").read_text())["records"]
            total = len(lines) + count
            until(lambda: searchable(server.url) >= total, stream, tmp_path / "stream.err")
            report, end = tmp_path / "stream.out", json.dumps({"0": total})
            until(lambda: end in report.read_text(), stream, tmp_path / "stream.err")
            assert ended(stream, signal.SIGTERM) == 0, (tmp_path / "stream.err").read_text()
        both = read(
            TOPIC,
            bootstrap_servers=broker.address,
            tier_url=broker.bucket_url,
            columns=["value"],
        )
        log = Counter(
            status_of(v.decode(errors="replace")) for v in both.read_all()["value"].to_pylist()
        )
        assert sum(log.values()) == total
        assert counts_by(server.url, TOPIC, "status") == log
        of_history = {"range": {"offset": {"lt": len(lines)}}}
        by_status = {"terms": {"field": "status", "size": 100}}
        asked_for = {"size": 0, "query": of_history, "aggs": {"by": by_status}}
        found = ask(server.url, "POST", f"/{TOPIC}/_search", asked_for)["aggregations"]["by"]
        assert {one["key"]: one["doc_count"] for one in found["buckets"]} == STATUS
        assert counts_by(server.url, TOPIC, "bad") == {0: total}
    print(f"{total} records; historical queries (lines, documents by then): {seen}")
