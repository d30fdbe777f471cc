"""A network inside one process and in virtual time.

In: listeners and connections of `ports.Network`. Out: bytes delivered in order after a delay drawn from the seed.
It never reorders or loses bytes of a connection that stays up.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from stratalog.ports import SYSTEM_BUFFERS, Buffer, SocketBuffers

_DELAY_S = (0.000_05, 0.002)
_FIRST_PORT = 40_000


class SimListener:
    """A name other simulated nodes can connect to."""

    def __init__(self, network: "SimNetwork", host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._network = network

    async def close(self) -> None:
        self._network.listeners.pop((self.host, self.port), None)


class SimNetwork:
    """`ports.Network` for a simulation."""

    def __init__(self, random: Random, trace: Callable[..., None]) -> None:
        self.listeners: dict[tuple[str, int], Callable[[], asyncio.BaseProtocol]] = {}
        self.buffers: list[SocketBuffers] = []
        """What each listener was given, in order."""
        self._random = random
        self._trace = trace
        self._next_port = _FIRST_PORT

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> SimListener:
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self.listeners:
            raise OSError(98, f"{host}:{port} is taken")
        self.listeners[host, port] = protocol
        self.buffers.append(buffers)
        return SimListener(self, host, port)

    async def connect(
        self, host: str, port: int, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        await asyncio.sleep(self.delay_s())
        factory = self.listeners.get((host, port))
        if factory is None:
            raise ConnectionRefusedError(111, f"{host}:{port} refuses")
        near, far = protocol(), factory()
        here, there = (
            SimTransport(self, near, ("127.0.0.1", 1)),
            SimTransport(self, far, (host, port)),
        )
        here.peer, there.peer = there, here
        far.connection_made(there)
        near.connection_made(here)
        return here, near

    def delay_s(self) -> float:
        return self._random.uniform(*_DELAY_S)

    def sent(self, size: int) -> None:
        self._trace("sent", size)


class SimTransport(asyncio.Transport):
    """One end of a simulated connection."""

    def __init__(self, network: SimNetwork, protocol: Any, address: tuple[str, int]) -> None:
        super().__init__({"peername": address})
        self.peer: SimTransport | None = None
        self._network = network
        self._protocol = protocol
        self._inbox: list[bytes] = []
        self._last_arrival = 0.0
        self._paused = False
        self._closed = False

    def write(self, data: Buffer) -> None:
        if self._closed or not len(data):
            return
        self._network.sent(len(data))
        assert self.peer is not None
        self.peer._arrives(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._read()

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
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._protocol.connection_lost, None)
        if self.peer is not None:
            loop.call_at(max(loop.time(), self.peer._last_arrival) + 1e-6, self.peer.close)

    def abort(self) -> None:
        self.close()

    def _arrives(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        at = max(loop.time() + self._network.delay_s(), self._last_arrival)
        self._last_arrival = at
        self._inbox.append(data)
        loop.call_at(at, self._read, len(self._inbox))

    def _is_held(self) -> bool:
        return self._paused or self._closed

    def _read(self, _count: int = 0) -> None:
        while self._inbox and not self._is_held():
            data = memoryview(self._inbox.pop(0))
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                while data:
                    if self._is_held():
                        self._inbox.insert(0, bytes(data))
                        return
                    target = memoryview(self._protocol.get_buffer(len(data)))
                    size = min(len(target), len(data))
                    target[:size] = data[:size]
                    self._protocol.buffer_updated(size)
                    data = data[size:]
            else:
                self._protocol.data_received(bytes(data))
