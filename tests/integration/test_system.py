"""Requests to the operating system: low-priority threads, and sockets with bounded buffers."""

import asyncio
import os
import socket
import subprocess
import sys
import threading

import pytest

from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.system import SystemWorkers
from stratalog.ports import PLAINTEXT, SocketBuffers

TIMEOUT_S = 10


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere threads have no priority of their own"
)
def test_only_background_threads_have_a_lower_priority() -> None:
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


def test_a_background_thread_keeps_a_higher_niceness() -> None:
    """A user may not lower one: `nice -n 12 strata server` must not fail."""
    code = (
        "import asyncio, os, threading\n"
        "from stratalog.adapters.system import SystemWorkers\n"
        "def priority(): return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "async def main():\n"
        "    worker = SystemWorkers().start('b', background=True)\n"
        "    print(await asyncio.wait_for(worker.submit(priority), 10))\n"
        "asyncio.run(main())\n"
    )
    command = ["nice", "-n", "12", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == min(os.getpriority(os.PRIO_PROCESS, 0) + 12, 19)


@pytest.mark.parametrize("buffers", [SocketBuffers(50_000, 60_000), SocketBuffers()])
def test_a_listeners_connections_have_its_buffer_sizes(
    buffers: SocketBuffers,
) -> None:
    async def main() -> list[int]:
        accepted: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

        class Accepting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made = transport.get_extra_info("socket")
                options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
                accepted.set_result([made.getsockopt(socket.SOL_SOCKET, one) for one in options])

        listener = await TcpNetwork().listen("127.0.0.1", 0, Accepting, PLAINTEXT, buffers)
        await listener.accept()
        async with asyncio.timeout(TIMEOUT_S):
            transport, _ = await TcpNetwork().connect("127.0.0.1", listener.port, asyncio.Protocol)
            found = await accepted
        transport.close()
        await listener.close()
        return found

    found = asyncio.run(main())
    times = 2 if sys.platform == "linux" else 1  # Linux also counts its own overhead
    if buffers.send >= 0:
        assert found == [times * size for size in buffers]
    else:
        assert found == plain_buffers(), "the system's defaults"


def test_a_connection_that_is_opened_has_its_buffer_sizes() -> None:
    async def main() -> int:
        listener = await TcpNetwork().listen("127.0.0.1", 0, asyncio.Protocol, PLAINTEXT)
        await listener.accept()
        async with asyncio.timeout(TIMEOUT_S):
            transport, _ = await TcpNetwork().connect(
                "127.0.0.1", listener.port, asyncio.Protocol, buffers=SocketBuffers(receive=60_000)
            )
        made: socket.socket = transport.get_extra_info("socket")
        found = made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        transport.close()
        await listener.close()
        return found

    assert asyncio.run(main()) == 60_000 * (2 if sys.platform == "linux" else 1)


def plain_buffers() -> list[int]:
    """Return the buffer sizes of a connection whose listener sets none."""
    options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), TIMEOUT_S),
        listener.accept()[0] as accepted,
    ):
        return [accepted.getsockopt(socket.SOL_SOCKET, one) for one in options]
