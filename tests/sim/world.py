"""Hosts, the network between them and buckets, simulated from one seed, with a trace of all that crossed.

In: a seed. Out: for each host `ports.Outside` with its own disks, clock and chance; and `trace`: one tuple per disk
change, message and object operation, with its virtual time in microseconds. Two runs of one seed give the same trace,
also in another process, or something looked at the real world.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID

from msgspec.structs import replace
from tests.faulty_store import cut
from tests.sim.disk import SimDisk
from tests.sim.door import PythonDoor
from tests.sim.network import LOCAL, SimNetwork
from tests.sim.workers import SimWorkers

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Unavailable
from stratalog.ports import Buffer, ObjectInfo, ObjectStore, Outside, TokenKeys

START_MS = 1_700_000_000_000


class SimClock:
    """Clocks of a host that move with the loop's time.

    `step_ms` sets the wall clock forward or back. `rate` is the speed of all clocks, and `zero_ms` what the steady one
    showed at the loop's beginning: hosts that booted at different times differ in it.
    """

    def __init__(self) -> None:
        self.step_ms = 0
        self.rate = 1.0
        self.zero_ms = START_MS

    def now_ms(self) -> int:
        return START_MS + self._passed_ms() + self.step_ms

    def steady_ms(self) -> int:
        return self.zero_ms + self._passed_ms()

    def elapsed_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * self.rate * 1_000_000_000)

    def _passed_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * self.rate * 1000)


class SimAudit:
    """An audit file in memory, without a bound."""

    lines_dropped = 0

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def write(self, line: str, _holder: Hashable) -> None:
        self._lines.append(line)

    def close(self) -> None:
        """Nothing waits."""


class SimEntropy:
    """Chance from the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class TracedStore:
    """A store that records its operations, with a correct clock."""

    def __init__(self, store: MemoryStore, clock: SimClock, trace: Callable[..., None]) -> None:
        self.url = store.url
        self._store = store
        self._clock = clock
        self._trace = trace
        self._modified_ms: dict[str, int] = {}

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        data = b"".join(bytes(chunk) for chunk in chunks)
        self._trace("put", path, len(data))
        self._store.put(path, [data])
        self._modified_ms[path] = self._clock.steady_ms()

    def put_if_absent(self, path: str, data: Buffer) -> None:
        self._trace("put_if_absent", path, len(data))
        self._store.put_if_absent(path, data)
        self._modified_ms[path] = self._clock.steady_ms()

    def get(self, path: str) -> bytes:
        self._trace("get", path)
        return self._store.get(path)

    def get_range(self, path: str, start: int, size: int) -> bytes:
        self._trace("get_range", path, start, size)
        return self._store.get_range(path, start, size)

    def get_ranges(self, path: str, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
        yield from cut(self.get_range(path, start, sum(sizes)), sizes)

    def size(self, path: str) -> int:
        return self._store.size(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._trace("list", prefix)
        for info in self._store.list(prefix):
            yield replace(info, modified_ms=self._modified_ms[info.path])

    def delete(self, paths: Sequence[str]) -> None:
        self._trace("delete", *paths)
        self._store.delete(paths)


class Host:
    """One computer: its disks by path, its clock, its chance. Its processes are a `Machine`'s."""

    def __init__(self, world: "World", name: str, random: Random) -> None:
        self.name = name
        self.clock = SimClock()
        self.disks: dict[str, SimDisk] = {}
        self.audits: dict[str, list[str]] = {}
        """The lines of each audit file."""
        self.stalled_until_s = 0.0
        """The loop's time until which no call of a drive ends."""
        self._world = world
        self.outside = Outside(
            clock=self.clock,
            entropy=SimEntropy(Random(random.random())),
            workers=SimWorkers(Random(random.random())),
            network=world.network,
            disk=self.disk,
            paced_disk=lambda path, _bytes_per_second: self.disk(path),
            object_store=world.store,
            door=world.open_door,
            audit_log=lambda path, _bytes_max, _files: SimAudit(self.audits.setdefault(path, [])),
            token_keys=_no_keys,
            post=world.post,
        )

    def disk(self, path: str) -> SimDisk:
        if path not in self.disks:
            disk = self.disks[path] = SimDisk(keeps_order=self._world.disks_keep_order)
            place = path if self.name == LOCAL else f"{self.name}:{path}"
            disk.before = lambda operation, name: self._world.note(operation, place, name)
            disk.is_quick = self._is_quick
        return self.disks[path]

    def _is_quick(self) -> bool:
        answers = asyncio.get_running_loop().time() >= self.stalled_until_s
        return answers and self._world.chance.random() < self._world.quickness


def _no_keys(url: str) -> TokenKeys:
    raise Unavailable(f"{url}: the simulator has no issuer of tokens")


class World:
    """All hosts of one simulation. Make it on the virtual loop.

    A story's clients run on no host. `clock`, `disks`, `disk` and `outside` are those of the host `127.0.0.1`.
    """

    def __init__(self, seed: int, *, disks_keep_order: bool = True) -> None:
        random = Random(seed)
        self.disks_keep_order = disks_keep_order
        """As `SimDisk.keeps_order`."""
        self.doors: list[PythonDoor] = []
        self.posts: list[tuple[str, bytes]] = []
        self.post_statuses: list[int] = []
        self.trace: list[tuple[Any, ...]] = []
        self.network = SimNetwork(Random(random.random()), self.note)
        self.stores: dict[str, ObjectStore] = {}
        self.chance = Random(random.random())
        self._hosts = {LOCAL: Host(self, LOCAL, random)}
        self.quickness = random.choice((0.0, 0.5, 1.0))
        """Probability that a drive accepts a small append at once, on the event loop."""
        local = self.host(LOCAL)
        self.clock, self.disks, self.disk, self.outside = (
            local.clock,
            local.disks,
            local.disk,
            local.outside,
        )

    def host(self, name: str) -> Host:
        if name not in self._hosts:
            self._hosts[name] = Host(self, name, self.chance)
        return self._hosts[name]

    def post(self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> int:
        """Answer a POST of any host with the next of `post_statuses`; 0 is no answer."""
        del headers, timeout_s
        self.posts.append((url, body))
        status = self.post_statuses.pop(0) if self.post_statuses else 200
        if not status:
            raise Unavailable(f"{url}: no answer")
        return status

    def open_door(self) -> PythonDoor:
        self.doors.append(PythonDoor())
        return self.doors[-1]

    def note(self, *event: Any) -> None:
        self.trace.append((round(asyncio.get_running_loop().time() * 1_000_000), *event))

    def store(self, url: str) -> ObjectStore:
        if url not in self.stores:
            self.stores[url] = TracedStore(MemoryStore(url), self.clock, self.note)
        return self.stores[url]
