"""Every topic setting has its documented effect on a real broker, as a client sees the effect.

One test for each, named after it (`retention.ms` is `test_retention_ms`); `test_every_setting_has_its_test` holds the
list complete, and says where the others are.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.wire_client import Wire

from stratalog.adapters.object_store import open_store
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import ErrorCode
from stratalog.testing import TemporaryBroker
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.batch import scan
from stratalog.wire.ids import topic_id_text
from stratalog.wire.records import Record, build_batch

MIB = 1 << 20
DAY_MS = 24 * 3_600_000
WAIT_S = 20.0


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bucket")


@pytest.fixture(scope="module")
def broker(bucket: Path) -> Iterator[TemporaryBroker]:
    settings = {
        "tier.url": f"file://{bucket}",
        "remote.log.manager.task.interval.ms": "50",
        "remote.delete.grace.ms": "0",
    }
    with TemporaryBroker(settings) as started:
        yield started


class Topic:
    """One topic with one partition, and its visible state."""

    def __init__(self, broker: TemporaryBroker, name: str, configs: dict[str, str]) -> None:
        self.broker = broker
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": broker.address})
        new = NewTopic(name, 1, 1, config=configs)
        self.admin.create_topics([new])[name].result(30)
        self.place = broker.directory / f"{name}-0"

    def produce(self, *sizes: int, age_ms: int = 0, key: bytes | None = None) -> list[int]:
        """Produce one batch of one record of each size; return the error codes."""
        now_ms = self.now_ms() - age_ms
        with Wire(self.broker.address) as wire:
            return [
                wire.produce(
                    self.name, build_batch([Record(0, now_ms, key, bytes(size))])
                ).error_code
                for size in sizes
            ]

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.broker._clock.ahead_ms

    def alter(self, **configs: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self.place.glob("*.log"))

    def ends(self) -> tuple[int, int]:
        consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": "ends"})
        try:
            return consumer.get_watermark_offsets(TopicPartition(self.name, 0), timeout=20)
        finally:
            consumer.close()


Make = Callable[..., Topic]


@pytest.fixture
def make(broker: TemporaryBroker, request: pytest.FixtureRequest) -> Make:
    """`make(segment_bytes=…)`: a topic of the test's own."""
    made: list[int] = []

    def topic(**configs: object) -> Topic:
        made.append(1)
        name = f"{request.node.name}.{len(made)}".replace("[", ".").replace("]", "")
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        return Topic(broker, name, settings)

    return topic


def until(seen: Callable[[], bool], what: str) -> None:
    """Wait for an action that the broker schedules itself."""
    deadline = time.monotonic() + WAIT_S
    while not seen():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


IN_OTHER_MODULES = {
    "compression.type": "test_recompression.py::test_batches_are_stored_in_the_topics_codec",
    "compression.gzip.level": "test_recompression.py::test_a_higher_level_compresses_better",
    "compression.lz4.level": "test_recompression.py::test_a_higher_level_compresses_better",
    "compression.zstd.level": "test_recompression.py::test_a_higher_level_compresses_better",
    "delete.retention.ms": "../unit/log/test_cleaning.py::test_a_tombstone_stays_for_delete_retention_ms",
    "max.compaction.lag.ms": "../unit/log/test_cleaning.py::test_max_compaction_lag_ms_makes_a_log_due_at_any_ratio",
    "min.compaction.lag.ms": "../unit/log/test_cleaning.py::test_min_compaction_lag_ms_ends_the_cleanable_part",
    "min.cleanable.dirty.ratio": "../unit/log/test_cleaning.py::test_a_log_is_due_above_min_cleanable_dirty_ratio",
    "leader.replication.throttled.replicas": "../sim/test_throttles.py::test_a_move_takes_the_time_of_its_limit",
    "follower.replication.throttled.replicas": "../sim/test_throttles.py::test_a_move_takes_the_time_of_its_limit",
    "unclean.leader.election.enable": "../properties/test_elections.py::test_a_clean_election_loses_no_record",
}


def test_every_setting_has_its_test() -> None:
    here = {name for name in globals() if name.startswith("test_")}
    untested = [
        name
        for name, topic in TOPIC_SETTINGS.items()
        if not topic.setting.inert
        and "test_" + name.replace(".", "_") not in here
        and name not in IN_OTHER_MODULES
    ]
    assert not untested, f"no test of the behaviour of {untested}"
    for setting, place in IN_OTHER_MODULES.items():
        module, test = place.split("::")
        text = (Path(__file__).parent / module).read_text()
        assert f"def {test}(" in text, place
        assert setting in text or setting.split(".")[1] in text, f"{place} does not name {setting}"


