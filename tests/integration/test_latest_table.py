"""The current table of a compacted topic, read from a real broker, is a dictionary's before and after its cleaning.

Method: values of few keys and tombstones fill small segments; cleaners rewrite them. `strata get` finds the same last
values, and the offsets of records do not change.
"""

import time
from pathlib import Path
from random import Random

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.server_process import strata

from stratalog.spark.source import StratalogReader, StratalogSource
from stratalog.wire.batch import scan

TOPIC = "prices"
KEYS, RECORDS = 40, 1200
TIMEOUT_S = 60
Table = dict[bytes, tuple[int, bytes]]
"""Key -> offset and value."""


def filled(broker: BrokerProcess) -> Table:
    """Write the records into one partition, and return the table that they make."""
    random = Random(16)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1})
    table: Table = {}
    for offset in range(RECORDS):
        key = b"key-%d" % random.randrange(KEYS)
        value = None if random.random() < 0.2 else b"%d-" % offset + random.randbytes(3000)
        table.pop(key, None)
        if value is not None:
            table[key] = offset, value
        producer.produce(TOPIC, value, key)
        if offset % 10 == 0:
            producer.flush(TIMEOUT_S)
    assert producer.flush(TIMEOUT_S) == 0
    return table


def read(broker: BrokerProcess) -> Table:
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": TOPIC}
    reader = StratalogSource({**options, "latest_by_key": "true"}).reader(StructType([]))
    assert isinstance(reader, StratalogReader)
    (task,) = reader.partitions()
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
    table = {row["key"]: (row["offset"], row["value"]) for row in rows}
    assert len(table) == len(rows), "one row for each key"
    return table


def records_in(broker: BrokerProcess) -> int:
    logs = (broker.data / f"{TOPIC}-0").glob("*.log")
    return sum(h.record_count for one in logs for _, h in scan(memoryview(one.read_bytes())))


def test_the_table_is_the_same_before_and_after_cleaning(tmp_path: Path) -> None:
    with broker_process(
        tmp_path, log__cleaner__backoff__ms="100", log__cleaner__min__cleanable__ratio="0.01"
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
        config["min.compaction.lag.ms"] = str(3_600_000)
        for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)]).values():
            future.result(TIMEOUT_S)
        table = filled(broker)
        assert records_in(broker) == RECORDS
        assert read(broker) == table
        lag = ("--topic", TOPIC, "--set", "min.compaction.lag.ms=0", "-b", broker.address)
        assert strata("config", "alter", *lag).returncode == 0
        deadline = time.monotonic() + TIMEOUT_S
        while records_in(broker) > RECORDS // 2:
            assert time.monotonic() < deadline, broker.log_text[-2000:]
            time.sleep(0.1)
        assert read(broker) == table
        key, (offset, _) = next(iter(table.items()))
        done = strata("get", TOPIC, key.decode(), "--format", "%k %o", "-b", broker.address)
        assert (done.returncode, done.stdout) == (0, f"{key.decode()} {offset}")
