"""A log directory's disk that reads and writes no more than so many bytes a second.

In: a directory, a rate. Out: a disk that waits after a call where it was too quick. It is for processes beside the
broker: it takes no lock, and its waits would stop an event loop.

Kafka: `Throttler`, with which the log cleaner keeps to `log.cleaner.io.max.bytes.per.second`.
"""

import time
from collections.abc import Sequence
from typing import Final

from stratalog.adapters.local_disk import LocalDisk
from stratalog.ports import Buffer

_SHORT_S: Final = 0.01
"""A wait that is shorter is added to the next one."""


class PacedDisk(LocalDisk):
    """`LocalDisk` at `bytes_per_second`."""

    def __init__(self, root: str, bytes_per_second: float) -> None:
        super().__init__(root)
        self._bytes_per_second = bytes_per_second
        self._free_at_s = time.monotonic()

    def append(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        super().append(path, position, buffers)
        self._pace(sum(map(len, buffers)))

    def read(self, path: str, position: int, size: int) -> bytes:
        data = super().read(path, position, size)
        self._pace(len(data))
        return data

    def _pace(self, size: int) -> None:
        now_s = time.monotonic()
        self._free_at_s = max(self._free_at_s, now_s) + size / self._bytes_per_second
        if self._free_at_s - now_s > _SHORT_S:
            time.sleep(self._free_at_s - now_s)
