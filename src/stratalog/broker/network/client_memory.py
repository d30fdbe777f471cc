"""Bound the memory of all clients: requests received and not yet answered, answers not yet sent.

In: the bytes that each connection holds, and the decoded size of large requests. Out: whether and when a connection may
continue to read; the largest answer of a fetch. It never holds a byte itself.

At the limit of requests, connections that hold more than a little stop reading. They continue as answers leave, in the
order in which they stopped. One of them at a time may finish its request past the limit. So half-received requests
cannot wait for each other, and the broker can serve a request larger than the limit. Connections that hold little
always continue. Kafka: `SimpleMemoryPool` behind `queued.max.request.bytes`. Here only received bytes count, not
announced ones, so a slow client cannot block the others.
"""

import asyncio
from typing import Final, Protocol

_LITTLE_BYTES: Final = 16 << 10
_READ_BYTES: Final = 1 << 20
"""Most bytes that a connection receives in one read."""
_AGAIN_S: Final = 0.05
_NO_LIMIT: Final = 1 << 62


class Reading(Protocol):
    """A connection that may have to wait for memory."""

    @property
    def is_receiving(self) -> bool:
        """Whether part of a request has arrived."""

    def read_on(self) -> None:
        """Continue to read, unless something else forbids reading."""


class ClientMemory:
    """One for all connections of a node. `requests` and `answers` are bytes; connections keep them up to date."""

    def __init__(self, requests_max: int, answers_max: int) -> None:
        """A limit of -1 means no limit."""
        self.requests = 0
        self.requests_max = requests_max if requests_max >= 0 else _NO_LIMIT
        self.answers = 0
        self._decoded = 0
        """The part of `requests` that is decoded large requests."""
        self._room: list[asyncio.Future[None]] = []
        self.answers_max = answers_max if answers_max >= 0 else _NO_LIMIT
        self._waiting: dict[Reading, None] = {}
        self._turn: Reading | None = None
        self._resuming: asyncio.Handle | None = None

    @property
    def is_short(self) -> bool:
        """Whether requests have reached their limit."""
        return self.requests >= self.requests_max

    def fetch_bytes(self, wanted: int) -> int:
        """Return the largest size of an answer; one batch while clients leave too many bytes unread."""
        return wanted if self.answers < self.answers_max else min(wanted, 1)

    async def room(self) -> None:
        """Wait until another large request may be decoded: memory is not short, or no other large request holds any."""
        while self._decoded and self.is_short:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    def take(self, size: int) -> None:
        """Count the memory of a decoded large request."""
        self.requests += size
        self._decoded += size

    def give_back(self, size: int) -> None:
        """Release memory that `take` counted."""
        self.requests -= size
        self._decoded -= size
        waiting, self._room = self._room, []
        for waiter in waiting:
            if not waiter.done():  # otherwise its client has disconnected
                waiter.set_result(None)
        self.freed(None)

    def may_read(self, connection: Reading, held: int) -> bool:
        """Return whether the connection may continue to read while memory is short. If not, call its `read_on`
        later.
        """
        if held < _LITTLE_BYTES or connection is self._turn:
            return True
        if self._turn is None and connection.is_receiving:
            self._turn = connection
            self._waiting.pop(connection, None)
            return True
        self._waiting[connection] = None
        return False

    def freed(self, connection: Reading | None) -> None:
        """Note that a request of the connection was answered or abandoned."""
        if connection is not None and connection is self._turn:
            self._turn = None
        if self._waiting and self._resuming is None:
            self._resuming = asyncio.get_running_loop().call_soon(self._resume)

    def forget(self, connection: Reading) -> None:
        """Remove a connection that has ended."""
        self._waiting.pop(connection, None)
        self.freed(connection)

    def _resume(self) -> None:
        self._resuming = None
        room = self.requests_max - self.requests
        while self._waiting and room > 0:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            room -= _READ_BYTES
            connection.read_on()
        if self._waiting and self.requests < self.requests_max:
            # A continued connection may have nothing to read, so the next ones must get their turn without an answer in
            # between.
            loop = asyncio.get_running_loop()
            self._resuming = loop.call_later(_AGAIN_S, self._resume)
        elif self._turn is None:
            self._give_turn()

    def _give_turn(self) -> None:
        connection = next((one for one in self._waiting if one.is_receiving), None)
        if connection is not None:
            del self._waiting[connection]
            self._turn = connection
            connection.read_on()
