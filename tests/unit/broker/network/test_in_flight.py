"""A connection starts no further produce while four mebibytes of earlier ones wait for their answers.

Method: a connection without a socket, which receives frames as from one. The test answers each request itself.
"""

import asyncio
from time import perf_counter_ns
from typing import Any

from stratalog.broker.network.answers import Later, as_it_is
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.connection import Connection, Shared
from stratalog.broker.network.session import ListenerContext, Session
from stratalog.broker.network.turns import Turns
from stratalog.wire.frames import SCRATCH_BYTES

MIB = 1 << 20


class Client(asyncio.Transport):
    """The other end of a connection: what it sends, what the broker starts, what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[asyncio.Future[Any]] = []
        self.received: list[bytes] = []
        self.unread = b""
        self.is_read = True
        self.connection = Connection(
            lambda _session, _frame: Later(self._start(), as_it_is),
            Shared(8 * MIB, bytearray(SCRATCH_BYTES), ClientMemory(-1, -1), Turns(perf_counter_ns)),
            Session(ListenerContext("T")),
            opened=lambda _: True,
            closed=lambda _: None,
        )
        self.connection.connection_made(self)

    def _start(self) -> "asyncio.Future[Any]":
        self.started.append(asyncio.get_running_loop().create_future())
        return self.started[-1]

    def send(self, *sizes: int) -> None:
        for size in sizes:
            self.unread += size.to_bytes(4, "big") + b"\0\0" + bytes(size - 2)
        self._read()

    def _read(self) -> None:
        while self.is_read and self.unread:
            target = self.connection.get_buffer(len(self.unread))
            size = min(len(target), len(self.unread))
            target[:size] = self.unread[:size]
            self.unread = self.unread[size:]
            self.connection.buffer_updated(size)

    async def answer(self, number: int) -> None:
        self.started[number].set_result([b"%d" % number])
        await asyncio.sleep(0)
        self._read()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        self.received.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.received += map(bytes, list_of_data)

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default


def test_produces_wait_while_four_mebibytes_are_unanswered() -> None:
    async def story() -> None:
        client = Client()
        client.send(*[MIB] * 10)
        assert len(client.started) == 4
        assert not client.is_read
        assert len(client.unread) > 4 * MIB, "the broker receives little of what it cannot start"
        await client.answer(1)
        assert (len(client.started), client.received) == (4, []), "answers keep the order"
        await client.answer(0)
        assert (len(client.started), client.received) == (6, [b"0", b"1"])
        for number in range(2, 10):
            await client.answer(number)
        assert client.received == [b"%d" % number for number in range(10)]

    asyncio.run(story())


def test_a_larger_request_is_served_alone() -> None:
    async def story() -> None:
        client = Client()
        client.send(6 * MIB, 100, 100)
        assert len(client.started) == 1
        await client.answer(0)
        assert len(client.started) == 3
        await client.answer(1)
        await client.answer(2)
        assert client.received == [b"0", b"1", b"2"]

    asyncio.run(story())
