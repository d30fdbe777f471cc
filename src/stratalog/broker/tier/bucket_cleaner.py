"""Clean the bucket's part of compacted topics that this broker leads, in a process beside the broker.

In: the archivers of led partitions, settings. Out: objects that keep the last record of each key, in manifest versions
that the archivers commit. It decides nothing about records: `tier/writing/cleaning.py` does.

One call at a time: the dirtiest partition that is due comes first, or the one that a call left unfinished. A partition
that cannot be cleaned is set aside until it is led anew, with a line. As on the disk (`broker/partitions/cleaning.py`).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.slices import slices
from stratalog.broker.tier.bucket import ClaimedBucket
from stratalog.broker.tier.partition_archiver import PartitionArchiver
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable
from stratalog.log.cleaning.cleaner import TooFewKeys, places_for
from stratalog.log.cleaning.filtering import Horizons
from stratalog.ports import Processes, Worker
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.tier.writing.cleaning import (
    CleanedObjects,
    CleaningPlan,
    CleanLimits,
    DirtyObjects,
    clean_objects,
    dirty_objects,
)
from stratalog.tier.writing.tier_writer import ORPHAN_GRACE_MS, TierWriter

_LOOKED_AT_A_TURN: Final = 10
_WRITTEN_BYTES_MAX: Final = 4 << 30
"""Of one call: its objects are in a manifest well before a sweep may remove them, at 2.5 MB a second or more."""
_OF_MEMORY: Final = "raise log.cleaner.dedupe.buffer.size; it is tried again at once"
_OF_DAMAGE: Final = (
    "`strata tier verify` names damaged objects: put sound copies back, and restart the broker"
)


@dataclass(frozen=True, slots=True)
class _Due:
    """A cleaning to begin, or to continue at group `rewrite_from` with the keys below `noted_end`."""

    hosted: HostedPartition
    archiver: PartitionArchiver
    tier: TierWriter
    found: DirtyObjects
    noted_end: int
    rewrite_from: int = 0


class BucketCleaner:
    """The cleaner of one broker's part of the bucket. `archivers` are those of the partitions that the broker leads."""

    def __init__(
        self, bucket: ClaimedBucket, archivers: Mapping[HostedPartition, PartitionArchiver]
    ) -> None:
        self.uncleanable: dict[PartitionArchiver, str] = {}
        """The partitions that are set aside, with the reason."""
        self.passes = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self._bucket = bucket
        self._archivers = archivers
        self._config = bucket.config
        self._written_max = _WRITTEN_BYTES_MAX
        self._not_due: dict[PartitionArchiver, tuple[int, LogConfig]] = {}
        """The manifest's version and the settings with which a partition was not due."""
        self._processes: Processes | None = None
        self._log = structlog.get_logger()

    def configure(self, config: BrokerConfig) -> None:
        """Take settings that may change while the broker runs. With another memory, each partition is tried again."""
        if self._config.cleaner_memory != config.cleaner_memory:
            self.uncleanable.clear()
        self._config = config

    async def repeat(self) -> None:
        """Clean what is due, until another cluster has claimed the bucket."""
        claim = self._bucket.claim
        while not claim.is_fenced:
            is_on = self._config.bool("log.cleaner.enable") and claim.is_held
            due = await self._choose() if is_on else None
            if due is None or not await self._clean(due):
                await asyncio.sleep(self._config.int("log.cleaner.backoff.ms") / 1000)

    def kill(self) -> None:
        """End the process at once. Its objects are named by no manifest: a sweep finds them."""
        if self._processes is not None:
            self._processes.kill()

    async def _choose(self) -> _Due | None:
        """Return the dirtiest partition that is due."""
        best: _Due | None = None
        led = list(self._archivers.items())
        leading = {archiver for _, archiver in led}
        self.uncleanable = {one: why for one, why in self.uncleanable.items() if one in leading}
        self._not_due = {one: at for one, at in self._not_due.items() if one in leading}
        for part in slices(led, _LOOKED_AT_A_TURN):
            for hosted, archiver in part:
                due = await self._look(hosted, archiver)
                if due is not None and (best is None or due.found.ratio > best.found.ratio):
                    best = due
            await asyncio.sleep(0)
        return best

    async def _look(self, hosted: HostedPartition, archiver: PartitionArchiver) -> _Due | None:
        config, tier = hosted.log.config, archiver.tier
        if not (config.is_compacted and config.remote_storage_enable) or tier is None:
            return None
        if archiver in self.uncleanable or not archiver.activated.is_set() or tier.is_leaving:
            return None
        try:
            if any(tier.manifest.live_archives()):
                await archiver.unspill(tier)
        except (Corrupt, Rejected, Unavailable, Fenced) as error:
            self._log.warning("bucket not cleaned", partition=str(hosted.name), reason=str(error))
            return None
        limits = CleanLimits(
            config.min_cleanable_dirty_ratio,
            config.min_compaction_lag_ms,
            config.max_compaction_lag_ms,
        )
        manifest = tier.manifest
        if any(manifest.live_archives()) or self._not_due.get(archiver) == (
            manifest.version,
            config,
        ):
            return None
        found = dirty_objects(manifest, limits, self._bucket.outside.clock.now_ms())
        if found is None:
            if not limits.min_lag_ms and limits.max_lag_ms == LONG_MAX:  # else time makes it due
                self._not_due[archiver] = manifest.version, config
            return None
        end = found.segments[-1].entry.last_offset + 1
        return _Due(hosted, archiver, tier, found, end)

    async def _clean(self, due: _Due) -> bool:
        """Clean one partition, call by call; return whether all of it was committed."""
        name = str(due.hosted.name)
        first, rewrite_from, noted_end = due.found.first_dirty, 0, due.noted_end
        due.archiver.is_cleaning = True
        try:
            while True:
                done = await self._call(due, noted_end, rewrite_from)
                if done is None:
                    return False
                self.bytes_read += done.bytes_read
                self.bytes_written += done.bytes_written
                if done.is_complete:
                    break
                noted_end, rewrite_from = done.end_offset, done.rewritten_end
        except Rejected as error:  # it is deleted, or not led here any more
            self._log.info("bucket not cleaned", partition=name, reason=error.message)
        except (Unavailable, Fenced) as error:
            self._log.warning("bucket not cleaned", partition=name, reason=str(error))
        except Corrupt as error:
            self.uncleanable[due.archiver] = str(error)
            remedy = _OF_MEMORY if isinstance(error, TooFewKeys) else _OF_DAMAGE
            self._log.error(
                "uncleanable in the bucket", partition=name, reason=str(error), remedy=remedy
            )
        else:
            self.passes += 1
            self._log.info("bucket cleaned", partition=name, first=first, end=done.end_offset)
            return True
        finally:
            due.archiver.is_cleaning = False
        return False

    async def _call(self, due: _Due, noted_end: int, rewrite_from: int) -> CleanedObjects | None:
        """Run one call and commit its objects; None where another change of the manifest came first."""
        bucket, clock = self._bucket, self._bucket.outside.clock
        await bucket.pace.turn(sum(one.entry.data_size for one in _below(due.tier, noted_end)))
        segments = _below(due.tier, noted_end)
        plan = self._plan(due, segments, noted_end, rewrite_from)
        began_ms = clock.steady_ms()
        open_store = partial(bucket.outside.object_store, bucket.config.tier_url)
        try:
            done = await self._worker(due.hosted).submit(partial(clean_objects, open_store, plan))
        except Corrupt:
            if _are_live(due.tier, segments):
                raise
            return None  # retention dropped one of them, and the grace period is over
        until_ms = began_ms + ORPHAN_GRACE_MS // 2
        if clock.steady_ms() > until_ms:
            self._written_max = max(self._written_max // 2, 1)
            raise Unavailable("its objects were written too slowly")
        return done if await due.archiver.replace_cleaned(due.tier, done, until_ms) else None

    def _plan(
        self,
        due: _Due,
        segments: tuple[RemoteSegment, ...],
        noted_end: int,
        rewrite_from: int,
    ) -> CleaningPlan:
        bucket, log, tier = self._bucket, due.hosted.log, due.tier
        first_dirty = due.found.first_dirty
        places, keys_max = places_for(
            noted_end - first_dirty,
            self._config.int("log.cleaner.dedupe.buffer.size"),
            self._config.float("log.cleaner.io.buffer.load.factor"),
        )
        return CleaningPlan(
            folder=tier.folder,
            leader_epoch=tier.writer.leader_epoch,
            segments=segments,
            first_dirty=first_dirty,
            noted_end=noted_end,
            rewrite_from=rewrite_from,
            places=places,
            keys_max=keys_max,
            segment_bytes=log.config.segment_bytes,
            written_max=self._written_max,
            horizons=Horizons(
                bucket.outside.clock.now_ms(),
                log.config.delete_retention_ms,
                # An older record of a tombstone's key may be on the disk as long as that is not clean.
                deletable_end=max(log.local_start_offset, log.first_dirty_offset),
            ),
            has_key_filter=log.config.tier_key_filter,
            ids=tuple(bucket.outside.entropy.uuid() for _ in segments),
        )

    def _worker(self, hosted: HostedPartition) -> Worker:
        if self._bucket.config.tier_url.startswith("memory:"):
            return self._bucket.threads.copier(hosted)  # no other process sees that bucket
        if self._processes is None:
            workers = self._bucket.outside.workers
            self._processes = workers.start_processes("clean bucket", background=True)
        return self._processes


def _below(tier: TierWriter, end: int) -> tuple[RemoteSegment, ...]:
    """Return the live segments that begin below an offset, the oldest first."""
    return tuple(one for one in tier.manifest.recent() if one.entry.base_offset < end)


def _are_live(tier: TierWriter, segments: tuple[RemoteSegment, ...]) -> bool:
    """Return whether the newest manifest still names all of these."""
    live = {one.path for one in tier.manifest.recent()}
    return all(one.path in live for one in segments)
