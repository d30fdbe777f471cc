"""Goal: Spark's own Kafka connector reads from our broker with delegation tokens, over SASL_SSL.

Method: one driver names a token in its options. Another lets Spark's token provider create the token, and the connector
log in with it, as in a cluster: only the thread that would call the provider, which Spark starts beside Kerberos alone,
is the test. `./test --all tests/compat/test_spark_kafka_tokens.py` runs it: the connector's jars come from Maven.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.spark_read import connector_jars
from tests.integration.test_spark_broker import Driver, batch, whole

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import NewTopic
from stratalog.client.security import ClientSecurity, security_of
from stratalog.client.tokens import create_token, describe_tokens, expire_token
from stratalog.testing import TemporaryBroker
from stratalog.wire import scram

pytestmark = [pytest.mark.big, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

WORD = "planted-password"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PARTITIONS = (0, 1)


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker(
        {"delegation.token.secret.key": "planted-secret"}, tls=True, users={"spark": WORD}
    ) as started:
        security = security_of(login(started) | trust(started, "ssl."))
        asyncio.run(filled(started.address, security))
        yield started


def trust(broker: TemporaryBroker, names: str) -> dict[str, str]:
    return {f"{names}truststore.location": str(broker.authority.certificate)}


def login(broker: TemporaryBroker) -> dict[str, str]:
    jaas = f'{PLAIN} username="spark" password="{WORD}";'
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}


async def filled(address: str, security: ClientSecurity) -> None:
    async with await Client.connect(TcpNetwork(), address, security=security) as client:
        await client.create_topics([NewTopic("read", len(PARTITIONS))])
        for partition in PARTITIONS:
            await client.produce("read", partition, batch(0))


@contextmanager
def driver(place: Path, conf: Mapping[str, str]) -> Iterator[Driver]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {connector_jars()} pyspark-shell")
        started = Driver(place, conf)
    try:
        yield started
    finally:
        started.kill()


def source(broker: TemporaryBroker) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.address,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        **trust(broker, "kafka.ssl."),
        "subscribe": "read",
        "startingOffsets": "earliest",
    }


def test_the_connector_logs_in_with_a_token_until_it_ends(
    tmp_path: Path, broker: TemporaryBroker
) -> None:
    security = security_of(login(broker) | trust(broker, "ssl."))
    with (
        BlockingClient(BlockingNetwork(), broker.address, security=security) as spark,
        driver(tmp_path / "driver", {}) as started,
    ):
        token = spark.call(create_token())
        words = f'username="{token.token_id}" password="{scram.encoded(token.key)}"'
        options = source(broker) | {
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": f'{SCRAM} {words} tokenauth="true";',
        }
        found = started.ask("batch", source="kafka", options=options)
        for partition in PARTITIONS:
            whole(found, partition, 0, 50)
        place = {"checkpoint": str(tmp_path / "checkpoint"), "sink": str(tmp_path / "sink")}
        started.ask("stream", source="kafka", options=options, **place, wait=True)
        spark.call(expire_token(token.key))
        late = started.asked("batch", source="kafka", options=options)
    assert "Authentication failed" in late.get("error", ""), late


def test_sparks_token_provider_creates_a_token_and_the_connector_uses_it(
    tmp_path: Path, broker: TemporaryBroker
) -> None:
    security = security_of(login(broker) | trust(broker, "ssl."))
    of_provider = {
        "auth.bootstrap.servers": broker.address,
        "security.protocol": "SASL_SSL",
        "sasl.token.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.type": "PEM",
        **trust(broker, "ssl."),
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": login(broker)["sasl.jaas.config"],
    }
    conf = {f"spark.kafka.clusters.ours.{name}": text for name, text in of_provider.items()}
    with (
        BlockingClient(BlockingNetwork(), broker.address, security=security) as spark,
        driver(tmp_path / "driver", conf) as started,
    ):
        before = {one.token_id for one in spark.call(describe_tokens())}
        token_id = started.ask("take_kafka_token", cluster="ours")
        assert token_id not in before
        (token,) = (one for one in spark.call(describe_tokens()) if one.token_id == token_id)
        assert token.owner == "User:spark"
        found = started.ask("batch", source="kafka", options=source(broker))
        for partition in PARTITIONS:
            whole(found, partition, 0, 50)
        spark.call(expire_token(token.key))
        late = started.asked("batch", source="kafka", options=source(broker))
    assert "Authentication failed" in late.get("error", ""), late
