"""Spark reads and writes over mutual TLS; no plan, checkpoint, event log or log holds the password of its key."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.test_spark_broker import RECORDS_PER_BATCH, Driver, batch

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.security import ClientSecurity, security_of
from stratalog.testing.broker import TemporaryBroker

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]


@pytest.mark.big
def test_rows_are_read_and_written_over_mutual_tls(tmp_path: Path) -> None:
    word = "planted-password"
    events = tmp_path / "events"
    events.mkdir()
    logging = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    conf = {f"spark.eventLog.{name}": text for name, text in logging.items()}
    driver = Driver(tmp_path / "driver", conf)
    with TemporaryBroker({"ssl.client.auth": "required"}, tls=True) as broker:
        authority = broker.authority
        keys = authority.pkcs12(authority.issue("spark"), word)
        secrets = tmp_path / "secrets.properties"
        secrets.write_text(f"keys={word}\n")
        secured = {
            "kafka.bootstrap.servers": broker.address,
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": str(authority.certificate),
            "kafka.ssl.keystore.location": str(keys),
            "kafka.ssl.keystore.password": f"${{file:{secrets}:keys}}",
        }
        properties = {
            name.removeprefix("kafka."): text for name, text in secured.items() if "ssl." in name
        } | {"ssl.keystore.password": word, "security.protocol": "SSL"}
        asyncio.run(filled(broker.address, security_of(properties)))
        read = {**secured, "subscribe": "source", "startingOffsets": "earliest"}
        checkpoint = tmp_path / "secured"
        driver.ask(
            "copy", options=read, sink={**secured, "topic": "target"}, checkpoint=str(checkpoint)
        )
        plan = driver.ask("explained", options=read)
        found = driver.ask(
            "batch", options={**read, "subscribe": "target", "includeOrigin": "true"}
        )
        assert [part["records"] for part in found] == [RECORDS_PER_BATCH]
        wrong = driver.asked("batch", options={**read, "kafka.ssl.keystore.password": word})
        assert "a secret would be in Spark" in wrong["error"]
    driver.kill()
    assert word not in wrong["error"]
    assert "stratalog" in plan.lower()
    assert word not in plan
    written = [path for path in checkpoint.rglob("*") if path.is_file()]
    logged = [path for path in events.rglob("*") if path.is_file()]
    assert written
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in logged)
    for path in (driver.log, *written, *logged):
        assert word.encode() not in path.read_bytes(), path


async def filled(address: str, security: ClientSecurity) -> None:
    async with await Client.connect(TcpNetwork(), address, security=security) as client:
        await client.create_topics([NewTopic("source", 1), NewTopic("target", 1)])
        await client.produce("source", 0, batch(0))
