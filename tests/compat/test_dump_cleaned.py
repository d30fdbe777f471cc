"""Kafka's own dump tool reads a log that our cleaner wrote, and finds it sound.

Method: a compacted log on a real disk, of every codec, several records a batch, with tombstones, cleaned twice.
`DumpLogSegments` opens each record; what it prints is what the last write of each key left.
"""

import re
import subprocess
from pathlib import Path

import pytest
from tests.compat.tools import java_tool, kafka_lib
from tests.log_steps import DIRECTORY, Steps, clean_once

from stratalog.adapters.local_disk import LocalDisk
from stratalog.config import LogConfig
from stratalog.log.effects import perform
from stratalog.wire.records import Record, build_batch

pytestmark = pytest.mark.timeout(300)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=100_000, index_interval_bytes=200)
KEYS = 60
ROUNDS = 8


def dump(*arguments: str) -> str:
    kafka_lib()
    done: subprocess.CompletedProcess[str] = java_tool(
        "org.apache.kafka.tools.DumpLogSegments", *arguments, timeout_s=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def files(directory: Path, suffix: str) -> str:
    return ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))


def write_and_clean(root: Path) -> dict[int, tuple[str, str]]:
    """Write a log and clean it; return the records that must be left: offset -> key and value, "" for a tombstone."""
    disk = LocalDisk(str(root))
    steps = Steps(CONFIG, disk=disk)  # type: ignore[arg-type]
    last: dict[bytes, tuple[int, bytes | None]] = {}
    offset = 0
    for turn in range(ROUNDS):
        for first in range(0, KEYS - turn * 3, 5):
            records = []
            for number in range(first, first + 5):
                value = None if number % 7 == 3 else b"%d of turn %d" % (number, turn)
                key = b"key-%d" % number
                records.append(Record(0, steps.now_ms, key, value))
                last[key] = offset, value
                offset += 1
            steps.append(build_batch(records, codec=CODECS[(first // 5 + turn) % 5]))
        steps.roll()
        steps.perform_all()
        if turn in {3, ROUNDS - 1}:
            steps.sync_closed()
            clean_once(steps)
    for effect in steps.log.close():
        perform(disk, effect)
    disk.close()
    return {at: (key.decode(), (value or b"").decode()) for key, (at, value) in last.items()}


def test_a_cleaned_log_is_sound_for_kafkas_dump_tool(tmp_path: Path) -> None:
    expected = write_and_clean(tmp_path)
    directory = tmp_path / DIRECTORY
    text = dump("--files", files(directory, ".log"), "--deep-iteration", "--print-data-log")
    assert "isvalid: true" in text
    assert "isvalid: false" not in text
    printed = re.findall(r"\| offset: (\d+) .* key: (\S+)(?: payload: (.*))?", text)
    assert {int(at): (key, value) for at, key, value in printed} == expected
    assert len(printed) == len(expected)
    indexes = ",".join((files(directory, ".index"), files(directory, ".timeindex")))
    sound = dump("--files", indexes)
    for complaint in ("ismatch", "out of order", "not found", "Could not"):
        assert complaint not in sound, sound
