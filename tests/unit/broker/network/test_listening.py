"""A listener without security that every machine reaches has one warning in the log, and no other listener has."""

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

    @property
    def network(self) -> "Parts":
        return self

    def accepting(self, *_: Any) -> "Parts":
        return self

    async def listen(self, *_: Any) -> "Parts":
        return self


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
    config = BrokerConfig.load(settings)[0]
    parts: Any = Parts()
    listening = Listening(config, parts, parts, parts)
    with capture_logs() as lines:
        asyncio.run(listening.open(ListenerKind.BROKER, config.listeners))
    events = [(line["event"], line["log_level"]) for line in lines]
    assert events == [("listener without security on every address", "warning")] * warned
