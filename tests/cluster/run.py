"""One run of a cluster of real nodes under faults, from a seed.

In: a seed. Out: counts of what happened; raises `Broken` where an acknowledged record is lost, moved or there twice,
where replicas differ, or where the healed cluster makes no progress.

Three nodes, each broker and controller, hold every partition of one topic (`min.insync.replicas=2`). Producers write
with acks=all and note each acknowledged record in a ledger. Meanwhile processes are killed and paused, machines lose
power, and the network is cut in one or both directions. Then all faults end. Every replica must reach the same log,
byte for byte, and every record of the ledger must be in it at its offset.

A machine loses power only while every partition has all its replicas in sync: a record on no disk and in no process is
lost in Kafka too.
"""

import asyncio
from collections import Counter
from random import Random

from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch, values_in
from tests.sim.world import World

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.metadata.image import Image, Partition

TOPIC = "t"
PARTITIONS = 3
NODES = 3
PRODUCERS = 2
FAULTS = 12
BOOTSTRAP = ",".join(f"{host_of(one)}:9092" for one in range(1, NODES + 1))
HEALED_WITHIN_S = 120.0
SETTINGS = {
    "default.replication.factor": str(NODES),
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "5000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
NEEDED = ("acknowledged", "elections", "ISR changes", "kills", "losses of power", "cuts", "pauses")


class Broken(AssertionError):
    """A property does not hold."""


def run_seed(seed: int) -> Counter[str]:
    """Run a seed in virtual time; return the count of each event."""

    async def whole() -> Counter[str]:
        one = Run(seed)
        await one.carry_out()
        return one.counts

    return run(whole())


class Run:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.counts: Counter[str] = Counter()
        self.cluster = Cluster(World(seed), NODES, SETTINGS)
        self.sent: set[bytes] = set()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """(partition, offset) -> value."""
        self._is_over = False
        self._is_losing_power = False
        self._last_epochs: dict[int, tuple[int, tuple[int, ...]]] = {}

    async def carry_out(self) -> None:
        """Run to the end."""
        cluster = self.cluster
        await cluster.start()
        await self._create()
        writers = [asyncio.create_task(self._produce(number)) for number in range(PRODUCERS)]
        watcher = asyncio.create_task(self._watch())
        for _ in range(FAULTS):
            await self._fault()
            for writer in writers:
                if writer.done():
                    writer.result()  # raises the violated property
        await self._until_they_agree()
        before = len(self.acknowledged)
        await cluster.until(
            lambda: len(self.acknowledged) > before, "an acknowledged record after healing", 60
        )
        self._is_over = True
        await asyncio.gather(*writers)
        watcher.cancel()
        await self._until_they_agree()
        self._check()
        for machine in cluster.machines.values():
            if machine.broken_tasks or machine.reasons_to_stop:
                raise Broken(
                    f"{machine.host.name}: {machine.broken_tasks} {machine.reasons_to_stop}"
                )
        await cluster.stop()

    # Clients

    async def _create(self) -> None:
        client = await self._connect()
        await self.cluster.until(lambda: len(self._active_brokers()) == NODES, "all brokers", 60)
        (created,) = await client.create_topics([NewTopic(TOPIC, PARTITIONS, NODES)])
        if created.error is not ErrorCode.none:
            raise Broken(f"no topic: {created}")
        await client.close()

    def _active_brokers(self) -> list[int]:
        newest = max(self._images(), key=lambda image: image.offset)
        return [broker.id for broker in newest.brokers.values() if broker.is_active]

    async def _connect(self) -> Client:
        return await Client.connect(self.cluster.world.network, BOOTSTRAP, timeout_s=5.0)

    async def _produce(self, number: int) -> None:
        """Write until the run is over. A failed record is not sent again: the log may have it or not."""
        client: Client | None = None
        count = 0
        while not self._is_over:
            count += 1
            partition = self.chance.randrange(PARTITIONS)
            values = [b"%d-%d-%d" % (number, count, n) for n in range(self.chance.randint(1, 4))]
            self.sent.update(values)
            try:
                client = client or await self._connect()
                made = batch(values, self.cluster.world.clock.now_ms())
                produced = await client.produce(TOPIC, partition, made)
            except (Unavailable, Rejected) as error:
                self.counts["refused"] += 1
                self.counts[f"refused: {_kind(error)}"] += 1
                if client is not None:
                    await client.close()
                client = None
                await asyncio.sleep(0.2)
                continue
            for place, value in enumerate(values):
                at = partition, produced.base_offset + place
                if self.acknowledged.setdefault(at, value) != value:
                    raise Broken(
                        f"two records acknowledged at {at}: {value!r}, {self.acknowledged[at]!r}"
                    )
            self.counts["acknowledged"] += len(values)
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.uniform(0, 0.3))
        if client is not None:
            await client.close()

    async def _watch(self) -> None:
        """Count elections and changes of ISRs."""
        while True:
            for index, partition in self._partitions():
                epoch, isr = self._last_epochs.get(index, (partition.leader_epoch, partition.isr))
                self.counts["elections"] += partition.leader_epoch != epoch
                self.counts["ISR changes"] += partition.isr != isr
                self._last_epochs[index] = partition.leader_epoch, partition.isr
            await asyncio.sleep(0.05)

    def _images(self) -> list[Image]:
        return [
            machine.node._quorum.image.image
            for machine in self.cluster.machines.values()
            if machine.is_up and machine.node._quorum is not None
        ]

    def _partitions(self) -> list[tuple[int, Partition]]:
        newest = max(self._images(), key=lambda image: image.offset, default=None)
        topic = None if newest is None else newest.topic(TOPIC)
        return [] if topic is None else sorted(topic.partitions.items())

    # Faults

    async def _fault(self) -> None:
        """One fault of one machine, or of the network, and its end; sometimes a second one meanwhile."""
        chance = self.chance
        await asyncio.sleep(chance.uniform(0, 4))
        victims = chance.sample(list(self.cluster.machines.values()), chance.choice((1, 1, 1, 2)))
        await asyncio.gather(*(self._suffer(machine) for machine in victims))

    async def _suffer(self, machine: Machine) -> None:
        kinds = [self._kill, self._pause, self._cut, self._cut_one_way]
        if self._all_in_sync():
            kinds.append(self._lose_power)
        await self.chance.choice(kinds)(machine)

    def _all_in_sync(self) -> bool:
        return (
            all(machine.is_up for machine in self.cluster.machines.values())
            and all(len(one.isr) == NODES for _, one in self._partitions())
            and not self._is_losing_power
        )

    async def _kill(self, machine: Machine) -> None:
        self.counts["kills"] += 1
        await machine.kill()
        await self._restart(machine)

    async def _lose_power(self, machine: Machine) -> None:
        self.counts["losses of power"] += 1
        self._is_losing_power = True
        await machine.lose_power(silent=self.chance.random() < 0.5)
        await self._restart(machine)
        self._is_losing_power = False

    async def _restart(self, machine: Machine) -> None:
        await asyncio.sleep(self.chance.uniform(0, 8))
        await machine.start()

    async def _pause(self, machine: Machine) -> None:
        self.counts["pauses"] += 1
        machine.pause()
        await asyncio.sleep(self.chance.uniform(0.5, 10))
        machine.resume()

    async def _cut(self, machine: Machine) -> None:
        await self._cut_for_a_while(machine, both=True)

    async def _cut_one_way(self, machine: Machine) -> None:
        await self._cut_for_a_while(machine, both=False)

    async def _cut_for_a_while(self, machine: Machine, *, both: bool) -> None:
        self.counts["cuts"] += 1
        here = machine.host.name
        others = [one.host.name for one in self.cluster.machines.values() if one is not machine]
        pairs = [(here, other) for other in others]
        if both or self.chance.random() < 0.5:
            pairs = [(b, a) for a, b in pairs] + (pairs if both else [])
        network = self.cluster.world.network
        for source, target in pairs:
            network.cut(source, target)
        await asyncio.sleep(self.chance.uniform(0.5, 10))
        for source, target in pairs:
            network.heal(source, target)

    # The end

    async def _until_they_agree(self) -> None:
        """Wait until every partition is led, all replicas are in sync, and all logs end where the high watermark is."""
        await self.cluster.until(self._agree, "all replicas in sync", HEALED_WITHIN_S)

    def _agree(self) -> bool:
        if not all(len(one.isr) == NODES and one.leader >= 0 for _, one in self._partitions()):
            return False
        if not self._is_over:
            return True
        for index in range(PARTITIONS):
            ends = set()
            for hosted in self._replicas(index):
                ends |= {hosted.log.log_end_offset, hosted.high_watermark}
            if len(ends) != 1:
                return False
        return True

    def _replicas(self, index: int) -> list[HostedPartition]:
        return [machine.partition(TOPIC, index) for machine in self.cluster.machines.values()]

    def _check(self) -> None:
        for index in range(PARTITIONS):
            logs = [_bytes(machine, index) for machine in self.cluster.machines.values()]
            if len(set(logs)) != 1:
                raise Broken(
                    f"{TOPIC}-{index}: replicas differ: {[len(one) for one in logs]} bytes"
                )
            found = list(values_in(logs[0]))
            if [offset for offset, _ in found] != list(range(len(found))):
                raise Broken(f"{TOPIC}-{index}: a gap")
            values = [value for _, value in found]
            if len(set(values)) != len(values) or not set(values) <= self.sent:
                raise Broken(f"{TOPIC}-{index}: a record is there twice, or was never sent")
            for (partition, offset), value in self.acknowledged.items():
                if partition == index and (offset >= len(values) or values[offset] != value):
                    there = values[offset] if offset < len(values) else None
                    raise Broken(f"{TOPIC}-{index}: {value!r} lost at {offset}: {there!r}")


def _bytes(machine: Machine, index: int) -> bytes:
    log = machine.partition(TOPIC, index).log
    disk = machine.host.disk("/data")
    return b"".join(bytes(disk.read(one.path, 0, one.size)) for one in log.segments)


def _kind(error: Exception) -> str:
    return error.code.name if isinstance(error, Rejected) else "unavailable"


def check_counts(counts: Counter[str]) -> None:
    """Raise Broken unless the runs had every kind of event that could have broken a property."""
    missing = [what for what in NEEDED if not counts[what]]
    if missing:
        raise Broken(f"the runs had no {', '.join(missing)}")
