"""Everything outside a node, simulated from one seed, with a trace of all that crossed.

In: a seed. Out: `ports.Outside` for nodes and clients, and `trace`: one tuple per disk change, message and object
operation, with its virtual time in microseconds. Two runs of one seed give the same trace, or something looked at
the real world.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from tests.faulty_store import cut
from tests.sim.disk import SimDisk
from tests.sim.network import SimNetwork
from tests.sim.workers import SimWorkers

from stratalog.adapters.object_store import MemoryStore
from stratalog.ports import Buffer, ObjectInfo, ObjectStore, Outside

START_MS = 1_700_000_000_000


class SimClock:
    """Wall time that moves with the loop's; `step_ms` sets it forward or back."""

    def __init__(self) -> None:
        self.step_ms = 0

    def now_ms(self) -> int:
        return self.steady_ms() + self.step_ms

    def steady_ms(self) -> int:
        return START_MS + int(asyncio.get_running_loop().time() * 1000)

    def elapsed_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1_000_000_000)


class SimEntropy:
    """Chance from the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class TracedStore:
    """A store that writes down what was done to it, with a clock that is right."""

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


class World:
    """One simulated outside. Make it on the virtual loop."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.trace: list[tuple[Any, ...]] = []
        self.clock = SimClock()
        self.network = SimNetwork(Random(random.random()), self.note)
        self.disks: dict[str, SimDisk] = {}
        self.stores: dict[str, ObjectStore] = {}
        self.chance = Random(random.random())
        self.outside = Outside(
            clock=self.clock,
            entropy=SimEntropy(Random(random.random())),
            workers=SimWorkers(Random(random.random())),
            network=self.network,
            disk=self.disk,
            object_store=self.store,
        )
        self.quickness = random.choice((0.0, 0.5, 1.0))
        """How likely a drive takes a small append at once, on the event loop."""

    def note(self, *event: Any) -> None:
        self.trace.append((round(asyncio.get_running_loop().time() * 1_000_000), *event))

    def disk(self, path: str) -> SimDisk:
        if path not in self.disks:
            self.disks[path] = SimDisk()
            self.disks[path].before = lambda operation, name: self.note(operation, path, name)
            self.disks[path].is_quick = lambda: self.chance.random() < self.quickness
        return self.disks[path]

    def store(self, url: str) -> ObjectStore:
        if url not in self.stores:
            self.stores[url] = TracedStore(MemoryStore(url), self.clock, self.note)
        return self.stores[url]
