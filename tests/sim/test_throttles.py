"""Limits of replication hold in virtual time, and only for replicas that catch up (KIP-73).

Method: three real nodes in one world; a partition with 600,000 bytes moves to another broker at 50,000 bytes a second.
One move has the default settings and 36 MB.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch
from tests.sim.world import START_MS, World

from stratalog.client.admin import alter_configs, move_replica
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.quorum.reassignment import Reassignment
from stratalog.wire.ids import TopicPartition

TOPIC, BROKER = 2, 4
BYTES = 600_000
RATE = 50_000
RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
SETTINGS = {
    "replication.quota.window.num": "1",
    "alter.log.dirs.replication.quota.window.num": "1",
    "replica.fetch.max.bytes": "20000",
    "num.replica.fetchers": "1",
}


class Load(NamedTuple):
    """The bytes of a move, its limit in bytes a second, and the settings of the nodes."""

    size: int = BYTES
    record_size: int = 10_000
    rate: int = RATE
    settings: dict[str, str] = SETTINGS


SMALL = Load()


async def write(client: Client, records: int, size: int = 10_000) -> None:
    for _ in range(records):
        await client.produce("t", 0, batch([b"x" * size], START_MS), acks=-1)


async def configure(client: Client, kind: int, name: str, values: dict[str, str | None]) -> None:
    altered = await client.on_any(alter_configs(kind, name, values))
    assert altered.error is ErrorCode.none, altered


async def seconds_of_a_move(
    side: str, named: str, writes: int = 0, load: Load = SMALL
) -> tuple[float, Sequence[int]]:
    """Return the duration of a move with a limit on one side, and the ISR after half of that time."""
    cluster = Cluster(World(5), 3, load.settings)
    await cluster.start()
    active = await cluster.until_active()
    leader, old, new = sorted(cluster.machines, key=lambda one: (one != active, one))
    client = await cluster.machines[leader].connect()
    await client.create_topics([NewTopic("t", assignments={0: [leader, old]})])
    await write(client, load.size // load.record_size, load.record_size)
    limited = {"leader": leader, "follower": new}[side]
    rate = {f"{side}.replication.throttled.rate": str(load.rate)}
    await configure(client, BROKER, str(limited), dict(rate))
    replicas = {f"{side}.replication.throttled.replicas": named.format(leader=leader, new=new)}
    await configure(client, TOPIC, "t", dict(replicas))
    controller = cluster.quorum(leader).active
    assert controller is not None
    move = Reassignment(TopicPartition("t", 0), (leader, new))
    began = cluster.world.clock.steady_ms()
    await controller.submit(lambda one: one.alter_reassignments([move], may_change_factor=True))
    await asyncio.sleep(load.size / load.rate / 2)
    halfway = cluster.machines[leader].partition("t").replica.isr
    await write(client, writes)

    def is_over() -> bool:
        return cluster.machines[leader].partition("t").replica.replicas == (leader, new)

    await cluster.until(is_over, "the end of the move", 60)
    took = cluster.world.clock.steady_ms() - began
    await cluster.stop()
    assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]
    return took / 1000, halfway


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("named", ["*", "0:{leader},0:{new}"])
def test_a_move_takes_the_time_of_its_limit(side: str, named: str) -> None:
    async def story() -> None:
        took, halfway = await seconds_of_a_move(side, named)
        assert len(halfway) == 2, "the new replica is not in sync yet"
        assert 0.9 * BYTES / RATE < took < 1.3 * BYTES / RATE

    run(story())


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_with_default_settings_a_move_gains_ten_seconds_of_the_limit_and_one_fetch(
    side: str,
) -> None:
    """As in Kafka, eleven samples of a second count as ten seconds at the start; a fetch ends in the batch at 4 MiB."""

    async def story() -> None:
        load = Load(36_000_000, 900_000, 1_000_000, {})
        took, _ = await seconds_of_a_move(side, "*", load=load)
        fetch = (4 << 20) + load.record_size
        least = (load.size - 10 * load.rate - fetch) / load.rate
        assert least <= took < least + 6

    run(story())


def test_a_limit_of_other_replicas_limits_nothing() -> None:
    async def story() -> None:
        took, _ = await seconds_of_a_move("follower", "1:{new},0:{leader}")
        assert took < 0.7 * BYTES / RATE

    run(story())


def test_in_sync_replicas_are_not_held_up() -> None:
    async def story() -> None:
        took, _ = await seconds_of_a_move("leader", "*", writes=10)
        assert took < 1.6 * BYTES / RATE, "acks=all went on, and the new records count too"

    run(story())


def test_a_move_between_directories_takes_the_time_of_its_limit() -> None:
    async def story() -> None:
        machine = Machine(World(6), {**SETTINGS, "log.dirs": "/data,/more"})
        client = await machine.restart()
        await client.create_topics([NewTopic("t")])
        for _ in range(4):
            await client.produce("t", 0, batch([b"x" * 900_000], START_MS), acks=-1)
        rate = {"replica.alter.log.dirs.io.max.bytes.per.second": "500000"}
        await configure(client, BROKER, "1", dict(rate))
        hosted = machine.partition("t")
        other = "/more" if hosted.directory.path == "/data" else "/data"
        began = machine.world.clock.steady_ms()
        await client.call(move_replica("t", 0, other), 1)
        async with asyncio.timeout(60):
            while hosted.directory.path != other:
                await asyncio.sleep(0.1)
        took = (machine.world.clock.steady_ms() - began) / 1000
        assert 5 < took < 9, "3.6 MB at 0.5 MB a second"
        await configure(client, BROKER, "1", dict.fromkeys(rate))
        assert not machine.broker.moves.pace.is_limited
        await machine.stop()

    run(story())
