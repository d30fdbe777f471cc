"""Moves closed segments into the bucket, serves them from there, and removes what retention gives up.

In: hosted partitions that this broker leads, reads below their local start. Out: manifests in the bucket, batches from
it. It decides nothing about formats or manifests: `tier` does; nothing here blocks the event loop.

Each partition has one cycle at a time: sync and archive what is closed, let local retention take it, expire, remove.
A cycle starts when a segment closes and at every `remote.log.manager.task.interval.ms`. Copying has threads for each
log directory, so that a stalled drive holds up its own copies only; reading and expiring have pools of their own.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

import structlog

from stratalog.broker.hosting import TIER_MANIFEST, Hosting
from stratalog.broker.partition import HostedPartition
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, ErrorCode, Fenced, Rejected, Unavailable
from stratalog.log.effects import WriteFile
from stratalog.log.partition_log import SegmentInfo, Slices
from stratalog.metadata.image import Image
from stratalog.ports import Disk, ObjectStore, Outside, Worker
from stratalog.tier.archiver import ClosedSegment
from stratalog.tier.fetcher import Fetcher
from stratalog.tier.identity import (
    claim_bucket,
    delete_topic,
    list_topics,
    register_topic,
    remove_deleted_topics,
)
from stratalog.tier.manifest import RemoteSegment
from stratalog.tier.partition_tier import PartitionTier, Retention
from stratalog.wire.batch import scan

_CHUNK_BYTES: Final = 1 << 20
_SEGMENTS_PER_COMMIT: Final = 8
_SNAPSHOT_BYTES_MAX: Final = 64 << 20


class Tiering:
    """The tier of one broker. `open`, then `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        cluster_id: str,
        hosting: Hosting,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        image: Callable[[], Image],
    ) -> None:
        self.config = config
        self.outside = outside
        self.cluster_id = cluster_id
        self.image = image
        self._hosting = hosting
        self._spawn = spawn
        self._url = config.tier_url
        self._partitions: dict[HostedPartition, TieredPartition] = {}
        self._copiers: dict[str, Worker] = {}
        self._closed = False
        self._log = structlog.get_logger()
        self._reader = outside.workers.start("tier-read", config.int("remote.log.reader.threads"))
        self.expirer = outside.workers.start(
            "tier-expire", config.int("remote.log.manager.expiration.thread.pool.size")
        )
        self.store: ObjectStore
        self._fetcher: Fetcher

    async def open(self) -> None:
        """Open the bucket and claim it. Raises UserError where it is another cluster's or its URL is not understood.

        A bucket that cannot be reached does not keep the broker from starting: closed segments wait on disk.
        """
        self.store = await self._reader.submit(lambda: self.outside.object_store(self._url))
        self._fetcher = Fetcher(self.store, self.config.int("tier.cache.bytes"))
        try:
            await self._claim()
        except Unavailable as error:
            self._log.warning("bucket not reached yet", url=self._url, reason=str(error))

    def start(self) -> None:
        """Tier what is led from here on."""
        self._hosting.on_rolled.append(self._wake)
        self._hosting.on_led.append(self._led)
        self._hosting.on_deleted.append(self._deleted)
        for hosted in self._hosting.all():
            if hosted.replica.leads:
                self._led(hosted)
        self._spawn(self._repeat())

    async def close(self) -> None:
        """Finish the calls in hand, end the threads."""
        self._closed = True
        for worker in (*self._copiers.values(), self._reader, self.expirer):
            await worker.close()

    def copier(self, hosted: HostedPartition) -> Worker:
        """The threads that copy from this partition's directory."""
        path = hosted.directory.path
        if path not in self._copiers:
            threads = self.config.int("remote.log.manager.copier.thread.pool.size")
            self._copiers[path] = self.outside.workers.start(f"tier-copy {path}", threads)
        return self._copiers[path]

    async def read(
        self, hosted: HostedPartition, offset: int, max_bytes: int, end_offset: int
    ) -> Slices:
        """Batches from the bucket. Raises Rejected: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE."""
        segment = self._tier(hosted).entry_for(offset)
        if segment is None:
            raise Rejected(
                ErrorCode.offset_out_of_range, f"{hosted.identity}: {offset} is not in the bucket"
            )
        data = await self._reading(
            hosted, lambda: self._fetcher.read(segment, offset, max_bytes), segment
        )
        first = next_offset = offset
        cut = 0
        for position, header in scan(data):
            if header.base_offset >= end_offset:
                break
            cut, next_offset = position + header.size, header.next_offset
        return Slices([data[:cut]] if cut else [], first, next_offset)

    async def offset_for_timestamp(
        self, hosted: HostedPartition, timestamp: int
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record in the bucket at or after `timestamp`; None if none is there."""
        partition = self._partitions.get(hosted)
        if partition is None:
            return None
        segment = partition.tier.entry_for_timestamp(timestamp)
        if segment is None:
            return None
        found = segment
        start = hosted.log.log_start_offset
        result = await self._reading(
            hosted, lambda: self._fetcher.offset_for_timestamp(found, timestamp, start), found
        )
        return None if result is None else (result.offset, result.timestamp)

    async def max_timestamp(self, hosted: HostedPartition) -> tuple[int, int] | None:
        """(offset, timestamp) of the record in the bucket with the latest timestamp."""
        partition = self._partitions.get(hosted)
        segment = None if partition is None else partition.tier.entry_for_max_timestamp()
        if segment is None:
            return None
        found = segment
        result = await self._reading(
            hosted,
            lambda: self._fetcher.offset_for_timestamp(found, found.entry.max_timestamp),
            found,
        )
        return None if result is None else (result.offset, result.timestamp)

    async def _reading(
        self, hosted: HostedPartition, call: Callable[[], Any], segment: RemoteSegment
    ) -> Any:
        try:
            return await self._reader.submit(call)
        except Unavailable as error:
            raise Rejected(ErrorCode.kafka_storage_error, str(error)) from error
        except Corrupt as error:
            self._log.error(
                "tiered segment unreadable",
                partition=str(hosted.identity),
                object=segment.path,
                reason=str(error),
            )
            raise Rejected(ErrorCode.corrupt_message, str(error)) from error

    def _tier(self, hosted: HostedPartition) -> PartitionTier:
        partition = self._partitions.get(hosted)
        if partition is None or partition.tier.manifest is None:
            raise Rejected(
                ErrorCode.replica_not_available, f"{hosted.identity}: its manifest is not read yet"
            )
        return partition.tier

    async def _claim(self) -> None:
        now_ms = self.outside.clock.now_ms()
        await self.expirer.submit(lambda: claim_bucket(self.store, self.cluster_id, now_ms))

    def _led(self, hosted: HostedPartition) -> None:
        if hosted.log.config.remote_storage_enable and hosted not in self._partitions:
            self._partitions[hosted] = TieredPartition(self, hosted)
        self._wake(hosted)

    def _wake(self, hosted: HostedPartition) -> None:
        partition = self._partitions.get(hosted)
        if partition is not None and not self._closed and partition.wants_cycle():
            self._spawn(partition.run())

    def _deleted(self, hosted: HostedPartition) -> None:
        if self._partitions.pop(hosted, None) is not None and not self._closed:
            self._spawn(self._forget_topics())

    async def _forget_topics(self) -> None:
        """Mark topics that are gone from the cluster as deleted in the bucket; remove those marked long enough ago."""
        now_ms = self.outside.clock.now_ms()
        grace_ms = self.config.int("remote.delete.grace.ms")
        known = self.image().topics_by_id
        store, cluster_id = self.store, self.cluster_id

        def forget() -> None:
            for topic in list_topics(store, cluster_id):
                if topic.topic_uuid not in known:
                    delete_topic(store, cluster_id, topic.topic_uuid, now_ms)
            remove_deleted_topics(store, cluster_id, now_ms, grace_ms)

        try:
            await self.expirer.submit(forget)
        except (Unavailable, Corrupt) as error:
            self._log.warning("deleted topics not removed from the bucket yet", reason=str(error))

    async def _repeat(self) -> None:
        interval_s = self.config.int("remote.log.manager.task.interval.ms") / 1000
        while True:
            await self._forget_topics()
            await asyncio.sleep(interval_s)
            for hosted in list(self._partitions):
                self._wake(hosted)


class TieredPartition:
    """One led partition and its share of the bucket."""

    def __init__(self, tiering: Tiering, hosted: HostedPartition) -> None:
        identity = hosted.identity
        self.tier = PartitionTier(
            tiering.store,
            tiering.cluster_id,
            identity.topic_id,
            identity.topic,
            identity.index,
            tiering.config.int("node.id"),
            tiering.outside.entropy,
        )
        self._tiering = tiering
        self._hosted = hosted
        self._active_epoch = -1
        self._running = False
        self._again = False
        self._fenced = False
        self._one_at_a_time = asyncio.Lock()
        self._log = structlog.get_logger().bind(partition=str(identity))

    def wants_cycle(self) -> bool:
        """Whether a cycle should be started now; one that runs is told to go round once more."""
        if self._running:
            self._again = True
            return False
        return not self._fenced

    async def run(self) -> None:
        """Cycle until nothing is left to do. Whatever is unreachable is tried again at the next interval."""
        self._running = True
        try:
            self._again = True
            while self._again and not self._hosted.deleted:
                self._again = False
                async with self._one_at_a_time:
                    await self._cycle()
        except Unavailable as error:
            self._log.warning("bucket not reached", reason=str(error))
        except Fenced as error:
            self._fenced = True
            self._log.error(
                "fenced: a newer leader writes this partition's tier", reason=str(error)
            )
        except (Corrupt, Rejected) as error:
            self._log.error("tiering stopped until the next interval", reason=str(error))
        finally:
            self._running = False

    async def _cycle(self) -> None:
        hosted, tiering = self._hosted, self._tiering
        await self._activate()
        now_ms = tiering.outside.clock.now_ms()
        # Syncs closed segments first: the bucket must never hold what this disk may still forget.
        await self._keep_local(now_ms)
        while segments := hosted.log.closed_segments(hosted.last_stable_offset):
            await self._archive(segments[:_SEGMENTS_PER_COMMIT])
            await self._keep_local(now_ms)
            if hosted.deleted:
                return
        await self._expire(now_ms)

    async def _keep_local(self, now_ms: int) -> None:
        hosted = self._hosted
        await hosted.perform(hosted.log.due(now_ms, limit_offset=hosted.high_watermark, tier=True))

    async def _activate(self) -> None:
        """Once per leadership: take the manifest over in our leader epoch, and have the topic known in the bucket."""
        hosted, tiering = self._hosted, self._tiering
        epoch = hosted.replica.leader_epoch
        if self._active_epoch == epoch:
            return
        now_ms = tiering.outside.clock.now_ms()
        identity, image = hosted.identity, tiering.image()
        topic = image.topics_by_id.get(identity.topic_id)
        partitions = len(topic.partitions) if topic is not None else identity.index + 1
        configs = image.topic_configs(identity.topic)
        disk, path = hosted.directory.disk, f"{hosted.log.directory}/{TIER_MANIFEST}"

        def activate() -> None:
            register_topic(
                self.tier.store,
                self.tier.cluster_id,
                identity.topic_id,
                identity.topic,
                partitions,
                configs,
                now_ms,
            )
            self.tier.activate(epoch, _small_file(disk, path), now_ms=now_ms)

        await tiering.copier(hosted).submit(activate)
        self._active_epoch = epoch
        hosted.log.mark_tiered(self.tier.tiered_end)
        hosted.log.raise_log_start(min(self.tier.log_start_offset, hosted.log.log_end_offset))

    async def _archive(self, infos: list[SegmentInfo]) -> None:
        hosted, tiering = self._hosted, self._tiering
        disk, log = hosted.directory.disk, hosted.log
        parts = [log.segment_parts(info.base_offset) for info in infos]
        stable, start = hosted.last_stable_offset, log.log_start_offset
        now_ms = tiering.outside.clock.now_ms()

        def archive() -> None:
            segments = [
                ClosedSegment(
                    base_offset=info.base_offset,
                    next_offset=info.next_offset,
                    read=partial(_chunks, disk, info),
                    leader_epochs=tuple(part.leader_epochs),
                    producer_snapshot=_small_file(disk, part.snapshot_path) or b"",
                )
                for info, part in zip(infos, parts, strict=True)
            ]
            self.tier.archive(
                segments, last_stable_offset=stable, log_start_offset=start, now_ms=now_ms
            )

        before = self.tier.tiered_end
        try:
            await tiering.copier(hosted).submit(archive)
        finally:
            log.mark_tiered(self.tier.tiered_end)
        await self._keep_manifest()
        self._log.info("segments tiered", first=before, end=self.tier.tiered_end)

    async def _keep_manifest(self) -> None:
        path = f"{self._hosted.log.directory}/{TIER_MANIFEST}"
        await self._hosted.perform((WriteFile(path, self.tier.manifest_bytes()),))

    async def _expire(self, now_ms: int) -> None:
        hosted, tiering = self._hosted, self._tiering
        config = hosted.log.config
        retention = Retention(
            ms=config.retention_ms,
            bytes=config.retention_bytes,
            log_start_offset=hosted.log.log_start_offset,
            local_only_bytes=_untiered_bytes(hosted),
            grace_ms=tiering.config.int("remote.delete.grace.ms"),
        )
        version = self.tier.manifest.version if self.tier.manifest is not None else 0
        manifest = await tiering.expirer.submit(lambda: self.tier.expire(now_ms, retention))
        if manifest.version != version:
            hosted.log.raise_log_start(min(manifest.log_start_offset, hosted.log.log_end_offset))
            await self._keep_manifest()


def _chunks(disk: Disk, info: SegmentInfo) -> Iterator[bytes]:
    """A segment's bytes, a piece at a time."""
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
