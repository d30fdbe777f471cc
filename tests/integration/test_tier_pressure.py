"""Sixty-four partitions whose segments close together: the threads bound the uploads' memory. A log directory with a
stalled drive delays only its own uploads.

Method: a real broker over a directory as its bucket. The store counts the running uploads and their bytes. The test
blocks the uploading threads' reads of one log directory.
"""

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.adapters.directory_store import DirectoryStore
from stratalog.adapters.local_disk import LocalDisk
from stratalog.testing import TemporaryBroker

PARTITIONS = 64
THREADS = 2
RECORD_BYTES = 60_000
PIECE_BYTES = 1 << 20
WAIT_S = 60


class Counted:
    """Bytes that uploads hold now, and their maximum."""

    def __init__(self):
        self.guard = threading.Lock()
        self.held = self.copies = self.held_max = self.copies_max = self.finished = 0

    @contextmanager
    def copy(self):
        with self.guard:
            self.copies += 1
            self.copies_max = max(self.copies, self.copies_max)
        yield
        with self.guard:
            self.copies -= 1
            self.finished += 1

    def pieces(self, chunks):
        for chunk in chunks:
            with self.guard:
                self.held += len(chunk)
                self.held_max = max(self.held, self.held_max)
            yield chunk
            with self.guard:
                self.held -= len(chunk)


@pytest.fixture
def counted(monkeypatch):
    memory = Counted()
    put = DirectoryStore.put

    def counting(store, path, chunks):
        if not path.endswith(".seg"):
            put(store, path, chunks)
            return
        with memory.copy():
            put(store, path, memory.pieces(chunks))

    monkeypatch.setattr(DirectoryStore, "put", counting)
    return memory


def create(address, partitions):
    config = {"remote.storage.enable": "true", "segment.ms": "1000"}
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", partitions, 1, config=config)])["t"].result(30)


def close_a_segment(address, partitions, record_bytes):
    """In each partition, append two records; the time of the second closes the segment of the first (`segment.ms`)."""
    producer = Producer({"bootstrap.servers": address})
    now_ms = int(time.time() * 1000) - 10_000
    failures = []
    for step in range(2):
        for index in range(partitions):
            producer.produce(
                "t",
                bytes(record_bytes),
                partition=index,
                timestamp=now_ms + step * 2000,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(60) == 0
    assert not failures


def test_memory_of_simultaneous_uploads_is_bounded_by_the_threads(counted, tmp_path):
    settings = {
        "tier.url": (tmp_path / "bucket").as_uri(),
        "remote.log.manager.copier.thread.pool.size": str(THREADS),
        "remote.log.manager.task.interval.ms": "100",
    }
    with TemporaryBroker(settings) as broker:
        create(broker.address, PARTITIONS)
        close_a_segment(broker.address, PARTITIONS, RECORD_BYTES)
        deadline = time.monotonic() + WAIT_S
        while counted.finished < PARTITIONS:
            assert time.monotonic() < deadline, f"{counted.finished} copied"
            time.sleep(0.02)
    assert counted.copies_max <= THREADS
    assert RECORD_BYTES < counted.held_max <= THREADS * (PIECE_BYTES + 4096)
    assert counted.held_max < PARTITIONS * RECORD_BYTES / 4, (
        "no uploads ran at once: the test proves nothing"
    )


def test_a_stalled_drive_delays_only_the_uploads_of_its_own_directory(tmp_path, monkeypatch):
    well, stalled = (str(tmp_path / name) for name in ("well", "stalled"))
    goes_on, waiting = threading.Event(), threading.Event()
    read = LocalDisk.read

    def stalling(disk, path, position, size):
        if disk.root == stalled and threading.current_thread().name.startswith("tier-copy"):
            waiting.set()
            goes_on.wait(WAIT_S)
        return read(disk, path, position, size)

    monkeypatch.setattr(LocalDisk, "read", stalling)
    settings = {
        "log.dirs": f"{well},{stalled}",
        "tier.url": (tmp_path / "bucket").as_uri(),
        "remote.log.manager.copier.thread.pool.size": "1",
        "remote.log.manager.task.interval.ms": "100",
    }

    def copied(count):
        deadline = time.monotonic() + WAIT_S
        while len(found := sorted(tmp_path.glob("bucket/**/*.seg"))) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} copied"
            time.sleep(0.02)
        return [path.parent.name for path in found]

    try:
        with TemporaryBroker(settings) as broker:
            create(broker.address, 4)
            here = [path.name.removeprefix("t-") for path in Path(well).glob("t-*")]
            assert len(here) == 2
            close_a_segment(broker.address, 4, 1000)
            assert waiting.wait(WAIT_S)
            assert sorted(copied(2)) == sorted(here)
            goes_on.set()
            assert sorted(copied(4)) == ["0", "1", "2", "3"]
    finally:
        goes_on.set()
