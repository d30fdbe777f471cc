"""Measure the longest turn of a broker's event loop during large work. The loop serves no client during a turn.

usage: python -m bench.turns [--partitions 100000] [--offsets 1000000]

One node runs in this process, in a temporary directory. A timer fires every millisecond. The loop's CPU time between
two of its calls is a turn, whatever else the machine does. The command prints a line for each of these: offsets
committed and loaded, topics created (also as many as one request may create), a checkpoint, retention sweeps, a scrape
of the metrics, a stop and a start with them, a metadata snapshot, topics deleted.
"""

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from stratalog.adapters.memory import collect_seldom, keep_freed_memory, spare_partitions
from stratalog.adapters.system import outside as system
from stratalog.adapters.threads import take_short_turns
from stratalog.config import BrokerConfig
from stratalog.coordinators.messages import CommitPartition, CommitTopic, OffsetCommit
from stratalog.errors import ErrorCode
from stratalog.node import Node, Ready
from stratalog.quorum.controller import NewTopic

TOPIC_PARTITIONS = 100
PARTITIONS_A_REQUEST = 5_000
PARTITIONS_AT_ONCE = 9_900
"""Each topic is a record too, and a request may make at most ten thousand records."""
OFFSETS_A_REQUEST = 500
_sparing = ExitStack()


class Probe:
    """The longest CPU time, and the longest time, between two calls of a timer that fires every millisecond."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.longest_cpu_ms = 0.0
        self._last, self._last_cpu = time.perf_counter(), time.thread_time()
        self._wake()

    def _wake(self) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        self.longest_ms = max(self.longest_ms, (now - self._last) * 1000 - 1)
        self.longest_cpu_ms = max(self.longest_cpu_ms, (cpu - self._last_cpu) * 1000)
        self._last, self._last_cpu = now, cpu
        asyncio.get_running_loop().call_later(0.001, self._wake)

    @asynccontextmanager
    async def line(self, what: str) -> AsyncIterator[None]:
        self.longest_ms, self.longest_cpu_ms, began = 0.0, 0.0, time.perf_counter()
        yield
        took = time.perf_counter() - began
        await asyncio.sleep(0.01)  # the last turn counts too
        longest = f"longest turn {self.longest_cpu_ms:8.1f} ms of CPU, {self.longest_ms:8.1f} ms"
        print(f"{what:40} {longest}, {took:6.1f} s in all", flush=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the node has no event for it
        await asyncio.sleep(0.01)


def node(place: str, **settings: str) -> Node:
    given = {
        "log.dirs": place,
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "offsets.topic.num.partitions": "1",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    return Node(BrokerConfig.load(given)[0], system())


async def start(running: Node) -> Ready:
    """Start the node as `strata server` does: the garbage collector is off until the node serves."""
    gc.disable()
    _sparing.enter_context(spare_partitions(running.partitions))
    ready = await running.start()
    collect_seldom()
    return ready


async def create(running: Node, partitions: int, a_request: int, prefix: str = "t") -> None:
    assert running.broker is not None
    made = 0
    while made < partitions:
        topics = [
            NewTopic(f"{prefix}{made + number * TOPIC_PARTITIONS}", TOPIC_PARTITIONS, 1)
            for number in range(min(a_request, partitions) // TOPIC_PARTITIONS)
        ]
        created = await running.broker.local_controller.create_topics(topics, validate_only=False)
        assert all(one.error is ErrorCode.none for one in created), created[0]
        made += len(topics) * TOPIC_PARTITIONS


async def delete(running: Node, topics: int) -> None:
    assert running.broker is not None
    metadata = running.broker.metadata
    names = [name for name in metadata.image.topic_ids_by_name if name != "more"][:topics]
    deleted = await running.broker.local_controller.delete_topics(names)
    assert all(one.error is ErrorCode.none for one in deleted), deleted[0]


async def commit(running: Node, offsets: int) -> None:
    assert running.broker is not None
    groups = running.broker.groups
    await groups.ensure_topic()
    await until(lambda: bool(groups.coordinated) and not groups.is_loading)
    await running.broker.local_controller.create_topics([NewTopic("t", 1, 1)], validate_only=False)
    parts = tuple(CommitPartition(index, index) for index in range(OFFSETS_A_REQUEST))
    for number in range(offsets // OFFSETS_A_REQUEST):
        topics = (CommitTopic("t", parts),)
        await groups.commit(OffsetCommit(f"group-{number}", topics, -1, ""))


async def scrape(port: int | None) -> None:
    assert port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    while await reader.read(1 << 16):
        pass
    writer.close()


async def measure_topics(probe: Probe, place: Path, partitions: int) -> None:
    running = node(
        str(place / "topics"),
        monitor__listener="127.0.0.1:0",
        log__retention__check__interval__ms="5000",
    )
    ready = await start(running)
    assert running.broker is not None
    hosting = running.broker.hosting
    async with probe.line(f"{partitions} partitions created"):
        await create(running, partitions, PARTITIONS_A_REQUEST)
    async with probe.line(f"{PARTITIONS_AT_ONCE} in one request"):
        await create(running, PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE, "once")
    (directory,) = running.directories
    async with probe.line("a checkpoint of them"):
        await hosting.checkpoints.write(directory)
    async with probe.line("retention sweeps"):
        await asyncio.sleep(10)
    async with probe.line("a scrape of the metrics"):
        await scrape(ready.monitor_port)
    async with probe.line("a stop with them"):
        await running.stop()
    running = node(str(place / "topics"), metadata__log__max__record__bytes__between__snapshots="1")
    async with probe.line(f"a start with {partitions} partitions"):
        await start(running)
    async with probe.line("a snapshot of them and one more topic"):
        assert running.broker is not None
        await running.broker.local_controller.create_topics(
            [NewTopic("more", 1, 1)], validate_only=False
        )
        await until(lambda: any(place.glob("topics/__cluster_metadata-0/*.checkpoint")))
    async with probe.line(f"{min(PARTITIONS_A_REQUEST, partitions)} of them deleted"):
        await delete(running, PARTITIONS_A_REQUEST // TOPIC_PARTITIONS)
    await running.stop()
    running = node(str(place / "topics"))
    async with probe.line("a start with the snapshot"):
        await start(running)
    await running.stop()


async def measure_offsets(probe: Probe, place: Path, offsets: int) -> None:
    running = node(str(place / "groups"))
    await start(running)
    async with probe.line(f"{offsets} offsets committed"):
        await commit(running, offsets)
    await running.stop()
    running = node(str(place / "groups"))
    async with probe.line(f"a start and {offsets} offsets loaded"):
        await start(running)
        assert running.broker is not None
        await until(lambda: next(running.broker.groups.committed(), None) is not None)
    await running.stop()


async def measure(place: Path, partitions: int, offsets: int) -> None:
    probe = Probe()
    # In this order: a node's release of 100,000 partitions to the C library would count as the next one's turn.
    await measure_offsets(probe, place, offsets)
    await measure_topics(probe, place, partitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--offsets", type=int, default=1_000_000)
    options = parser.parse_args()
    keep_freed_memory()
    take_short_turns()
    collect_seldom()
    with (
        tempfile.TemporaryDirectory() as place,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(Path(place), options.partitions, options.offsets))


if __name__ == "__main__":
    main()
