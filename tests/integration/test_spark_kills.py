"""A streaming query whose driver is killed again and again while the seam moves: each record once, none missing.

Method: a producer never pauses; segments close, are archived and leave the local disk; in the middle a partition is
added. A driver is started, and killed with SIGKILL either between a micro-batch's offset log and its commit (the
checkpoint's files say when) or at a random moment; the next one continues from the checkpoint. The query writes to
Spark's file sink, which is exactly once if the source returns the same rows again. Each record contains its own offset.
`SPARK_KILLS=20` sets how often (fewer here than by command); a failure prints the seed.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.test_spark_broker import (
    RECORDS_PER_BATCH,
    Driver,
    batch,
    both,
    local_segments,
    produce,
    tiered_end,
    until,
    whole,
)

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client

pytestmark = [pytest.mark.big, pytest.mark.timeout(7200), pytest.mark.xdist_group("spark")]

KILLS = int(os.environ.get("SPARK_KILLS", "6"))
TOPIC = "kills"
PATIENCE_S = 600
PAUSE_S = 0.15


class Producer:
    """A producer to every partition of a topic, without end; `ends` are the acknowledged offsets."""

    def __init__(self, broker: BrokerProcess, ends: list[int], topic: str = TOPIC) -> None:
        self.ends = ends
        self.broker = broker
        self._topic = topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        async with await Client.connect(TcpNetwork(), self.broker.address) as client:
            while not self._stopped.is_set():
                known = len(self.ends)
                await client.metadata([self._topic])  # finds added partitions
                for partition in range(known):
                    end = self.ends[partition]
                    answer = await client.produce(self._topic, partition, batch(end))
                    assert answer.base_offset == end
                    self.ends[partition] = end + RECORDS_PER_BATCH
                await asyncio.sleep(PAUSE_S)

    def add_partition(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        wanted = NewPartitions(self._topic, len(self.ends) + 1)
        for future in admin.create_partitions([wanted]).values():
            future.result(30)
        self.ends.append(0)

    @contextmanager
    def running(self) -> Iterator["Producer"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join(30)


class Checkpoint:
    """A query's checkpoint files, which show its progress."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def _last(self, log: str) -> int:
        folder = self.place / log
        names = [file.name for file in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    @property
    def begun(self) -> int:
        """Return the last micro-batch whose offsets are in the offset log."""
        return self._last("offsets")

    @property
    def committed(self) -> int:
        return self._last("commits")

    def wait_for(self, begun: int, *, uncommitted: bool) -> None:
        """Wait until micro-batch `begun` or a later one has started; with `uncommitted`, until one runs."""
        deadline = time.monotonic() + PATIENCE_S
        while self.begun < begun or (uncommitted and self.committed >= self.begun):
            assert time.monotonic() < deadline, f"the query stands still at {self.begun}"
            time.sleep(0.001)


def test_a_driver_killed_again_and_again_loses_and_repeats_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    where = {"checkpoint": str(checkpoint.place), "sink": str(tmp_path / "sink")}
    with broker_process(tmp_path / "broker") as broker:
        options = both(broker, TOPIC, startingOffsets="earliest")
        limited = options | {"maxOffsetsPerTrigger": "500"}
        produce(broker, TOPIC, 0, 2000, partitions=2)
        interrupted = 0
        seams = set()
        with Producer(broker, [2000, 2000]).running() as producer:
            for kill in range(KILLS):
                if kill == KILLS // 2:
                    producer.add_partition()
                inside = kill % 2 == 0
                driver = Driver(tmp_path / "driver")
                try:
                    before = checkpoint.begun
                    driver.ask("stream", options=limited, **where, wait=False)
                    checkpoint.wait_for(before + 2, uncommitted=inside)
                    if not inside:
                        time.sleep(chance.uniform(0, 3))
                finally:
                    driver.kill()
                # No driver runs now: the next one finds the checkpoint as these files have it.
                interrupted += checkpoint.begun > checkpoint.committed
                seams.add(tiered_end(broker, TOPIC))
        assert interrupted >= KILLS // 4, f"{interrupted} of {KILLS} kills between log and commit"
        assert len(seams) > 1, "the seam stood still"
        until(lambda: local_segments(broker, TOPIC) <= 2, "nothing left the local disk")
        driver = Driver(tmp_path / "driver")
        try:
            driver.ask("stream", options=options, **where, wait=True)
            found = driver.ask("read_back", sink=where["sink"])
        finally:
            driver.kill()
    assert len(producer.ends) == 3
    for partition, end in enumerate(producer.ends):
        whole(found, partition, 0, end)
    assert {part["origin"] for part in found} == {"bucket", "broker"}
    print(
        f"{KILLS} kills, {interrupted} between offset log and commit, {sum(producer.ends)} records"
    )
