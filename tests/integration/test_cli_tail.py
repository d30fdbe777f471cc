"""`strata tail` against a real broker: each line once, through rotations, `kill -9` and a broker that is away.

`TAIL_KILLS=50` kills the command so often (5 by default).
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.server_process import STRATA, Server, strata

from stratalog.wire.murmur2 import partition_of_key

KILLS = int(os.environ.get("TAIL_KILLS", "5"))
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    few = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")
    with Server(tmp_path_factory.mktemp("tail"), few) as started:
        yield started


def ok(server: Server, *words: str, stdin: str = "") -> str:
    done = strata(*words, "-b", server.address, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tail(server: Server, place: Path, *words: str) -> str:
    """Run the command to the files' ends; return its last line."""
    options = ("--state-dir", str(place / "state"), "--until-end")
    done = strata("tail", *words, *options, "-b", server.address)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1]


def rows(server: Server, topic: str) -> list[dict[str, object]]:
    words = ("consume", topic, "--from", "beginning", "--until-end", "--json")
    out = ok(server, *words, "--isolation-level", "read_committed")
    return [json.loads(line) for line in out.splitlines()]


def values(server: Server, topic: str) -> list[object]:
    return [row["value"] for row in rows(server, topic)]


def until(there: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not there():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


def test_lines_are_sent_once_over_two_runs(server: Server, tmp_path: Path) -> None:
    ok(server, "topic", "create", "plain", "--partitions", "3")
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text("1\n\n3\nno end")
    two.write_bytes(b"\xff raw\r\n")
    words = (str(tmp_path / "*.log"), "--topic", "plain")
    assert tail(server, tmp_path, *words) == "5 record(s) to plain"
    assert tail(server, tmp_path, *words) == "0 record(s) to plain"
    with one.open("a") as file:
        file.write("\nmore\n")
    assert tail(server, tmp_path, *words) == "2 record(s) to plain"
    found = rows(server, "plain")
    by_partition: dict[object, list[object]] = {}
    for row in found:
        by_partition.setdefault(row["partition"], []).append(row.get("value"))
    ordered = ["1", "", "3", "no end", "", "more"]
    assert any([v for v in some if v is not None] == ordered for some in by_partition.values())
    assert sum(row.get("value_base64") == "/yByYXcN" for row in found) == 1


def test_keys_several_lines_and_json(server: Server, tmp_path: Path) -> None:
    ok(server, "topic", "create", "formed", "--partitions", "2")
    log = tmp_path / "app.log"
    log.write_text("2026 user=ann boom\n  at line 1\n  at line 2\n2026 user=bob fine\n2026 none\n")
    words = (str(log), "--topic", "formed", "--multi-line", r"\d{4} ", "--key", r"user=(\w+)")
    assert tail(server, tmp_path, *words, "--format", "json") == "3 record(s) to formed"
    found = {row["key"]: json.loads(str(row["value"])) for row in rows(server, "formed")}
    assert found["ann"]["line"] == "2026 user=ann boom\n  at line 1\n  at line 2"
    assert (found["bob"]["path"], found["bob"]["offset"]) == (str(log), 43)
    assert found[None]["line"] == "2026 none"


def test_keys_choose_partitions_as_every_client_does(server: Server, tmp_path: Path) -> None:
    ok(server, "topic", "create", "keyed", "--partitions", "5")
    log = tmp_path / os.fsdecode(b"\xff.log")  # a name that is no UTF-8, too
    log.write_text("".join(f"k{number % 40} {number}\n" for number in range(2000)) + "none\n")
    words = (str(log), "--topic", "keyed", "--key", r"^(k\d+) ")
    assert tail(server, tmp_path, *words) == "2001 record(s) to keyed"
    assert tail(server, tmp_path, *words) == "0 record(s) to keyed"
    found = rows(server, "keyed")
    assert sorted(str(row["value"]) for row in found) == sorted(log.read_text().splitlines())
    for row in found:
        key = row["key"]
        if key is None:
            assert row["value"] == "none"
        else:
            assert row["value"].split()[0] == key  # type: ignore[attr-defined]
            assert row["partition"] == partition_of_key(str(key).encode(), 5)
    by_key = [[row["value"] for row in found if row["key"] == f"k{one}"] for one in range(40)]
    assert all(some == sorted(some, key=lambda v: int(str(v).split()[1])) for some in by_key)


def test_at_least_once_carries_the_place_of_each_line(server: Server, tmp_path: Path) -> None:
    ok(server, "topic", "create", "repeated")
    log = tmp_path / "a.log"
    log.write_text("x\ny\n")
    words = (str(log), "--topic", "repeated", "--at-least-once")
    assert tail(server, tmp_path, *words) == "2 record(s) to repeated"
    headers = [row["headers"][0] for row in rows(server, "repeated")]  # type: ignore[index]
    assert {one["name"] for one in headers} == {"strata-tail"}
    assert [one["value"].rpartition("/")[2] for one in headers] == ["0", "2"]
    (tmp_path / "state" / f"repeated@{os.uname().nodename}.json").unlink()
    tail(server, tmp_path, *words)
    again = [row["headers"][0] for row in rows(server, "repeated")]  # type: ignore[index]
    assert again[:2] == again[2:], "a reader drops repeats by the header"


def test_a_mistake_is_one_line(server: Server, tmp_path: Path) -> None:
    ok(server, "topic", "create", "wrong")
    log = tmp_path / "a.log"
    log.write_text("x\n")
    state = ("--state-dir", str(tmp_path / "state"), "--until-end")
    for words, expected in (
        (("--topic", "absent"), "topic absent does not exist"),
        (("--topic", "wrong", "--key", "("), "--key: '(' is not accepted"),
        (("--topic", "wrong", "--from", "middle"), "--from: 'middle' is not accepted"),
        (("--topic", "wrong", "--format", "xml"), "--format: 'xml' is not accepted"),
        (("--topic", "wrong", "--id", "a/b"), "--id: 'a/b' is not accepted"),
        (("--topic", "wrong", "--compression", "x"), "--compression: 'x' is not accepted"),
    ):
        done = strata("tail", str(log), *words, *state, "-b", server.address)
        assert (done.returncode, expected in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
    tail(server, tmp_path, str(log), "--topic", "wrong", "--id", "mine")
    file = tmp_path / "state" / "mine.json"
    kept = file.read_text()
    file.write_text("{")
    done = strata(
        "tail", str(log), "--topic", "wrong", "--id", "mine", *state, "-b", server.address
    )
    assert (done.returncode, "mine.json is damaged" in done.stderr) == (2, True), done.stderr
    file.write_text(json.dumps(json.loads(kept) | {"number": 7}))
    done = strata(
        "tail", str(log), "--topic", "wrong", "--id", "mine", *state, "-b", server.address
    )
    assert (done.returncode, "another machine uses the id" in done.stderr) == (2, True), done.stderr


class Running:
    """`strata tail` in a process of its own, on files of one directory."""

    def __init__(self, server: Server, place: Path, topic: str, *words: str) -> None:
        self.command = [
            *STRATA,
            *("tail", str(place / "app.log"), "--topic", topic, "--ends-after", "1", *words),
            *("--state-dir", str(place / "state"), "-b", server.address),
        ]
        self.error = place / "tail.err"
        self.start()

    def start(self) -> None:
        with self.error.open("ab") as error:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=error, stderr=error
            )

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


def count(server: Server, topic: str) -> int:
    """Return how many committed records a third-party client sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                return found
            found += 1
    finally:
        consumer.close()


@pytest.mark.timeout(120 + 30 * KILLS)
def test_no_line_is_lost_or_repeated_by_kills_under_rotation(
    server: Server, tmp_path: Path
) -> None:
    ok(server, "topic", "create", "killed")
    log, over = tmp_path / "app.log", Event()
    written = 0

    def write() -> None:
        nonlocal written
        rotated = 0
        while not over.wait(0.02):
            with log.open("a") as file:
                file.writelines(f"{number:08}\n" for number in range(written, written + 20))
            written += 20
            if written % 400 == 0:
                rotated += 1
                log.rename(tmp_path / f"app.log.{rotated}")

    writer = Thread(target=write)
    # A file that is rotated away before the first look is of another time.
    log.write_text("".join(f"{number:08}\n" for number in range(20)))
    written = 20
    running = Running(server, tmp_path, "killed")
    try:
        until(lambda: count(server, "killed") == written, "the first lines")
        writer.start()
        for _ in range(KILLS):
            before = count(server, "killed")
            until(lambda before=before: count(server, "killed") > before, "more lines")
            running.end(signal.SIGKILL)
            running.start()
        over.set()
        writer.join()
        with suppress(AssertionError):  # the missing lines say more
            until(lambda: count(server, "killed") >= written, "every line")
    finally:
        over.set()
        if writer.is_alive():
            writer.join()
        running.end(signal.SIGTERM)
    found = [int(str(value)) for value in values(server, "killed")]
    missing = sorted(set(range(written)) - set(found))
    assert not missing, f"{missing[:50]} of {written}: {running.error.read_text()[-3000:]}"
    assert len(found) == written, "lines came twice"
    assert "Traceback" not in running.error.read_text()


@pytest.mark.timeout(300)
def test_a_broker_that_is_away_only_delays(tmp_path: Path) -> None:
    with Server(tmp_path, ("offsets.topic.num.partitions=1",)) as server:
        ok(server, "topic", "create", "away")
        log = tmp_path / "app.log"
        log.write_text("before\n")
        running = Running(server, tmp_path, "away")
        try:
            until(lambda: count(server, "away") == 1, "the first line")
            server.kill()
            with log.open("a") as file:
                file.write("meanwhile\n")
            server.start()
            until(lambda: count(server, "away") == 2, "the second line")
            second = strata(*running.command[len(STRATA) :])
            assert "another strata tail --id" in second.stderr
        finally:
            assert running.end(signal.SIGTERM) == 0
        assert values(server, "away") == ["before", "meanwhile"]
