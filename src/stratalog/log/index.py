"""The two sparse indexes of a segment, in Kafka's bytes.

In: offsets, positions and timestamps of appended batches. Out: the position to start looking at, and the index files.
It never reads a file: programs that yield `Read` search closed segments.

`.index` has entries of 8 bytes: the last offset of a batch, relative to the segment (i32), and the batch's byte
position (i32). `.timeindex` has entries of 12 bytes: the largest timestamp so far (i64), and the last relative offset
of its batch (i32). Both ascend and are big-endian. Kafka: `OffsetIndex`, `TimeIndex`.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from struct import Struct
from typing import Final

from stratalog.errors import Corrupt
from stratalog.log.effects import Program, Read

__all__ = [
    "OFFSET_ENTRY",
    "TIME_ENTRY",
    "OffsetIndex",
    "TimeIndex",
    "search_file",
]

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
_LITTLE_ENDIAN: Final = sys.byteorder == "little"
_CHUNK_ENTRIES: Final = 4096
"""A search of a file ends with one read of this many entries (32 or 48 KiB): the index of 16 MiB of log."""


class OffsetIndex:
    """The offset index of an active segment, in memory. Offsets are relative to the segment's base."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, position: int) -> None:
        """Note that the batch ending in relative `offset` lies at byte `position`."""
        self.offsets.append(offset)
        self.positions.append(position)

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Return the last entry at or below relative `offset`, as (offset, byte position), or None."""
        at = bisect_right(self.offsets, offset)
        return (self.offsets[at - 1], self.positions[at - 1]) if at else None

    def truncate(self, offset: int) -> None:
        """Forget entries at relative `offset` and above."""
        at = bisect_left(self.offsets, offset)
        del self.offsets[at:]
        del self.positions[at:]

    def encode(self) -> bytes:
        """Return the `.index` file."""
        pairs = array("i", bytes(8 * len(self.offsets)))
        pairs[0::2] = self.offsets
        pairs[1::2] = self.positions
        if _LITTLE_ENDIAN:
            pairs.byteswap()
        return pairs.tobytes()

    @classmethod
    def decode(cls, data: bytes, log_size: int) -> "OffsetIndex":
        """Decode an `.index` file; raises Corrupt where it cannot be the index of `log_size` bytes."""
        if len(data) % OFFSET_ENTRY.size:
            raise Corrupt(f"an offset index of {len(data)} bytes")
        pairs = array("i", data)
        if _LITTLE_ENDIAN:
            pairs.byteswap()
        index = cls()
        index.offsets = pairs[0::2]
        index.positions = pairs[1::2]
        _check_ascending(index.offsets, "offset index offsets")
        _check_ascending(index.positions, "offset index positions")
        if index.positions and index.positions[-1] >= log_size:
            raise Corrupt(f"an offset index points at {index.positions[-1]} of {log_size}")
        return index


class TimeIndex:
    """The time index of an active segment, in memory. Offsets are relative to the segment's base."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    def add(self, timestamp: int, offset: int) -> None:
        """Note the largest timestamp so far and the end of its batch; ignored unless it is larger than the last."""
        if timestamp < 0 or (self.timestamps and timestamp <= self.timestamps[-1]):
            return
        self.timestamps.append(timestamp)
        self.offsets.append(offset)

    def floor(self, timestamp: int) -> int:
        """Return the relative offset below which every record is older than `timestamp`; 0 without such an offset."""
        at = bisect_left(self.timestamps, timestamp)
        return self.offsets[at - 1] if at else 0

    def truncate(self, offset: int) -> None:
        """Forget entries at relative `offset` and above."""
        at = bisect_left(self.offsets, offset)
        del self.timestamps[at:]
        del self.offsets[at:]

    def encode(self) -> bytes:
        """Return the `.timeindex` file."""
        return b"".join(map(TIME_ENTRY.pack, self.timestamps, self.offsets))

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex":
        """Decode a `.timeindex` file; raises Corrupt for malformed entries."""
        if len(data) % TIME_ENTRY.size:
            raise Corrupt(f"a time index of {len(data)} bytes")
        index = cls()
        for timestamp, offset in TIME_ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        _check_ascending(index.timestamps, "time index timestamps")
        _check_ascending(index.offsets, "time index offsets")
        return index


def _check_ascending(values: "array[int]", what: str) -> None:
    if values and values[0] < 0:
        raise Corrupt(f"{what} start at {values[0]}")
    if any(later <= earlier for earlier, later in pairwise(values)):
        raise Corrupt(f"{what} do not ascend")


def search_file(path: str, size: int, entry: Struct, key: int) -> Program[tuple[int, int] | None]:
    """Return the last entry of an index file whose first field is at most `key`, or None.

    Reads a logarithm of the file: single entries until one chunk is left.
    """
    low, high = 0, size // entry.size
    while high - low > _CHUNK_ENTRIES:
        middle = (low + high) // 2
        data = yield Read(path, middle * entry.size, entry.size)
        if _entry(path, entry, data, 0)[0] <= key:
            low = middle
        else:
            high = middle
    if high == low:
        return None
    data = yield Read(path, low * entry.size, (high - low) * entry.size)
    assert isinstance(data, bytes | bytearray)
    found = bisect_right(
        range(len(data) // entry.size), key, key=lambda at: _entry(path, entry, data, at)[0]
    )
    return _entry(path, entry, data, found - 1) if found else None


def _entry(path: str, entry: Struct, data: object, at: int) -> tuple[int, int]:
    if not isinstance(data, bytes | bytearray) or len(data) < (at + 1) * entry.size:
        raise Corrupt(f"{path} is shorter than it was")
    first, second = entry.unpack_from(data, at * entry.size)
    return first, second
