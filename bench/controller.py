"""Measure the controller of a large cluster: 200 brokers in 3 racks lose a rack; 200,000 partitions are loaded.

usage: python -m bench.controller [--partitions 200000] [--brokers 200]

The controller runs without disks and without a network, on a log in memory. It measures CPU time of one core, and
the memory of this process. Each of three controllers loads the log and has the image; the active one also has the
index. The command prints a line for each of these: partitions created, a rack lost (every broker of it falls silent at
once), the log loaded, a snapshot written and loaded, the next controller opened. It fails unless every partition is
led outside of the lost rack, and has the other two replicas in sync.
"""

import argparse
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.quorum.metadata_log import NOW_MS, MetadataLog, started

from stratalog.broker.slices import slices
from stratalog.metadata.image import Image
from stratalog.metadata.snapshot import decode_snapshot, image_of, snapshot_batches, snapshot_id
from stratalog.quorum.brokers import ELECTED_AT_ONCE
from stratalog.quorum.controller import Controller, NewTopic
from stratalog.quorum.partition_index import PartitionIndex

RACKS = 3
FACTOR = 3
TOPIC_PARTITIONS = 1000
TOPICS_A_REQUEST = 5
PAGE = 4096


class Timed:
    """CPU seconds of a block."""

    seconds = 0.0


@contextmanager
def timed() -> Iterator[Timed]:
    found = Timed()
    began = time.process_time()
    yield found
    found.seconds = time.process_time() - began


def resident() -> int:
    """Return the bytes of memory that this process has, after a collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def rack_of(broker_id: int) -> str:
    return f"rack-{broker_id % RACKS}"


def cluster(brokers: int) -> MetadataLog:
    """Return a log with that many brokers, in racks by turns. Broker 1 is there already, without a rack."""
    log = started()
    for broker_id in range(2, brokers + 2):
        log.broker(broker_id, rack_of(broker_id))
    log.run(log.controller.unregister_broker(1))
    for broker_id in log.image.brokers:
        log.heartbeat(broker_id)
    return log


def create(log: MetadataLog, partitions: int) -> None:
    names = [f"topic-{number}" for number in range(partitions // TOPIC_PARTITIONS)]
    for part in slices(names, TOPICS_A_REQUEST):
        wanted = [NewTopic(name, TOPIC_PARTITIONS, FACTOR) for name in part]
        results = log.run(log.controller.create_topics(wanted, log.entropy))
        assert all(one.error == 0 for one in results), results


def lose_rack(log: MetadataLog, rack: str) -> tuple[int, float]:
    """Let a rack's sessions end while the other brokers send heartbeats.

    Return the number of decisions, and the CPU seconds of the longest.
    """
    log.now_ms += 8_000
    for broker_id, broker in log.image.brokers.items():
        if broker.rack != rack:
            log.heartbeat(broker_id)
    log.now_ms += 2_000
    decisions, longest = 0, 0.0
    while (stale := log.controller.stale_broker(log.now_ms)) is not None:
        for part in slices(list(log.controller.partitions_to_leave(stale)), ELECTED_AT_ONCE):
            with timed() as turn:
                log.run(log.controller.leave(stale, part))
            decisions, longest = decisions + 1, max(longest, turn.seconds)
        with timed() as turn:
            log.run(log.controller.fence_stale_broker(log.now_ms))
        decisions, longest = decisions + 1, max(longest, turn.seconds)
    return decisions, longest


def check_lost(image: Image, rack: str) -> None:
    """Every partition is led outside of the rack, by one of two replicas in sync."""
    for topic in image.topics_by_id.values():
        for index, one in topic.partitions.items():
            racks = sorted(image.brokers[broker].rack or "" for broker in one.replicas)
            assert len(set(racks)) == RACKS, f"{topic.name}-{index}: replicas in {racks}"
            alive = {broker for broker in one.replicas if image.brokers[broker].rack != rack}
            assert one.leader in alive, f"{topic.name}-{index}: {one}"
            assert set(one.isr) == alive, f"{topic.name}-{index}: {one}"


def line(what: str, seconds: float, partitions: int, more: str = "") -> None:
    each = seconds / partitions * 1e6
    print(f"{what:28} {seconds:8.2f} s  {each:7.1f} us a partition  {more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.controller", description=__doc__)
    parser.add_argument("--partitions", type=int, default=200_000)
    parser.add_argument("--brokers", type=int, default=200)
    chosen = parser.parse_args()
    partitions = chosen.partitions
    with timed() as took:
        log = cluster(chosen.brokers)
        create(log, partitions)
    line("partitions created", took.seconds, partitions, f"{len(log.data) / partitions:.0f} B each")

    rack, before = rack_of(2), len(log.data)
    with timed() as took:
        decisions, longest = lose_rack(log, rack)
    check_lost(log.image, rack)
    written = f"{(len(log.data) - before) / partitions:.0f} B each"
    turns = f"{decisions} decisions, the longest {longest * 1000:.0f} ms"
    line(f"{rack} lost", took.seconds, partitions, f"{written}, {turns}")

    with timed() as took:
        data = bytearray()
        for batch in snapshot_batches(log.image, NOW_MS, NOW_MS):
            data += batch
    line("snapshot written", took.seconds, partitions, f"{len(data) / partitions:.0f} B each")
    identity = snapshot_id(log.image)

    was = resident()
    with timed() as took:
        loaded = image_of(decode_snapshot(bytes(data)), identity)
    grown = (resident() - was) / partitions
    line("snapshot loaded", took.seconds, partitions, f"{grown:.0f} B of memory each")
    assert loaded.topics_by_id == log.image.topics_by_id

    with timed() as took:
        replayed = log.replayed().image()
    line("log loaded", took.seconds, partitions, f"{len(log.data) / partitions:.0f} B each")
    assert replayed.topics_by_id == log.image.topics_by_id
    del replayed

    was = resident()
    with timed() as took:
        index = PartitionIndex()
        for topic in loaded.topics_by_id.values():
            index.add(topic)
        controller = Controller(log.rules, loaded, index)
        controller.start_sessions(-1, log.now_ms, {})
    grown = (resident() - was) / partitions
    line("next controller opened", took.seconds, partitions, f"{grown:.0f} B of memory each")


if __name__ == "__main__":
    main()
