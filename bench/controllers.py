"""Measure three controllers of a large cluster over the simulated network: load, snapshot, failover.

usage: python -m bench.controllers [--partitions 200000] [--brokers 200]

The controllers are real nodes on simulated machines, disks and links, all in this process. The brokers are requests
alone: each registers and sends one heartbeat. The command prints CPU seconds of one core for each of these:
partitions created and committed by the quorum; a killed controller that loads its own log; a controller with an empty
disk that loads the leader's snapshot; the leader killed, until the next controller is active. Virtual seconds count
time-outs and links, and no CPU time. It fails unless every controller has every partition at the end.
"""

import argparse
import asyncio
import logging
from functools import partial
from typing import Any

import structlog
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from bench.controller import (
    FACTOR,
    TOPIC_PARTITIONS,
    TOPICS_A_REQUEST,
    line,
    rack_of,
    resident,
    timed,
)
from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.broker.slices import slices
from stratalog.metadata.image import Endpoint, Image
from stratalog.quorum.brokers import BrokerHeartbeat, BrokerRegistration, HeartbeatAnswer
from stratalog.quorum.controller import Controller, NewTopic
from stratalog.statemachine import Decision

CONTROLLERS = (1, 2, 3)
FIRST_BROKER = 11
SESSION_MS = 100_000_000
"""No broker's session ends."""
SNAPSHOT_BYTES = 20
"""A snapshot follows so many bytes of records for each partition: some five snapshots while all are created."""
WITHIN_S = 600.0


class Measured:
    """A simulated cluster, and the requests to its active controller."""

    def __init__(self, brokers: int, partitions: int) -> None:
        self.brokers, self.partitions = brokers, partitions
        roles = dict.fromkeys(CONTROLLERS, "controller")
        settings = {
            "broker.session.timeout.ms": str(SESSION_MS),
            "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES * partitions),
        }
        self.cluster = Cluster(World(1), len(CONTROLLERS), settings, roles)

    async def carry_out(self) -> None:
        cluster, was = self.cluster, resident()
        await cluster.start()
        leader = await cluster.until_active()
        await self._register(leader)
        with timed() as took:
            await self._create(leader)
            await self._until_equal()
        log = cluster.quorum(leader).log
        grown = (resident() - was) / self.partitions / len(CONTROLLERS)
        self._line("created by three", took.seconds, f"{grown:.0f} B of memory on each controller")
        print(f"the leader's latest snapshot has {self._snapshot_size(leader):.0f} B a partition")
        assert log.snapshot is not None, "a snapshot was due"
        follower, other = (one for one in CONTROLLERS if one != leader)
        await self._again("own log loaded", follower)
        await self._again("leader's snapshot loaded", other, anew=True)
        await self._fail_over(leader)
        await self._again("former leader back", leader)
        await cluster.stop()

    async def _asked(self, leader: int, decide: Any) -> Any:
        active = self.cluster.quorum(leader).active
        assert isinstance(active, ActiveController), "no election happens here"
        return await self.cluster.machines[leader].process.run(active.submit(decide))

    async def _register(self, leader: int) -> None:
        entropy = self.cluster.world.outside.entropy
        now_ms = self.cluster.machines[leader].host.clock.steady_ms()
        for broker_id in range(FIRST_BROKER, FIRST_BROKER + self.brokers):
            endpoints = (Endpoint("PLAINTEXT", "10.1.0.1", 9092),)
            registration = BrokerRegistration(
                broker_id, entropy.uuid(), endpoints, rack_of(broker_id), (entropy.uuid(),)
            )
            epoch = await self._asked(leader, partial(_register, registration, now_ms))
            assert isinstance(epoch, int)
            beat = BrokerHeartbeat(broker_id, epoch, self._image(leader).offset)
            await self._asked(leader, partial(_beat, beat, now_ms))

    async def _create(self, leader: int) -> None:
        names = [f"topic-{number}" for number in range(self.partitions // TOPIC_PARTITIONS)]
        entropy = self.cluster.world.outside.entropy
        for part in slices(names, TOPICS_A_REQUEST):
            wanted = [NewTopic(name, TOPIC_PARTITIONS, FACTOR) for name in part]
            made = await self._asked(
                leader, lambda one, wanted=wanted: one.create_topics(wanted, entropy)
            )
            assert all(one.error == 0 for one in made), made

    async def _again(self, what: str, node_id: int, *, anew: bool = False) -> None:
        """Kill a controller and start it, with an empty disk where `anew`; print its CPU time until it has all."""
        machine: Machine = self.cluster.machines[node_id]
        if machine.is_up:
            await machine.kill()
        if anew:
            self.cluster.format_anew(node_id)
        began = asyncio.get_running_loop().time()
        with timed() as took:
            await machine.start()
            await self._until_equal()
        virtual = asyncio.get_running_loop().time() - began
        self._line(what, took.seconds, f"{virtual:.2f} virtual s")

    async def _fail_over(self, leader: int) -> None:
        began = asyncio.get_running_loop().time()
        with timed() as took:
            dying = asyncio.create_task(self.cluster.machines[leader].kill())
            await self.cluster.until_active(but=leader)
            await dying
        virtual = asyncio.get_running_loop().time() - began
        self._line("next controller active", took.seconds, f"{virtual:.2f} virtual s")

    async def _until_equal(self) -> None:
        def are_equal() -> bool:
            images = [self._image(one) for one in self.cluster.quorums()]
            counts = {sum(len(t.partitions) for t in one.topics_by_id.values()) for one in images}
            return counts == {self.partitions} and len({one.offset for one in images}) == 1

        await self.cluster.until(are_equal, "equal images", WITHIN_S)

    def _image(self, node_id: int) -> Image:
        return self.cluster.quorum(node_id).image.image

    def _snapshot_size(self, node_id: int) -> float:
        log = self.cluster.quorum(node_id).log
        size = None if log.snapshot is None else log.snapshot_size(log.snapshot)
        return (size or 0) / self.partitions

    def _line(self, what: str, seconds: float, more: str) -> None:
        line(what, seconds, self.partitions, more)


def _register(registration: BrokerRegistration, now_ms: int, one: Controller) -> Decision[Any, int]:
    return one.register_broker(registration, now_ms)


def _beat(beat: BrokerHeartbeat, now_ms: int, one: Controller) -> Decision[Any, HeartbeatAnswer]:
    return one.heartbeat(beat, now_ms)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.controllers", description=__doc__)
    parser.add_argument("--partitions", type=int, default=200_000)
    parser.add_argument("--brokers", type=int, default=200)
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def whole() -> None:
        await Measured(chosen.brokers, chosen.partitions).carry_out()

    run(whole())


if __name__ == "__main__":
    main()
