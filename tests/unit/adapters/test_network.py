"""A listener that cannot be secured as configured does not listen."""

import asyncio

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
