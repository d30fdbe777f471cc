"""Keep one led partition's part of the bucket up to date, one cycle at a time.

In: the partition, its tier, the workers to run them on. Out: closed segments in the bucket, local copies that may be
deleted, objects that retention expires. It never blocks the event loop, and decides nothing about formats: `tier`
does.

A cycle takes the manifest over (once per leadership), syncs and uploads closed segments, applies local retention, and
expires and removes objects. If the tier was removed from the topic (KIP-950), it drops all objects from the manifest,
and removes them after the grace period.
"""

import asyncio
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.survey import TIER_MANIFEST
from stratalog.broker.tier.activation import activate
from stratalog.broker.tier.bucket import ClaimedBucket
from stratalog.errors import Corrupt, ErrorCode, Fenced, Rejected, Unavailable
from stratalog.log.archiving import closed_segments, segment_parts
from stratalog.log.effects import Unlink, WriteFile
from stratalog.log.values import SegmentInfo
from stratalog.ports import Disk
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.writing.archiver import ClosedSegment, PartitionFolder
from stratalog.tier.writing.cleaning import CleanedObjects
from stratalog.tier.writing.merging import MergeLimits
from stratalog.tier.writing.tier_writer import Retention, TierWriter, exists

_CHUNK_BYTES: Final = 1 << 20
_SEGMENTS_PER_COMMIT: Final = 8
_SNAPSHOT_BYTES_MAX: Final = 64 << 20


