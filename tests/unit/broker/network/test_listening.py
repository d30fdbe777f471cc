"""A listener that is less secure than it looks has one warning in the log, and no other listener has."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from stratalog.broker.network.listening import Listening
from stratalog.config import BrokerConfig
from stratalog.wire.apis import ListenerKind


class Parts:
    """A network and the connections of a node; both note nothing."""

    port = 1234
    host = ""

    def now_ms(self) -> int:
        return 0

    def certificates(self) -> list[Any]:
        return []

    @property
    def clock(self) -> "Parts":
        return self

    @property
    def network(self) -> "Parts":
        return self

    def accepting(self, *_: Any) -> "Parts":
        return self

    async def listen(self, *_: Any) -> "Parts":
        return self


def lines_of(settings: dict[str, str]) -> Any:
    """Return the log's lines of a broker that opens its listeners."""
    config = BrokerConfig.load(settings)[0]
    parts: Any = Parts()
    listening = Listening(config, parts, parts, parts)
    with capture_logs() as lines:
        asyncio.run(listening.open(ListenerKind.BROKER, config.listeners))
    return lines


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("PLAINTEXT://:9092", True),
        ("PLAINTEXT://0.0.0.0:9092", True),
        ("PLAINTEXT://[::]:9092", True),
        ("PLAINTEXT://127.0.0.1:9092", False),
        ("PLAINTEXT://10.0.0.5:9092", False),
        ("SASL_PLAINTEXT://:9092", False),
    ],
)
def test_only_an_open_listener_is_warned_of(address: str, warned: bool) -> None:
    settings = {
        "listeners": address,
        "inter.broker.listener.name": address.partition("://")[0],
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    }
    events = [(line["event"], line["log_level"]) for line in lines_of(settings)]
    assert events == [("listener without security on every address", "warning")] * warned


@pytest.mark.parametrize(
    ("protocol", "changes", "warned"),
    [
        ("SASL_SSL", {"ssl.client.auth": "required"}, True),
        ("SASL_SSL", {"ssl.client.auth": "requested"}, True),
        ("SASL_SSL", {"ssl.client.auth": "none"}, False),
        ("SASL_SSL", {}, False),
        ("SASL_SSL", {"listener.name.c.ssl.client.auth": "required"}, False),
        ("SSL", {"ssl.client.auth": "required"}, False),
        ("SASL_PLAINTEXT", {"ssl.client.auth": "required"}, False),
    ],
)
def test_a_demand_for_certificates_without_effect_is_warned_of(
    protocol: str, changes: dict[str, str], warned: bool
) -> None:
    settings = {
        "listeners": "C://127.0.0.1:9092",
        "listener.security.protocol.map": f"C:{protocol}",
        "inter.broker.listener.name": "C",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "ssl.keystore.location": "/node.pem",
        "ssl.truststore.location": "/authority.pem",
    }
    lines = lines_of(settings | changes)
    wanted = ("ssl.client.auth has no effect on a SASL_SSL listener", "warning")
    assert [(line["event"], line["log_level"]) for line in lines] == [wanted] * warned
    tls = BrokerConfig.load(settings | changes)[0].security("C").tls
    if tls is not None:
        demanded = "none" if warned else [*changes.values(), "none"][0]
        assert tls.client_certificate == demanded
    if warned:
        assert lines[0]["remedy"] == "set listener.name.c.ssl.client.auth"
