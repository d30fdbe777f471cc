"""Bound the memory of all clients: requests received and not yet answered, answers not yet sent.

In: the bytes that each connection holds, and the decoded size of large requests. Out: whether and when a connection may
continue to read; which connections end so that others are served; the largest answer of a fetch. It never holds a byte.

At the limit of requests, connections that hold more than a little stop reading. They continue as answers leave, in the
order in which they stopped. One of them at a time may finish its request past the limit. So half-received requests
cannot wait for each other, and the broker can serve a request larger than the limit. Connections that hold little
always continue. Kafka: `SimpleMemoryPool` behind `queued.max.request.bytes`. Here only received bytes count, not
announced ones, so a slow client cannot block the others.

Clients that hold half requests must not keep the others waiting:

- Clients before their login have a small pool of their own. Beyond it those end that hold most, until a quarter is
  free.
- Past the limit there is a reserve. Small requests pass in it: in one half those of any client, in the other those of
  clients that hold little in all. Where it is full, half requests end that began some seconds ago, the oldest of the
  client that holds most first, whether the broker reads them or not.
- A larger request has its turn before those of the client that holds most.
- What stays half received for long ends in the same order, while memory is short.
- Where no half request is old enough, small requests wait, and are looked at again, the smallest first.

A client is a principal, or an address where its connections are anonymous. Anonymous connections of one address share
a lot: among them the oldest half request ends first, so one that arrives quickly passes.
"""

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Final, Protocol

import structlog

from stratalog.shares import Shares

__all__ = ["LITTLE_BYTES", "ClientMemory", "Reading"]

LITTLE_BYTES: Final = 16 << 10
_READ_BYTES: Final = 1 << 20
"""Most bytes that a connection receives in one read."""
_SMALL_BYTES: Final = (1 << 20) + (64 << 10)
"""A produce of Java's defaults (`max.request.size`) is no larger."""
_RESERVE_SHARE: Final = 8
"""The reserve is this part of the limit; a small request is at most a quarter of it."""
_UNKNOWN_SHARE: Final = 16
_UNKNOWN_BYTES: Final = (1 << 20, 16 << 20)
"""Least and most bytes of all clients before their login; between them a part of the limit."""
_HALF_S: Final = 3.0
"""How long ago a half request began that ends for a small one of another connection."""
_REQUEST_S_MAX: Final = 10.0
"""How long a request may take to arrive while memory is short. Other clients wait 30 s for their answers."""
_AGAIN_S: Final = 0.05
_SMALL_AT_ONCE: Final = 16
"""Small requests that wait and are looked at again together; those of them that pass hold 17 MiB at most."""
_NOTE_S: Final = 10.0
_NO_LIMIT: Final = 1 << 62


class Reading(Protocol):
    """A connection that may have to wait for memory."""

    is_unknown: bool
    """Whether its client must still log in, or complete its handshake."""
    holder: Hashable
    """The client that its memory counts for."""
    bytes_held: int
    """Bytes of its requests, as this module counts them."""
    began_s: float
    """When the partly received request began to arrive, in the loop's time."""

    @property
    def is_receiving(self) -> bool:
        """Whether part of a request has arrived."""

    @property
    def missing(self) -> int:
        """Bytes of the partly received request that have not arrived."""

    def read_on(self) -> None:
        """Continue to read, unless something else forbids reading."""

    def give_up(self, why: str) -> None:
        """End, and hold nothing from now on."""


