"""One connection pipelines without pause: other connections wait for one turn of each, not for all its requests.

Method: real sockets on a real event loop. The tests count the requests served before another client's; no time decides.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from time import perf_counter_ns
from typing import Any, cast

import pytest
import uvloop

from stratalog.adapters.network import TcpNetwork
from stratalog.broker.network.answers import Later
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.connection import Connection, Shared
from stratalog.broker.network.session import ListenerContext, Session
from stratalog.broker.network.turns import Turns
from stratalog.ports import PLAINTEXT, Buffer
from stratalog.wire.frames import SCRATCH_BYTES

FLOODERS = 16
TURN_REQUESTS = 32
HELD_BYTES_MAX = 64 << 10
WAIT_S = 30
FLOOD, PRODUCE, QUIET = b"\0\x03flood", b"\0\0produce", b"\0\x03quiet"
NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: list[NewLoop] = [
    asyncio.new_event_loop,
    uvloop.new_event_loop,
]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Served:
    """A dispatcher that records the requests that it serves, and answers each with the request's bytes."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.quiet_is_served = asyncio.get_running_loop().create_future()

    def serve(self, _session: Session, frame: memoryview) -> list[Buffer] | Later:
        body = bytes(frame)
        self.frames.append(body)
        if body == QUIET and not self.quiet_is_served.done():
            self.quiet_is_served.set_result(None)
        if body == PRODUCE:
            # Like an append on another thread: the answer comes later, and other requests may follow first.
            done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(done.set_result, body)
            return Later(done, lambda answer: [framed(answer)])
        return [framed(body)]


class Sending:
    """A transport that records the bytes of each send."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self.sent: list[int] = []
        self._transport: Any = transport

    def write(self, data: Buffer) -> None:
        self.sent.append(len(data))
        self._transport.write(data)

    def writelines(self, buffers: list[Buffer]) -> None:
        self.sent.append(sum(map(len, buffers)))
        self._transport.writelines(buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Counted(Connection):
    """A connection with a transport that counts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sending = Sending(transport)
        super().connection_made(cast("asyncio.BaseTransport", self.sending))


class Serving:
    """A listener and its served requests; `connect` returns a client's socket once the connection is accepted."""

    def __init__(self, stack: ExitStack, port: int, served: Served, made: list[Counted]) -> None:
        self.served = served
        self._stack, self._port, self._made = stack, port, made

    @property
    def sent(self) -> list[int]:
        """Return the bytes of each call to send of the first connection."""
        return self._made[0].sending.sent

    async def connect(self) -> socket.socket:
        count = len(self._made)
        one = socket.create_connection(("127.0.0.1", self._port))
        async with asyncio.timeout(WAIT_S):
            while len(self._made) == count:
                await asyncio.sleep(0)
        return self._stack.enter_context(one)


@asynccontextmanager
async def serving(elapsed_ns: Callable[[], int] = perf_counter_ns) -> AsyncIterator[Serving]:
    served = Served()
    memory = ClientMemory(-1, -1)
    shared = Shared(1 << 20, bytearray(SCRATCH_BYTES), memory, Turns(elapsed_ns))
    made: list[Counted] = []
    ended: list[Connection] = []

    def accept() -> Connection:
        made.append(
            Counted(
                served.serve,
                shared,
                Session(ListenerContext("T")),
                opened=lambda _: True,
                closed=ended.append,
            )
        )
        return made[-1]

    listener = await TcpNetwork().listen("127.0.0.1", 0, accept, PLAINTEXT)
    await listener.accept()
    try:
        with ExitStack() as stack:
            yield Serving(stack, listener.port, served, made)
    finally:
        await listener.close()
        for connection in made:
            connection.abort()
        async with asyncio.timeout(WAIT_S):
            while len(ended) < len(made):
                await asyncio.sleep(0)
    assert memory.requests == 0, "a closed connection is still counted"


def run(story: Coroutine[Any, Any, None], new_loop: NewLoop) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("flood", [FLOOD, PRODUCE])
def test_one_request_is_served_after_a_turn_of_each_connection_that_floods(
    new_loop: NewLoop, flood: bytes
) -> None:
    blob = framed(flood) * (SCRATCH_BYTES // len(framed(flood)))

    async def story() -> None:
        async with serving() as node:
            flooders = [await node.connect() for _ in range(FLOODERS)]
            quiet = await node.connect()
            for one in flooders:
                one.sendall(blob)
            quiet.sendall(framed(QUIET))
            await asyncio.wait_for(node.served.quiet_is_served, WAIT_S)
            before = node.served.frames.index(QUIET)
            assert before <= 2 * FLOODERS * TURN_REQUESTS, f"of {FLOODERS * blob.count(flood)}"

    run(story(), new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_pipelined_requests_are_answered_in_order_before_later_ones(
    new_loop: NewLoop,
) -> None:
    bodies = [b"\0\x03%d" % number + b"x" * (number % 300) for number in range(3000)]
    stream = b"".join(map(framed, bodies))

    async def story() -> None:
        async with serving() as node:
            reader, writer = await asyncio.open_connection(sock=await node.connect())
            for part in (stream, framed(QUIET), stream):
                writer.write(part)
                answers = await asyncio.wait_for(reader.readexactly(len(part)), WAIT_S)
                assert answers == part
            assert node.served.frames == [*bodies, QUIET, *bodies]
            writer.close()

    run(story(), new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_connections_that_flood_get_equal_numbers_of_turns(new_loop: NewLoop) -> None:
    async def story() -> None:
        async with serving() as node:
            frames = node.served.frames
            for number in range(4):
                (await node.connect()).sendall(framed(b"\0\x03from %d" % number) * 2000)
            async with asyncio.timeout(WAIT_S):
                while len(frames) < 4000:
                    await asyncio.sleep(0)
            counts = [frames.count(b"\0\x03from %d" % number) for number in range(4)]
            # The first connection had some turns before the last one connected.
            assert max(counts) <= 2 * min(counts) + 8 * TURN_REQUESTS, counts

    run(story(), new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("asked", [FLOOD, PRODUCE])
def test_the_answers_of_a_turn_leave_together(new_loop: NewLoop, asked: bytes) -> None:
    blob = framed(asked) * 10 * TURN_REQUESTS

    async def story() -> None:
        async with serving(lambda: 0) as node:  # only the number of requests ends a turn
            reader, writer = await asyncio.open_connection(sock=await node.connect())
            writer.write(blob)
            assert await asyncio.wait_for(reader.readexactly(len(blob)), WAIT_S) == blob
            assert len(node.sent) <= 10 + 1
            writer.close()

    run(story(), new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_large_answers_are_sent_at_once(new_loop: NewLoop) -> None:
    asked = FLOOD + b"x" * HELD_BYTES_MAX
    blob = framed(asked) * 3 + framed(QUIET) + framed(asked)

    async def story() -> None:
        async with serving(lambda: 0) as node:
            reader, writer = await asyncio.open_connection(sock=await node.connect())
            writer.write(blob)
            assert await asyncio.wait_for(reader.readexactly(len(blob)), WAIT_S) == blob
            assert max(node.sent) < 2 * HELD_BYTES_MAX
            writer.close()

    run(story(), new_loop)
