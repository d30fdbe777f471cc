"""Compacted topics on a whole node: cleaners run beside clients, and processes and machines die.

Method: lives of one machine, each ended by a stop, kill -9 or a loss of power, drawn from the seed, while a client
writes a few keys again and again. Between lives everything is read back: the last value of each key is the last one
acknowledged, or one that was sent later; a young tombstone is there; no offset changes its record. With an odd seed
power cuts lose any unsynced changes of directories, not only the latest ones.
"""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.sim.compacted import (
    CONFIGS,
    SETTINGS,
    TOPIC,
    Table,
    read_all,
    read_for_a_while,
    write_for_a_while,
)
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.client.admin import alter_configs
from stratalog.client.calls import NewTopic
from stratalog.config.rules import Resource
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.effects import SyncDirectory
from stratalog.wire.records import BatchBuilder


async def lives(seed: int, count: int) -> Machine:
    world = World(seed, disks_keep_order=seed % 2 == 0)
    machine = Machine(world, SETTINGS)
    machine.slowness = world.chance.choice((0.0, 0.02, 0.2))
    client = await machine.restart()
    (made,) = await client.create_topics([NewTopic(TOPIC, partitions=1, configs=CONFIGS)])
    assert made.error == 0
    table = Table()
    cleaned = 0
    for _life in range(count):
        writing = asyncio.create_task(write_for_a_while(machine, client, table))
        reading = asyncio.create_task(read_for_a_while(machine, client, table, writing))
        await asyncio.sleep(world.chance.choice((1, 3, 5)) * world.chance.random())
        cleaned += machine.broker.cleaners.passes
        assert not machine.broker.cleaners.uncleanable
        ending = world.chance.choice(("power", "kill", "stop"))
        await {"power": machine.lose_power, "kill": machine.kill, "stop": machine.stop}[ending]()
        await asyncio.wait((writing, reading))
        reading.result()
        client = await machine.restart()
        table.check(await read_all(machine, client))
    await asyncio.sleep(10)
    table.check(await read_all(machine, client))
    assert cleaned, "nothing was cleaned: the run proves nothing"
    await machine.stop()
    assert not machine.broken_tasks
    return machine


@pytest.mark.parametrize("seed", range(10))
def test_the_last_value_of_each_key_survives_every_crash(seed: int) -> None:
    run(lives(seed, 6))


async def damage() -> None:
    world = World(5)
    machine = Machine(world, SETTINGS)
    client = await machine.restart()
    names = [TOPIC, "other"]
    await client.create_topics([NewTopic(one, partitions=1, configs=CONFIGS) for one in names])
    for number in range(12):
        for name in names:
            builder = BatchBuilder()
            builder.add(b"key", b"%d" % number, world.clock.now_ms())
            await client.produce(name, 0, builder.build())
        if number == 0:
            world.disk("/data").flip(f"{TOPIC}-0/{0:020}.log", 65)
        await asyncio.sleep(0.2)
    await asyncio.sleep(5)
    cleaners = machine.broker.cleaners
    assert [str(one.name) for one in cleaners.uncleanable] == [f"{TOPIC}-0"]
    assert "CRC" in next(iter(cleaners.uncleanable.values()))
    assert machine.partition("other").log.cleaned_end > 0, "other partitions must be cleaned"
    await machine.stop()


def test_a_damaged_log_is_set_aside_with_a_remedy_and_stops_no_other() -> None:
    with capture_logs() as logs:
        run(damage())
    (line,) = [one for one in logs if one["event"] == "uncleanable partition"]
    assert "strata topic trim" in line["remedy"]


def test_a_log_whose_keys_need_more_memory_is_cleaned_once_there_is_more() -> None:
    async def story() -> None:
        name = "log.cleaner.dedupe.buffer.size"
        machine = Machine(World(8), {**SETTINGS, name: "480"})
        client = await machine.restart()
        await client.create_topics([NewTopic(TOPIC, partitions=1, configs=CONFIGS)])
        for _ in range(6):
            builder = BatchBuilder()
            for key in range(100):
                builder.add(b"%d" % key, b"value", machine.world.clock.now_ms())
            await client.produce(TOPIC, 0, builder.build())
            await asyncio.sleep(0.2)
        await asyncio.sleep(5)
        cleaners = machine.broker.cleaners
        (reason,) = cleaners.uncleanable.values()
        assert reason == f"18 keys are too few for the batch at offset 0: raise {name}"
        await client.on_controller(alter_configs(Resource.BROKER, "", {name: "48000"}))
        await asyncio.sleep(5)
        assert not cleaners.uncleanable
        assert machine.partition(TOPIC).log.cleaned_end > 0
        await machine.stop()

    run(story())


async def keys() -> ErrorCode:
    machine = Machine(World(6), SETTINGS)
    client = await machine.restart()
    await client.create_topics([NewTopic(TOPIC, partitions=1, configs=CONFIGS)])
    builder = BatchBuilder()
    builder.add(None, b"value", machine.world.clock.now_ms())
    try:
        await client.produce(TOPIC, 0, builder.build())
    except Rejected as error:
        return error.code
    finally:
        await machine.stop()
    return ErrorCode.none


def test_a_record_without_a_key_is_refused() -> None:
    assert run(keys()) is ErrorCode.invalid_record


async def produced_during_swaps() -> list[float]:
    """Return how long each produce took during a swap, in seconds; the sync of a directory takes one."""
    machine = Machine(World(7), SETTINGS)
    client = await machine.restart()
    configs = CONFIGS | {"flush.messages": "1000", "segment.ms": "1000"}
    await client.create_topics([NewTopic(TOPIC, partitions=1, configs=configs)])
    loop = asyncio.get_running_loop()
    hosted = machine.partition(TOPIC)
    directory = hosted.directory
    queue, place_beside = directory._queue, directory.perform_beside

    def queued(job: Any) -> None:
        if any(isinstance(one, SyncDirectory) for one in job.effects):
            directory._writer._free_at = loop.time() + 1  # type: ignore[attr-defined]
        queue(job)

    def beside(effects: Any, **more: Any) -> Any:
        if any(isinstance(one, SyncDirectory) for one in effects):
            directory._syncer._free_at = loop.time() + 1  # type: ignore[attr-defined]
        return place_beside(effects, **more)

    directory._queue, directory.perform_beside = queued, beside  # type: ignore[method-assign]
    took = []
    for number in range(80):
        builder = BatchBuilder()
        builder.add(b"key", b"%d" % number, machine.world.clock.now_ms())
        began, is_during = loop.time(), hosted._swap is not None
        await client.produce(TOPIC, 0, builder.build())
        if is_during:
            took.append(loop.time() - began)
        await asyncio.sleep(0.1)
    assert hosted.log.cleaned_end > 0
    await machine.stop()
    return took


def test_an_append_does_not_wait_for_the_syncs_of_a_swap() -> None:
    took = run(produced_during_swaps())
    assert len(took) > 10
    assert sorted(took)[len(took) // 2] < 0.5