class PartitionArchiver:
    """One led partition and its share of the bucket."""

    def __init__(self, bucket: ClaimedBucket, hosted: HostedPartition) -> None:
        key = hosted.key
        self.tier: TierWriter | None = None
        """The writer of the present leadership, once a cycle has activated one."""
        self.activated = asyncio.Event()
        """Set once `tier` is of a log that continues it: from then on the bucket can be read by offset."""
        self.is_cleaning = False
        """Whether a cleaning reads the objects that the manifest names: none may be merged meanwhile."""
        self._turn = asyncio.Lock()
        """Of whatever commits a version: a cycle, or a cleaning."""
        self._bucket = bucket
        self._hosted = hosted
        self._folder = PartitionFolder(bucket.cluster_id, key.topic_id, hosted.name.partition)
        self._active = (-1, False)
        self._withdrawn = False
        self._damage: AbstractSet[str] = frozenset()
        self._looked_to_merge = (-1, MergeLimits(0, 0))
        self._backoff = bucket.backoff()
        self._running = False
        self._again = False
        self._fenced = False
        self._resigned = False
        self._ended = asyncio.Event()
        self._ended.set()
        self._log = structlog.get_logger().bind(partition=str(hosted.name))

    def wants_cycle(self) -> bool:
        """Return whether to start `run` now; one that runs already will make another round."""
        if self._running:
            self._again = True
            return False
        is_done = self._withdrawn and not self._hosted.log.config.remote_storage_enable
        if self._fenced or self._resigned or is_done:
            return False
        self._running = True
        self._ended.clear()
        return True

    def activate_again(self) -> None:
        """Activate in the next cycle: the bucket was replaced, and has neither the topic nor a manifest."""
        self._active = (-1, False)

    @property
    def is_running(self) -> bool:
        """Whether a cycle runs, which may still upload objects."""
        return not self._ended.is_set()

    def resign(self) -> None:
        """Start no more steps: this broker no longer leads the partition. A running cycle ends after its step."""
        self._resigned = True

    async def ended(self) -> None:
        """Wait until no cycle runs. After `resign`, this broker then uploads nothing more of the partition."""
        await self._ended.wait()

    async def run(self) -> None:
        """Run cycles until nothing is left to do. After a failure, wait for the backoff, which grows with each failure:
        the bucket may be down because of its load.
        """
        try:
            self._again = True
            while self._again and not (self._fenced or self._resigned):
                self._again = False
                self._ended.clear()
                if await self._attempt():
                    self._backoff.succeeded()
                else:
                    self._ended.set()
                    await asyncio.sleep(self._backoff.failed())
                    self._again = True
        finally:
            self._running = False
            self._ended.set()

    async def _attempt(self) -> bool:
        """Run one cycle; return False if it must be retried."""
        try:
            async with self._turn:
                await self._cycle()
        except Unavailable as error:
            self._log.warning("bucket not reached", reason=str(error))
            return False
        except Fenced as error:
            self._fenced = True
            await self._log_fenced(error)
        except FileNotFoundError as error:
            if not self._resigned:
                self._log.error("closed segment is gone", reason=str(error))
        except OSError as error:
            self._hosted.directory.fail(error)
        except (Corrupt, Rejected) as error:
            if not self._resigned:
                self._log.error("tiering stopped until the next attempt", reason=str(error))
            return False
        return True

    async def _log_fenced(self, error: Fenced) -> None:
        """Log that this partition is fenced. A takeover of the whole cluster logs one line of its own instead."""
        with suppress(Unavailable, Corrupt):
            try:
                await self._bucket.claim.check_incarnation()
            except Fenced:
                return
        self._log.error("fenced: a newer leader writes this partition's tier", reason=str(error))

    async def _cycle(self) -> None:
        hosted = self._hosted
        if not hosted.log.config.remote_storage_enable:
            await self._withdraw()
            return
        tier = await self._activate()
        await (
            hosted.swap_ended()
        )  # one that began before the topic was tiered; later ones leave our segments alone
        synced = await self._keep_local()
        while (
            hosted.log.config.copies_to_tier
            and not tier.is_leaving
            and (segments := closed_segments(hosted.log, min(hosted.last_stable_offset, synced)))
        ):
            together = segments[: 1 if self._bucket.pace.is_limited else _SEGMENTS_PER_COMMIT]
            await self._bucket.pace.turn(sum(one.size for one in together))
            self._check_leads()
            await self._archive(tier, together)
            synced = await self._keep_local()
        self._check_leads()
        await self._expire(tier)
        # Merge before spilling: archived entries are never merged, and an outage leaves many small segments.
        self._check_leads()
        is_compacted = hosted.log.config.is_compacted  # a cleaning replaces the oldest entries, too
        merges = hosted.log.config.copies_to_tier and not self.is_cleaning
        if not (merges and await self._merge(tier)) and not is_compacted:
            self._check_leads()
            await self._spill(tier)
        self._log_damage(tier)

    def _check_leads(self) -> None:
        """Raise Rejected if the partition was resigned: another leader may write its tier."""
        if self._resigned:
            raise Rejected(ErrorCode.not_leader_or_follower, "it is not led here any more")

    async def _keep_local(self) -> int:
        """Apply local retention, and return the recovery point.

        A crash loses nothing below that offset. The bucket must hold no record above it.
        """
        hosted = self._hosted
        await hosted.keep_due(tier=hosted.log.config.copies_to_tier)
        await hosted.sync_closed()
        synced = hosted.log.recovery_point  # holds once all earlier effects are performed
        await hosted.write(())
        return synced

    async def _activate(self) -> TierWriter:
        """Return the writer of our leader epoch: take the manifest over, and register the topic in the bucket.

        Does so once per leadership, and after each change of `remote.storage.enable`.
        """
        self._check_leads()
        hosted, bucket = self._hosted, self._bucket
        epoch, enabled = hosted.replica.leader_epoch, hosted.log.config.remote_storage_enable
        before = self.tier
        if before is not None and self._active == (epoch, enabled):
            return before
        self.tier = tier = await activate(bucket, hosted, epoch, before)
        if enabled:
            self._withdrawn = False
            self._continue(tier)
        self._active = (epoch, enabled)
        return tier

    def _continue(self, tier: TierWriter) -> None:
        """Set the log's tiered end and start from the manifest. Raises Corrupt if the manifest is not of this log."""
        log, end = self._hosted.log, tier.tiered_end
        if end > log.log_end_offset:
            # The bucket has records at offsets that this log would give to new ones: neither may hide the other.
            raise Corrupt(
                f"the bucket has records up to {end}, the log ends at {log.log_end_offset}"
            )
        log.mark_tiered(end)
        log.raise_log_start(min(tier.log_start_offset, log.log_end_offset))
        self._hosted.advanced()
        self.activated.set()

    async def _withdraw(self) -> None:
        """Withdraw the tier: readers find no segment in the bucket from now on; after the grace period it holds none.

        An empty manifest file beside the log marks the withdrawal as unfinished, however often it is interrupted. The
        file names no segment: if the tier is enabled again, local retention must not rely on the removed ones.
        """
        hosted, bucket = self._hosted, self._bucket
        look = partial(exists, bucket.store, self._folder)
        if not (self.tier or hosted.was_tiered or await bucket.threads.expirer.submit(look)):
            self._withdrawn = True
            return
        tier = await self._activate()
        now_ms = bucket.outside.clock.now_ms()
        start, end = tier.start_offset, tier.tiered_end
        grace_ms = bucket.config.int("remote.delete.grace.ms")
        nothing = Retention(-1, -1, hosted.log.log_start_offset, 0, grace_ms)

        def withdraw() -> Manifest:
            tier.withdraw(now_ms, nothing.log_start_offset)
            return tier.expire(now_ms, nothing)

        path = f"{hosted.log.directory}/{TIER_MANIFEST}"
        await hosted.perform((WriteFile(path, b""),))
        manifest = await bucket.threads.expirer.submit(withdraw)
        if start < end:
            self._log.info("tier taken away", first=start, end=end)
        if not (manifest.segments or manifest.archives):
            await hosted.perform((Unlink(path),))
            self._withdrawn = True

    async def _archive(self, tier: TierWriter, infos: list[SegmentInfo]) -> None:
        hosted, bucket = self._hosted, self._bucket
        disk, log = hosted.directory.disk, hosted.log
        parts = [segment_parts(log, info.base_offset) for info in infos]
        stable, start = hosted.last_stable_offset, log.log_start_offset
        has_key_filter = log.config.tier_key_filter
        may_have_gaps = log.config.is_compacted or log.was_cleaned
        now_ms = bucket.outside.clock.now_ms()

        def archive() -> None:
            segments = [
                ClosedSegment(
                    base_offset=info.base_offset,
                    next_offset=info.next_offset,
                    read=partial(_chunks, disk, info),
                    leader_epochs=tuple(part.leader_epochs),
                    producer_snapshot=_small_file(disk, part.snapshot_path) or b"",
                    aborted_transactions=part.transaction_index,
                    aborted=part.aborted,
                    has_key_filter=has_key_filter,
                )
                for info, part in zip(infos, parts, strict=True)
            ]
            tier.archive(
                segments,
                last_stable_offset=stable,
                log_start_offset=start,
                now_ms=now_ms,
                may_have_gaps=may_have_gaps,
            )

        before = tier.tiered_end
        try:
            await bucket.threads.copier(hosted).submit(archive)
        except (Unavailable, Corrupt):
            hosted.metrics.copy_errors += 1
            raise
        finally:
            log.mark_tiered(tier.tiered_end)
        await self._keep_manifest(tier)
        done = [one for one in infos if before < one.next_offset <= tier.tiered_end]
        hosted.metrics.copied_segments += len(done)
        hosted.metrics.copied_bytes += sum(one.size for one in done)
        self._log.info("segments tiered", first=before, end=tier.tiered_end)

    async def unspill(self, tier: TierWriter) -> None:
        """Move archived entries of a topic that is compacted now back into the manifest.

        Raises Rejected where the partition is not led any more, Fenced, Unavailable, Corrupt.
        """
        async with self._turn:
            self._check_leads()
            now_ms = self._bucket.outside.clock.now_ms()
            await self._bucket.threads.expirer.submit(lambda: tier.unspill(now_ms))
            await self._keep_manifest(tier)

    async def replace_cleaned(self, tier: TierWriter, done: CleanedObjects, until_ms: int) -> bool:
        """Commit a cleaning's objects; return whether they are in the manifest. Raises as `unspill`.

        Later than `until_ms`, on the steady clock, a sweep may have removed the objects: Unavailable. Where the topic
        is compacted no more, or has no tier, the objects are removed.
        """
        clock, copier = self._bucket.outside.clock, self._bucket.threads.copier(self._hosted)

        def commit() -> bool:
            if clock.steady_ms() > until_ms:
                raise Unavailable("its objects became too old before they were committed")
            return tier.replace_cleaned(done, clock.now_ms())

        async with self._turn:
            self._check_leads()
            config = self._hosted.log.config
            if tier is self.tier and config.remote_storage_enable and config.is_compacted:
                is_done = await copier.submit(commit)
                await self._keep_manifest(tier)
                return is_done
        await copier.submit(lambda: tier.discard(done))
        return False

    async def _merge(self, tier: TierWriter) -> bool:
        """Merge one run of small neighbouring segments in the bucket; return whether there was one."""
        config, bucket = self._hosted.log.config, self._bucket
        limits = MergeLimits(config.segment_bytes, config.segment_ms)
        looked = (tier.tiered_end, limits)
        if looked == self._looked_to_merge:
            return False
        run = await bucket.threads.expirer.submit(lambda: tier.mergeable(limits))
        if not run:
            self._looked_to_merge = looked
            return False
        await bucket.pace.turn(sum(entry.data_size for entry in run))
        now_ms = bucket.outside.clock.now_ms()
        first, end = run[0].base_offset, run[-1].last_offset + 1
        try:
            await bucket.threads.copier(self._hosted).submit(lambda: tier.merge(run, now_ms))
        except Corrupt as error:
            self._log.error("tiered segments not merged", first=first, end=end, reason=str(error))
            return True
        await self._keep_manifest(tier)
        self._log.info("tiered segments merged", first=first, end=end, segments=len(run))
        self._again = True
        return True

    async def _spill(self, tier: TierWriter) -> None:
        """Move old manifest entries to an archive manifest: each version is written whole, so it must be short."""
        if not tier.wants_spill:
            return
        now_ms = self._bucket.outside.clock.now_ms()
        manifest = await self._bucket.threads.expirer.submit(lambda: tier.spill(now_ms))
        await self._keep_manifest(tier)
        self._log.info(
            "tiered segments archived in the manifest",
            end=manifest.archives[-1].last_offset + 1,
            segments=sum(named.segments for named in manifest.live_archives()),
        )

    def _log_damage(self, tier: TierWriter) -> None:
        """Log each unreadable archive manifest once; work that does not need the manifest continues."""
        damage = tier.damage
        for path in damage.keys() - self._damage:
            self._hosted.metrics.delete_errors += 1
            self._log.error("archive manifest unreadable", object=path, reason=damage[path])
        self._damage = damage.keys()

    async def _keep_manifest(self, tier: TierWriter) -> None:
        path = f"{self._hosted.log.directory}/{TIER_MANIFEST}"
        await self._hosted.perform_beside((WriteFile(path, tier.manifest_bytes()),))

    async def _expire(self, tier: TierWriter) -> None:
        hosted, bucket = self._hosted, self._bucket
        total_ms, total_bytes = hosted.log.config.total_retention
        retention = Retention(
            ms=total_ms,
            bytes=total_bytes,
            log_start_offset=hosted.log.log_start_offset,
            local_only_bytes=_untiered_bytes(hosted),
            grace_ms=bucket.config.int("remote.delete.grace.ms"),
        )
        now_ms = bucket.outside.clock.now_ms()
        version, start = tier.manifest.version, tier.start_offset
        try:
            manifest = await bucket.threads.expirer.submit(lambda: tier.expire(now_ms, retention))
        except (Unavailable, Corrupt):
            hosted.metrics.delete_errors += 1
            raise
        if manifest.version != version:
            if manifest.log_start_offset > start:
                self._log.info(
                    "segments expired in the bucket", first=start, end=manifest.log_start_offset
                )
            hosted.log.raise_log_start(min(manifest.log_start_offset, hosted.log.log_end_offset))
            hosted.advanced()  # followers receive it with their next fetch
            await self._keep_manifest(tier)


def _chunks(disk: Disk, info: SegmentInfo) -> Iterator[bytes]:
    """Yield a segment's bytes, a piece at a time."""
    position = 0
    while position < info.size:
        piece = disk.read(info.path, position, min(_CHUNK_BYTES, info.size - position))
        if not piece:
            raise Corrupt(f"{info.path} ends at byte {position} of {info.size}")
        yield piece
        position += len(piece)


def _untiered_bytes(hosted: HostedPartition) -> int:
    log = hosted.log
    return sum(one.size for one in log.segments if one.next_offset > log.tiered_end)


def _small_file(disk: Disk, path: str) -> bytes | None:
    try:
        return disk.read(path, 0, _SNAPSHOT_BYTES_MAX)
    except FileNotFoundError:
        return None
