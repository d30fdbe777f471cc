"""A machine of a simulation: one node's processes, one after another, on one host, and how they end.

In: a world, settings of which the listener's address names the host. Out: a started node and its client; `stop`, `kill`
(the process dies, the machine does not), `lose_power` (what was not synced may be gone), `pause` and `resume`. Each
concerns this machine alone. It never repairs anything: the next `start` must.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from random import Random

from msgspec.structs import replace
from tests.sim.loop import VirtualLoop
from tests.sim.process import Process
from tests.sim.workers import SimWorkers
from tests.sim.world import World

from stratalog.broker.broker import Broker
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.aio import Client
from stratalog.config import BrokerConfig
from stratalog.node import Node

ADDRESS = "127.0.0.1:9092"
QUICK = {
    "node.id": "1",
    "listeners": f"PLAINTEXT://{ADDRESS}",
    "log.dirs": "/data",
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "remote.delete.grace.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "small.requests.compiled": "true",
}


class Machine:
    """`start` it, then `node`, `broker` and `connect` are there."""

    def __init__(self, world: World, settings: Mapping[str, str] | None = None) -> None:
        self.world = world
        self.settings = {**QUICK, **(settings or {})}
        self.slowness = 0.0
        """Probability that a call of a drive or the bucket is slow, from the next start on."""
        self.starts = 0
        self.is_up = False
        """Whether a process runs, paused or not."""
        self.reasons_to_stop: list[str] = []
        """The reasons that the node gave for stopping itself."""
        self.broken_tasks: list[BaseException] = []
        """Unexpected errors of the node's background tasks."""
        first = self.settings["listeners"].split(",")[0]
        self.address = first.partition("://")[2]
        self.host = world.host(self.address.rpartition(":")[0])
        self._node: Node | None = None
        self._process: Process | None = None
        self._workers: SimWorkers | None = None
        self._clients: list[Client] = []

    @property
    def log_dirs(self) -> list[str]:
        """Return the paths of `log.dirs`."""
        return self.settings["log.dirs"].split(",")

    @property
    def is_controller(self) -> bool:
        """Whether the node takes part in the quorum's votes."""
        return "controller" in self.settings.get("process.roles", "broker,controller")

    @property
    def node(self) -> Node:
        assert self._node is not None, "started"
        return self._node

    @property
    def broker(self) -> Broker:
        assert self.node.broker is not None, "started"
        return self.node.broker

    @property
    def workers_started(self) -> list[tuple[str, int, bool]]:
        assert self._workers is not None, "started"
        return self._workers.started

    def be_slow(self, slowness: float) -> None:
        """Make each call of a drive or the bucket slow with this probability, from now on."""
        assert self._workers is not None, "started"
        self._workers.slowness = slowness

    def take_ms(self, milliseconds: float) -> None:
        """Make each call of a drive or the bucket take this long, from now on."""
        assert self._workers is not None, "started"
        self._workers.delay_s = (milliseconds / 1000, milliseconds / 1000)

    def stall(self, seconds: float) -> None:
        """Let no call of a drive end within this time. Bytes in the page cache can be read."""
        assert self._workers is not None, "started"
        until_s = asyncio.get_running_loop().time() + seconds
        self.host.stalled_until_s = self._workers.stalled_until_s = until_s

    def slow_bucket(self, slowness: float) -> None:
        """Make each call of the bucket slow with this probability, from now on; calls of this process alone."""
        assert self._workers is not None, "started"
        self._workers.bucket_slowness = slowness

    def partition(self, topic: str, index: int = 0) -> HostedPartition:
        return self.broker.hosting.get(topic, index)

    @property
    def process(self) -> Process:
        assert self._process is not None, "started"
        return self._process

    async def start(self) -> Node:
        """Start a new process. Raises the errors of a failed start, after the process is removed."""
        world = self.world
        world.network.come_up(self.host.name)
        self._workers = SimWorkers(Random(world.chance.random()), self.slowness)
        self._workers.stalled_until_s = self.host.stalled_until_s
        self._process = Process(self.host.name)
        config = BrokerConfig.load(self.settings)[0]
        self._node = Node(
            config,
            replace(self.host.outside, workers=self._workers),
            on_fatal=partial(self._must_stop, self._process),
            on_broken=partial(self._broken, self._process),
        )
        self.starts += 1
        self.is_up = True
        await self._process.run(self._start(self._node, self._process))
        return self._node

    async def _start(self, node: Node, process: Process) -> None:
        try:
            await node.start()
        except BaseException:
            if not process.is_dead:
                await node.stop()
            raise

    def _must_stop(self, process: Process, reason: str) -> None:
        """Note why the node must stop. The end of a dead process, whose tasks are cancelled, is no reason."""
        if not process.is_dead:
            self.reasons_to_stop.append(reason)

    def _broken(self, process: Process, error: BaseException) -> None:
        """Note a task that died by a bug; the run fails for it, unless the process was dead already."""
        if process.is_dead:
            return
        self.broken_tasks.append(error)
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.bugs.append(error)

    async def lose_power_starting(self, after_s: float) -> None:
        """Start, and lose power during the start."""
        starting = asyncio.create_task(self.start())
        await asyncio.sleep(after_s)
        await self.lose_power()
        await asyncio.wait((starting,))

    async def connect(self) -> Client:
        client = await Client.connect(self.world.network, self.address)
        self._clients.append(client)
        return client

    async def restart(self) -> Client:
        await self.start()
        return await self.connect()

    async def stop(self) -> None:
        await self._close_clients()
        await self.process.run(self.node.stop())
        self.is_up = False

    def pause(self) -> None:
        """Pause as SIGSTOP does, until `resume`."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    async def kill(self) -> None:
        """Kill the process as kill -9 does: written bytes stay, all others are lost; the kernel closes connections."""
        process = await self._die()
        self.world.network.end_process(process)
        for disk in self.host.disks.values():
            disk.end_process()
        await self._close_clients()

    async def lose_power(self, *, silent: bool = False) -> None:
        """Lose power and unsynced writes. `silent`: peers learn nothing, until the machine is up and they send."""
        process = await self._die()
        self.world.network.lose_power(process, silent=silent)
        for disk in self.host.disks.values():
            disk.crash(self.world.chance)
        await self._close_clients()

    async def _die(self) -> Process:
        process, self._process, self._node = self.process, None, None
        self.is_up = False
        await process.kill()
        return process

    async def _close_clients(self) -> None:
        for client in self._clients:
            await client.close()
        self._clients.clear()
        await asyncio.sleep(0.1)