# Segments


def test_segment_bytes(make: Make) -> None:
    topic = make(segment_bytes=MIB, max_message_bytes=2 * MIB)
    topic.produce(*[400_000] * 5)
    assert topic.segments() == [0, 2, 4]
    assert topic.produce(MIB) == [ErrorCode.record_list_too_large]


def test_internal_segment_bytes(make: Make) -> None:
    topic = make(internal_segment_bytes=200)
    topic.produce(*[50] * 5)
    assert topic.segments() == [0, 1, 2, 3, 4]
    assert topic.produce(300) == [ErrorCode.record_list_too_large]


def test_segment_ms(make: Make) -> None:
    topic = make(segment_ms=100_000)  # the time between two requests does not matter
    topic.produce(1, age_ms=500_000)
    topic.produce(1, age_ms=450_000)
    topic.produce(1, age_ms=300_000)
    assert topic.segments() == [0, 2]


def test_segment_jitter_ms(make: Make, broker: TemporaryBroker) -> None:
    # Without jitter all partitions roll at the same record; with it at different ones, none later than without.
    def first_roll(topic: Topic) -> int:
        began_ms = topic.now_ms()
        for age_s in range(100, -1, -1):  # a second apart, however long each request takes
            topic.produce(1, age_ms=age_s * 1000 + topic.now_ms() - began_ms)
        return topic.segments()[1]

    punctual = first_roll(make(segment_ms=80_500))
    spread = [first_roll(make(segment_ms=80_500, segment_jitter_ms=80_000)) for _ in range(4)]
    assert max(spread) <= punctual
    assert len(set(spread)) > 1


def test_segment_index_bytes(make: Make) -> None:
    topic = make(segment_index_bytes=24, index_interval_bytes=0)
    topic.produce(*[10] * 9)
    assert len(topic.segments()) > 3


def test_index_interval_bytes(make: Make) -> None:
    sizes = []
    for interval in (0, 100_000):
        topic = make(index_interval_bytes=interval, segment_bytes=MIB)
        topic.produce(*[10_000] * 20, 900_000)
        sizes.append((topic.place / f"{0:020}.index").stat().st_size)
    assert sizes[0] == 19 * 8
    assert sizes[1] == 8


def test_preallocate(make: Make) -> None:
    topic = make(preallocate="true", segment_bytes=8 * MIB)
    topic.produce(10)
    first = topic.place / f"{0:020}.log"
    stat = first.stat()
    if stat.st_blocks * 512 < 8 * MIB:
        plain = make(segment_bytes=8 * MIB)
        plain.produce(10)
        pytest.skip("this file system keeps no room for a file")
    assert stat.st_size < 1000
    topic.alter(segment_bytes=str(MIB))
    topic.produce(10_000, 1_040_000)
    assert topic.segments() == [0, 2]
    assert first.stat().st_blocks * 512 < MIB


# Messages


def test_max_message_bytes(make: Make) -> None:
    topic = make(max_message_bytes=1000)
    assert topic.produce(800, 1000) == [0, ErrorCode.message_too_large]
    topic.alter(max_message_bytes="2000")
    assert topic.produce(1000) == [0]


def test_message_timestamp_type(make: Make) -> None:
    topic = make(message_timestamp_type="LogAppendTime")
    before = topic.now_ms()
    topic.produce(1, age_ms=5 * DAY_MS)
    ((_, header),) = scan((topic.place / f"{0:020}.log").read_bytes())
    assert header.is_log_append_time
    assert header.max_timestamp >= before


def test_message_timestamp_before_max_ms(make: Make) -> None:
    topic = make(message_timestamp_before_max_ms=10_000)
    assert topic.produce(1, age_ms=60_000) == [ErrorCode.invalid_timestamp]
    assert topic.produce(1, age_ms=1000) == [0]


def test_message_timestamp_after_max_ms(make: Make) -> None:
    topic = make(message_timestamp_after_max_ms=60_000)
    assert topic.produce(1, age_ms=-120_000) == [ErrorCode.invalid_timestamp]
    assert topic.produce(1, age_ms=-1000) == [0]


def test_min_insync_replicas(make: Make) -> None:
    """One node has one replica, which is enough; `tests/sim/test_kafka_answers.py` has more replicas."""
    topic = make(min_insync_replicas=2)
    batch = build_batch([Record(0, 1, None, b"x")])
    with Wire(topic.broker.address) as wire:
        for acks in (-1, 1):
            assert wire.produce(topic.name, batch, acks=acks).error_code == 0


