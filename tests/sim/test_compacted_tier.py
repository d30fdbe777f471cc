"""Compacted topics with a bucket on a whole node: cleanings of the disk and of the bucket, and nodes that die.

Method: as `test_cleaning.py`, with a topic whose closed segments go to a bucket. Between lives everything is read back
three ways: through the broker from offset 0 on, which crosses the seam; the bucket alone; the bucket and then the disk,
as Spark reads. Each way gives the last value of each key, and no offset changes its record.
"""

import asyncio
from contextlib import suppress

import pytest
from tests.sim.compacted import (
    CONFIGS,
    SETTINGS,
    TOPIC,
    Table,
    in_bucket,
    read_all,
    read_for_a_while,
    read_of,
    write_for_a_while,
)
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.client.admin import alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import TOPIC as OF_TOPIC
from stratalog.client.calls import NewTopic
from stratalog.errors import Rejected, Unavailable
from stratalog.tier.checking.verify import verify

URL = "memory://bucket"
TIERED = {**CONFIGS, "remote.storage.enable": "true"}


async def check(machine: Machine, client: Client, table: Table) -> None:
    """Compare every way of reading with the table. The newest records are appended by no client meanwhile."""
    table.check(await read_all(machine, client))
    end, tiered = in_bucket(machine.world.store(URL), TOPIC)
    assert [one.offset for one in tiered] == sorted({one.offset for one in tiered})
    tail = await read_of(machine.partition(TOPIC), client, end)
    table.check([*tiered, *tail])


async def switch_for_a_while(machine: Machine, client: Client) -> None:
    """Switch the topic's policy between compact and delete; its retention keeps all."""
    policy = "compact"
    with suppress(Unavailable, Rejected):  # the broker died
        while True:
            await asyncio.sleep(machine.world.chance.uniform(0, 2))
            policy = "delete" if policy == "compact" else "compact"
            change = alter_configs(OF_TOPIC, TOPIC, {"cleanup.policy": policy})
            await client.on_controller(change)


async def lives(
    seed: int, count: int, configs: dict[str, str], *, switches: bool = False
) -> Machine:
    world = World(seed)
    machine = Machine(world, {**SETTINGS, "tier.url": URL})
    machine.slowness = world.chance.choice((0.0, 0.02, 0.2))
    client = await machine.restart()
    (made,) = await client.create_topics([NewTopic(TOPIC, partitions=1, configs=configs)])
    assert made.error == 0
    table = Table()
    passes = bucket_passes = 0
    for _life in range(count):
        writing = asyncio.create_task(write_for_a_while(machine, client, table))
        reading = asyncio.create_task(read_for_a_while(machine, client, table, writing))
        beside = [writing, reading]
        if switches:
            beside.append(asyncio.create_task(switch_for_a_while(machine, await machine.connect())))
        await asyncio.sleep(world.chance.choice((2, 5, 9)) * world.chance.random())
        tiering = machine.broker.tiering
        assert tiering is not None
        passes += machine.broker.cleaners.passes
        bucket_passes += tiering.cleaner.passes
        assert not machine.broker.cleaners.uncleanable
        assert not tiering.cleaner.uncleanable
        ending = world.chance.choice(("power", "kill", "stop"))
        await {"power": machine.lose_power, "kill": machine.kill, "stop": machine.stop}[ending]()
        await asyncio.wait(beside)
        for task in beside:
            task.result()
        client = await machine.restart()
        await check(machine, client, table)
    compacted = alter_configs(OF_TOPIC, TOPIC, {"cleanup.policy": "compact"})
    await client.on_controller(compacted)
    await asyncio.sleep(20)
    await check(machine, client, table)
    log = machine.partition(TOPIC).log
    assert passes or log.local_start_offset, "nothing was cleaned: the run proves nothing"
    assert bucket_passes, "the bucket was not cleaned: the run proves nothing"
    assert log.tiered_end > 0, "nothing was tiered: the run proves nothing"
    await machine.stop()
    assert not machine.broken_tasks
    assert all(one.orphan for one in verify(world.store(URL), now_ms=1 << 50, grace_ms=0))
    return machine


@pytest.mark.parametrize("hotset_ms", ["-2", "0", "2000"])
@pytest.mark.parametrize("seed", range(4))
def test_the_last_value_of_each_key_survives_on_both_sides_of_the_seam(
    seed: int, hotset_ms: str
) -> None:
    run(lives(seed, 5, {**TIERED, "local.retention.ms": hotset_ms}))


@pytest.mark.parametrize("seed", range(6))
def test_the_policy_of_a_topic_in_a_bucket_may_change(seed: int) -> None:
    configs = {**TIERED, "local.retention.ms": "2000", "retention.ms": "-1"}
    run(lives(seed, 5, configs, switches=True))
