"""A listener that cannot be secured as configured does not listen."""

import asyncio
import socket

import pytest

from stratalog.adapters.network import TcpNetwork
from stratalog.errors import UserError
from stratalog.ports import PLAINTEXT, Security


def test_a_listener_with_another_protocol_never_listens_in_plain_text() -> None:
    listening = TcpNetwork().listen("127.0.0.1", 0, asyncio.Protocol, Security("SASL_SSL"))
    with pytest.raises(UserError, match="SASL_SSL; accepted: PLAINTEXT"):
        asyncio.run(listening)


def test_a_bound_port_refuses_connections_until_it_accepts() -> None:
    async def story() -> None:
        network = TcpNetwork()
        listener = await network.listen("127.0.0.1", 0, asyncio.Protocol, PLAINTEXT)
        with pytest.raises(ConnectionRefusedError):
            await network.connect("127.0.0.1", listener.port, asyncio.Protocol)
        await listener.accept()
        transport, _ = await network.connect("127.0.0.1", listener.port, asyncio.Protocol)
        transport.close()
        await listener.close()

    asyncio.run(story())


def test_a_turn_of_the_loop_accepts_several_connections() -> None:
    """uvloop accepts one of a descriptor: a client waited a turn for each connection that came before its own."""
    uvloop = pytest.importorskip("uvloop")
    turns = 0
    made: list[int] = []

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(turns)

    async def story() -> None:
        nonlocal turns
        listener = await TcpNetwork().listen("127.0.0.1", 0, Noting, PLAINTEXT)
        await listener.accept()
        address = ("127.0.0.1", listener.port)
        clients = [socket.create_connection(address) for _ in range(64)]
        while len(made) < len(clients):
            turns += 1
            await asyncio.sleep(0)
        assert len(set(made)) < len(clients) // 2
        for one in clients:
            one.close()
        await listener.close()

    uvloop.run(story())
