"""Buckets by URL: a directory, this process's memory, or a cloud object store.

In: a URL; calls of `ports.ObjectStore`. Out: objects; `Unavailable`, `AlreadyExists` and `FileNotFoundError` as the
port says. It never caches an object and never waits for longer than a request and its retries.

    file:///path
    memory://name
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=…
    gs://bucket/prefix   az://container/prefix

Keys come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`) or a file that the URL names, never from the URL itself,
which is printed. Every store is thread-safe.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import unquote

from stratalog.adapters.bucket_url import split_url
from stratalog.config.shown import shown
from stratalog.errors import UserError
from stratalog.ports import AlreadyExists, Buffer, ObjectInfo, ObjectStore

__all__ = ["MemoryStore", "open_store"]

_SCHEMES: Final = "file:///path, memory://name, s3://bucket, gs://bucket, az://container"


def open_store(url: str) -> ObjectStore:
    """Return the store at `url`, without sending a request.

    Raises UserError, one line, for an unknown or malformed URL, for a URL that holds keys, and for missing keys.
    Opening one `memory://` URL twice in a process gives one store.
    """
    parts = split_url(url)
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or len(path) < 2 or "\0" in path:
            raise UserError(f"{shown(url)}: a directory is written file:///absolute/path")
        if parts.query:
            raise UserError(f"{shown(url)}: a directory has no settings; write ? as %3F in a path")
        # Imported here so that a broker without a bucket starts without this code; likewise below.
        from stratalog.adapters.directory_store import DirectoryStore  # noqa: PLC0415

        return DirectoryStore(path)
    if parts.scheme == "memory":
        with _memories_guard:
            return _memories.setdefault(url, MemoryStore(url))
    if parts.scheme in ("s3", "gs", "az"):
        from stratalog.adapters.cloud_store import CloudStore  # noqa: PLC0415

        return CloudStore(url)
    raise UserError(f"{shown(url)!r} is no bucket: one of {_SCHEMES}")


class MemoryStore:
    """Objects in this process's memory, for tests. No other process sees them."""

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._guard = threading.Lock()

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        data = b"".join(chunks)
        with self._guard:
            self._objects[path] = (data, time.time_ns() // 1_000_000)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        with self._guard:
            if path in self._objects:
                raise AlreadyExists(path)
            self._objects[path] = (bytes(data), time.time_ns() // 1_000_000)

    def get(self, path: str) -> bytes:
        try:
            return self._objects[path][0]
        except KeyError:
            raise FileNotFoundError(path) from None

    def get_range(self, path: str, start: int, size: int) -> bytes:
        return self.get(path)[start : start + size]

    def get_ranges(self, path: str, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
        for size in sizes:
            yield self.get_range(path, start, size)
            start += size

    def size(self, path: str) -> int:
        return len(self.get(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._guard:
            objects = sorted(self._objects.items())
        for path, (data, modified_ms) in objects:
            if path.startswith(prefix):
                yield ObjectInfo(path, len(data), modified_ms)

    def delete(self, paths: Sequence[str]) -> None:
        with self._guard:
            for path in paths:
                self._objects.pop(path, None)


_memories: Final[dict[str, MemoryStore]] = {}
_memories_guard: Final = threading.Lock()
