"""Read one partition's history: find the segment in the manifest, and read it from the bucket.

In: a hosted partition, an offset or a timestamp. Out: batches, or an offset with its timestamp. It bounds and paces
nothing: `remote_reads.py` does.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.tier.partition_archiver import PartitionArchiver
from stratalog.broker.tier.remote_reads import RemoteReads, slices_below
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.reading import Slices
from stratalog.tier.reading.followed_lookup import FollowedLookup
from stratalog.tier.reading.lookup import SegmentLookup
from stratalog.tier.writing.tier_writer import TierWriter

_ACTIVATION_S: Final = 5.0
"""How long a reader waits for a manifest right after a start, before it gets a retriable error."""


class History:
    """The history of one broker's partitions. `archivers` is complete once `started` is set."""

    def __init__(
        self,
        archivers: Mapping[HostedPartition, PartitionArchiver],
        started: asyncio.Event,
        reads: RemoteReads,
        followed: Callable[[HostedPartition], FollowedLookup],
    ) -> None:
        """`followed` returns a lookup for a partition that another broker leads."""
        self._new_lookup = followed
        self._lookups: dict[HostedPartition, FollowedLookup] = {}
        self._archivers = archivers
        self._started = started
        self._reads = reads

    async def read(
        self,
        hosted: HostedPartition,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        minimum_one_batch: bool = True,
    ) -> Slices:
        """Return batches from the bucket; none if the read takes too long (`remote_reads.py`).

        Raises Rejected: OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, and retriable codes.
        """
        lookup = await self._lookup(hosted)
        segment = lookup.at_if_loaded(offset)
        if segment is None:
            segment = await self._reads.find(hosted, partial(lookup.at, offset))
        if segment is None:
            raise Rejected(
                ErrorCode.offset_out_of_range, f"{hosted.name}: {offset} is not in the bucket"
            )
        found = await self._reads.batches(
            hosted, segment, offset, max_bytes, minimum_one=minimum_one_batch
        )
        hosted.metrics.remote_reads += 1
        hosted.metrics.remote_bytes += found.size
        if found.next_offset > end_offset:
            found = slices_below(found, end_offset)
        if found.buffers:
            self._reads.progress(hosted, lookup, offset, found.next_offset, found.size)
        return found

    async def offset_for_timestamp(
        self, hosted: HostedPartition, timestamp: int
    ) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record in the bucket at or after `timestamp`, or None.

        Raises Rejected as `read` does.
        """
        tier = await self._tier(hosted)
        start = hosted.log.log_start_offset
        while True:
            search = partial(tier.lookup.at_timestamp, timestamp, start)
            segment = await self._reads.find(hosted, search, search=True)
            if segment is None:
                return None
            found = await self._reads.search(hosted, segment, timestamp, start)
            if found is not None:
                return found
            start = segment.entry.last_offset + 1  # its latest record is too old

    async def max_timestamp(self, hosted: HostedPartition) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the bucket's latest record by timestamp, from the log's start on.

        Raises Rejected as `read` does.
        """
        tier = await self._tier(hosted)
        start = hosted.log.log_start_offset
        best: tuple[int, int] | None = None
        while True:
            look = partial(tier.lookup.at_max_timestamp, start)
            segment = await self._reads.find(hosted, look, search=True)
            if segment is None or (best is not None and segment.entry.max_timestamp <= best[1]):
                return best
            found = await self._reads.latest(hosted, segment, start)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
            if found is not None and found[1] == segment.entry.max_timestamp:
                return best
            # The record was deleted below `start`; a segment behind may have a later one than this segment's rest.
            start = segment.entry.last_offset + 1

    def writer(self, hosted: HostedPartition) -> TierWriter | None:
        """Return the writer of the partition's tier, or None until its manifest is read."""
        archiver = self._archivers.get(hosted)
        return archiver.tier if archiver is not None and archiver.activated.is_set() else None

    def forget(self, hosted: HostedPartition) -> None:
        """Drop what readers of the partition need: its role has changed, or it was deleted."""
        self._lookups.pop(hosted, None)
        self._reads.forget(hosted)

    async def _lookup(self, hosted: HostedPartition) -> SegmentLookup | FollowedLookup:
        if hosted.replica.leads:
            return (await self._tier(hosted)).lookup
        found = self._lookups.get(hosted)
        if found is None:
            found = self._lookups[hosted] = self._new_lookup(hosted)
        return found

    async def _tier(self, hosted: HostedPartition) -> TierWriter:
        """Return the partition's tier; after a start, wait a bounded time for its manifest.

        Raises Rejected(REPLICA_NOT_AVAILABLE), which clients retry: the bucket's records are not lost.
        """
        tier = self.writer(hosted)
        if tier is None:
            try:
                async with asyncio.timeout(_ACTIVATION_S):
                    await self._started.wait()
                    archiver = self._archivers.get(hosted)
                    if archiver is not None:
                        await archiver.activated.wait()
                        tier = archiver.tier
            except TimeoutError:
                pass
        hosted.check_hosted()
        if tier is None:
            raise Rejected(
                ErrorCode.replica_not_available, f"{hosted.name}: its manifest is not read yet"
            )
        return tier
