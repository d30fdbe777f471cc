"""Administration with third-party clients against a real broker process."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import InvalidUpdateVersionError
from tests.broker_process import BrokerProcess, broker_process

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


@pytest.fixture(scope="module")
def python_admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    yield client
    client.close()


def create(admin: AdminClient, name: str, partitions: int = 1, **configs: str) -> None:
    settings = {key.replace("__", "."): value for key, value in configs.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    admin.create_topics([topic])[name].result(TIMEOUT_S)


def produce(
    broker: BrokerProcess, topic: str, count: int, size: int = 10, partition: int = 0
) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for _ in range(count):
        producer.produce(topic, value=b"x" * size, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def watermarks(broker: BrokerProcess, topic: str, partition: int = 0) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "watermarks"})
    try:
        wanted = TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(wanted, timeout=TIMEOUT_S)
        return low, high
    finally:
        consumer.close()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alter(
    admin: AdminClient,
    name: str,
    operation: AlterConfigOpType,
    setting: str,
    value: str | None,
    *,
    kind: ConfigResource.Type = ConfigResource.Type.TOPIC,
    validate_only: bool = False,
) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    futures = admin.incremental_alter_configs([resource], validate_only=validate_only)
    futures[resource].result(TIMEOUT_S)


def setting(admin: AdminClient, topic: str, name: str) -> tuple[str, int]:
    """Return a setting's effective value and its source."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entry = admin.describe_configs([resource])[resource].result(TIMEOUT_S)[name]
    return entry.value, entry.source


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(KafkaException) as error:
        call()
    return str(error.value.args[0].name())


def test_partitions_added_take_records_at_once(broker: BrokerProcess, admin: AdminClient) -> None:
    create(admin, "grown")
    admin.create_partitions([NewPartitions("grown", 4)], validate_only=True)["grown"].result(
        TIMEOUT_S
    )
    assert len(admin.list_topics("grown").topics["grown"].partitions) == 1
    admin.create_partitions([NewPartitions("grown", 4)])["grown"].result(TIMEOUT_S)
    produce(broker, "grown", 5, partition=3)
    assert watermarks(broker, "grown", 3) == (0, 5)
    fewer = admin.create_partitions([NewPartitions("grown", 2)])["grown"]
    assert refused(lambda: fewer.result(TIMEOUT_S)) == "INVALID_PARTITIONS"


def test_deleted_records_stay_deleted(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        create(admin, "cut", segment__bytes="1048576", file__delete__delay__ms="0")
        for _ in range(4):
            produce(broker, "cut", 10, 100_000)
        segments = broker.data / "cut-0"
        assert len(list(segments.glob("*.log"))) > 2
        wanted = TopicPartition("cut", 0, 25)
        assert admin.delete_records([wanted])[wanted].result(TIMEOUT_S).low_watermark == 25
        assert watermarks(broker, "cut") == (25, 40)
        eventually(lambda: len(list(segments.glob("*.log"))) <= 2)

        broker.kill()
        broker.start()
        assert watermarks(broker, "cut") == (25, 40)
        # A new client: the old one may still have metadata from the broker's start.
        admin = AdminClient({"bootstrap.servers": broker.address})
        beyond = TopicPartition("cut", 0, 41)
        assert (
            refused(lambda: admin.delete_records([beyond])[beyond].result(TIMEOUT_S))
            == "OFFSET_OUT_OF_RANGE"
        )
        everything = TopicPartition("cut", 0, -1)
        assert admin.delete_records([everything])[everything].result(TIMEOUT_S).low_watermark == 40
        assert watermarks(broker, "cut") == (40, 40)
        produce(broker, "cut", 1)
        assert watermarks(broker, "cut") == (40, 41)


def test_deleted_records_are_removed_from_the_bucket(tmp_path: Path) -> None:
    with broker_process(tmp_path, remote__delete__grace__ms="0") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        create(
            admin, "far", remote__storage__enable="true", segment__bytes="1048576",
            local__retention__ms="0", file__delete__delay__ms="0",
        )  # fmt: skip
        for _ in range(4):
            produce(broker, "far", 10, 100_000)
        bucket = tmp_path / "bucket"
        eventually(lambda: len(list(bucket.rglob("*.seg"))) >= 3)
        held = len(list(bucket.rglob("*.seg")))
        wanted = TopicPartition("far", 0, 25)
        assert admin.delete_records([wanted])[wanted].result(TIMEOUT_S).low_watermark == 25
        eventually(lambda: len(list(bucket.rglob("*.seg"))) == held - 2)
        assert watermarks(broker, "far") == (25, 40)
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "far"})
        consumer.assign([wanted])
        message = consumer.poll(TIMEOUT_S)
        assert (message.error(), message.offset()) == (None, 25)
        consumer.close()


