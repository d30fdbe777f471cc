"""The client's patience: long for brokers that may answer, short where its user wants to know that none listens."""

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Any

import pytest
from tests.sim.loop import run

from stratalog.client import cluster
from stratalog.client.aio import Client
from stratalog.client.security import PLAIN, Dialer
from stratalog.errors import Unavailable

TRIES = len(cluster.PAUSES_S) + 1
REFUSED, SILENT, NO_HOST = ConnectionRefusedError(111, "x"), TimeoutError(), OSError("no such host")


class Network:
    """Hosts without a broker: each fails in its way."""

    def __init__(self, hosts: Mapping[str, OSError]) -> None:
        self.hosts = hosts
        self.asked: list[str] = []

    async def connect(self, host: str, *_: Any) -> Any:
        self.asked.append(host)
        raise self.hosts[host]


@pytest.mark.parametrize(
    ("hosts", "refusals_max", "tries"),
    [
        ({"a": REFUSED, "b": REFUSED}, inf, TRIES),
        ({"a": REFUSED, "b": REFUSED}, 3, 4),
        ({"a": REFUSED, "b": NO_HOST}, 3, 4),
        ({"a": REFUSED, "b": SILENT}, 3, TRIES),
        ({"a": SILENT, "b": REFUSED}, 3, TRIES),
        ({"a": SILENT, "b": SILENT}, 3, TRIES),
    ],
)
def test_patience_ends_early_only_where_every_broker_refuses(
    hosts: dict[str, OSError],
    refusals_max: float,
    tries: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "PAUSES_S", (0,) * (TRIES - 1))
    network: Any = Network(hosts)

    async def ask() -> None:
        client = Client(Dialer(network, PLAIN), "a:1,b:2", client_id="t", timeout_s=1)
        client.refusals_max = refusals_max
        with pytest.raises(Unavailable, match="unreachable"):
            await client.metadata()

    asyncio.run(ask())
    assert network.asked == ["a", "b"] * tries


def test_a_patient_client_waits_for_its_whole_time_and_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network: Any = Network({"a": REFUSED})

    async def ask() -> float:
        dialer = Dialer(network, PLAIN)
        client = Client(dialer, "a:1", client_id="t", timeout_s=1, patience_s=60)
        with pytest.raises(Unavailable, match="unreachable"):
            await client.metadata()
        return asyncio.get_running_loop().time()

    assert 60 <= run(ask()) <= 62
    assert caplog.messages == [
        "broker a:1 unreachable: Connection refused: trying again for up to 60 s"
    ]
