"""kill -9 during unanswered produces: acknowledged records are read back, once and in order.

Method: a raw client keeps several idempotence-free requests in flight, each batch numbered; the broker is killed at a
random moment, at times with a torn batch put behind its log as a dying write would leave it; it starts again and every
acknowledged batch must be there, in order, and nothing twice; at the end a foreign consumer and Spark must see the same
records. `KILLS=50` sets how often (fewer here than by command).
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from tests.broker_process import BrokerProcess, broker_process
from tests.spark_scratch import scratch

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Unavailable
from stratalog.wire.batch import scan
from stratalog.wire.records import BatchBuilder, read_records

KILLS = int(os.environ.get("KILLS", "6"))
RECORDS_PER_BATCH = 5
TOPIC = "killed"


@dataclass
class Sent:
    """The batches sent to the broker, and those that it acknowledged: batch number -> base offset."""

    next_number: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)


def batch(number: int) -> bytearray:
    builder = BatchBuilder()
    for index in range(RECORDS_PER_BATCH):
        builder.add(b"%d" % number, b"%d-%d " % (number, index) + b"x" * 2000, 1_700_000_000_000)
    return builder.build()


async def produce_until_killed(broker: BrokerProcess, sent: Sent, chance: random.Random) -> None:
    client = await Client.connect(TcpNetwork(), broker.address)
    await client.metadata([TOPIC])
    kill_at = asyncio.get_running_loop().time() + chance.uniform(0.01, 0.3)
    flights: list[tuple[int, asyncio.Task[object]]] = []
    try:
        while asyncio.get_running_loop().time() < kill_at:
            number = sent.next_number
            sent.next_number += 1
            flights.append((number, asyncio.create_task(client.produce(TOPIC, 0, batch(number)))))
            if len(flights) > 5:
                await asyncio.wait([flights[-5][1]])
            await asyncio.sleep(0)
        broker.kill()
    finally:
        await client.close()
        for number, flight in flights:
            try:
                answer = await flight
            except Unavailable:
                continue
            sent.acknowledged[number] = answer.base_offset  # type: ignore[attr-defined]


async def read_all(broker: BrokerProcess) -> list[tuple[int, bytes]]:
    client = await Client.connect(TcpNetwork(), broker.address)
    try:
        found: list[tuple[int, bytes]] = []
        offset = 0
        while True:
            fetched = await client.fetch(TOPIC, 0, offset, max_wait_ms=0, max_bytes=4 << 20)
            view = memoryview(fetched.records)
            before = offset
            for position, header in scan(view):
                for record in read_records(view[position : position + header.size]):
                    assert record.value is not None
                    found.append((record.offset, record.value.split(b" ")[0]))
                offset = header.next_offset
            if offset == before:
                assert offset == fetched.high_watermark
                return found
    finally:
        await client.close()


def read_by_consumer(broker: BrokerProcess, count: int) -> list[tuple[int, bytes]]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        messages = consumer.consume(10_000, timeout=20)
        assert messages, f"the consumer got {len(found)} of {count}"
        for message in messages:
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value().split(b" ")[0]))
    consumer.close()
    return found


READ_BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2], "startingOffsets": "earliest"}
found = spark.read.format("stratalog").options(**options).load()
rows = found.selectExpr("offset", "substring_index(CAST(value AS STRING), ' ', 1) AS value").collect()
print(json.dumps([[row.offset, row.value] for row in rows]))
spark.stop()
"""


def read_by_spark(broker: BrokerProcess, place: Path) -> list[tuple[int, bytes]]:
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_SPARK, broker.address, TOPIC],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={
            **os.environ,
            **scratch(place),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    return sorted((offset, value.encode()) for offset, value in rows)


def tear(broker: BrokerProcess, chance: random.Random) -> None:
    """Append half of a batch to the log, as an interrupted write leaves it."""
    active = max((broker.data / f"{TOPIC}-0").glob("*.log"))
    whole = batch(10**9)
    with active.open("ab") as log:
        log.write(whole[: chance.randrange(1, len(whole))])


def check(found: list[tuple[int, bytes]], sent: Sent) -> None:
    offsets = [offset for offset, _value in found]
    assert offsets == list(range(len(found))), "the offsets have a gap"
    by_offset = dict(found)
    for number, base in sent.acknowledged.items():
        for index in range(RECORDS_PER_BATCH):
            assert by_offset.get(base + index) == b"%d-%d" % (number, index)
    values = [value for _offset, value in found]
    assert len(values) == len(set(values)), "a record is in the log twice"


def test_acknowledged_records_survive_kill_9(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    sent = Sent()
    tears = 0
    with broker_process(tmp_path) as broker:
        configs = {"segment.bytes": "1048576", "retention.ms": "-1"}
        asyncio.run(create(broker, configs))
        for _ in range(KILLS):
            asyncio.run(produce_until_killed(broker, sent, chance))
            if chance.random() < 0.7:
                tear(broker, chance)
                tears += 1
            broker.start()
            check(asyncio.run(read_all(broker)), sent)
        found = asyncio.run(read_all(broker))
        assert read_by_consumer(broker, len(found)) == found
        assert read_by_spark(broker, tmp_path) == found
    print(f"seed {seed}: {len(sent.acknowledged)} batches acknowledged, {tears} torn tails")
    assert len(sent.acknowledged) > KILLS, f"seed {seed}: too few batches were produced"
    assert broker.log_text.count("torn tail cut") >= tears, f"seed {seed}"


async def create(broker: BrokerProcess, configs: dict[str, str]) -> None:
    client = await Client.connect(TcpNetwork(), broker.address)
    try:
        await client.create_topics([NewTopic(TOPIC, partitions=1, configs=configs)])
    finally:
        await client.close()
