"""A store that fails as real buckets do, call by call; every test of the tier's faults wraps its store in this class.

In: a store, and `fault(operation, path)`, which returns the fault of a call. Out: the same store, with its calls
counted. `tests/sim/store.py` draws random faults; `arrive` applies late effects.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, TypeVar

from msgspec.structs import replace

from stratalog.errors import Unavailable
from stratalog.ports import AlreadyExists, Buffer, ObjectInfo, ObjectStore

T = TypeVar("T")
_REMEMBERED = 16


class Fault(StrEnum):
    """The fault of a call; None for a call without a fault."""

    BEFORE = "before"
    """The call had no effect: unreachable, 503 slow-down, keys revoked, bucket deleted. One port error."""
    AFTER = "after"
    """The call had its effect, and the answer was lost."""
    LATE = "late"
    """A write that timed out and happens later, with `arrive`."""
    PARTIAL = "partial"
    """A put breaks off, and half a segment is there (what fits into one request is whole or not there); a delete
    removes half of its paths."""
    TORN = "torn"
    """A read gets only the beginning of its range."""
    WRONG = "wrong"
    """A read gets a flipped bit."""
    STALE = "stale"
    """A list as of some writes ago."""


WRITES = ("put", "put_if_absent", "delete")
READS = ("get", "get_range")
FITTING: dict[Fault, tuple[str, ...]] = {
    Fault.BEFORE: (*WRITES, *READS, "size", "list"),
    Fault.AFTER: WRITES,
    Fault.LATE: WRITES,
    Fault.PARTIAL: ("put", "delete"),
    Fault.TORN: READS,
    Fault.WRONG: READS,
    Fault.STALE: ("list",),
}
"""The calls that each fault can hit."""

FaultOf = Callable[[str, str], "Fault | str | None"]


def no_fault(_operation: str, _path: str) -> None:
    """Return no fault."""


def cut(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """One request's bytes as the ranges that were asked for."""
    for size in sizes:
        yield data[:size]
        data = data[size:]


class FaultyStore:
    """See the module. `skew_ms`: how far the store's clock is ahead. `calls`: (operation, path or paths, …)."""

    def __init__(self, store: ObjectStore, fault: FaultOf = no_fault) -> None:
        self.store = store
        self.url = store.url
        self.fault = fault
        self.skew_ms = 0
        self.calls: list[tuple[Any, ...]] = []
        self.failures = 0
        self._late: deque[Callable[[], None]] = deque()
        self._written: deque[tuple[str, ObjectInfo | None]] = deque(maxlen=_REMEMBERED)

    # ports.ObjectStore

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        data = b"".join(bytes(chunk) for chunk in chunks)
        self._write("put", path, lambda: self._put(path, data), lambda: self._half(path, data))

    def put_if_absent(self, path: str, data: Buffer) -> None:
        def put() -> None:
            self.store.put_if_absent(path, data)
            self._remember(path)

        self._write("put_if_absent", path, put, put)

    def delete(self, paths: Sequence[str]) -> None:
        def remove(some: Sequence[str]) -> None:
            self._written.extend((path, info) for path in some if (info := self._info(path)))
            self.store.delete(some)

        self._write(
            "delete",
            paths[0] if paths else "",
            lambda: remove(paths),
            lambda: remove(paths[: len(paths) // 2]),
            paths,
        )

    def get(self, path: str) -> bytes:
        return self._read("get", path, lambda: self.store.get(path))

    def get_range(self, path: str, start: int, size: int) -> bytes:
        return self._read(
            "get_range", path, lambda: bytes(self.store.get_range(path, start, size)), start, size
        )

    def get_ranges(self, path: str, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
        yield from cut(self.get_range(path, start, sum(sizes)), sizes)

    def size(self, path: str) -> int:
        self._begin("size", path)
        return self.store.size(path)

    # For tests

    def arrive(self) -> None:
        """Apply all late effects now."""
        while self._late:
            self._late.popleft()()

    def requests(self, name: str) -> "list[tuple[Any, ...]]":
        return [call for call in self.calls if call[0] == name]

    def _put(self, path: str, data: bytes) -> None:
        self.store.put(path, [data])
        self._remember(path)

    def _half(self, path: str, data: bytes) -> None:
        if path.endswith(".seg"):
            self.store.put(path, [data[: len(data) // 2]])

    def _remember(self, path: str) -> None:
        self._written.append((path, None))

    def _info(self, path: str) -> ObjectInfo | None:
        return next((info for info in self.store.list(path) if info.path == path), None)

    def _begin(self, operation: str, path: str, *arguments: Any) -> "Fault | str | None":
        self.calls.append((operation, path, *arguments))
        fault = self.fault(operation, path)
        if fault == Fault.BEFORE:
            self._fail(operation, path, "503 Slow Down")
        return fault

    def _fail(self, operation: str, path: str, how: str) -> None:
        self.failures += 1
        raise Unavailable(f"{operation} {path} in {self.url}: {how}")

    def _write(
        self,
        operation: str,
        path: str,
        whole: Callable[[], None],
        half: Callable[[], None],
        *arguments: Any,
    ) -> None:
        fault = self._begin(operation, path, *arguments)
        if fault == Fault.LATE:
            self._late.append(lambda: _once(whole))
            self._fail(operation, path, "timed out")
        if fault == Fault.PARTIAL:
            half()
            self._fail(operation, path, "broken off")
        whole()
        if fault == Fault.AFTER:
            self._fail(operation, path, "timed out")

    def _read(self, operation: str, path: str, read: Callable[[], bytes], *arguments: Any) -> bytes:
        fault = self._begin(operation, path, *arguments)
        data = read()
        if fault == Fault.TORN:
            self.failures += 1
            return data[: len(data) // 2]
        if fault == Fault.WRONG and data:
            self.failures += 1
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        fault = self._begin("list", prefix)
        found = {info.path: info for info in self.store.list(prefix)}
        if fault == Fault.STALE:
            self.failures += 1
            for path, info in reversed(self._written):
                if not path.startswith(prefix):
                    continue
                if info is None:
                    found.pop(path, None)
                else:
                    found[path] = info
        for info in found.values():
            yield replace(info, modified_ms=info.modified_ms + self.skew_ms)


def _once(write: Callable[[], None]) -> None:
    """A late conditional write changes nothing if the object exists by now."""
    with suppress(AlreadyExists):
        write()
