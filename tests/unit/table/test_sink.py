"""Rows written to topics, on a real broker: their partition, their content, and refused rows."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from stratalog import read
from stratalog.errors import BadOption, Rejected, UserError
from stratalog.kernels.columns import COLUMNS, HEADERS
from stratalog.table.sink import WRITE_HEADER, Write, check_destination, write_rows
from stratalog.table.sink_options import check_columns, parse_sink_options
from stratalog.testing import TemporaryBroker

PARTITIONS = 5
WRITE = Write("job", 3, 1700, 7)
NUMBERS = count()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TemporaryBroker() as broker:
        yield broker.address


@pytest.fixture
def topic(address: str) -> str:
    name = f"sink-{next(NUMBERS)}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def rows(**columns: Any) -> list[pa.RecordBatch]:
    return pa.table(columns).to_batches(max_chunksize=7)


def written(address: str, topic: str) -> list[dict[str, Any]]:
    reader = read(topic, bootstrap_servers=address, columns=[*COLUMNS, HEADERS])
    return reader.read_all().to_pylist()


def sent(address: str, found: list[pa.RecordBatch], **options: str) -> int:
    given = {name.replace("__", "."): text for name, text in options.items()}
    return write_rows(
        found, parse_sink_options({"kafka.bootstrap.servers": address, **given}), WRITE
    )


def test_keys_get_the_same_partition_as_from_other_clients(address: str, topic: str) -> None:
    keys = [b"key-%d" % number for number in range(100)]
    acknowledged = sent(
        address, rows(key=keys, value=keys), topic=topic, kafka__compression__type="zstd"
    )
    assert acknowledged == 100
    ours = {row["key"]: row["partition"] for row in written(address, topic)}
    theirs: dict[bytes, int] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        theirs[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert ours == theirs


def test_columns_give_a_rows_topic_partition_and_content(address: str, topic: str) -> None:
    headers = [[{"key": "h", "value": b"1"}], None, []]
    moment = pa.array([1_000, 2_999, None], pa.timestamp("us", "UTC"))
    found = rows(
        topic=[topic] * 3,
        partition=pa.array([4, 4, 2], pa.int32()),
        key=["a", None, "c"],
        value=["x", None, ""],
        headers=pa.array(
            headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        ),
        timestamp=moment,
    )
    assert sent(address, found) == 3
    last, first, second = written(address, topic)
    assert [row["partition"] for row in (first, second, last)] == [4, 4, 2]
    assert (first["key"], first["value"]) == (b"a", b"x")
    assert (second["key"], second["value"]) == (None, None)
    assert (last["key"], last["value"]) == (b"c", b"")
    assert [row["timestamp"].timestamp() for row in (first, second)] == [0.001, 0.002]
    assert first["headers"][0] == {"key": "h", "value": b"1"}
    said = [row["headers"][-1] for row in (first, second, last)]
    assert said == [{"key": WRITE_HEADER, "value": b"job/3/1700/7/%d" % row} for row in range(3)]


def test_rows_without_keys_are_spread_batch_by_batch(address: str, topic: str) -> None:
    values = [b"x" * 100] * 400
    assert sent(address, rows(value=values), topic=topic, kafka__batch__size="2000") == 400
    counts = Counter(row["partition"] for row in written(address, topic))
    assert counts.keys() == set(range(PARTITIONS))
    assert max(counts.values()) - min(counts.values()) <= 20, "partitions may differ by one batch"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"partition": pa.array([9], pa.int32())}, "has no partition 9"),
        ({"topic": ["no-such-topic"]}, "topic no-such-topic does not exist at .*: create it"),
        ({"topic": pa.array([None], pa.string())}, "a row's topic is null"),
    ],
)
def test_a_refused_row_has_the_reason(
    address: str, topic: str, columns: dict[str, Any], says: str
) -> None:
    asked = {} if "topic" in columns else {"topic": topic}
    with pytest.raises(UserError, match=says):
        sent(address, rows(value=[b"x"], **columns), **asked)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "'kafka.bootstrap.servers' must say where to write"),
        ({"kafka.acks": "0"}, "'all' or '1' is needed"),
        (
            {"kafka.bootstrap.servers": "a"},
            "'kafka.bootstrap.servers' is 'a': 'a' is not host:port",
        ),
        ({"kafka.delivery.timeout.ms": "0"}, "'kafka.delivery.timeout.ms' is '0'"),
        ({"kafka.compression.type": "brotli"}, "one of none, gzip"),
        ({"kafka.batch.size": "big"}, "whole number"),
        ({"topics": "x"}, "did you mean 'topic'"),
        ({"zzzz": "x"}, "unknown option 'zzzz' of a sink"),
        ({"kafka.security.protocol": "TLS"}, "'TLS' is not accepted"),
        ({"kafka.ssl.key.password": "x"}, "'kafka.ssl.key.password': a secret would be"),
        ({"kafka.ssl.keystore.locations": "x"}, "did you mean 'kafka.ssl.keystore.location'"),
        (
            {"kafka.linger.ms": "5", "kafka.retries": "1"},
            "'kafka.linger.ms', 'kafka.retries' would have",
        ),
        ({"kafka.max.block": "5"}, "did you mean 'kafka.max.block.ms'"),
        ({"kafka.value.serializer": "x"}, "written as the bytes they are"),
        ({"kafka.transactional.id": "x"}, "set deliveryGuarantee=exactly-once"),
        ({"deliveryGuarantee": "once"}, "one of at-least-once, exactly-once is needed"),
        ({"deliveryGuarantee": "exactly-once", "kafka.acks": "1"}, "exactly once needs 'all'"),
        ({"transactionalIdPrefix": "a b"}, "letters, digits"),
        ({"decisionsTopic": ""}, "option 'decisionsTopic' is ''"),
        ({"failOnHalfCommitted": "no"}, "true or false is needed"),
        ({"kafka.transaction.timeout.ms": "0"}, "at least 1"),
    ],
)
def test_a_wrong_option_is_one_line(given: dict[str, str], says: str) -> None:
    place = {"kafka.bootstrap.servers": "a:1"} if given else {}
    with pytest.raises(BadOption, match=says):
        parse_sink_options(place | given)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"key": "binary"}, "a column 'value' is needed"),
        ({"value": "binary"}, "option 'topic' or a column 'topic'"),
        ({"value": "int", "topic": "string"}, "column 'value' is int, not binary or string"),
        ({"value": "binary", "offset": "bigint"}, "column 'offset' cannot be written"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(columns: dict[str, str], says: str) -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": "a:1"})
    with pytest.raises(ValueError, match=says):
        check_columns(columns, options)


def test_the_right_to_write_is_checked_before_a_row_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice",
    }
    monkeypatch.setenv("SECRET", "b")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    with TemporaryBroker(settings, users={"alice": "a", "bob": "b"}) as broker:
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "a"}
        place = {"bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT"}
        admin = AdminClient(place | login)
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)
        options = parse_sink_options(
            {
                **{f"kafka.{name}": text for name, text in place.items()},
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f'{module} username="bob" password="${{env:SECRET}}";',
                "topic": "t",
            }
        )

        def permit(operation: AclOperation) -> None:
            to_bob = ("User:bob", "*", operation, AclPermissionType.ALLOW)
            binding = AclBinding(ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, *to_bob)
            for added in admin.create_acls([binding]).values():
                added.result(30)

        with pytest.raises(Rejected, match=r"topic t at .*: this user has no right to it"):
            check_destination(options)
        permit(AclOperation.DESCRIBE)
        with pytest.raises(Rejected, match=r"topic t at .*: this user has no right to write to it"):
            check_destination(options)
        permit(AclOperation.WRITE)
        check_destination(options)
