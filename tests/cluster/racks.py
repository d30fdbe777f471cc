"""`python -m tests.cluster.racks`: 200 real nodes in three racks, in virtual time, lose a whole rack and get it back.

In: how many brokers, beside one controller in each rack, and how many partitions. Out: virtual and CPU seconds of each
step, and the memory of this process. It raises `Broken` where an acknowledged record is not there, and `Stuck` where a
partition is not led, or not in sync, in time.

The rack with the active controller is cut off from the others. Then it loses power, and every write that no sync had
finished. Producers write with acks=all to every partition all the while; `min.insync.replicas` is 2.

`bench/controller.py` measures the pure controller alone, with 200,000 partitions.
"""

import argparse
import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import permutations
from pathlib import Path

import structlog
from tests.cluster.checks import Broken, Stuck, check_replicas, newest, partitions_of
from tests.cluster.clients import Ledger, Producer
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import values_in
from tests.sim.world import World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.metadata.image import Partition
from stratalog.wire.ids import TopicPartition

RACKS = 3
CONTROLLERS = 3
TOPIC = "t"
PRODUCERS = 4
WITHIN_S = 120.0
SESSION_S = 9.0
"""`broker.session.timeout.ms`, Kafka's default."""
LED_WITHIN_S = SESSION_S + 10.0
"""The session, an election of a controller by its own time-outs, and the election of leaders."""
CUT_S = 2.0
PAGE = 4096


