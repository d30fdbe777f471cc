"""The exactly-once sink writes over TLS, and logs in by SASL or a token; its secret stays in the environment.

Method: a broker whose only listener is SASL_SSL, the sink's tasks and driver in this process, a reader with the same
settings.
"""

import asyncio
import pickle
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog import read
from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import NewTopic
from stratalog.client.security import security_of
from stratalog.client.tokens import create_token, expire_token
from stratalog.errors import Rejected
from stratalog.table.decisions import Prepared
from stratalog.table.sink import Write, commit_batch, prepare_rows
from stratalog.table.sink_options import SinkOptions, parse_sink_options
from stratalog.testing import TemporaryBroker
from stratalog.wire import scram

WORD = "planted-password"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
QUERY = "0f8fad5b-d9cb-469f-a165-70867728950e"
BROKER = {
    "listeners": "SASL_SSL://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "delegation.token.secret.key": "planted-secret",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_spark="{WORD}";',
    "connection.failed.authentication.delay.ms": "1",
    "transaction.state.log.num.partitions": "1",
}


def login(password: str) -> str:
    return f'{PLAIN} username="spark" password="{password}";'


def security_as(authority: Path, mechanism: str, jaas: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(authority),
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas,
    }


def options_of(broker: TemporaryBroker, security: Mapping[str, str]) -> SinkOptions:
    return parse_sink_options(
        {
            "kafka.bootstrap.servers": broker.address,
            "topic": "secured",
            "deliveryGuarantee": "exactly-once",
            **{f"kafka.{name}": text for name, text in security.items()},
        }
    )


def rows_of(broker: TemporaryBroker, security: Mapping[str, str]) -> list[bytes]:
    rows = read(
        "secured",
        bootstrap_servers=broker.address,
        isolation="read_committed",
        security=security,
    ).read_all()
    return sorted(rows.column("value").to_pylist())


async def create(broker: TemporaryBroker, security: Mapping[str, str]) -> None:
    network, secured = TcpNetwork(), security_of(security)
    async with await Client.connect(network, broker.address, security=secured) as client:
        await client.create_topics([NewTopic("secured", 1)])


def prepared(options: SinkOptions, task: int) -> Prepared | None:
    assert options.exactly_once is not None
    rows = pa.table({"value": [f"row-{task}"]}).to_batches()
    return prepare_rows(rows, options, options.exactly_once, Write(QUERY, 0, 1, task), 0)[1]


def test_a_batch_is_committed_over_tls_and_sasl(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryBroker(BROKER, tls=True) as broker:
        authority = broker.authority.certificate
        options = options_of(broker, security_as(authority, "PLAIN", login("${env:SINK_PASSWORD}")))
        assert WORD not in repr(options)
        security = security_as(authority, "PLAIN", login(WORD))
        asyncio.run(create(broker, security))
        monkeypatch.setenv("SINK_PASSWORD", "wrong")
        with pytest.raises(Rejected, match="invalid credentials"):
            prepared(options, 0)
        monkeypatch.setenv("SINK_PASSWORD", WORD)
        found = [one for one in (prepared(options, 0), prepared(options, 1)) if one is not None]
        assert options.exactly_once is not None
        commit_batch(options, options.exactly_once, QUERY, 0, found)
        assert rows_of(broker, security) == [b"row-0", b"row-1"]
        assert WORD.encode() not in pickle.dumps((options, found)), "Spark's plan has them"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_delegation_token_writes_and_reads_for_its_owner_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    with TemporaryBroker(BROKER, tls=True) as broker:
        authority = broker.authority.certificate
        owner = security_as(authority, "PLAIN", login(WORD))
        asyncio.run(create(broker, owner))
        secured = security_of(owner)
        with BlockingClient(BlockingNetwork(), broker.address, security=secured) as spark:
            token = spark.call(create_token())
            key = scram.encoded(token.key)

            def by_token(password: str) -> dict[str, str]:
                words = f'username="{token.token_id}" password="{password}" tokenauth="true"'
                return security_as(authority, mechanism, f"{SCRAM} {words};")

            options = options_of(broker, by_token("${env:TOKEN_KEY}"))
            assert key not in repr(options)
            assert options.exactly_once is not None
            monkeypatch.setenv("TOKEN_KEY", key)
            found = prepared(options, 0)
            assert found is not None
            commit_batch(options, options.exactly_once, QUERY, 0, [found])
            assert rows_of(broker, by_token(key)) == [b"row-0"]
            spark.call(expire_token(token.key))
            with pytest.raises(Rejected, match="invalid credentials"):
                prepared(options, 1)
