"""The spine in virtual time: produce, roll, tier, expire, read, through the real node, client and wire.

Method: one coroutine is the user; everything else is the product's own code over simulated ports. The same seed must
give the same trace, event by event.
"""

import asyncio

import pytest
from tests.sim.loop import run
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.config import BrokerConfig
from stratalog.node import Node
from stratalog.wire.batch import scan
from stratalog.wire.records import BatchBuilder, Record, read_records

TOPIC = "events"
BATCHES = 60
RECORDS = 20


def config() -> BrokerConfig:
    settings = {
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.dirs": "/data",
        "tier.url": "memory://bucket",
        "remote.log.manager.task.interval.ms": "1000",
        "log.retention.check.interval.ms": "1000",
        "remote.delete.grace.ms": "1000",
    }
    return BrokerConfig.load(settings)[0]


def batch(number: int) -> bytearray:
    builder = BatchBuilder()
    for index in range(RECORDS):
        timestamp = START_MS + number * 1000 + index
        builder.add(b"k%d" % index, b"v%d-%d" % (number, index), timestamp)
    return builder.build()


async def read_all(client: Client, start: int, end: int) -> list[Record]:
    records: list[Record] = []
    offset = start
    while offset < end:
        fetched = await client.fetch(TOPIC, 0, offset, max_bytes=4096)
        assert isinstance(fetched.records, memoryview)
        view = fetched.records
        for position, header in scan(view):
            found = read_records(view[position : position + header.size])
            records += [record for record in found if record.offset >= offset]
        assert records, f"nothing at {offset}"
        offset = records[-1].offset + 1
    return records


async def spine(seed: int) -> tuple[World, list[Record], int, int]:
    world = World(seed)
    node = Node(config(), world.outside)
    await node.start()
    client = await Client.connect(world.network, "127.0.0.1:9092")
    settings = {
        "remote.storage.enable": "true",
        "segment.ms": "10000",
        "retention.ms": "-1",
        "local.retention.bytes": "1",
        "file.delete.delay.ms": "100",
    }
    await client.create_topics([NewTopic(TOPIC, partitions=1, configs=settings)])
    async with client.pipeline(window=4) as pipeline:
        for number in range(BATCHES):
            _ = await pipeline.send(TOPIC, 0, batch(number))
    await asyncio.sleep(60)
    assert node.broker is not None
    log = node.broker.hosting.get(TOPIC, 0).log
    records = await read_all(client, 0, log.log_end_offset)
    local_start, tiered_end = log.local_start_offset, log.tiered_end
    await client.close()
    await node.stop()
    return world, records, local_start, tiered_end


def test_produced_records_are_read_back_from_bucket_and_disk() -> None:
    _world, records, local_start, tiered_end = run(spine(1))
    assert [record.offset for record in records] == list(range(BATCHES * RECORDS))
    assert [record.value for record in records] == [
        b"v%d-%d" % (number, index) for number in range(BATCHES) for index in range(RECORDS)
    ]
    assert 0 < local_start == tiered_end < BATCHES * RECORDS, "most has left the local disk"


@pytest.mark.parametrize("seed", [1, 2])
def test_one_seed_is_one_run(seed: int) -> None:
    first, second = run(spine(seed))[0], run(spine(seed))[0]
    assert len(first.trace) > 200
    assert first.trace == second.trace


def test_another_seed_is_another_run() -> None:
    assert run(spine(1))[0].trace != run(spine(2))[0].trace
