"""The address of a connection's client has the text with which Apache Kafka compares the hosts of ACLs."""

import asyncio
from time import perf_counter_ns
from typing import Any

import pytest

from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.connection import Connection, Shared
from stratalog.broker.network.session import ListenerContext, Session
from stratalog.broker.network.turns import Turns
from stratalog.wire.frames import SCRATCH_BYTES


class TransportOf(asyncio.Transport):
    def __init__(self, peer: object) -> None:
        super().__init__()
        self._peer = peer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default


@pytest.mark.parametrize(
    ("peer", "host", "port"),
    [
        (("10.0.0.1", 4711), "10.0.0.1", 4711),
        (("::1", 4711, 0, 0), "0:0:0:0:0:0:0:1", 4711),
        (("::ffff:10.0.0.1", 4711, 0, 0), "10.0.0.1", 4711),
        (("fe80::1%eth0", 4711, 0, 2), "fe80:0:0:0:0:0:0:1%2", 4711),  # of asyncio
        (("fe80::1", 4711, 0, 2), "fe80:0:0:0:0:0:0:1%2", 4711),  # of uvloop
        (None, "None", 0),
    ],
)
def test_the_host_of_a_session_is_javas(peer: object, host: str, port: int) -> None:
    async def session() -> Session:
        memory = ClientMemory(-1, -1)
        connection = Connection(
            lambda _session, _frame: [],
            Shared(1 << 20, bytearray(SCRATCH_BYTES), memory, Turns(perf_counter_ns)),
            Session(ListenerContext("T")),
            opened=lambda _: True,
            closed=lambda _: None,
        )
        connection.connection_made(TransportOf(peer))
        connection.connection_lost(None)
        return connection.session

    found = asyncio.run(session())
    assert (found.host, found.port) == (host, port)
