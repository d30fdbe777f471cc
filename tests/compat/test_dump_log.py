"""Kafka's own dump tool reads a partition directory that we wrote, and finds it sound.

Method: a log of several segments (every codec, out-of-order timestamps, idempotent producers, a recovery in between)
is written through a real disk; `DumpLogSegments` opens every record, compares the indexes with the log, and prints the
producers. One file is then damaged, to see that the tool would have said so.
"""

import re
import uuid

import pytest
from tests.compat.tools import java_tool, kafka_lib
from tests.log_steps import batch

from stratalog.adapters.local_disk import LocalDisk
from stratalog.config import LogConfig
from stratalog.log.creating import create
from stratalog.log.effects import perform, run
from stratalog.log.recovery import load
from stratalog.wire.batch import check_produced, scan
from stratalog.wire.records import read_records

pytestmark = pytest.mark.timeout(300)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)
NOW_MS = 1_700_000_000_000
COMPLAINTS = ("mismatch", "Mismatch", "out of order", "not found", "Could not", "isvalid: false")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A cleanly closed partition: its directory, and every batch in it."""
    root = tmp_path_factory.mktemp("dump")
    disk = LocalDisk(str(root))
    log, effects = create("dumped-0", uuid.UUID(int=77), CONFIG, now_ms=NOW_MS)
    _perform(disk, effects)
    sequences = {41: 0, 42: 0}
    batches = []
    for at in range(60):
        if at == 30:
            # Crash and recover: rebuilt indexes and snapshots must be as sound as the original ones.
            log = run(disk, load("dumped-0", CONFIG, clean=False, recovery_point=0, now_ms=NOW_MS))
        producer_id = (-1, 41, 42)[at % 3]
        count = 1 + at % 5
        data = batch(
            count,
            codec=CODECS[at % 5],
            size=30 + at,
            timestamp=NOW_MS + at * 10 - (100 if at % 7 == 3 else 0),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequences.get(producer_id, -1),
        )
        if producer_id >= 0:
            sequences[producer_id] += count
        view = memoryview(data)
        (header,) = check_produced(view, max_batch_bytes=1 << 20)
        appended = log.append_as_leader(
            view,
            header,
            leader_epoch=at // 25,
            now_ms=NOW_MS + at,
            wall_ms=NOW_MS + at,
        )
        _perform(disk, appended.effects)
        log.performed(appended)
        batches += [bytes(view[at : at + h.size]) for at, h in scan(view)]
    _perform(disk, log.close())
    disk.close()
    return root / "dumped-0", batches, log


def _perform(disk, effects):
    for effect in effects:
        perform(disk, effect)


def dump(*arguments):
    kafka_lib()
    done = java_tool("org.apache.kafka.tools.DumpLogSegments", *arguments, timeout_s=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr  # the tool prints complaints to stderr


def files(directory, suffix):
    return ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))


def test_every_batch_and_record_is_printed_as_it_was_appended(written):
    directory, batches, log = written
    assert len(log.segments) >= 4
    text = dump("--files", files(directory, ".log"), "--deep-iteration", "--print-data-log")
    found = [
        tuple(int(value) for value in match)
        for match in re.findall(
            r"baseOffset: (\d+) lastOffset: (\d+) .*partitionLeaderEpoch: (\d+)", text
        )
    ]
    headers = [header for data in batches for _, header in scan(data)]
    assert found == [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers]
    assert text.count("isvalid: true") == len(headers)
    assert "isvalid: false" not in text
    printed = re.findall(
        r"\| offset: (\d+) (?:CreateTime|LogAppendTime): (\d+).* payload: (.*)", text
    )
    records = [record for data in batches for record in read_records(data)]
    assert [(int(o), int(t), p.encode()) for o, t, p in printed] == [
        (r.offset, r.timestamp, r.value) for r in records
    ]


def test_the_indexes_agree_with_the_log(written):
    directory, _, log = written
    both = f"{files(directory, '.index')},{files(directory, '.timeindex')}"
    text = dump("--files", both)
    assert not [word for word in COMPLAINTS if word in text], text
    assert len(re.findall(r"^offset: \d+ position: \d+", text, re.MULTILINE)) > len(log.segments)
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", text, re.MULTILINE)) > len(log.segments)
    sane = dump("--files", both, "--index-sanity-check")
    assert sane.count("passed sanity check") == 2 * len(log.segments)


def test_the_tool_finds_a_wrong_index_entry(written, tmp_path):
    directory, _, _ = written
    for path in directory.glob("00000000000000000000.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for suffix, at in ((".index", 3), (".timeindex", 7)):
        index = tmp_path / f"00000000000000000000{suffix}"
        data = bytearray(index.read_bytes())
        data[at] ^= 2
        index.write_bytes(data)
        text = dump("--files", str(index))
        assert [word for word in COMPLAINTS if word in text], text


def test_the_producer_snapshots_equal_the_logs_producers(written):
    directory, batches, log = written
    last = directory / f"{log.log_end_offset:020}.snapshot"
    text = dump("--files", files(directory, ".snapshot"))
    assert text.count("Dumping") == len(list(directory.glob("*.snapshot")))
    text = dump("--files", str(last))
    found = {
        int(producer_id): (int(sequence), int(offset))
        for producer_id, sequence, offset in re.findall(
            r"producerId: (\d+) .*lastSequence: (\d+) lastOffset: (\d+)", text
        )
    }
    headers = [header for data in batches for _, header in scan(data)]
    newest = {
        h.producer_id: (h.last_sequence, h.last_offset) for h in headers if h.producer_id >= 0
    }
    assert found == newest
