"""Read a partition, from its local log and from the bucket.

In: a hosted partition and an offset or a timestamp. Out: slices of records, or offsets. It never writes.

Kafka: `ReplicaManager.read`, `DelayedRemoteFetch`, `RemoteLogManager.findOffsetByTimestamp`.
"""

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.reading import NotLocal, Slices
from stratalog.log.segment import Segment
from stratalog.log.transaction_index import overlapping
from stratalog.wire.batch import HEADER_SIZE, scan

if TYPE_CHECKING:
    from stratalog.broker.tier.history import History

_ATTEMPTS_MAX: Final = 5
_BARE_MAX: Final = 100
"""Batches or segments without records that one read passes over."""


class Reads:
    """The reads of one broker. `history` is None without a bucket."""

    def __init__(self, history: "History | None") -> None:
        self._history = history

    def read(
        self,
        hosted: HostedPartition,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        minimum_one_batch: bool,
        from_file: bool = False,
    ) -> Slices | Awaitable[Slices]:
        """Read as `HostedPartition.read` does; records that left the local disk come from the bucket."""
        try:
            found = hosted.read(
                offset,
                max_bytes,
                end_offset=end_offset,
                minimum_one_batch=minimum_one_batch,
                from_file=from_file,
            )
        except NotLocal:
            span = (offset, max_bytes, end_offset)
            cold = self._tiered(
                self._tier(hosted), hosted, span, minimum_one_batch=minimum_one_batch
            )
            return self._past_bare(hosted, cold, span, minimum_one_batch=minimum_one_batch)
        if isinstance(found, Slices):
            return found
        span = (offset, max_bytes, end_offset)
        local = self._or_tiered(hosted, found, span, minimum_one_batch=minimum_one_batch)
        return self._past_bare(hosted, local, span, minimum_one_batch=minimum_one_batch)

    async def _past_bare(
        self,
        hosted: HostedPartition,
        cold: Awaitable[Slices],
        span: tuple[int, int, int],
        *,
        minimum_one_batch: bool,
    ) -> Slices:
        """Read on behind batches that a cleaning left as headers alone.

        librdkafka takes an answer without any record for a limit that is too small. It doubles the limit each time, and
        fails with MSG_SIZE_TOO_LARGE once that is a gigabyte.
        """
        found = await cold
        end_offset = span[2]
        for _ in range(_BARE_MAX):
            if not _is_bare(found) or found.next_offset >= end_offset:
                break
            try:
                behind = await self._once(
                    hosted, found.next_offset, span, minimum_one_batch=minimum_one_batch
                )
            except Rejected:
                break  # the reader asks for that offset next
            if not behind.buffers:
                break
            found = behind
        return found

    async def _once(
        self,
        hosted: HostedPartition,
        offset: int,
        span: tuple[int, int, int],
        *,
        minimum_one_batch: bool,
    ) -> Slices:
        """Read at `offset`, from the place that has it, and not past bare batches."""
        _, max_bytes, end_offset = span
        span = (offset, max_bytes, end_offset)
        try:
            found = hosted.read(
                offset, max_bytes, end_offset=end_offset, minimum_one_batch=minimum_one_batch
            )
        except NotLocal:
            return await self._tiered(
                self._tier(hosted), hosted, span, minimum_one_batch=minimum_one_batch
            )
        if isinstance(found, Slices):
            return found
        return await self._or_tiered(hosted, found, span, minimum_one_batch=minimum_one_batch)

    def read_committed(
        self,
        hosted: HostedPartition,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        minimum_one_batch: bool,
        from_file: bool = False,
    ) -> Slices | Awaitable[Slices]:
        """Read as `read` does, with the aborted transactions among the batches."""
        # Retention and the cleaner may take these segments away before the batches are read.
        segments = hosted.log.segments_from(offset)
        found = self.read(
            hosted,
            offset,
            max_bytes,
            end_offset,
            minimum_one_batch=minimum_one_batch,
            from_file=from_file,
        )
        if isinstance(found, Slices):
            return _with_aborted(found, segments)
        return self._when_read(found, segments)

    async def _when_read(self, found: Awaitable[Slices], segments: list[Segment]) -> Slices:
        return _with_aborted(await found, segments)

    async def _or_tiered(
        self,
        hosted: HostedPartition,
        local: Awaitable[Slices],
        span: tuple[int, int, int],
        *,
        minimum_one_batch: bool,
    ) -> Slices:
        try:
            return await local
        except NotLocal:  # local retention deleted it while the read waited for the drive
            return await self._tiered(
                self._tier(hosted), hosted, span, minimum_one_batch=minimum_one_batch
            )

    async def _tiered(
        self,
        history: "History",
        hosted: HostedPartition,
        span: tuple[int, int, int],
        *,
        minimum_one_batch: bool,
    ) -> Slices:
        """Read from the bucket. A segment may have no batch at its end, where a power cut took records that were not
        synced: continue behind it, as a local read does.
        """
        offset, max_bytes, end_offset = span
        found = await history.read(
            hosted, offset, max_bytes, end_offset, minimum_one_batch=minimum_one_batch
        )
        if found.buffers or not offset < found.next_offset < end_offset:
            return found
        behind = self.read(
            hosted, found.next_offset, max_bytes, end_offset, minimum_one_batch=minimum_one_batch
        )
        return behind if isinstance(behind, Slices) else await behind

    def _tier(self, hosted: HostedPartition) -> "History":
        if self._history is None:
            raise Rejected(
                ErrorCode.kafka_storage_error,
                f"{hosted.name} is in a bucket; tier.url is not set",
            )
        return self._history

    async def offset_for_timestamp(
        self, hosted: HostedPartition, timestamp: int
    ) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after `timestamp`, in the bucket or on disk; or None.

        Raises `Rejected`, retriable where the bucket does not answer: an answer from the disk alone would be wrong.
        """
        for _ in range(_ATTEMPTS_MAX):
            log = hosted.log
            start = log.local_start_offset
            if log.log_start_offset < start:
                found = await self._tier(hosted).offset_for_timestamp(hosted, timestamp)
                if found is not None:
                    return found
            local = await hosted.look(partial(log.offset_for_timestamp, timestamp))
            if log.local_start_offset == start:
                return None if local is None else (local[0], local[1])
        raise Rejected(ErrorCode.leader_not_available, f"{hosted.name}: retention is under way")

    async def max_timestamp(self, hosted: HostedPartition) -> tuple[int, int]:
        """Return (offset, timestamp) of the record with the latest timestamp; (-1, -1) for an empty log."""
        log = hosted.log
        local = await hosted.look(log.latest_record)
        found = (-1, -1) if local is None else (local[0], local[1])
        if log.log_start_offset < log.local_start_offset:
            tiered = await self._tier(hosted).max_timestamp(hosted)
            if tiered is not None and tiered[1] >= found[1]:
                return tiered
        return found


def _is_bare(found: Slices) -> bool:
    """Return whether there are batches, and none has a record."""
    size = found.size
    if not size or size % HEADER_SIZE or size > _BARE_MAX * HEADER_SIZE:
        return False
    return all(header.size == HEADER_SIZE for buffer in found.buffers for _, header in scan(buffer))


def _with_aborted(found: Slices, segments: list[Segment]) -> Slices:
    """Return batches with their aborted transactions; those from the bucket have them already."""
    if found.aborted is not None or not any(one.transaction_index for one in segments):
        return found
    aborted = overlapping(segments, found.first_offset, found.next_offset)
    return replace(found, aborted=[(one.producer_id, one.first_offset) for one in aborted])
