"""Upload closed segments to the bucket, and remove expired objects and deleted topics from it.

In: hosted partitions that this broker leads. Out: manifests in the bucket. It decides nothing about formats or
manifests (`tier` does), and never blocks the event loop.

Each partition has one cycle at a time (`partition_archiver.py`), which starts when a segment closes and at every
`remote.log.manager.task.interval.ms`. A bucket that cannot be reached, at the start or later, does not stop producers:
closed segments wait on disk. Only the first start of a cluster needs the bucket.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import nlargest
from typing import Any, Final
from uuid import UUID

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.tier.activation import local_manifest
from stratalog.broker.tier.bucket import ClaimedBucket, claim_first
from stratalog.broker.tier.bucket_cleaner import BucketCleaner
from stratalog.broker.tier.deleted_topics import DeletedTopics
from stratalog.broker.tier.history import History
from stratalog.broker.tier.partition_archiver import PartitionArchiver
from stratalog.broker.tier.remote_reads import RemoteReads
from stratalog.broker.tier.unclean_leaders import UncleanLeaders
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, Fenced, Unavailable, UserError
from stratalog.log.values import TieredHistory
from stratalog.replication.roles import Transition
from stratalog.tier.bucket.commit import load_latest, run
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.formats.paths import partition_prefix
from stratalog.tier.reading.followed_lookup import FollowedLookup
from stratalog.tier.reading.tiered_history import tiered_history

_CLOSE_S: Final = 5.0
_CHECKED_MAX: Final = 4
"""Manifests beside the logs that the bucket must have at a start."""


class TierService:
    """The tier of one broker: `start` it once the broker's partitions are loaded. `history` serves reads."""

    def __init__(
        self,
        bucket: ClaimedBucket,
        metadata: ClusterImage,
        hosting: Hosting,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.bucket = bucket
        self._hosting = hosting
        self._spawn = spawn
        self._archivers: dict[HostedPartition, PartitionArchiver] = {}
        self._refused = False  # the bucket turned out to be another cluster's
        self._started = asyncio.Event()
        self._closed = False
        self._reads = RemoteReads(bucket.config, bucket.outside, bucket.store)
        self.history = History(self._archivers, self._started, self._reads, self._followed_lookup)
        self._deleted_topics = DeletedTopics(bucket, metadata)
        self.cleaner = BucketCleaner(bucket, self._archivers)
        self._unclean = UncleanLeaders(bucket, hosting, spawn)
        hosting.defers = self._unclean.defers
        hosting.bucket_clean_end = self.clean_end
        # A bucket in memory is empty after each start, as its user knows.
        lasts = not bucket.store.url.startswith("memory:")
        if lasts and not bucket.config.bool("tier.accept.lost.history"):
            bucket.claim.manifests = self._local_manifests
        self._log = structlog.get_logger()

    async def claim_first(self) -> None:
        """Claim the bucket, once the partitions are loaded and before any client is served. Raises UserError."""
        await claim_first(self.bucket)

    def start(self) -> None:
        """Start to tier the led partitions."""
        self._hosting.on_rolled.append(self._wake)
        self._hosting.on_transition.append(self._on_transition)
        self._hosting.on_tier_changed.append(self._led)
        for hosted in self._hosting.all():
            if hosted.replica.leads:
                self._led(hosted)
        self._started.set()
        self._spawn(self._repeat())
        self._spawn(self.cleaner.repeat())

    async def close(self) -> None:
        """Wait a bounded time for running calls. Later ones end with the process; a sweep removes what they leave."""
        self._closed = True
        self.cleaner.kill()
        await self._unclean.close()
        closing = [
            asyncio.get_running_loop().create_task(worker.close())
            for worker in (*self.bucket.threads.all(), *self._reads.workers)
        ]
        _done, late = await asyncio.wait(closing, timeout=_CLOSE_S)
        for task in late:
            task.cancel()
        if late:
            self._log.warning("tier calls left unfinished", threads=len(late))

    async def find_history(self, hosted: HostedPartition, offset: int) -> TieredHistory:
        """Return the history in the bucket of which the record before `offset` is part. Raises Unavailable, Corrupt."""
        bucket, key = self.bucket, hosted.key
        prefix = partition_prefix(bucket.cluster_id, *key)
        return await bucket.threads.expirer.submit(
            partial(tiered_history, bucket.store, bucket.archives, prefix, offset)
        )

    async def clean_end(self, hosted: HostedPartition) -> int:
        """Return the offset below which the bucket's part of a partition is clean; 0 where it is not known.

        The offset never falls while the topic keeps its tier. So an older one than the newest is safe.
        """
        if hosted.replica.leads:
            tier = self.history.writer(hosted)
            return 0 if tier is None else tier.manifest.clean_end
        bucket = self.bucket
        prefix = partition_prefix(bucket.cluster_id, *hosted.key)
        look = partial(run, bucket.store, load_latest(prefix))
        try:
            manifest = await bucket.threads.expirer.submit(look)
        except (Unavailable, Corrupt):
            return 0
        return 0 if manifest is None else manifest.clean_end

    def _followed_lookup(self, hosted: HostedPartition) -> FollowedLookup:
        bucket = self.bucket
        return FollowedLookup(
            bucket.store,
            bucket.archives,
            partition_prefix(bucket.cluster_id, *hosted.key),
            bucket.outside.clock.steady_ms,
            bucket.config.int("remote.delete.grace.ms"),
        )

    def _local_manifests(self) -> Iterator[Manifest]:
        """Return the manifests beside the logs of which most is in the bucket: few, so that a start stays fast.

        The iterator reads each from its drive: call its `next` on another thread.
        """
        tiered = (
            one
            for one in self._hosting.all()
            if one.log.config.remote_storage_enable and one.log.tiered_end
        )
        return _read_each(nlargest(_CHECKED_MAX, tiered, key=lambda one: one.log.tiered_end))

    def topics_deleted(self, topic_ids: Iterable[UUID]) -> None:
        """Remove deleted topics from the bucket."""
        self._deleted_topics.deleted(topic_ids)
        if not self._closed:
            self._spawn(self._forget_topics())

    def configure(self, config: BrokerConfig) -> None:
        """Apply changed settings. A replaced pool of threads ends once it has done its submitted work."""
        self.bucket.pace.configure(config)
        self.cleaner.configure(config)
        for worker in (*self._reads.configure(config), *self.bucket.threads.configure(config)):
            self._spawn(worker.close())

    def _on_transition(self, transition: Transition, hosted: HostedPartition) -> None:
        match transition:
            case Transition.LED:
                self.history.forget(hosted)
                self._led(hosted)
            case Transition.RESIGNED:
                self._resigned(hosted)
            case Transition.FOLLOWED:
                pass
            case Transition.STOPPED | Transition.DELETED:
                self.history.forget(hosted)

    def _led(self, hosted: HostedPartition) -> None:
        config = hosted.log.config
        # A disabled tier's objects are deleted, even if a crash came between (KIP-950).
        may_have_objects = config.remote_log_delete_on_disable or hosted.was_tiered
        if hosted not in self._archivers and (config.remote_storage_enable or may_have_objects):
            self._archivers[hosted] = PartitionArchiver(self.bucket, hosted)
        self._wake(hosted)

    def _wake(self, hosted: HostedPartition) -> None:
        archiver = self._archivers.get(hosted)
        if (
            archiver is not None
            and self.bucket.claim.is_held
            and not self._closed
            and hosted.directory.failure is None
            and archiver.wants_cycle()
        ):
            self._spawn(archiver.run())

    def _resigned(self, hosted: HostedPartition) -> None:
        """Stop archiving a partition: another broker may lead it, its log directory failed, or it was deleted."""
        self.history.forget(hosted)
        archiver = self._archivers.pop(hosted, None)
        if archiver is not None:
            archiver.resign()
            self._deleted_topics.resigned(archiver)

    async def _forget_topics(self) -> None:
        """Remove deleted topics from the bucket, once it is claimed (`deleted_topics.py`)."""
        if self.bucket.claim.is_held:
            try:
                await self._deleted_topics.forget()
            except Fenced as error:
                self.bucket.claim.fence(error)

    async def _keep_claim(self) -> None:
        """Claim the bucket, and claim it again if it was emptied or recreated.

        After a new claim, each partition's next cycle registers its topic, and the cluster's state is uploaded again.
        """
        claim = self.bucket.claim
        tiers = [archiver.tier for archiver in self._archivers.values()]
        if await claim.is_lost(sum(one.manifest.version for one in tiers if one is not None)):
            self._log.error(
                "bucket was emptied: what only it had is gone", url=self.bucket.config.tier_url
            )
            for archiver in self._archivers.values():
                archiver.activate_again()
        await claim.claim()

    async def _repeat(self) -> None:
        bucket = self.bucket
        interval_s = bucket.config.int("remote.log.manager.task.interval.ms") / 1000
        backoff = bucket.backoff()
        while not (self._refused or bucket.claim.is_fenced):
            wait_s = interval_s
            try:
                await self._keep_claim()
            except (Unavailable, Corrupt) as error:
                self._log.warning(
                    "bucket not reached", url=bucket.config.tier_url, reason=str(error)
                )
                wait_s = backoff.failed()
            except UserError as error:
                self._refused = True
                self._log.error("tiering is off", reason=str(error))
            except Fenced as error:
                bucket.claim.fence(error)
            else:
                for hosted in self._hosting.all():
                    if hosted.replica.leads:
                        self._led(hosted)
                await self._forget_topics()
            await asyncio.sleep(wait_s)


def _read_each(chosen: Iterable[HostedPartition]) -> Iterator[Manifest]:
    for hosted in chosen:
        with suppress(FileNotFoundError, Corrupt):  # Corrupt: the tier is being removed
            yield local_manifest(hosted)
