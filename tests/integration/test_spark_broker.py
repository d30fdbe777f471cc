"""Real Spark over a real broker and its bucket: the seam, killed streams, the bucket alone.

Method: each record contains its own offset, so the tests see every missing, repeated or wrong row. Segments close, are
archived and leave the local disk during reads. Spark runs in its own process, with the product's Python, and finds the
source by name.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.broker_process import BrokerProcess, broker_process
from tests.fuzz.poison import poisonings, sound
from tests.spark_scratch import scratch
from tests.wire_client import Wire

from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.object_store import open_store
from stratalog.client.aio import Client
from stratalog.client.calls import LATEST, NewTopic
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.batch import parse_header
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.ids import TopicPartition as Named
from stratalog.wire.records import BatchBuilder

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="no Java 17 or later"
    ),
]

PATIENCE_S = 240  # a stream starts within seconds unless the machine is loaded
RECORDS_PER_BATCH = 50
SEGMENT = {
    "segment.bytes": str(1 << 20),
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
}


def spark_environment(**more: str) -> dict[str, str]:
    """Return this process's environment for Spark's JVM, without variables that would change its class path."""
    kept = {name: value for name, value in os.environ.items() if name != "CLASSPATH"}
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1", **more}


class Driver:
    """A Spark driver in its own process, with `conf`; `ask` waits for an answer."""

    def __init__(
        self,
        place: Path,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        if environment is None:
            environment = spark_environment(PYSPARK_PYTHON=sys.executable)
        words = [f"{name}={value}" for name, value in (conf or {}).items()]
        self.log = place / "driver.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [python, str(Path(__file__).parent / "spark_driver.py"), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=place,
                env={**environment, **scratch(place)},
                start_new_session=True,
            )
        assert self._answer() == {"ready": True}

    def ask(self, do: str, **arguments: Any) -> Any:
        """Run a command; return its result. Raises AssertionError with Spark's error."""
        answer = self.asked(do, **arguments)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def asked(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """Send SIGKILL to the process group of the driver, its JVM and their workers."""
        os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-3000:]
        found: dict[str, Any] = json.loads(line)
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(place / "broker").start()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


@pytest.fixture(scope="module")
def driver(place: Path) -> Iterator[Driver]:
    made = Driver(place / "driver")
    yield made
    made.kill()


def batch(base: int) -> bytearray:
    number = base // RECORDS_PER_BATCH
    builder = BatchBuilder(CODEC_NAMES[number % 5] if number % 3 == 0 else "none")
    now_ms = int(time.time() * 1000)
    for offset in range(base, base + RECORDS_PER_BATCH):
        value = b"value-%d." % offset
        builder.add(b"key-%d" % offset, value.ljust(700, b"."), now_ms)
    return builder.build()


class Serves(Protocol):
    """A broker of this project or of Apache Kafka."""

    @property
    def address(self) -> str: ...


def produce(
    broker: Serves,
    topic: str,
    first: int,
    end: int,
    partitions: int = 1,
    *,
    configs: Mapping[str, str] = SEGMENT,
) -> None:
    """Records [first, end) to each partition; the topic is created when it starts at 0."""

    async def run() -> None:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            if first == 0:
                (created,) = await client.create_topics([NewTopic(topic, partitions, 1, configs)])
                assert not created.error, created
                # Apache Kafka answers before its brokers know the topic and their leaderships.
                for _ in range(300):
                    if not (await client.metadata([topic])).topics[topic].error:
                        break
                    await asyncio.sleep(0.1)
                await client.list_offsets(
                    {Named(topic, index): LATEST for index in range(partitions)}
                )
            async with client.pipeline(window=4) as pipeline:
                for base in range(first, end, RECORDS_PER_BATCH):
                    for partition in range(partitions):
                        _ = await pipeline.send(topic, partition, batch(base))
            wanted = {Named(topic, partition): LATEST for partition in range(partitions)}
            ends = await client.list_offsets(wanted)
            assert {listed.offset for listed in ends.values()} == {end}

    asyncio.run(run())


def delete(broker: Serves, topic: str) -> None:
    async def run() -> None:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            (deleted,) = await client.delete_topics([topic])
            assert not deleted.error

    asyncio.run(run())


