"""Real Spark writes each row once: tasks fail, wait and are speculated, nodes die, the driver dies at every step.

Method: a stream copies a topic; its tasks fail in their first attempt, when part of their rows are written. A driver is
killed with SIGKILL at one step of a batch (`killing_sink.py`), and the next one continues from the checkpoint, to be
killed at the next step. In the end readers of committed records, ours and Apache Kafka's, see each row once.
`SINK_KILLS=50` sets how often (fewer here than by command), and `SINK_FIRST=7` the first step, so that a part of them
may run alone; a failure prints the step.
"""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker_process import BrokerProcess, broker_process
from tests.cluster_processes import ClusterProcesses
from tests.compat.tools import java_tool
from tests.integration.killing_sink import STEPS, given
from tests.integration.spark_cluster import environment, standalone
from tests.integration.test_spark_broker import Driver, Serves, produce, spark_environment

from stratalog import read
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.table.exactly_once import open_ids

pytestmark = [pytest.mark.timeout(7200), pytest.mark.xdist_group("spark")]

KILLS = int(os.environ.get("SINK_KILLS", "8"))
FIRST = int(os.environ.get("SINK_FIRST", "-1"))
"""From this step on every step has its turn; -1: as many kills are spread over all steps."""
PARTITIONS = 3
RECORDS = 2000
TOP = Path(__file__).parents[2]
TWO_PHASE = {
    "transaction__state__log__num__partitions": "3",
    "transaction__two__phase__commit__enable": "true",
}
NODE_KILLS = 8
SPECULATING = {
    "spark.executor.memory": "500m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.quantile": "0.3",
}


def driver_of(place: Path, conf: Mapping[str, str] | None = None) -> Driver:
    """Start a driver whose tasks may fail twice, and whose workers find this test's modules."""
    variables = spark_environment(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(TOP))
    return Driver(place / "driver", conf or {"spark.master": "local[2,3]"}, variables)


def copying(broker: Serves, place: Path, *, records: int) -> dict[str, Any]:
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


def seen(broker: Serves) -> Counter[bytes]:
    """The keys that a reader of committed records sees."""
    reader = read("to", bootstrap_servers=broker.address, isolation="read_committed")
    return Counter(reader.read_all().column("key").to_pylist())


def seen_by_kafkas_consumer(broker: Serves) -> Counter[bytes]:
    """The keys that Apache Kafka's console consumer sees, whose default is not committed records only."""
    where = ("--bootstrap-server", broker.address, "--topic", "to", "--from-beginning")
    show = ("--formatter-property", "print.key=true", "--formatter-property", "print.value=false")
    rules = ("--isolation-level", "read_committed", "--timeout-ms", "20000")
    main = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    done = java_tool(main, *where, *show, *rules, timeout_s=120)
    # It ends with a complaint about its own time-out, in the same stream.
    return Counter(one for one in done.stdout.encode().splitlines() if one.startswith(b"key-"))


def left_open(broker: Serves) -> list[str]:
    async def found() -> list[str]:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            return await open_ids(client, "")

    return asyncio.run(found())