class Racks:
    """A cluster of racks, its producers, and the seconds of each step."""

    def __init__(
        self, seed: int, brokers: int, partitions: int, said: Callable[[str], None]
    ) -> None:
        world = World(seed)
        # A trace of every message of 200 nodes would be most of the memory.
        world.network._trace = lambda *_: None
        world.note = lambda *_: None  # type: ignore[method-assign]
        nodes = CONTROLLERS + brokers
        roles = {
            one: "controller" if one <= CONTROLLERS else "broker" for one in range(1, nodes + 1)
        }
        settings = {
            "default.replication.factor": str(RACKS),
            "min.insync.replicas": "2",
            "num.partitions": str(partitions),
            "broker.session.timeout.ms": str(int(SESSION_S * 1000)),
        }
        self.cluster = Cluster(world, nodes, settings, roles)
        for node_id, machine in self.cluster.machines.items():
            machine.settings["broker.rack"] = str(self.rack_of(node_id))
        self.counts: Counter[str] = Counter()
        self.ledger = Ledger(TOPIC, partitions)
        self.steps: dict[str, tuple[float, float]] = {}
        """Step: virtual seconds, CPU seconds of the whole simulation."""
        self._brokers = brokers
        self._beside: list[asyncio.Task[None]] = []
        self._over = False
        self._seed = seed
        self._said = said

    @staticmethod
    def rack_of(node_id: int) -> int:
        return node_id % RACKS

    async def carry_out(self) -> None:
        """Run to the end. Raises Broken, Stuck."""
        await self._timed("start", self._start())
        await self._timed("topic created", self._create())
        self._beside = [asyncio.create_task(self._produce(number)) for number in range(PRODUCERS)]
        await asyncio.sleep(5)
        lost = self.rack_of(await self.cluster.until_active())
        machines = [one for id_, one in self.cluster.machines.items() if self.rack_of(id_) == lost]
        await self._timed("led without the rack", self._lose(lost, machines))
        before = self.ledger.acknowledged
        await self._until(lambda: self.ledger.acknowledged > before + 200, "producers go on")
        await self._timed("in sync with the rack", self._come_back(lost, machines))
        self._over = True
        await asyncio.gather(*self._beside)
        await self._timed("logs compared", self._compare())
        for machine in self.cluster.machines.values():
            await machine.kill()

    async def _lose(self, lost: int, machines: list[Machine]) -> None:
        """Cut the rack off, then its power. Clients reach it meanwhile: its leaders must acknowledge nothing alone."""
        for source, target in self._paths(lost):
            self.cluster.world.network.cut(source, target)
        await asyncio.sleep(CUT_S)
        for machine in machines:
            await machine.lose_power(silent=True)
        await self._led(lost)

    def _paths(self, lost: int) -> Iterator[tuple[str, str]]:
        for one, other in permutations(self.cluster.machines, 2):
            if (self.rack_of(one) == lost) != (self.rack_of(other) == lost):
                yield host_of(one), host_of(other)

    async def _come_back(self, lost: int, machines: list[Machine]) -> None:
        for source, target in self._paths(lost):
            self.cluster.world.network.heal(source, target)
        async with asyncio.TaskGroup() as group:
            for machine in machines:
                group.create_task(machine.start())
        await self._until(self._in_sync, "all replicas are in sync")

    async def _timed(self, step: str, work: Coroutine[None, None, None]) -> None:
        loop = asyncio.get_running_loop()
        began, cpu = loop.time(), time.process_time()
        await work
        self.steps[step] = taken = loop.time() - began, time.process_time() - cpu
        self._said(f"{step}: {taken[0]:.2f} s of virtual time, {taken[1]:.1f} s of CPU time")

    async def _produce(self, number: int) -> None:
        seed = self._seed + number
        producer = Producer(number, self.cluster, self.ledger, self.counts, seed)
        while not self._over:
            await producer.step()
        await producer.close()

    async def _start(self) -> None:
        await self.cluster.start()
        await self._until(lambda: self._active() == self._brokers, "all brokers are active")

    async def _create(self) -> None:
        client = await self._client()
        (created,) = await client.create_topics([NewTopic(TOPIC)])
        if created.error is not ErrorCode.none:
            raise Stuck(f"no topic: {created}")
        await self._until(self._in_sync, "the new topic is in sync")
        for index, one in self._partitions().items():
            if len({self.rack_of(replica) for replica in one.replicas}) != RACKS:
                raise Broken(f"{TOPIC}-{index}: replicas {one.replicas} are not in {RACKS} racks")

    async def _client(self) -> Client:
        return await self.cluster.machines[CONTROLLERS + 1].connect()

    async def _led(self, lost: int) -> None:
        def led() -> bool:
            return all(
                one.leader >= 0
                and self.rack_of(one.leader) != lost
                and all(self.rack_of(member) != lost for member in one.isr)
                for one in self._partitions().values()
            )

        await self._until(led, "every partition is led outside of the lost rack", LED_WITHIN_S)

    async def _compare(self) -> None:
        await self._until(self._ends_agree, "all replicas end at the high watermark")
        for index in self._partitions():
            whole = check_replicas(self.cluster, TopicPartition(TOPIC, index))
            self.ledger.check(index, dict(values_in(whole)))

    def _partitions(self) -> dict[int, Partition]:
        return partitions_of(newest(self.cluster), TOPIC)

    def _active(self) -> int:
        image = newest(self.cluster)
        return 0 if image is None else sum(one.is_active for one in image.brokers.values())

    def _in_sync(self) -> bool:
        found = self._partitions().values()
        return bool(found) and all(one.leader >= 0 and len(one.isr) == RACKS for one in found)

    def _ends_agree(self) -> bool:
        for index, one in self._partitions().items():
            replicas = [self.cluster.machines[id_].partition(TOPIC, index) for id_ in one.replicas]
            ends = {end for r in replicas for end in (r.log.log_end_offset, r.high_watermark)}
            if len(ends) != 1:
                return False
        return True

    async def _until(
        self, holds: Callable[[], bool], what: str, within_s: float = WITHIN_S
    ) -> None:
        def holds_so_far() -> bool:
            for one in self._beside:
                if one.done():
                    one.result()  # an answer contradicted an earlier one
            return holds()

        try:
            await self.cluster.until(holds_so_far, what, within_s)
        except Broken:
            raise
        except AssertionError as error:
            raise Stuck(str(error)) from error


def play(
    seed: int, brokers: int, partitions: int, said: Callable[[str], None] = lambda _: None
) -> Racks:
    """Run a seed to its end; `said` gets a line for each step. Raises Broken, Stuck."""

    async def whole() -> Racks:
        one = Racks(seed, brokers, partitions, said)
        await one.carry_out()
        return one

    return run(whole())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.racks", description=__doc__)
    parser.add_argument("--brokers", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = play(asked.seed, asked.brokers, asked.partitions, partial(print, flush=True))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    print(
        f"{asked.brokers} brokers, {asked.partitions} partitions, seed {asked.seed}: "
        f"{found.ledger.acknowledged} records acknowledged, none lost; {resident / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