def delete_records(broker: Serves, topic: str, before: int, partition: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        assert future.result(30).low_watermark == before


def until(what: Callable[[], Any], why: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, why
        time.sleep(0.05)
    return found


def tiered_end(broker: BrokerProcess, topic: str, partition: int = 0) -> int:
    bucket = open_bucket(open_store(broker.bucket_url))
    found = bucket.topic(topic)
    manifest = bucket.manifest(found, partition) if found is not None else None
    return manifest.tiered_end if manifest is not None else 0


def local_segments(broker: BrokerProcess, topic: str, partition: int) -> int:
    return len(list((broker.data / f"{topic}-{partition}").glob("*.log")))


def wait_until_tiered(
    broker: BrokerProcess, topic: str, tiered: int, partitions: Iterable[int] = (0,)
) -> None:
    """Wait until the bucket has offsets below `tiered`, and the local disk only the active segments."""
    for partition in partitions:
        until(partial(_is_tiered, broker, topic, partition, tiered), "not all history is tiered")


def _is_tiered(broker: BrokerProcess, topic: str, partition: int, tiered: int) -> bool:
    is_in_bucket = tiered_end(broker, topic, partition) >= tiered
    return is_in_bucket and local_segments(broker, topic, partition) == 1


def both(broker: BrokerProcess, topic: str, **options: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.address,
        "tier.url": broker.bucket_url,
        "subscribe": topic,
        "includeOrigin": "true",
        **options,
    }


def whole(found: list[dict[str, Any]], partition: int, first: int, end: int) -> None:
    """Check that all parts together are [first, end) of a partition: each offset once, each record right."""
    parts = [part for part in found if part["partition"] == partition]
    assert parts, f"nothing of partition {partition} in {found}"
    assert sum(part["wrong"] for part in parts) == 0, parts
    assert all(part["distinct_offsets"] == part["records"] for part in parts), parts
    assert sum(part["records"] for part in parts) == end - first, parts
    assert min(part["first"] for part in parts) == first, parts
    assert max(part["last"] for part in parts) == end - 1, parts


def test_history_and_tail_are_one_table(broker: BrokerProcess, driver: Driver) -> None:
    with_filters = {**SEGMENT, "tier.key.filter": "true"}
    produce(broker, "seam", 0, 6000, partitions=2, configs=with_filters)
    wait_until_tiered(broker, "seam", 1000, partitions=(0, 1))
    found = driver.ask("batch", options=both(broker, "seam", minPartitions="5"))
    for partition in (0, 1):
        whole(found, partition, 0, 6000)
    origins = {(part["origin"], part["partition"]): part for part in found}
    assert origins.keys() == {("bucket", 0), ("broker", 0), ("bucket", 1), ("broker", 1)}
    for partition in (0, 1):
        cold, hot = origins["bucket", partition], origins["broker", partition]
        assert cold["last"] + 1 == hot["first"], "bucket and broker must meet at one exact seam"
    # Pushed-down conditions limit the records that are read, if the session allows pushdown.
    where = "partition = 1 AND offset >= 5500 AND timestamp > TIMESTAMP '2001-01-01'"
    few = driver.ask("pruned", options=both(broker, "seam", pushdown="true"), where=where)
    whole(few["rows"], 1, 5500, 6000)
    assert {part["partition"] for part in few["rows"]} == {1}
    everything = driver.ask("pruned", options=both(broker, "seam"), where=where)
    whole(everything["rows"], 1, 5500, 6000)
    assert few["tasks"] < everything["tasks"]
    # A key opens only segments whose filter may hold it: none for a key of the tail, which brokers have.
    for where in ("key = 'key-77'", "key IN (X'6b65792d3737', binary('absent'))"):
        few = driver.ask("pruned", options=both(broker, "seam", pushdown="true"), where=where)
        assert [(part["first"], part["records"]) for part in few["rows"]] == [(77, 1)] * 2
    few = driver.ask(
        "pruned", options=both(broker, "seam", pushdown="true"), where="key = 'key-5999'"
    )
    assert [(part["first"], part["records"]) for part in few["rows"]] == [(5999, 1)] * 2
    assert (few["tasks"], everything["tasks"]) == (2, 4)
    # Each key has one record, so the table of the last ones has all of them.
    found = driver.ask("batch", options=both(broker, "seam", latest_by_key="true"))
    for partition in (0, 1):
        whole(found, partition, 0, 6000)
    # The broker alone serves all records too, by its own remote reads.
    alone = both(broker, "seam")
    del alone["tier.url"]
    found = driver.ask("batch", options=alone)
    whole(found, 0, 0, 6000)
    assert {part["origin"] for part in found} == {"broker"}


def test_poison_batches_are_refused_and_spark_reads_the_rest(
    broker: BrokerProcess, driver: Driver
) -> None:
    end = 0
    with Wire(broker.address) as wire:
        wire.topic_id("poisoned")
        for number, poison in enumerate(poisonings(Random(4))):
            for one in (poison, batch(0) if number % 50 == 0 else sound("lz4")):
                if not wire.produce("poisoned", one).error_code:
                    end += parse_header(one).record_count
    (found,) = driver.ask("batch", options=both(broker, "poisoned"))
    assert (found["records"], found["first"], found["last"]) == (end, 0, end - 1)


def test_wrong_options_and_topics_are_one_clear_error(
    broker: BrokerProcess, driver: Driver
) -> None:
    """Spark's first line has the reason: no frames of a worker, no stack of the JVM."""
    seam = both(broker, "seam")
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    secured = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": f'{login} username="a" password="${{env:UNSET}}";',
    }
    for options, says in (
        (both(broker, "seam", startingOffset="latest"), "did you mean 'startingOffsets'?"),
        (both(broker, "nowhere"), "topic nowhere does not exist"),
        (both(broker, "no/where"), "no topic can have the name 'no/where': 1 to 249 ASCII letters"),
        ({**seam, "tier.url": "memory://b"}, "cannot be read by Spark's tasks"),
        (
            {**seam, **secured},
            "no variable UNSET; Spark's workers have the environment of the session's",
        ),
    ):
        one_line(driver.asked("batch", options=options), says)


def one_line(answer: dict[str, Any], says: str) -> None:
    first, *rest = answer["error"].splitlines()
    assert first.startswith("[PYTHON_DATA_SOURCE_ERROR]"), answer
    assert says in first, answer
    assert [line.strip() for line in rest] == ["SQLSTATE: 38000"], answer


def test_the_sink_fails_in_the_driver(broker: BrokerProcess, driver: Driver) -> None:
    """Topic and broker are checked before a task starts."""
    produce(broker, "checked", 0, 50)
    for sink, says in (
        ({"topic": "nowhere"}, "topic nowhere does not exist"),
        ({"topic": "checked", "kafka.linger.ms": "5"}, "'kafka.linger.ms' would have no effect"),
        ({"topic": "checked", "kafka.bootstrap.servers": "a"}, "'a' is not host:port"),
    ):
        given = {"kafka.bootstrap.servers": broker.address, **sink}
        answer = driver.asked("copy", options=both(broker, "checked"), sink=given, checkpoint=None)
        one_line(answer, says)


def test_a_stream_reads_a_new_partition_and_waits_for_a_broker_that_is_away(
    broker: BrokerProcess, driver: Driver, place: Path
) -> None:
    """The worker's connection is older than the partition; and no restart of a broker ends a query."""
    produce(broker, "rolled", 0, 100)
    where = {"checkpoint": str(place / "rolled"), "sink": str(place / "rolled-rows")}
    options = both(broker, "rolled", startingOffsets="earliest")
    running = Driver(place / "rolling")

    def has(partition: int, records: int) -> bool:
        answer = driver.asked("read_back", sink=where["sink"])  # fails until there are rows
        return (
            sum(
                part["records"]
                for part in answer.get("result", [])
                if part["partition"] == partition
            )
            == records
        )

    try:
        running.ask("stream", options=options, **where, wait=False)
        until(partial(has, 0, 100), "the stream does not begin")
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_partitions([NewPartitions("rolled", 2)])["rolled"].result(30)
        with Wire(broker.address) as wire:
            wire.topic_id("rolled")
            assert not wire.produce("rolled", batch(0), index=1).error_code
        until(partial(has, 1, RECORDS_PER_BATCH), "the new partition is not read")
        broker.stop()
        try:
            waits = "Connection refused: trying again for up to 60 s"
            until(lambda: waits in running.log.read_text(), "the stream does not wait")
        finally:
            broker.start()
        produce(broker, "rolled", 100, 150)
        until(partial(has, 0, 150), "the stream does not continue")
    finally:
        running.kill()


def test_a_table_of_the_catalog_is_read_by_batch_and_by_stream(
    broker: BrokerProcess, driver: Driver, place: Path
) -> None:
    """`CREATE TABLE … USING stratalog`: Spark's own properties are no options, and ours come back at each read."""
    produce(broker, "listed", 0, 100, partitions=2)
    given = {**both(broker, "listed"), "startingOffsets": "earliest"}
    named = ", ".join(f"'{name}' '{value}'" for name, value in given.items())
    words = "COMMENT 'all' TBLPROPERTIES ('owned.by' = 'us')"
    counted = "SELECT partition, count(*) FROM listed GROUP BY partition ORDER BY partition"
    created = [f"CREATE TABLE listed USING stratalog OPTIONS ({named}) {words}", counted]
    assert driver.ask("sql", statements=created) == [[0, 100], [1, 100]]
    wrong = [f"CREATE TABLE misspelt USING stratalog OPTIONS ({named}, subscrib 't')"]
    assert "did you mean 'subscribe'?" in driver.asked("sql", statements=wrong)["error"]
    where = {"checkpoint": str(place / "listed"), "sink": str(place / "listed-sink"), "wait": True}
    driver.ask("stream", options={}, table="listed", **where)
    assert sum(part["records"] for part in driver.ask("read_back", sink=where["sink"])) == 200
    # An option that a stream cannot use is one line, both at a restart from a checkpoint and at a first start.
    for more, says, checkpoint in (
        ({"endingOffsets": "latest"}, "BadOption: a stream has no end", where["checkpoint"]),
        ({"pushdown": "true"}, "BadOption: option 'pushdown' is for", str(place / "fresh")),
    ):
        asked = where | {"checkpoint": checkpoint, "options": given | more}
        error = driver.asked("stream", **asked)["error"].replace("\\'", "'")
        assert says in error, error
        assert "UnboundLocalError" not in error


def test_a_killed_stream_continues_from_its_checkpoint(
    broker: BrokerProcess, driver: Driver, place: Path
) -> None:
    """A driver is killed during a query, the seam moves, and another driver ends the query: no row lost or repeated."""
    produce(broker, "stream", 0, 4000)
    options = both(broker, "stream", startingOffsets="earliest", maxOffsetsPerTrigger="700")
    where = {"checkpoint": str(place / "checkpoint"), "sink": str(place / "sink")}
    commits = place / "checkpoint" / "commits"
    killed = Driver(place / "killed")
    try:
        killed.ask("stream", options=options, **where, wait=False)
        until((commits / "1").exists, "the stream does not move")
    finally:
        killed.kill()
    assert not (commits / "5").exists(), "the driver must be killed before the end"
    produce(broker, "stream", 4000, 6000)
    wait_until_tiered(broker, "stream", 4000)
    ended = driver.ask("stream", options=options, **where, wait=True)
    assert ended["batches"] > 1
    ((topic_id, topic),) = json.loads(ended["source"]["endOffset"])["topics"].items()
    assert topic == {"name": "stream", "partitions": {"0": 6000}}
    # Each progress has the log's end, and how far behind it the batch ended.
    latest = [json.loads(one["latestOffset"]) for one in ended["progress"]]
    behind = [one["maxOffsetsBehindLatest"] for one in latest]
    assert behind == sorted(behind, reverse=True)
    assert behind[0] >= 700 > behind[-1] == 0
    assert {one["topics"][topic_id]["partitions"]["0"] for one in latest} == {6000}
    assert not ended["source"].get("metrics"), (
        "docs/spark.md says that Spark shows no metrics of the source"
    )
    found = driver.ask("read_back", sink=where["sink"])
    whole(found, 0, 0, 6000)
    assert {part["origin"] for part in found} == {"bucket", "broker"}
    produce(broker, "stream", 6000, 6500)
    driver.ask("stream", options=options, **where, wait=True)
    whole(driver.ask("read_back", sink=where["sink"]), 0, 0, 6500)


def test_a_topic_created_again_stops_the_stream(
    broker: BrokerProcess, driver: Driver, place: Path
) -> None:
    produce(broker, "again", 0, 100)
    options = both(broker, "again", startingOffsets="earliest")
    where = {"checkpoint": str(place / "again"), "sink": str(place / "again-sink"), "wait": True}
    driver.ask("stream", options=options, **where)
    delete(broker, "again")
    error = driver.asked("stream", options=options, **where)["error"]
    assert "topic again does not exist" in error
    produce(broker, "again", 0, 200)
    error = driver.asked("stream", options=options, **where)["error"]
    assert "topic again was deleted and created again" in error
    # With failOnDataLoss=false it reads the new topic from its beginning; rows of the old one stay.
    driver.ask("stream", options=options | {"failOnDataLoss": "false"}, **where)
    found = driver.ask("read_back", sink=where["sink"])
    assert [part["records"] for part in found] == [100 + 200]


def test_rows_are_written_to_a_topic_by_a_job_and_by_a_stream(
    broker: BrokerProcess, driver: Driver, place: Path
) -> None:
    produce(broker, "source", 0, 500, partitions=2)
    produce(broker, "target", 0, 0, partitions=2)
    plain = {"kafka.bootstrap.servers": broker.address, "startingOffsets": "earliest"}
    source = {**plain, "subscribe": "source"}
    target = {"kafka.bootstrap.servers": broker.address, "topic": "target"}
    driver.ask("copy", options=source, sink=target, checkpoint=None)
    checkpoint = str(place / "copied")
    limited = {**source, "maxOffsetsPerTrigger": "400"}
    driver.ask("copy", options=limited, sink=target, checkpoint=checkpoint)
    found = driver.ask("batch", options={**plain, "subscribe": "target", "includeOrigin": "true"})
    assert [part["records"] for part in found] == [1000, 1000], (
        "each partition must be written twice"
    )
    writes = driver.ask("write_headers", options={**plain, "subscribe": "target"})
    assert all(one["records"] == one["different"] for one in writes), writes
    job, *batches = sorted(writes, key=lambda one: one["records"], reverse=True)
    assert (job["batch"], job["records"]) == ("0", 1000)
    assert len({one["run"] for one in batches}) == 1, "the rows must name one query"
    assert [one["batch"] for one in sorted(batches, key=lambda one: one["batch"])] == [
        "0",
        "1",
        "2",
    ]
    wrong = driver.asked("copy", options=source, sink={**target, "topc": "x"}, checkpoint=None)
    assert "did you mean 'topic'?" in wrong["error"].replace("\\'", "'"), wrong


def test_a_repeated_batch_is_recognised_by_its_header(
    broker: BrokerProcess, driver: Driver, place: Path
) -> None:
    """A batch fails when part of it is written. The seam moves, so the retry has other tasks."""
    produce(broker, "once", 0, 4000)
    produce(broker, "repeated", 0, 0, partitions=2)
    reading = {"kafka.bootstrap.servers": broker.address, "startingOffsets": "earliest"}
    copied = {
        "options": {**reading, "subscribe": "once", "minPartitions": "4"},
        "sink": {"kafka.bootstrap.servers": broker.address, "topic": "repeated"},
        "checkpoint": str(place / "repeated"),
        "mark": str(place / "failed"),
    }
    assert "the first attempt fails" in driver.asked("copy", **copied)["error"]
    wait_until_tiered(broker, "once", 1000)
    copied["options"]["tier.url"] = broker.bucket_url
    driver.ask("copy", **copied)
    page = (Path(__file__).parents[2] / "docs/spark.md").read_text()
    (program,) = [text for text in page.split("```") if "dropDuplicates" in text]
    options = {**reading, "subscribe": "repeated"}
    found = driver.ask("once", options=options, program=program.removeprefix("python"))
    assert found["written"] > 4000 == found["left"] == found["different"], found


def test_spark_reads_history_without_the_broker(driver: Driver, tmp_path: Path) -> None:
    """Without the broker Spark reads the tiered records, and an error names a damaged or missing object.

    With failOnDataLoss=false, a batch and a stream continue without the object's records.
    """
    with broker_process(tmp_path) as broker:
        produce(broker, "cold", 0, 4000)
        wait_until_tiered(broker, "cold", 1000)
        end = tiered_end(broker, "cold")
    options = both(broker, "cold")
    error = driver.asked("batch", options=options)["error"]
    assert f"broker {broker.address} unreachable" in error
    del options["kafka.bootstrap.servers"]
    found = driver.ask("batch", options=options)
    whole(found, 0, 0, end)
    assert {part["origin"] for part in found} == {"bucket"}
    bucket = open_bucket(open_store(broker.bucket_url))
    topic = bucket.topic("cold")
    assert topic is not None
    manifest = bucket.manifest(topic, 0)
    assert manifest is not None
    first = next(manifest.recent())
    victim, behind = first.path, first.entry.last_offset + 1
    file = broker.directory / "bucket" / victim
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    assert victim in driver.asked("batch", options=options)["error"]
    file.unlink()
    assert victim in driver.asked("batch", options=options)["error"]
    options |= {"failOnDataLoss": "false", "startingOffsets": "earliest"}
    whole(driver.ask("batch", options=options), 0, behind, end)
    where = {"checkpoint": str(tmp_path / "checkpoint"), "sink": str(tmp_path / "sink")}
    driver.ask("stream", options=options, **where, wait=True)
    whole(driver.ask("read_back", sink=where["sink"]), 0, behind, end)
    said = driver.log.read_text()
    assert f"offsets 0 to {behind - 1} of cold-0 are skipped" in said