# Durability


def checkpointed(topic: Topic) -> int:
    """Return the recovery point of the topic's checkpoint."""
    path = topic.broker.directory / "recovery-point-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    points = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines}
    return points.get((topic.name, "0"), 0)


@pytest.fixture(scope="module")
def synced() -> Iterator[dict[str, int]]:
    """Return the synced part of four records for each of these topics, from the next checkpoint."""
    with TemporaryBroker({"log.flush.offset.checkpoint.interval.ms": "50"}) as broker:
        settings = {"flush.messages": "3", "flush.ms": "1", "max.message.bytes": "9999"}
        topics = {name: Topic(broker, name, {name: value}) for name, value in settings.items()}
        for topic in topics.values():
            topic.produce(1, 1, 1, 1)
        last = Topic(broker, "last", {"flush.messages": "1"})
        last.produce(1)
        until(lambda: checkpointed(last) == 1, "a checkpoint after all that")
        until(lambda: checkpointed(topics["flush.ms"]) == 4, "one after a millisecond")
        yield {name: checkpointed(topic) for name, topic in topics.items()}


def test_flush_messages(synced: dict[str, int]) -> None:
    assert synced["flush.messages"] == 3
    assert synced["max.message.bytes"] == 0  # the topic has no flush setting


def test_flush_ms(synced: dict[str, int]) -> None:
    assert synced["flush.ms"] == 4


# Retention


def test_retention_ms(make: Make, broker: TemporaryBroker) -> None:
    topic = make(retention_ms=DAY_MS, segment_bytes=MIB)
    topic.produce(900_000, age_ms=2 * DAY_MS)
    topic.produce(900_000)
    broker.advance(0)
    assert topic.segments() == [1]
    assert topic.ends() == (1, 2)
    topic.alter(retention_ms="-1")
    broker.advance(2 * DAY_MS)
    assert topic.ends() == (1, 2)


def test_retention_bytes(make: Make, broker: TemporaryBroker) -> None:
    topic = make(retention_bytes=2 * MIB, segment_bytes=MIB)
    topic.produce(*[900_000] * 6)
    broker.advance(0)
    assert topic.segments() == [3, 4, 5]


def test_cleanup_policy(make: Make, broker: TemporaryBroker) -> None:
    kept = make(cleanup_policy="compact", retention_bytes=0, retention_ms=1, segment_bytes=MIB)
    gone = make(cleanup_policy="delete", retention_bytes=0, retention_ms=1, segment_bytes=MIB)
    for topic in (kept, gone):
        topic.produce(*[900_000] * 3, age_ms=DAY_MS, key=b"k")
    assert kept.produce(10) == [ErrorCode.invalid_record], (
        "a compacted topic must refuse a record without a key"
    )
    broker.advance(0)
    assert kept.ends() == (0, 3)
    assert gone.ends() == (3, 3)


def test_file_delete_delay_ms(make: Make, broker: TemporaryBroker) -> None:
    topic = make(retention_bytes=0, segment_bytes=MIB, file_delete_delay_ms=10_000)
    topic.produce(*[900_000] * 2)
    broker.advance(0)
    deleted = sorted(path.name for path in topic.place.glob("*.deleted"))
    assert f"{0:020}.log.deleted" in deleted
    broker.advance(9_000)
    assert sorted(path.name for path in topic.place.glob("*.deleted")) == deleted
    broker.advance(2_000)
    assert not list(topic.place.glob("*.deleted"))


# The tier


def tiered(topic: Topic, bucket: Path) -> list[int]:
    """Base offsets of the topic's segments in the bucket."""
    with Wire(topic.broker.address) as wire:
        name = "*" + topic_id_text(wire.topic_id(topic.name)) + "/0/*.seg"
    return sorted(int(path.name.split("-")[0]) for path in bucket.rglob(name))


def test_remote_storage_enable(make: Make, bucket: Path) -> None:
    topic = make(segment_bytes=MIB)
    topic.produce(*[900_000] * 3)
    topic.alter(remote_storage_enable="true")  # on a running topic, with its existing records
    until(lambda: tiered(topic, bucket) == [0, 1], "closed segments in the bucket")
    with pytest.raises(KafkaException, match=r"remote\.log\.delete\.on\.disable"):
        topic.alter(remote_storage_enable="false")


