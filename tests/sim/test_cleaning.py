"""Compacted topics on a whole node: cleaners run beside clients, and processes and machines die.

Method: lives of one machine, each ended by a stop, kill -9 or a loss of power, drawn from the seed, while a client
writes a few keys again and again. Between lives everything is read back: the last value of each key is the last one
acknowledged, or one that was sent later; and no offset changes its record.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.batch import scan
from stratalog.wire.records import BatchBuilder, Record, read_records

TOPIC = "compacted"
CONFIGS = {
    "cleanup.policy": "compact",
    "flush.messages": "1",
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "100",
}
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.cleaner.dedupe.buffer.size": "100000"}
CODECS = ("none", "lz4", "zstd")


@dataclass
class Table:
    """The written records by offset, and the possible last values of each key."""

    written: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    last: dict[bytes, list[bytes | None]] = field(default_factory=dict)
    number: int = 0

    async def write(self, client: Client, clock_ms: int, chance: Random) -> None:
        builder = BatchBuilder(chance.choice(CODECS))
        entries: list[tuple[bytes, bytes | None]] = []
        for _ in range(chance.randint(1, 5)):
            self.number += 1
            key = b"key-%d" % chance.randint(0, 6)
            value = None if chance.random() < 0.2 else b"%d" % self.number
            entries.append((key, value))
            builder.add(key, value, clock_ms)
        for key, value in entries:
            self.last.setdefault(key, [None]).append(value)
        produced = await client.produce(TOPIC, 0, builder.build())
        for at, (key, value) in enumerate(entries):
            self.written[produced.base_offset + at] = key, value
            self.last[key] = [value]

    def check(self, records: list[Record]) -> None:
        found: dict[bytes, bytes | None] = {}
        for record in records:
            assert record.key is not None
            known = self.written.setdefault(record.offset, (record.key, record.value))
            assert known == (record.key, record.value), "an offset has another record"
            found[record.key] = record.value
        for key, values in self.last.items():
            assert found.get(key) in values
            self.last[key] = [found.get(key)]


async def write_for_a_while(machine: Machine, client: Client, table: Table) -> None:
    chance = machine.world.chance
    try:
        while True:
            await table.write(client, machine.world.clock.now_ms(), chance)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 1))
    except (Unavailable, Rejected):
        pass  # the broker died: the log may have the unacknowledged record or not


async def read_all(machine: Machine, client: Client) -> list[Record]:
    return await read_of(machine.partition(TOPIC), client)


async def read_of(hosted: HostedPartition, client: Client) -> list[Record]:
    offset, end = hosted.log.log_start_offset, hosted.high_watermark
    records: list[Record] = []
    while offset < end:
        fetched = await client.fetch(TOPIC, 0, offset, max_bytes=2000)
        assert isinstance(fetched.records, memoryview)
        before = offset
        for position, header in scan(fetched.records):
            batch = fetched.records[position : position + header.size]
            records += [one for one in read_records(batch) if one.offset >= before]
            offset = header.next_offset
        assert offset > before
    return records


async def lives(seed: int, count: int) -> Machine:
    world = World(seed)
    machine = Machine(world, SETTINGS)
    machine.slowness = world.chance.choice((0.0, 0.02, 0.2))
    client = await machine.restart()
    (made,) = await client.create_topics([NewTopic(TOPIC, partitions=1, configs=CONFIGS)])
    assert made.error == 0
    table = Table()
    cleaned = 0
    for _life in range(count):
        writing = asyncio.create_task(write_for_a_while(machine, client, table))
        reading = asyncio.create_task(read_for_a_while(machine, client))
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


async def read_for_a_while(machine: Machine, client: Client) -> None:
    """Read from the start on, again and again, while segments are swapped: no offset goes back."""
    hosted = machine.partition(TOPIC)
    try:
        while True:
            records = await read_of(hosted, client)
            offsets = [one.offset for one in records]
            assert offsets == sorted(set(offsets))
            await asyncio.sleep(machine.world.chance.uniform(0, 0.2))
    except (Unavailable, Rejected):
        pass


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


def test_a_damaged_log_is_set_aside_and_stops_no_other() -> None:
    run(damage())


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
