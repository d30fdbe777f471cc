"""What the system is asked for: threads that give way, sockets with bounded buffers."""

import asyncio
import os
import socket
import sys
import threading

import pytest

from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.system import SystemWorkers
from stratalog.ports import SocketBuffers

TIMEOUT_S = 10


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere threads have no priority of their own"
)
def test_background_threads_give_way_and_no_other_thread_does() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def main() -> tuple[int, int, int]:
        workers = SystemWorkers()
        background, other = workers.start("b", 2, background=True), workers.start("o")
        async with asyncio.timeout(TIMEOUT_S):
            found = await background.submit(priority), await other.submit(priority), priority()
            await background.close()
            await other.close()
        return found

    background, other, own = asyncio.run(main())
    assert background > own
    assert other == own


@pytest.mark.parametrize("buffers", [SocketBuffers(50_000, 60_000), SocketBuffers()])
def test_a_listener_s_connections_have_the_buffers_that_it_was_given(
    buffers: SocketBuffers,
) -> None:
    async def main() -> list[int]:
        accepted: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

        class Accepting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made = transport.get_extra_info("socket")
                options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
                accepted.set_result([made.getsockopt(socket.SOL_SOCKET, one) for one in options])

        listener = await TcpNetwork().listen("127.0.0.1", 0, Accepting, buffers)
        async with asyncio.timeout(TIMEOUT_S):
            transport, _ = await TcpNetwork().connect("127.0.0.1", listener.port, asyncio.Protocol)
            found = await accepted
        transport.close()
        await listener.close()
        return found

    found = asyncio.run(main())
    times = 2 if sys.platform == "linux" else 1  # it counts what it needs beside the bytes
    if buffers.send >= 0:
        assert found == [times * size for size in buffers]
    else:
        assert found == plain_buffers(), "as the system has them"


def plain_buffers() -> list[int]:
    """Those of a connection whose listener nobody asked for any."""
    options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), TIMEOUT_S),
        listener.accept()[0] as accepted,
    ):
        return [accepted.getsockopt(socket.SOL_SOCKET, one) for one in options]