def test_compacted_and_internal_topics_keep_their_records(
    broker: BrokerProcess, admin: AdminClient
) -> None:
    create(admin, "compacted", cleanup__policy="compact")
    wanted = TopicPartition("compacted", 0, -1)
    future = admin.delete_records([wanted])[wanted]
    assert refused(lambda: future.result(TIMEOUT_S)) == "POLICY_VIOLATION"


def test_topic_settings_take_effect_at_once(broker: BrokerProcess, admin: AdminClient) -> None:
    create(admin, "tuned")
    produce(broker, "tuned", 1, 2000)
    alter(admin, "tuned", AlterConfigOpType.SET, "max.message.bytes", "1000", validate_only=True)
    produce(broker, "tuned", 1, 2000)
    alter(admin, "tuned", AlterConfigOpType.SET, "max.message.bytes", "1000")
    assert setting(admin, "tuned", "max.message.bytes") == ("1000", 1)
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(
        "tuned", b"x" * 2000, on_delivery=lambda error, _m: errors.append(error.name())
    )
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == ["MSG_SIZE_TOO_LARGE"]
    alter(admin, "tuned", AlterConfigOpType.DELETE, "max.message.bytes", None)
    assert setting(admin, "tuned", "max.message.bytes")[1] == 5
    produce(broker, "tuned", 1, 2000)


def test_retention_is_shortened_on_a_running_topic(
    broker: BrokerProcess, admin: AdminClient
) -> None:
    create(admin, "shortened", segment__bytes="1048576", file__delete__delay__ms="0")
    for _ in range(3):
        produce(broker, "shortened", 10, 100_000)
    alter(admin, "shortened", AlterConfigOpType.SET, "retention.bytes", "1")
    eventually(lambda: watermarks(broker, "shortened")[0] > 0)


def test_a_topic_is_tiered_once_its_setting_is_changed(
    broker: BrokerProcess, admin: AdminClient
) -> None:
    create(admin, "later", segment__bytes="1048576")
    for _ in range(3):
        produce(broker, "later", 10, 100_000)
    alter(admin, "later", AlterConfigOpType.SET, "remote.storage.enable", "true")
    bucket = broker.directory / "bucket"
    eventually(lambda: len(list(bucket.rglob("*.seg"))) >= 2)
    off = lambda: alter(admin, "later", AlterConfigOpType.DELETE, "remote.storage.enable", None)  # noqa: E731
    assert refused(off) == "INVALID_CONFIG"


def test_lists_are_changed_and_wrong_values_refused(admin: AdminClient) -> None:
    create(admin, "listed")
    alter(admin, "listed", AlterConfigOpType.APPEND, "cleanup.policy", "compact")
    assert setting(admin, "listed", "cleanup.policy") == ("delete,compact", 1)
    alter(admin, "listed", AlterConfigOpType.SUBTRACT, "cleanup.policy", "delete")
    assert setting(admin, "listed", "cleanup.policy") == ("compact", 1)
    for name, value, code in [
        ("retention.ms", "soon", "INVALID_CONFIG"),
        ("no.such.setting", "1", "INVALID_CONFIG"),
    ]:
        call = lambda n=name, v=value: alter(admin, "listed", AlterConfigOpType.SET, n, v)  # noqa: E731
        assert refused(call) == code
    read_only = lambda: alter(  # noqa: E731
        admin, "1", AlterConfigOpType.SET, "log.dirs", "/", kind=ConfigResource.Type.BROKER
    )
    assert refused(read_only) == "INVALID_REQUEST"


