"""A network between simulated machines, in virtual time.

In: listeners and connections of `ports.Network`; `cut`, `heal`, `delay`, `lose`, `reset`, the end of a machine. Out:
bytes delivered in order after a delay drawn from the seed. It never reorders or loses bytes of a connection that stays
up, as TCP: a lost piece is sent again, and all later ones wait. Bytes of two connections overtake one another.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sim.process import Process, current

from stratalog.errors import Unavailable
from stratalog.ports import (
    PLAINTEXT,
    SYSTEM_BUFFERS,
    Buffer,
    Security,
    SocketBuffers,
    Tls,
    TokenSource,
)

LOCAL = "127.0.0.1"
STORY = "story"
"""The host of a story's own clients."""
DELAY_S = (0.000_05, 0.002)
CONNECT_TIMEOUT_S = 127.0
"""How long Linux tries to connect to a host that does not answer."""
_FIRST_PORT = 40_000
_RETRANSMITTED_S = 0.2
"""Linux: the shortest time until a lost packet is sent again (TCP_RTO_MIN). It doubles with each further loss."""
_LOSSES_MAX = 4


@dataclass(slots=True)
class SimListener:
    """A bound port. Connections are accepted in the context of the process that listens."""

    network: "SimNetwork"
    host: str
    port: int
    protocol: Callable[[], asyncio.BaseProtocol]
    context: Context
    accepts: bool = False

    async def accept(self) -> None:
        self.accepts = True

    def secure(self, security: Security) -> bool:
        assert security == PLAINTEXT, "the network simulates plain text only"
        return False

    def certificates(self) -> tuple[()]:
        return ()

    async def close(self) -> None:
        if self.network.listeners.get((self.host, self.port)) is self:
            del self.network.listeners[self.host, self.port]


