"""The audit's file is whole, private and bounded; a full disk costs lines, and the node's log says so once."""

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest
import structlog

from stratalog.adapters.audit_file import AuditFile
from stratalog.errors import UserError


def test_lines_are_written_in_order_and_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for start in (0, 100):
        audit = AuditFile(str(path), 1 << 20, 3)
        for number in range(start, start + 100):
            audit.write(json.dumps({"number": number}))
        audit.close()
    found = [json.loads(line)["number"] for line in path.read_text().splitlines()]
    assert found == list(range(200))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_all_files_together_are_bounded(tmp_path: Path) -> None:
    audit = AuditFile(str(tmp_path / "audit.log"), 4096, 3)
    for number in range(1000):
        audit.write(json.dumps({"number": number, "more": "x" * 50}))
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(one.stat().st_size <= 4096 for one in files)
    lines = "".join(one.read_text() for one in reversed(files)).splitlines()
    numbers = [json.loads(line)["number"] for line in lines]
    assert numbers == list(range(1000 - len(numbers), 1000)), "the newest lines, none torn"


def test_a_full_disk_loses_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Log:
        def warning(self, event: str, **_fields: object) -> None:
            said.append(event)

    monkeypatch.setattr(structlog, "get_logger", Log)
    audit = AuditFile("/dev/full", 4096, 2)
    for _ in range(10):
        audit.write("a line")
    audit.close()
    assert said == ["audit lines are not written"]


def test_lines_that_come_faster_than_the_disk_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditFile(str(path), 1 << 30, 2)
    count = 100_000
    for _ in range(count):
        audit.write("x")
    while audit._lines.qsize():
        time.sleep(0.001)  # else the writer waits for the interpreter's lock at each line
    audit.write("last")
    audit.close()
    lines = path.read_text().splitlines()
    dropped = sum(json.loads(line)["lines"] for line in lines if line.startswith("{"))
    assert lines[-1] == "last"
    assert lines.count("x") + dropped == count


def test_long_lines_fill_no_memory_while_the_disk_is_stuck(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    os.mkfifo(path)  # a full pipe blocks its writer, as a stuck disk does
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as stuck:
        audit = AuditFile(str(path), 1 << 30, 2)
        line, count = "x" * (1 << 20), 200
        for _ in range(count):
            audit.write(line)
        waiting = audit._lines.qsize()
        assert 20 < waiting < 40, "32 MiB wait; the others are dropped"
        os.set_blocking(stuck.fileno(), True)
        found: list[str] = []
        reading = threading.Thread(target=lambda: found.extend(stuck))
        reading.start()
        while audit._lines.qsize():
            time.sleep(0.001)
        audit.write("last")
        audit.close()
        reading.join()
    *rest, note, last = (one.strip() for one in found)
    assert last == "last"
    assert rest.count(line) == len(rest)
    assert len(rest) + json.loads(note)["lines"] == count


def test_a_client_that_is_denied_without_end_costs_no_line_of_another(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    os.mkfifo(path)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as stuck:
        audit = AuditFile(str(path), 1 << 30, 2)
        for _ in range(20_000):
            audit.write("x" * 100, "greedy")
        assert audit.lines_dropped > 10_000
        before = audit.lines_dropped
        for _ in range(1000):
            audit.write("honest", "honest")
        assert audit.lines_dropped == before
        os.set_blocking(stuck.fileno(), True)
        found: list[str] = []
        reading = threading.Thread(target=lambda: found.extend(stuck))
        reading.start()
        audit.close()
        reading.join()
    assert found.count("honest\n") == 1000


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"audit\.log\.path: cannot write .*; accepted"):
        AuditFile(str(tmp_path / "none" / "audit.log"), 4096, 2)
