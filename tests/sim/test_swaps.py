"""During a swap of cleaned segments its log is cut, its replaced files are due, or its topic goes.

Method: each call of the drive takes half a second. So the test acts while a swap is between two of its steps.
"""

import asyncio

import pytest
from tests.sim.compacted import CONFIGS, SETTINGS, TOPIC
from tests.sim.disk import paths
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.log.segment import DELETED
from stratalog.wire.records import BatchBuilder

CALL_MS = 500
RECORDS = 40


async def write(machine: Machine, client: Client, number: int) -> None:
    builder = BatchBuilder()
    builder.add(b"key-%d" % (number % 3), b"%d" % number, machine.world.clock.now_ms())
    await client.produce(TOPIC, 0, builder.build())


async def in_a_swap(**configs: str) -> tuple[Machine, Client, HostedPartition]:
    """Return a node while a swap is under way, and the partition."""
    machine = Machine(World(8), {**SETTINGS, "log.cleaner.backoff.ms": "2000"})
    client = await machine.restart()
    configs = CONFIGS | {name.replace("_", "."): value for name, value in configs.items()}
    await client.create_topics([NewTopic(TOPIC, partitions=1, configs=configs)])
    hosted = machine.partition(TOPIC)
    number = 0
    while hosted._swap is None:
        assert number < 1000, "nothing is swapped"
        machine.take_ms(CALL_MS if number > RECORDS else 1)
        await write(machine, client, number)
        await asyncio.sleep(0.01)
        number += 1
    return machine, client, hosted


async def ended(machine: Machine) -> None:
    machine.take_ms(1)
    await asyncio.sleep(5)
    assert machine.broker.hosting.get(TOPIC, 0).directory.failure is None
    await machine.stop()
    assert not machine.broken_tasks


async def cut() -> None:
    machine, _client, hosted = await in_a_swap()
    hosted.resign(hosted.replica.leader_epoch + 1)
    await hosted.truncate(hosted.log.log_end_offset - 1)
    assert not hosted.log.swaps.is_under_way
    await ended(machine)


def test_a_cut_of_the_log_waits_for_the_swap() -> None:
    run(cut())


async def due() -> list[str]:
    machine, _client, hosted = await in_a_swap(file_delete_delay_ms="0")
    while hosted.log.swaps.is_under_way:
        await hosted.keep_due()
        await asyncio.sleep(0.1)
    disk = machine.world.disk("/data")
    await asyncio.sleep(10)
    left = [one for one in paths(disk, f"{TOPIC}-0") if one.endswith(DELETED)]
    await ended(machine)
    return left


def test_no_replaced_file_stays_that_was_due_during_its_swap() -> None:
    assert run(due()) == []


async def deleted(after_s: float) -> None:
    machine, client, hosted = await in_a_swap()
    await asyncio.sleep(after_s)
    (gone,) = await client.delete_topics([TOPIC])
    assert gone.error == 0
    assert hosted.deleted
    (made,) = await client.create_topics([NewTopic(TOPIC, partitions=1, configs=CONFIGS)])
    assert made.error == 0
    assert machine.partition(TOPIC) is not hosted
    await write(machine, client, 0)
    await ended(machine)


@pytest.mark.parametrize("after_s", [0, 0.2, 0.4, 0.6, 0.8])
def test_a_swap_ends_with_its_topic_and_leaves_a_later_one_of_that_name_alone(
    after_s: float,
) -> None:
    run(deleted(after_s))
