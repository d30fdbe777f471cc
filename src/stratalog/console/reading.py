"""Read a few records of a topic: forward from positions, or the newest ones below positions.

In: positions by partition, a filter, limits. Out: rows, and the positions after and before them. A read is bounded in
rows, bytes and time, and says which bound ended it. It never holds up another page: it has connections of its own, and
a thread decodes. A bucket that cannot be read costs a page one attempt: the broker is asked instead.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stratalog.client.aio import Client
from stratalog.console.history import Batches, History
from stratalog.errors import Corrupt, Unavailable, UserError
from stratalog.ports import Worker
from stratalog.wire.finding import records_in
from stratalog.wire.records import Record

__all__ = ["BUCKET", "BUCKET_BY_BROKER", "DISK", "Found", "Reading", "Row", "oldest_first"]

DISK, BUCKET, BUCKET_BY_BROKER = "disk", "bucket", "bucket, by the broker"
"""Where a record was read: a broker's disk; the bucket, directly; the bucket, through the broker."""

_FETCH_BYTES: Final = 512 << 10
_LOOKED_AT_ONCE: Final = 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """A record, its partition, and where it was read."""

    partition: int
    record: Record
    source: str


@dataclass(slots=True)
class Found:
    """The result of a read, and how far it came in each partition."""

    rows: list[Row] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    """By partition: the first offset that was not looked at."""
    looked: int = 0
    read_bytes: int = 0
    ended_by: str = ""
    """The bound that ended the read early: bytes or time; empty where it came to its ends."""
    bucket_error: str = ""
    """Why the bucket could not be read directly; empty where it could, or was not asked."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads one topic. `local_starts`: by partition, the first offset on its leader's disk."""

    topic: str
    client: Client
    history: History | None
    decoding: Worker
    local_starts: Mapping[int, int]
    matches: Callable[[Record], bool]
    bytes_max: int
    seconds_max: float

    async def read(
        self, positions: Mapping[int, int], ends: Mapping[int, int], rows_max: int
    ) -> Found:
        """Return up to `rows_max` matching records of each partition, from its position up to its end.

        Partitions take turns, so that a bound leaves none out. Raises Rejected, Unavailable, Corrupt.
        """
        found = Found(positions=dict(positions))
        now = asyncio.get_running_loop().time
        until_s = now() + self.seconds_max
        left = {index: rows_max for index, offset in positions.items() if offset < ends[index]}
        while left:
            for index in list(left):
                if found.read_bytes >= self.bytes_max:
                    found.ended_by = "bytes"
                    return found
                if now() >= until_s:
                    found.ended_by = "time"
                    return found
                rows, next_offset = await self._some(found, index, ends[index], left[index])
                found.rows += rows
                left[index] -= len(rows)
                if next_offset == found.positions[index]:  # nothing is there yet
                    next_offset = ends[index]
                found.positions[index] = min(next_offset, ends[index])
                if left[index] <= 0 or found.positions[index] >= ends[index]:
                    del left[index]
        return found

    async def _some(
        self, found: Found, index: int, end: int, rows_max: int
    ) -> tuple[list[Row], int]:
        """Return matching rows of the next batches of a partition, and the first offset not looked at."""
        offset = found.positions[index]
        source, data, aborted = DISK, memoryview(b""), list[tuple[int, int]]()
        behind = offset
        if offset < self.local_starts.get(index, 0):
            source = BUCKET_BY_BROKER
            batches = await self._from_bucket(found, index, offset)
            if batches is not None:
                source, data, aborted = BUCKET, batches.records, batches.aborted
                behind = batches.next_offset if not data else offset
        if source != BUCKET:
            fetched = await self.client.fetch(
                self.topic, index, offset, max_bytes=_FETCH_BYTES, max_wait_ms=0
            )
            data, aborted = fetched.records, list(fetched.aborted)
        found.read_bytes += len(data)

        def decode() -> tuple[list[Record], int, int]:
            return self._decoded(data, aborted, (offset, end), rows_max)

        records, next_offset, looked = await self.decoding.submit(decode)
        found.looked += looked
        return [Row(index, record, source) for record in records], max(next_offset, behind)

    async def _from_bucket(self, found: Found, index: int, offset: int) -> Batches | None:
        """Return batches that the bucket has; None where it has none, or cannot be read."""
        if self.history is None or found.bucket_error:
            return None
        try:
            return await self.history.batches(self.topic, index, offset, _FETCH_BYTES)
        except (Unavailable, Corrupt, UserError, OSError) as error:
            found.bucket_error = str(error)
            return None

    def _decoded(
        self,
        data: memoryview,
        aborted: list[tuple[int, int]],
        offsets: tuple[int, int],
        rows_max: int,
    ) -> tuple[list[Record], int, int]:
        start, end = offsets
        kept: list[Record] = []
        next_offset, looked = start, 0
        for after, record in records_in(data, start, aborted):
            if record is not None:
                if record.offset >= end:
                    return kept, end, looked
                looked += 1
                if self.matches(record):
                    kept.append(record)
            next_offset = max(next_offset, after)
            if len(kept) >= rows_max or looked >= _LOOKED_AT_ONCE:
                break
        return kept, next_offset, looked


def oldest_first(row: Row) -> tuple[int, int, int]:
    """Return the order of rows: by time, then by partition and offset."""
    return row.record.timestamp, row.partition, row.record.offset
