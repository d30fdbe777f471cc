"""The ports of a broker under test: the system's, with a clock that can be advanced and a switch that cuts the broker
off.

In: the system's disks, network and clock. Out: `ports.Outside` whose clock can be advanced, and which can be cut off at
once, as by `kill -9`. It simulates nothing else.

It leaves out syncs: written data survives the death of the process, and no test cuts the power. So a broker starts in
a few milliseconds where a drive would take tens.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stratalog.adapters.local_disk import LocalDisk
from stratalog.adapters.network import TcpListener, TcpNetwork
from stratalog.adapters.processes import ProcessWorker
from stratalog.adapters.system import SystemClock, SystemWorkers, outside
from stratalog.ports import SYSTEM_BUFFERS, Buffer, Outside, Security, SocketBuffers, Tls


class Switch:
    """Whether the broker is cut off: none of its later calls has an effect."""

    def __init__(self) -> None:
        self.cut = False

    def check(self) -> None:
        """Raise OSError once the broker is cut off."""
        if self.cut:
            raise OSError("the broker was killed")


class AdvancedClock:
    """The system's time plus the time that a test has added."""

    elapsed_ns = SystemClock.elapsed_ns

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._system = SystemClock()

    def now_ms(self) -> int:
        return self._system.now_ms() + self.ahead_ms

    def steady_ms(self) -> int:
        return self._system.steady_ms() + self.ahead_ms


class CutDisk(LocalDisk):
    """A local disk that refuses all calls once its broker is cut off, and never waits for the drive."""

    def __init__(self, root: str, switch: Switch) -> None:
        super().__init__(root)
        self._switch = switch

    def append(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        self._switch.check()
        super().append(path, position, buffers)

    def reserve(self, path: str, size: int) -> None:
        self._switch.check()
        super().reserve(path, size)

    def write_file(self, path: str, data: Buffer) -> None:
        self._switch.check()
        temporary = path + ".tmp"
        super().unlink(temporary)
        super().append(temporary, 0, [data])
        super().rename(temporary, path)

    def truncate(self, path: str, size: int) -> None:
        self._switch.check()
        super().truncate(path, size)

    def rename(self, source: str, target: str) -> None:
        self._switch.check()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._switch.check()
        super().unlink(path)

    def remove_tree(self, path: str) -> None:
        self._switch.check()
        super().remove_tree(path)

    def make_durable(
        self, files: Mapping[str, Buffer], synced: Sequence[str], synced_directories: Sequence[str]
    ) -> None:
        """Replace the files; see the module."""
        del synced, synced_directories
        for path, data in files.items():
            self.write_file(path, data)

    def sync(self, path: str) -> None:
        """Do nothing: see the module."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: see the module."""


class CutNetwork(TcpNetwork):
    """TCP that remembers its listeners and connections, to end them all at once. Once cut off it opens none."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._listeners: list[TcpListener] = []
        self._transports: list[asyncio.BaseTransport] = []

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        security: Security,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> TcpListener:
        def accept() -> asyncio.BaseProtocol:
            made = protocol()
            connected = made.connection_made

            def connection_made(transport: asyncio.BaseTransport) -> None:
                self._remember(transport)
                connected(transport)
                if self._switch.cut:  # accepted before, and the loop calls this after
                    self._abort(transport)

            made.connection_made = connection_made  # type: ignore[method-assign]
            return made

        listener = await super().listen(host, port, accept, security, buffers)
        self._listeners.append(listener)
        return listener

    async def connect(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: Tls | None = None,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        self._switch.check()
        transport, made = await super().connect(host, port, protocol, tls, buffers)
        self._remember(transport)
        if self._switch.cut:  # meanwhile
            self._abort(transport)
        return transport, made

    def _remember(self, transport: asyncio.BaseTransport) -> None:
        self._transports = [one for one in self._transports if not one.is_closing()]
        self._transports.append(transport)

    @staticmethod
    def _abort(transport: asyncio.BaseTransport) -> None:
        abort: Any = getattr(transport, "abort", transport.close)
        abort()

    async def cut(self) -> None:
        """Close every listener, and abort every connection."""
        for listener in self._listeners:
            await listener.close()
        for transport in self._transports:
            self._abort(transport)


class CutWorkers(SystemWorkers):
    """The system's threads and processes; the processes die with their broker."""

    def __init__(self) -> None:
        self._processes: list[ProcessWorker] = []

    def start_processes(self, name: str, *, background: bool = False) -> ProcessWorker:
        worker = super().start_processes(name, background=background)
        self._processes.append(worker)
        return worker

    def cut(self) -> None:
        """Kill every process."""
        for worker in self._processes:
            worker.kill()


class CutOutside:
    """The ports of one broker, from start to end."""

    def __init__(self, clock: AdvancedClock) -> None:
        self._switch = Switch()
        self._network = CutNetwork(self._switch)
        self._disks: list[CutDisk] = []
        self._workers = CutWorkers()
        system = outside()
        self.ports = Outside(
            clock=clock,
            entropy=system.entropy,
            workers=self._workers,
            network=self._network,
            disk=self._disk,
            paced_disk=system.paced_disk,
            object_store=system.object_store,
            buffer=system.buffer,
            door=system.door,
            largest_timestamp=system.largest_timestamp,
            audit_log=system.audit_log,
            token_keys=system.token_keys,
            post=system.post,
        )

    def _disk(self, root: str) -> CutDisk:
        disk = CutDisk(root, self._switch)
        self._disks.append(disk)
        return disk

    async def cut(self) -> None:
        """Behave as after `kill -9`: connections are gone, and pending writes never happen."""
        self._switch.cut = True
        await self._network.cut()
        self._workers.cut()

    def release(self) -> None:
        """Release the directories, for the next start."""
        for disk in self._disks:
            disk.close()