class ClientMemory:
    """One for all connections of a node. `requests` and `answers` are bytes; connections keep them up to date."""

    def __init__(self, requests_max: int, answers_max: int) -> None:
        """A limit of -1 means no limit."""
        self.requests = 0
        self.requests_max = requests_max if requests_max >= 0 else _NO_LIMIT
        self.reserve = self.requests_max // _RESERVE_SHARE
        self.answers = 0
        self._decoded = 0
        """The part of `requests` that is decoded large requests."""
        self._room: list[asyncio.Future[None]] = []
        self.answers_max = answers_max if answers_max >= 0 else _NO_LIMIT
        self.unknown: dict[Reading, int] = {}
        """The connections of clients before their login, in the order of their opening, with the bytes that each holds.

        `requests` does not have them.
        """
        self.unknown_bytes = 0
        least, most = _UNKNOWN_BYTES
        self.unknown_bytes_max = max(least, min(self.requests_max // _UNKNOWN_SHARE, most))
        self.ended: Counter[str] = Counter()
        """Connections that ended to free what they held, by `before_login` and `half_request`."""
        self._noted_s = -_NOTE_S
        self._looked_s = 0.0
        """When a look for half requests that may end found none."""
        self._held = Shares()
        """Bytes of the connections in `_large`, by client."""
        self._large: dict[Reading, None] = {}
        """Connections that hold more than a little, except unknown ones."""
        self._waiting: dict[Reading, None] = {}
        self._turn: Reading | None = None
        self._resuming: asyncio.Handle | None = None
        self._retrying: asyncio.Handle | None = None
        self._log = structlog.get_logger()

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

    def hold(self, connection: Reading, before: int, held: int) -> None:
        """Count what a connection holds: one that is unknown, or one that holds more than a little before or now.

        Of any other connection the caller changes `requests` alone, which is faster.
        """
        if connection.is_unknown:
            self.unknown_bytes += held - before
            if connection in self.unknown:
                self.unknown[connection] = held
            if held > before and self.unknown_bytes > self.unknown_bytes_max:
                self._end_unknown()
            return
        self.requests += held - before
        if held <= LITTLE_BYTES:
            if before > LITTLE_BYTES:
                del self._large[connection]
                self._held.add(connection.holder, -before)
        elif before > LITTLE_BYTES:
            self._held.add(connection.holder, held - before)
        else:
            self._large[connection] = None
            self._held.add(connection.holder, held)

    def may_read(self, connection: Reading, held: int) -> bool:
        """Return whether the connection may continue to read while memory is short. If not, call its `read_on`
        later.
        """
        if held < LITTLE_BYTES or connection is self._turn or self._passes(connection, held):
            return True
        if connection.is_receiving and self._may_have_turn(connection):
            self._turn = connection
            self._waiting.pop(connection, None)
            return True
        self._waiting[connection] = None
        if self._retrying is None and held + connection.missing <= self._small_bytes_max:
            self._retrying = asyncio.get_running_loop().call_later(2 * _AGAIN_S, self._retry)
        return False

    def _retry(self) -> None:
        """Look again at the smallest requests that wait: half requests have grown old meanwhile."""
        self._retrying = None
        sizes = {one: one.bytes_held + one.missing for one in self._waiting if one.is_receiving}
        for one in sorted(sizes, key=sizes.__getitem__)[:_SMALL_AT_ONCE]:
            if sizes[one] <= self._small_bytes_max and one in self._waiting:
                del self._waiting[one]
                one.read_on()

    @property
    def _small_bytes_max(self) -> int:
        return min(_SMALL_BYTES, self.reserve // 4)

    def _passes(self, connection: Reading, held: int) -> bool:
        """Return whether a small request passes in the reserve; end older half requests for it where that is full."""
        if held + connection.missing > self._small_bytes_max:
            return False
        holds_little = self._held.of(connection.holder) <= self.reserve // 16
        room = self.requests_max + (self.reserve if holds_little else self.reserve // 2)
        if self.requests < room:
            return True
        now = asyncio.get_running_loop().time()
        if now - self._looked_s < _AGAIN_S:
            return False
        self._looked_s = now
        if not self._end_half_requests(connection.holder, _HALF_S, room):
            return False
        self._looked_s = 0.0
        return True

    def _may_have_turn(self, connection: Reading) -> bool:
        turn = self._turn
        if turn is None:
            return True
        if turn.holder != self._held.yields_to(connection.holder, 0):
            return False
        self._waiting[turn] = None  # it stops with its next bytes
        return True

    def freed(self, connection: Reading | None) -> None:
        """Note that a request of the connection was answered or abandoned."""
        if connection is not None and connection is self._turn:
            self._turn = None
        if self._waiting and self._resuming is None:
            self._resuming = asyncio.get_running_loop().call_soon(self._resume)

    def forget(self, connection: Reading) -> None:
        """Remove a connection that has ended, and holds nothing."""
        self.unknown.pop(connection, None)
        self._waiting.pop(connection, None)
        self.freed(connection)

    def end_slow(self) -> None:
        """While memory is short, end half requests that began long ago."""
        if self.is_short:
            self._end_half_requests(None, _REQUEST_S_MAX, self.requests_max - self.reserve)

    def _end_half_requests(self, holder: Hashable | None, age_s: float, until: int) -> bool:
        """End half requests of an age until `requests` is below `until`; return whether it is.

        The client that holds most gives way first, with its oldest. For one client's request, only its own give way and
        those of clients that hold more.
        """
        until_s = asyncio.get_running_loop().time() - age_s
        old = [one for one in self._large if one.is_receiving and one.began_s <= until_s]
        if holder is not None:
            own = self._held.of(holder)
            old = [one for one in old if one.holder == holder or self._held.of(one.holder) > own]
        old.sort(key=lambda one: (-self._held.of(one.holder), one.began_s))
        ended = 0
        for one in old:
            if self.requests < until:
                break
            ended += 1
            one.give_up("its request does not come, and memory for requests is short")
        self._note("half_request", ended)
        return self.requests < until

    def _end_unknown(self) -> None:
        """End the connections before a login that hold most, until a quarter of their pool is free."""
        ended = 0
        for one in sorted(self.unknown, key=self.unknown.__getitem__, reverse=True):
            if self.unknown_bytes <= self.unknown_bytes_max * 3 // 4:
                break
            ended += 1
            one.give_up("it holds too much before its login")
        self._note("before_login", ended)

    def _note(self, reason: str, ended: int) -> None:
        """Count ended connections; the log has a line every ten seconds at most."""
        self.ended[reason] += ended
        now = asyncio.get_running_loop().time()
        if ended and now - self._noted_s >= _NOTE_S:
            self._noted_s = now
            self._log.warning(
                "connections ended for their memory",
                of=reason.replace("_", " "),
                ended=ended,
                so_far=self.ended.total(),
            )

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
        """Let the first of the client that holds least finish its request."""
        waiting = (one for one in self._waiting if one.is_receiving)
        connection = min(waiting, key=lambda one: self._held.of(one.holder), default=None)
        if connection is not None:
            del self._waiting[connection]
            self._turn = connection
            connection.read_on()
