"""No object that Spark pickles has a secret, and no value with a secret can be pickled.

Method: real readers and writers on a real broker, used and then pickled with `pickle` and with Spark's cloudpickle. All
secrets have one word. `test_spark_tls.py` looks for a secret in Spark's plans, event log and checkpoints.
"""

import pickle
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark import cloudpickle
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from tests.integration.bulk_server import bulk_server

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.bucket_keys import AccessKeys
from stratalog.adapters.cassandra_session import Access
from stratalog.adapters.http_client import Credentials
from stratalog.client.blocking import BlockingClient
from stratalog.client.sasl import Login
from stratalog.client.security import security_of
from stratalog.client.tokens import Token
from stratalog.client.users import Credential
from stratalog.ports import Secret, Store, TokenSource
from stratalog.sinks import cassandra
from stratalog.spark.cassandra import CassandraSource
from stratalog.spark.opensearch import OpenSearchSource
from stratalog.spark.source import StratalogSource
from stratalog.table.places import store_at
from stratalog.table.secured import security_options
from stratalog.testing import TemporaryBroker

WORD = "planted"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SINK_ROW = StructType([StructField("value", StringType())])
RECORD = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", StringType()),
    ]
)
PICKLES: tuple[Callable[[Any], bytes], ...] = (pickle.dumps, cloudpickle.dumps)


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker(users={"alice": f"{WORD}-login"}) as started:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": f"{WORD}-login",
        }
        producer = Producer({"bootstrap.servers": started.address, **login})
        producer.produce("t", b"value")
        assert producer.flush(20) == 0
        yield started


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"{WORD}-login")
    for name in ("OPENSEARCH", "CASSANDRA"):
        monkeypatch.setenv(f"{name}_USERNAME", f"{WORD}-user")
        monkeypatch.setenv(f"{name}_PASSWORD", f"{WORD}-password")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")


def secured(broker: TemporaryBroker, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.address,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{MODULE} username="alice" password="${{env:PASSWORD}}";',
        **more,
    }


def clean(*values: object) -> None:
    """Check what Spark sends, and what a log may show."""
    for value in values:
        for dumps in PICKLES:
            assert WORD.encode() not in dumps(value), value
        assert WORD not in repr(value)
        assert WORD not in str(getattr(value, "__dict__", ""))


def test_a_source_and_its_tasks_have_none(broker: TemporaryBroker) -> None:
    source = StratalogSource(secured(broker, subscribe="t", startingOffsets="earliest"))
    reader = source.reader(StructType())
    tasks = reader.partitions()
    rows = [row for task in tasks for part in reader.read(task) for row in part.to_pylist()]
    assert [row["value"] for row in rows] == [b"value"]
    stream = source.streamReader(StructType())
    first = stream.initialOffset()
    assert stream.partitions(first, stream.latestOffset(first, stream.getDefaultReadLimit()))  # type: ignore[union-attr]
    clean(source, reader, *tasks, stream, first)


def test_a_sink_has_none(broker: TemporaryBroker) -> None:
    source = StratalogSource(secured(broker, topic="t"))
    batch, stream = source.writer(SINK_ROW, False), source.streamWriter(SINK_ROW, False)
    clean(source, batch, stream)


def test_sinks_of_searches_and_tables_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    login = b64encode(f"{WORD}-user:{WORD}-password".encode()).decode()
    with bulk_server() as server:
        server.authorization = f"Basic {login}"  # the writer's preparation logs in
        search = OpenSearchSource({"hosts": server.url, "index": "i"})
        clean(search, search.writer(RECORD, False), search.streamWriter(RECORD, False))
    monkeypatch.setattr(cassandra, "prepare", lambda *_: None)
    table = CassandraSource({"hosts": "127.0.0.1:1", "keyspace": "k", "table": "t"})
    clean(table, table.writer(RECORD, False), table.streamWriter(RECORD, False))


def test_a_store_of_s3_has_no_keys() -> None:
    clean(store_at("s3://bucket/prefix?endpoint=http://127.0.0.1:1"))


WITH_SECRETS: list[Secret] = [
    Store("ssl.keystore", "/k.p12", WORD, WORD, WORD),
    TokenSource("https://h/t", "client", WORD),
    Login("PLAIN", "alice", WORD),
    Credential("alice", "SCRAM-SHA-256", 4096, WORD),
    Token("id", "User:a", "User:a", (), 0, 0, 0, WORD.encode()),
    AccessKeys("id", WORD, WORD),
    Access("alice", WORD, None),
    Credentials("alice", WORD),
]


def test_each_value_with_a_secret_is_among_these() -> None:
    # By name: a dataclass with slots is made twice.
    known = {one.__qualname__ for one in Secret.__subclasses__()}
    assert {type(one).__qualname__ for one in WITH_SECRETS} == known


@pytest.mark.parametrize("value", WITH_SECRETS, ids=lambda one: type(one).__name__)
def test_a_value_with_a_secret_is_not_pickled(value: Secret) -> None:
    assert WORD not in repr(value)
    for held in (value, [value], lambda: value):
        with pytest.raises(TypeError, match=f"{type(value).__name__} has a secret"):
            cloudpickle.dumps(held)
    with pytest.raises(TypeError, match="has a secret"):
        pickle.dumps(value)


def test_a_client_with_a_login_is_not_pickled() -> None:
    login = f'{MODULE} username="alice" password="{WORD}";'
    security = security_of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": login,
        }
    )
    with BlockingClient(BlockingNetwork(), "127.0.0.1:1", security=security) as client:
        for held in (security, client):
            assert WORD not in repr(held)
            with pytest.raises(TypeError, match="has a secret"):
                cloudpickle.dumps(held)


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("sasl.jaas.config", f'{MODULE} username="${{env:U}}" password="${{env:P}}";', True),
        ("sasl.jaas.config", f"{MODULE} username=a password=${{file:/s:p}};", True),
        ("sasl.jaas.config", "${file:/s:login}", True),
        ("sasl.jaas.config", f'{MODULE} username="${{env:U}}" password="{WORD}";', False),
        ("sasl.jaas.config", f'{MODULE} username="a" password="{WORD}${{env:P}}";', False),
        ("sasl.jaas.config", f'{MODULE} username="a" clientSecret="{WORD}" p=${{env:P}};', False),
        ("sasl.jaas.config", f"${{env:P}} {WORD}", False),
        ("ssl.keystore.password", "${env:P}", True),
        ("ssl.keystore.password", "${env:P}${env:Q}", True),
        ("ssl.keystore.password", f"{WORD}${{env:P}}", False),
        ("ssl.key.password", f"${{env:P}}{WORD}", False),
    ],
)
def test_a_secret_beside_the_name_of_a_place_is_refused(
    name: str, text: str, accepted: bool
) -> None:
    given = {"kafka.security.protocol": "SSL", f"kafka.{name}": text}
    if accepted:
        assert (name, text) in security_options(given)
        return
    with pytest.raises(ValueError, match="a secret would be in Spark") as refused:
        security_options(given)
    assert WORD not in str(refused.value)