class SimNetwork:
    """`ports.Network` for all machines: the process that calls it says from which host."""

    def __init__(self, random: Random, trace: Callable[..., None]) -> None:
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.buffers: list[SocketBuffers] = []
        """The socket buffer sizes of each listener, in order of its opening."""
        self.buffers_of_clients: list[SocketBuffers] = []
        """The same of each connection that asks for its own, at the end that opens it."""
        self._random = random
        self._trace = trace
        self._next_port = _FIRST_PORT
        self._ends: list[SimTransport] = []
        self._cut: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], tuple[float, float]] = {}
        self._losses: dict[tuple[str, str], float] = {}
        self._down: set[str] = set()
        self.messages = 0
        """Writes to connections, each of which carries one request or answer, or several."""

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Hold all bytes from host `source` to host `target` from now on; one direction only.

        They are in the memory of `source`, which would send them again: they are lost where it loses power.
        """
        self._cut.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """Deliver the held bytes in order."""
        self._cut.discard((source, target))
        for end in tuple(self._ends):
            if (end.far_host, end.host) == (source, target):
                asyncio.get_running_loop().call_later(
                    self.delay_s(source, target), end.receive, context=end.context
                )

    def delay(self, source: str, target: str, low_s: float, high_s: float) -> None:
        """From now on each piece from `source` to `target` takes this long."""
        self._delays[source, target] = (low_s, high_s)

    def lose(self, source: str, target: str, probability: float) -> None:
        """From now on a piece from `source` to `target` is lost with this probability, and sent again later."""
        self._losses[source, target] = probability

    def mend(self, source: str, target: str) -> None:
        """End `delay` and `lose`."""
        self._delays.pop((source, target), None)
        self._losses.pop((source, target), None)

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two hosts, as a firewall does that forgot them."""
        for end in tuple(self._ends):
            if (end.host, end.far_host) in ((one, other), (other, one)):
                end.break_off()

    def end_process(self, process: Process) -> None:
        """Close a dead process's connections and listeners, as the kernel does."""
        self._close_listeners(process)
        for end in self._ends_of(process):
            end.abort()

    def lose_power(self, process: Process, *, silent: bool) -> None:
        """The machine lost power. `silent`: its peers get no answer until the machine runs again and they send."""
        for end in self._ends_of(process):
            end.lose_memory()
        if not silent:
            self.end_process(process)
            return
        self._close_listeners(process)
        self._down.add(process.host)
        for end in self._ends_of(process):
            end.vanish()

    def come_up(self, host: str) -> None:
        self._down.discard(host)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def reaches(self, source: str, target: str) -> bool:
        return not self.is_cut(source, target) and not self._down & {source, target}

    def _close_listeners(self, process: Process) -> None:
        for place, listener in list(self.listeners.items()):
            if current(listener.context) is process:
                del self.listeners[place]

    def _ends_of(self, process: Process) -> "list[SimTransport]":
        return [end for end in self._ends if current(end.context) is process]

    # ports.Network

    async def access_token(self, source: TokenSource) -> str:
        raise Unavailable(f"{source.url}: the simulator has no issuer of tokens")

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        security: Security,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> SimListener:
        assert security == PLAINTEXT, "the network simulates plain text only"
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self.listeners:
            raise OSError(98, f"{host}:{port} is taken")
        self.buffers.append(buffers)
        listener = SimListener(self, host, port, protocol, copy_context())
        self.listeners[host, port] = listener
        return listener

    async def connect(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: Tls | None = None,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        assert tls is None, "the network simulates plain text only"
        if buffers != SYSTEM_BUFFERS:
            self.buffers_of_clients.append(buffers)
        process = current()
        source = process.host if process is not None else STORY
        await self._handshake(source, host)
        listener = self.listeners.get((host, port))
        if listener is None or not listener.accepts:
            raise ConnectionRefusedError(111, f"{host}:{port} refuses")
        near = protocol()
        here = SimTransport(self, source, copy_context(), ("127.0.0.1", 1))
        there = SimTransport(self, host, listener.context, (host, port))
        here.join(there)
        self._ends += (here, there)
        asyncio.get_running_loop().call_soon(
            there.accept, listener.protocol, context=listener.context
        )
        here.set_protocol(near)
        near.connection_made(here)
        return here, near

    async def _handshake(self, source: str, target: str) -> None:
        await asyncio.sleep(self.delay_s(source, target))
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + CONNECT_TIMEOUT_S
        while not (self.reaches(source, target) and self.reaches(target, source)):
            if loop.time() >= ends_at:
                raise TimeoutError(110, f"{target} does not answer")
            await asyncio.sleep(1)  # SYN again

    def delay_s(self, source: str, target: str) -> float:
        return self._random.uniform(*self._delays.get((source, target), DELAY_S))

    def resent_s(self, source: str, target: str) -> float:
        """Return how long a piece takes that is lost, perhaps several times; 0 for one that is not."""
        losses = 0
        probability = self._losses.get((source, target), 0.0)
        while probability and losses < _LOSSES_MAX and self._random.random() < probability:
            losses += 1
        return _RETRANSMITTED_S * ((1 << losses) - 1)

    def sent(self, size: int) -> None:
        self.messages += 1
        self._trace("sent", size)

    def forget(self, end: "SimTransport") -> None:
        if end in self._ends:
            self._ends.remove(end)


class SimTransport(asyncio.Transport):
    """One end of a connection. Its protocol runs in the context of the process that has it."""

    def __init__(
        self, network: SimNetwork, host: str, context: Context, address: tuple[str, int]
    ) -> None:
        super().__init__({"peername": address})
        self.host = host
        self.context = context
        self._network = network
        self._far: SimTransport | None = None
        self._protocol: Any = None
        self._inbox: deque[bytes | None] = deque()
        """The arrived bytes in order; None stands for the close of the far end."""
        self._last_arrival = 0.0
        self._paused = False
        self._closed = False
        self._vanished = False
        self._memory_lost = False

    @property
    def far_host(self) -> str:
        assert self._far is not None, "joined"
        return self._far.host

    def join(self, far: "SimTransport") -> None:
        self._far, far._far = far, self

    def accept(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        if not self._closed:
            self._protocol = protocol()
            self._protocol.connection_made(self)

    def write(self, data: Buffer) -> None:
        process = current()
        if self._closed or not len(data) or (process is not None and process.is_dead):
            return
        self._network.sent(len(data))
        self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.receive()

    def is_reading(self) -> bool:
        return not self._paused

    def is_closing(self) -> bool:
        return self._closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def close(self) -> None:
        if not self._closed:
            self._lose()
            self._send(None)

    def abort(self) -> None:
        self.close()

    def break_off(self) -> None:
        """End the connection here at once: what has not arrived yet is lost."""
        if not self._closed:
            self._lose()

    def lose_memory(self) -> None:
        """The machine lost power: nothing sends again what a cut holds."""
        assert self._far is not None, "joined"
        self._memory_lost = True
        if self._network.is_cut(self.host, self.far_host):
            self._far._inbox.clear()

    def vanish(self) -> None:
        """Remove the machine without a message to the far end."""
        self._closed = self._vanished = True

    def _lose(self) -> None:
        self._closed = True
        self._network.forget(self)
        if self._protocol is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.connection_lost, None, context=self.context)
            self._protocol = None  # as asyncio's transports do

    def _send(self, data: bytes | None) -> None:
        assert self._far is not None, "joined"
        self._far.take(data)

    def take(self, data: bytes | None) -> None:
        """Receive `data` after the network's delay."""
        loop = asyncio.get_running_loop()
        pair = self.far_host, self.host
        delay_s = self._network.delay_s(*pair) + self._network.resent_s(*pair) if data else 0
        at = loop.time() + delay_s
        # Strictly later: timers of one moment have no order.
        at = self._last_arrival = max(at, self._last_arrival + 1e-6)
        # The kernel receives the bytes also for a paused process: no process's context.
        loop.call_at(at, self._arrived, data, context=Context())

    def _arrived(self, data: bytes | None) -> None:
        assert self._far is not None, "joined"
        if self._vanished:
            self._reset_far()
        elif data is None or not self._far._memory_lost or not self._is_cut_off():
            self._inbox.append(data)
            asyncio.get_running_loop().call_soon(self.receive, context=self.context)

    def _reset_far(self) -> None:
        """A machine that is up again knows nothing of the connection."""
        far = self._far
        if far is not None and self._network.reaches(far.host, self.host) and not far._closed:
            far._lose()

    def _is_held(self) -> bool:
        return self._paused or self._closed or self._protocol is None or self._is_cut_off()

    def _is_cut_off(self) -> bool:
        return self._network.is_cut(self.far_host, self.host)

    def receive(self) -> None:
        while self._inbox and not self._is_held():
            piece = self._inbox.popleft()
            if piece is None:
                self._lose()
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(memoryview(piece))
            else:
                self._protocol.data_received(piece)

    def _fill(self, data: memoryview) -> None:
        while data:
            if self._is_held():
                self._inbox.appendleft(bytes(data))
                return
            target = memoryview(self._protocol.get_buffer(len(data)))
            size = min(len(target), len(data))
            target[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]
