"""Real Spark writes each row once: tasks fail in the middle, and the driver is killed at every step of a batch.

Method: a stream copies a topic; its tasks fail in their first attempt, when part of their rows are written. A driver is
killed with SIGKILL at one step of a batch (`killing_sink.py`), and the next one continues from the checkpoint, to be
killed at the next step. In the end readers of committed records, ours and Apache Kafka's, see each row once.
`SINK_KILLS=50` sets how often (fewer here than by command); a failure prints the step.
"""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import java_tool
from tests.integration.killing_sink import STEPS, given
from tests.integration.test_spark_broker import Driver, produce, spark_environment

from stratalog import read
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.table.exactly_once import open_ids

pytestmark = [pytest.mark.timeout(7200), pytest.mark.xdist_group("spark")]

KILLS = int(os.environ.get("SINK_KILLS", "8"))
PARTITIONS = 3
RECORDS = 2000
TOP = Path(__file__).parents[2]
TWO_PHASE = {
    "transaction__state__log__num__partitions": "3",
    "transaction__two__phase__commit__enable": "true",
}


def driver_of(place: Path) -> Driver:
    """Start a driver whose tasks may fail twice, and whose workers find this test's modules."""
    environment = spark_environment(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(TOP))
    return Driver(place / "driver", {"spark.master": "local[2,3]"}, environment)


def copying(broker: BrokerProcess, place: Path, *, records: int) -> dict[str, Any]:
    """The arguments of a stream that copies the topic `from` to `to`, so many records a batch."""
    plain = {"kafka.bootstrap.servers": broker.address}
    limit = {
        "subscribe": "from",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(records),
    }
    return {
        "options": plain | limit,
        "sink": {
            **plain,
            "topic": "to",
            "deliveryGuarantee": "exactly-once",
            "kafka.batch.size": "1000",  # a task that fails has written
        },
        "checkpoint": str(place / "checkpoint"),
    }


def wanted(partitions: int, end: int) -> Counter[bytes]:
    return Counter({b"key-%d" % offset: partitions for offset in range(end)})


def seen(broker: BrokerProcess) -> Counter[bytes]:
    """The keys that a reader of committed records sees."""
    reader = read("to", bootstrap_servers=broker.address, isolation="read_committed")
    return Counter(reader.read_all().column("key").to_pylist())


def seen_by_kafkas_consumer(broker: BrokerProcess) -> Counter[bytes]:
    """The keys that Apache Kafka's console consumer sees, whose default is not committed records only."""
    where = ("--bootstrap-server", broker.address, "--topic", "to", "--from-beginning")
    show = ("--formatter-property", "print.key=true", "--formatter-property", "print.value=false")
    rules = ("--isolation-level", "read_committed", "--timeout-ms", "20000")
    main = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    done = java_tool(main, *where, *show, *rules, timeout_s=120)
    # It ends with a complaint about its own time-out, in the same stream.
    return Counter(one for one in done.stdout.encode().splitlines() if one.startswith(b"key-"))


def left_open(broker: BrokerProcess) -> list[str]:
    async def found() -> list[str]:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            return await open_ids(client, "")

    return asyncio.run(found())


def test_tasks_that_fail_and_are_repeated_write_each_row_once(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker", **TWO_PHASE) as broker:
        produce(broker, "from", 0, 1000, partitions=PARTITIONS)
        produce(broker, "to", 0, 0, partitions=2)
        driver = driver_of(tmp_path)
        try:
            driver.ask("copy_once", **copying(broker, tmp_path, records=1500))
        finally:
            driver.kill()
        assert seen(broker) == wanted(PARTITIONS, 1000)
        assert left_open(broker) == []
        written = read("to", bootstrap_servers=broker.address).read_all().num_rows
        assert written > PARTITIONS * 1000, "no task failed with rows written"


@pytest.mark.big
def test_a_driver_killed_at_every_step_writes_each_row_once(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker", **TWO_PHASE) as broker:
        produce(broker, "from", 0, RECORDS, partitions=PARTITIONS)
        produce(broker, "to", 0, 0, partitions=2)
        arguments = copying(broker, tmp_path, records=max(100, 3 * RECORDS // (KILLS + 2)))
        for kill in range(KILLS):
            step = STEPS[kill * len(STEPS) // KILLS if len(STEPS) > KILLS else kill % len(STEPS)]
            driver = driver_of(tmp_path)
            # The batch before runs again, unless its commit is in the checkpoint.
            batch = begun(tmp_path / "checkpoint") + 1
            print(f"kill {kill}: {step} of batch {batch}", flush=True)
            killed = {
                **arguments,
                "source": "stratalog_killing",
                "sink": given(arguments["sink"], driver.process.pid, batch, step),
            }
            try:
                with pytest.raises(AssertionError):  # no answer comes
                    driver.ask("copy_once", **killed)
                assert driver.process.wait(60) == -9, driver.log.read_text()[-3000:]
            finally:
                driver.kill()
        driver = driver_of(tmp_path)
        try:
            driver.ask("copy_once", **arguments)
        finally:
            driver.kill()
        assert seen(broker) == wanted(PARTITIONS, RECORDS)
        assert left_open(broker) == []
        assert seen_by_kafkas_consumer(broker) == wanted(PARTITIONS, RECORDS)


def begun(checkpoint: Path) -> int:
    """The last micro-batch whose offsets are in the checkpoint; -1 without one."""
    folder = checkpoint / "offsets"
    names = [file.name for file in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