def test_local_retention_bytes(make: Make, bucket: Path, broker: TemporaryBroker) -> None:
    topic = make(remote_storage_enable="true", segment_bytes=MIB, local_retention_bytes=2 * MIB)
    topic.produce(*[900_000] * 6)
    until(lambda: topic.segments() == [3, 4, 5], "local segments gone")
    assert topic.ends() == (0, 6)
    until(lambda: tiered(topic, bucket) == [0, 1, 2, 3, 4], "closed segments in the bucket")


def test_local_retention_ms(make: Make, bucket: Path) -> None:
    topic = make(remote_storage_enable="true", segment_bytes=MIB, local_retention_ms=10_000)
    topic.produce(*[900_000] * 2, age_ms=60_000)
    topic.produce(*[900_000] * 2)
    until(lambda: topic.segments() == [2, 3], "local segments gone")
    assert topic.ends() == (0, 4)
    until(lambda: tiered(topic, bucket) == [0, 1, 2], "closed segments in the bucket")


def test_tier_max_lag_ms(make: Make, bucket: Path, broker: TemporaryBroker) -> None:
    quiet = make(remote_storage_enable="true", tier_max_lag_ms=-1)
    topic = make(remote_storage_enable="true", tier_max_lag_ms=60_000)
    for one in (quiet, topic):
        one.produce(10)
    broker.advance(61_000)
    until(lambda: tiered(topic, bucket) == [0], "a quiet topic in the bucket")
    assert tiered(quiet, bucket) == []


def key_pages(topic: Topic, bucket: Path) -> list[int]:
    """Pages of keys of each segment in the manifest, which names a segment after its object is in the bucket."""
    found = open_bucket(open_store(bucket.as_uri()))
    registered = found.topic(topic.name)
    manifest = registered and found.manifest(registered, 0)
    return [one.entry.key_pages for one in found.live(manifest)] if manifest else []


def test_tier_key_filter(make: Make, bucket: Path, broker: TemporaryBroker) -> None:
    topics = [
        make(remote_storage_enable="true", tier_max_lag_ms=1000, tier_key_filter=value)
        for value in ("true", "false")
    ]
    for topic in topics:
        topic.produce(10)
    broker.advance(5000)
    until(lambda: [key_pages(topic, bucket) for topic in topics] == [[1], [0]], "a segment of each")


def test_remote_log_copy_disable(make: Make, bucket: Path, broker: TemporaryBroker) -> None:
    topic = make(
        remote_storage_enable="true", segment_bytes=MIB, retention_ms=DAY_MS, tier_max_lag_ms=1000
    )
    topic.produce(*[900_000] * 2)
    until(lambda: tiered(topic, bucket) == [0], "a closed segment in the bucket")
    topic.alter(remote_log_copy_disable="true")
    topic.produce(*[900_000] * 2)
    broker.advance(5000)
    time.sleep(0.3)  # several rounds of the tier must not upload the topic
    assert tiered(topic, bucket) == [0]
    assert topic.segments() == [0, 1, 2, 3]
    with pytest.raises(KafkaException, match=r"local\.retention\.ms"):
        topic.alter(local_retention_ms="1000")
    # Total retention also deletes records that were never uploaded, and earlier ones in the bucket.
    broker.advance(2 * DAY_MS)
    until(lambda: tiered(topic, bucket) == [], "bucket expired")
    until(lambda: topic.ends() == (4, 4), "the log begins where nothing is lost")
    topic.alter(remote_log_copy_disable="false")
    topic.produce(*[900_000] * 2)
    until(lambda: tiered(topic, bucket) == [4], "copying goes on")


def test_remote_log_delete_on_disable(make: Make, bucket: Path) -> None:
    topic = make(remote_storage_enable="true", segment_bytes=MIB, local_retention_bytes=2 * MIB)
    topic.produce(*[900_000] * 6)
    until(lambda: topic.segments() == [3, 4, 5], "local segments gone")
    assert topic.ends() == (0, 6)
    topic.alter(remote_storage_enable="false", remote_log_delete_on_disable="true")
    assert topic.ends() == (3, 6)
    until(lambda: tiered(topic, bucket) == [], "nothing in the bucket")
    # The tier comes back with the local records, which stay until their upload.
    topic.alter(remote_storage_enable="true")
    topic.produce(*[900_000] * 2)
    until(lambda: tiered(topic, bucket) == [3, 4, 5, 6], "the segments are uploaded again")
    assert topic.ends() == (3, 8)
