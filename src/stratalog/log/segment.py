"""One segment of a partition: a `.log` file, its indexes, and their state in memory.

In: headers of appended batches. Out: index entries, file effects. It never decides offsets, nor when a new segment
begins.

Two sizes differ: `size` and `next_offset` are decided and run ahead of the disk; `readable` bytes are written and may
be read. Only the active segment has its index arrays in memory, and a closed one until its index files are written.
After that, reads search the files.
"""

from stratalog.config import LogConfig
from stratalog.log.effects import Append, Effect, Reserve, Sync, Truncate
from stratalog.log.index import OffsetIndex, TimeIndex
from stratalog.log.transaction_index import Aborted

__all__ = [
    "CLEANED",
    "DELETED",
    "INDEX",
    "LOG",
    "RELATIVE_OFFSET_MAX",
    "SNAPSHOT",
    "SWAP",
    "TIME_INDEX",
    "TRANSACTION_INDEX",
    "Segment",
    "segment_path",
]

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
RELATIVE_OFFSET_MAX = 2**31 - 1


def segment_path(directory: str, offset: int, suffix: str) -> str:
    """Return the path of one of a segment's files."""
    return f"{directory}/{offset:020}{suffix}"


class Segment:
    """Mutable. Offsets are absolute, sizes in bytes, times in epoch milliseconds (-1 for none).

    `first_timestamp` is the largest timestamp of the first batch, from which rolling counts (Kafka:
    `LogSegment.rollingBasedTimestamp`); Without timestamps in records, `created_ms` replaces it for rolling, and
    `touched_ms`, the time of the last append here, for the segment's age. `is_time_confirmed` is False while the
    largest timestamp comes from an index file alone. `transaction_index` has the bytes of the `.txnindex` file, which
    exists once there are some.
    """

    __slots__ = (
        "base_offset",
        "created_ms",
        "directory",
        "first_append_ms",
        "first_timestamp",
        "index",
        "index_size",
        "is_time_confirmed",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "path",
        "readable",
        "since_index",
        "size",
        "time_index",
        "time_index_size",
        "touched_ms",
        "transaction_index",
    )

    def __init__(self, directory: str, base_offset: int, now_ms: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, LOG)
        self.size = 0
        self.readable = 0
        self.next_offset = base_offset
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.is_time_confirmed = True
        self.created_ms = now_ms
        self.first_append_ms = now_ms
        self.touched_ms = now_ms
        self.since_index = 0
        self.index: OffsetIndex | None = OffsetIndex()
        self.time_index: TimeIndex | None = TimeIndex()
        self.index_size = 0
        self.time_index_size = 0
        self.transaction_index = bytearray()

    @property
    def index_path(self) -> str:
        return segment_path(self.directory, self.base_offset, INDEX)

    @property
    def time_index_path(self) -> str:
        return segment_path(self.directory, self.base_offset, TIME_INDEX)

    @property
    def transaction_index_path(self) -> str:
        return segment_path(self.directory, self.base_offset, TRANSACTION_INDEX)

    def age_ms(self, now_ms: int, wall_ms: int) -> int:
        """Return the age for retention by time: since the records' largest timestamp, else since the last append."""
        if self.max_timestamp >= 0:
            return wall_ms - self.max_timestamp
        return now_ms - self.touched_ms

    def add(
        self, last_offset: int, next_offset: int, size: int, timestamp: int, interval: int
    ) -> None:
        """Note an appended batch: its last offset and largest timestamp; `interval` is the distance of index entries in
        bytes.
        """
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        position = self.size
        if position == 0:
            self.first_timestamp = timestamp
        if self.since_index > interval:
            assert self.index is not None
            assert self.time_index is not None, "a closed segment does not grow"
            base = self.base_offset
            self.index.add(last_offset - base, position)
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset - base)
            self.since_index = 0
        self.since_index += size
        self.size = position + size
        self.next_offset = next_offset

    def add_aborted(self, aborted: Aborted) -> Effect:
        """Note an aborted transaction whose marker is here; return the effect that writes it."""
        position = len(self.transaction_index)
        entry = aborted.encode()
        self.transaction_index += entry
        return Append(self.transaction_index_path, position, (entry,))

    def skip_to(self, position: int, offset: int) -> None:
        """Continue behind unreadable bytes, at the batch at `position` that begins at `offset`."""
        self.size = position
        self.next_offset = offset

    def begin(self, config: LogConfig, now_ms: int) -> list[Effect]:
        """Return the effects before the segment's first append."""
        self.first_append_ms = now_ms
        return [Reserve(self.path, config.segment_bytes)] if config.preallocate else []

    def close(self, config: LogConfig) -> list[Effect]:
        """Return the effects of `seal`, and of releasing reserved room that was not used."""
        unused = [Truncate(self.path, self.size)] if config.preallocate else []
        return [*unused, *self.seal()]

    def seal(self) -> list[Effect]:
        """Close the segment for appends; return the effects that write its index files. Call `drop_indexes` once they
        are performed.
        """
        assert self.index is not None
        assert self.time_index is not None, "sealed once"
        self.time_index.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        index, time_index = self.index.encode(), self.time_index.encode()
        self.index_size, self.time_index_size = len(index), len(time_index)
        return [
            Append(self.index_path, 0, (index,)),
            Append(self.time_index_path, 0, (time_index,)),
        ]

    def sync(self, *, closed: bool) -> list[Effect]:
        """Return the effects that make its files durable; for a closed segment also its indexes."""
        if not closed:
            return [Sync(self.path)]
        return [
            Sync(segment_path(self.directory, self.base_offset, one))
            for one in self.file_suffixes()
        ]

    def drop_indexes(self) -> None:
        """Drop the indexes in memory: from now on reads search the files."""
        self.index = None
        self.time_index = None

    def file_suffixes(self) -> list[str]:
        """Return the suffixes of a closed segment's files, the log first."""
        suffixes = [LOG, INDEX, TIME_INDEX]
        if self.transaction_index:
            suffixes.append(TRANSACTION_INDEX)
        return suffixes
