"""Sixty-four partitions whose segments close together: what the copies hold in memory is bounded by the threads.

Method: a real broker over a directory; the bytes that copies hold, and how many are under way, are counted where the
store takes them.
"""

import threading
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.adapters.directory_store import DirectoryStore
from stratalog.testing import TemporaryBroker

PARTITIONS = 64
THREADS = 2
RECORD_BYTES = 60_000
PIECE_BYTES = 1 << 20
WAIT_S = 60


class Counted:
    """What copies hold now, and the most they ever held."""

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
    told = Counted()
    put = DirectoryStore.put

    def counting(store, path, chunks):
        if not path.endswith(".seg"):
            put(store, path, chunks)
            return
        with told.copy():
            put(store, path, told.pieces(chunks))

    monkeypatch.setattr(DirectoryStore, "put", counting)
    return told


def test_partitions_that_roll_in_the_same_second_hold_no_more_than_the_threads_do(
    counted, tmp_path
):
    settings = {
        "tier.url": (tmp_path / "bucket").as_uri(),
        "remote.log.manager.copier.thread.pool.size": str(THREADS),
        "remote.log.manager.task.interval.ms": "100",
    }
    config = {"remote.storage.enable": "true", "segment.ms": "1000"}
    with TemporaryBroker(settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", PARTITIONS, 1, config=config)])["t"].result(30)
        producer = Producer({"bootstrap.servers": broker.address})
        now_ms = int(time.time() * 1000) - 10_000
        failures = []
        for step in range(2):  # the second record's time closes the segment with the first
            for index in range(PARTITIONS):
                producer.produce(
                    "t",
                    bytes(RECORD_BYTES),
                    partition=index,
                    timestamp=now_ms + step * 2000,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
            assert producer.flush(60) == 0
        assert not failures
        deadline = time.monotonic() + WAIT_S
        while counted.finished < PARTITIONS:
            assert time.monotonic() < deadline, f"{counted.finished} copied"
            time.sleep(0.02)
    assert counted.copies_max <= THREADS
    assert RECORD_BYTES < counted.held_max <= THREADS * (PIECE_BYTES + 4096)
    assert counted.held_max < PARTITIONS * RECORD_BYTES / 4, "or the test shows nothing"