def test_broker_settings_take_effect_at_once_and_stay(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        create(admin, "plain")
        create(admin, "own", retention__ms="5000000")

        def set_to(name: str, value: str) -> None:
            kind = ConfigResource.Type.BROKER
            alter(admin, "1", AlterConfigOpType.SET, name, value, kind=kind)

        set_to("log.retention.ms", "6000000")
        assert setting(admin, "plain", "retention.ms") == ("6000000", 2)
        assert setting(admin, "own", "retention.ms") == ("5000000", 1)
        broker.kill()
        broker.start()
        assert setting(admin, "plain", "retention.ms") == ("6000000", 2)

        produce(broker, "plain", 1, 2000)
        set_to("message.max.bytes", "1000")
        errors: list[str] = []
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce(
            "plain", b"x" * 2000, on_delivery=lambda error, _m: errors.append(error.name())
        )
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == ["MSG_SIZE_TOO_LARGE"]


def test_all_settings_are_replaced(admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    create(admin, "replaced", retention__ms="1000000", segment__ms="1000000")
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, "replaced", set_config={"retention.ms": "2000000"}
    )
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        futures = admin.alter_configs([resource])
    futures[resource].result(TIMEOUT_S)
    assert setting(admin, "replaced", "retention.ms") == ("2000000", 1)
    assert setting(admin, "replaced", "segment.ms")[1] == 5


def test_kafka_python_describes_the_broker(
    broker: BrokerProcess, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    create(admin, "described", partitions=2)
    produce(broker, "described", 7, partition=1)
    (node,) = python_admin.describe_log_dirs()
    (directory,) = node["log_dirs"]
    assert (directory["error_code"], directory["log_dir"]) == (0, str(broker.data))
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0
    sizes = {
        (topic["name"], one["partition_index"]): one["partition_size"]
        for topic in directory["topics"]
        for one in topic["partitions"]
    }
    on_disk = broker.data / "described-1" / f"{0:020}.log"
    assert sizes["described", 0] == 0
    assert sizes["described", 1] == on_disk.stat().st_size

    (topic,) = python_admin.describe_metadata_quorum()["topics"]
    (quorum,) = topic["partitions"]
    assert (quorum["leader_id"], quorum["leader_epoch"]) == (1, 1)
    (voter,) = quorum["current_voters"]
    assert voter["log_end_offset"] == quorum["high_watermark"] > 0

    resources = python_admin.list_config_resources()
    assert resources["broker"] == ["1"]
    assert "described" in resources["topic"]
    assert python_admin.describe_features()["metadata.version"]["finalized"] == (30, 30)
    python_admin.update_features({"metadata.version": 30})
    with pytest.raises(InvalidUpdateVersionError):
        python_admin.update_features({"metadata.version": 31})

    producers = python_admin.describe_producers([PythonTopicPartition("described", 1)])
    ((_, state),) = producers.items()
    assert [one.last_sequence for one in state.active_producers] == [6]


def test_partitions_are_described_a_page_at_a_time(
    admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    create(admin, "page-a", partitions=3)
    create(admin, "page-b", partitions=2)
    seen = []
    cursor = None
    for _ in range(10):
        page = python_admin.describe_topic_partitions(["page-b", "page-a", "page-c"], 2, cursor)
        seen += [
            (
                topic["name"],
                topic["error_code"],
                [p["partition_index"] for p in topic["partitions"]],
            )
            for topic in page["topics"]
        ]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [
        ("page-a", 0, [0, 1]),
        ("page-a", 0, [2]),
        ("page-b", 0, [0]),
        ("page-b", 0, [1]),
        ("page-c", 3, []),
    ]