@pytest.mark.big
def test_tasks_that_fail_and_are_repeated_write_each_row_once(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker", **TWO_PHASE) as broker:
        produce(broker, "from", 0, 1000, partitions=PARTITIONS)
        produce(broker, "to", 0, 0, partitions=2)
        driver = driver_of(tmp_path)
        try:
            driver.ask("copy_once", **copying(broker, tmp_path, records=1500))
            by_spark = {
                level: driver.ask("count", options=level_of(broker, level))
                for level in ("read_committed", "read_uncommitted")
            }
        finally:
            driver.kill()
        assert seen(broker) == wanted(PARTITIONS, 1000)
        assert left_open(broker) == []
        written = read("to", bootstrap_servers=broker.address).read_all().num_rows
        assert written > PARTITIONS * 1000, "no task failed with rows written"
        assert by_spark == {
            "read_committed": {"rows": PARTITIONS * 1000, "keys": 1000},
            "read_uncommitted": {"rows": written, "keys": 1000},
        }


@pytest.mark.big
def test_the_slower_copy_of_a_speculated_task_leaves_nothing(tmp_path: Path) -> None:
    """Local mode does not speculate, and a copy of a task runs on another host."""
    hosts = ("127.0.0.1", "127.0.0.2")
    variables = environment(PYTHONPATH=str(TOP))
    with (
        broker_process(tmp_path / "broker", **TWO_PHASE) as broker,
        standalone(tmp_path / "spark", 2, variables, hosts) as cluster,
    ):
        produce(broker, "from", 0, 1000, partitions=PARTITIONS)
        produce(broker, "to", 0, 0, partitions=2)
        driver = driver_of(tmp_path, {**SPECULATING, "spark.master": cluster.url})
        try:
            arguments = copying(broker, tmp_path, records=PARTITIONS * 1000)
            driver.ask("copy_once", **arguments, waits=True)
            assert left_open(broker) == [], "the commit aborts the slower copy"
        finally:
            driver.kill()
        assert seen(broker) == wanted(PARTITIONS, 1000)
        written = read("to", bootstrap_servers=broker.address).read_all().num_rows
        assert written > PARTITIONS * 1000, "no task was speculated with rows written"


@pytest.mark.big
def test_nodes_that_die_under_a_stream_cost_no_row(tmp_path: Path) -> None:
    settings = {name.replace("__", "."): text for name, text in TWO_PHASE.items()}
    with ClusterProcesses(tmp_path / "nodes", settings=settings) as nodes:
        filled(nodes)
        driver = driver_of(tmp_path)
        arguments = copying(nodes, tmp_path, records=PARTITIONS * RECORDS // 20)
        ended = threading.Event()
        failures: list[str] = []

        def stream() -> None:
            try:
                while len(failures) < NODE_KILLS:
                    answer = driver.asked("copy_once", **arguments)
                    if "error" not in answer:
                        return
                    failures.append(answer["error"])
            finally:
                ended.set()

        thread = threading.Thread(target=stream)
        thread.start()
        try:
            kills = killed_in_turn(nodes, ended)
            thread.join(600)
            assert not thread.is_alive(), driver.log.read_text()[-3000:]
        finally:
            driver.kill()
            thread.join()
        print(f"{kills} nodes killed; the query began {len(failures) + 1} times: {failures}")
        assert kills >= 3, "the stream ended before nodes died"
        assert len(failures) < NODE_KILLS, failures
        assert seen(nodes) == wanted(PARTITIONS, RECORDS)
        assert left_open(nodes) == []


def filled(nodes: ClusterProcesses) -> None:
    """Create the topics with three replicas, and write the records of the one to read."""
    admin = AdminClient({"bootstrap.servers": nodes.address})
    topics = [NewTopic("from", PARTITIONS, 3), NewTopic("to", 2, 3)]
    for future in admin.create_topics(topics).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": nodes.address, "acks": "all"})
    for partition in range(PARTITIONS):
        for offset in range(RECORDS):
            producer.produce("from", b"v" * 700, b"key-%d" % offset, partition=partition)
        assert producer.flush(60) == 0


def killed_in_turn(nodes: ClusterProcesses, ended: threading.Event) -> int:
    """Kill a coordinator of transactions, a leader of rows, the decisions' leader, and so on; return how many."""
    admin = AdminClient({"bootstrap.servers": nodes.address, "log_level": 0})
    kills = 0
    for kill in range(NODE_KILLS):
        topic = ("__transaction_state", "to", "stratalog-decisions")[kill % 3]
        leader = -1
        while leader < 0 and not ended.wait(2):
            found = admin.list_topics(topic, timeout=60).topics[topic].partitions
            leader = found[0].leader if found else -1
        if ended.is_set():
            break
        nodes.kill(leader)
        kills += 1
        ended.wait(4)
        nodes.start([leader])
    return kills


def level_of(broker: BrokerProcess, level: str) -> dict[str, str]:
    """Options that read all rows with an isolation level, from the bucket and the broker."""
    return {
        "kafka.bootstrap.servers": broker.address,
        "tier.url": broker.bucket_url,
        "subscribe": "to",
        "kafka.isolation.level": level,
    }


@pytest.mark.big
def test_a_driver_killed_at_every_step_writes_each_row_once(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker", **TWO_PHASE) as broker:
        produce(broker, "from", 0, RECORDS, partitions=PARTITIONS)
        produce(broker, "to", 0, 0, partitions=2)
        arguments = copying(broker, tmp_path, records=max(100, 3 * RECORDS // (KILLS + 2)))
        for kill in range(KILLS):
            step = step_of(kill)
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


def step_of(kill: int) -> str:
    if FIRST < 0 and len(STEPS) > KILLS:
        return STEPS[kill * len(STEPS) // KILLS]
    return STEPS[(max(FIRST, 0) + kill) % len(STEPS)]


def begun(checkpoint: Path) -> int:
    """The last micro-batch whose offsets are in the checkpoint; -1 without one."""
    folder = checkpoint / "offsets"
    names = [file.name for file in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
