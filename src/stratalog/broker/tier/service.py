"""Upload closed segments to the bucket, serve history from it, and remove expired objects.

In: hosted partitions that this broker leads, reads below their local start. Out: manifests in the bucket, batches
from it. It decides nothing about formats or manifests (`tier` does), and never blocks the event loop.

Each partition has one cycle at a time (`partition_archiver.py`), which starts when a segment closes and at every
`remote.log.manager.task.interval.ms`. Uploads have threads for each log directory, so that a stalled drive delays its
own uploads only; reading and expiring have pools of their own. A bucket that cannot be reached, at the start or
later, does not stop producers: closed segments wait on disk. Only the first start of a cluster needs the bucket.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.groups import Groups
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.tier.copy_pace import CopyPace
from stratalog.broker.tier.deleted_topics import DeletedTopics
from stratalog.broker.tier.partition_archiver import Bucket, PartitionArchiver
from stratalog.broker.tier.remote_reads import RemoteReads, slices_below
from stratalog.broker.tier.state_upload import StateUpload
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, ErrorCode, Fenced, Rejected, Unavailable, UserError
from stratalog.log.reading import Slices
from stratalog.ports import ObjectStore, Outside, Worker
from stratalog.replication.roles import Transition
from stratalog.tier.bucket.identity import claim_bucket, read_claim
from stratalog.tier.bucket.incarnation import check_incarnation
from stratalog.tier.bucket.leases import Leases
from stratalog.tier.reading.archives import Archives
from stratalog.tier.writing.tier_writer import TierWriter

_SUPERSEDED: Final = (
    "its clients belong to the new one; what only this node's disk has can be read without tier.url"
)
_ACTIVATION_S: Final = 5.0
"""How long a reader waits for a manifest right after a start, before it gets an error to retry on."""
_CLOSE_S: Final = 5.0
_COPIERS: Final = "remote.log.manager.copier.thread.pool.size"
_EXPIRERS: Final = "remote.log.manager.expiration.thread.pool.size"


async def open_tiering(
    config: BrokerConfig,
    outside: Outside,
    metadata: ClusterImage,
    hosting: Hosting,
    *,
    incarnation: int,
    spawn: Callable[[Coroutine[Any, Any, None]], object],
) -> "TierService":
    """Open the bucket and claim it for `incarnation`, the life of the cluster that this node belongs to.

    Raises UserError, and leaves nothing open, where the URL is wrong or the bucket is another cluster's or a later
    life's; also where the bucket cannot be used and no broker has registered yet: on a first start a mistake is more
    likely than an outage.
    """
    expirer = _start_expirer(config, outside)
    try:
        store = await expirer.submit(lambda: outside.object_store(config.tier_url))
    except UserError as error:
        await expirer.close()
        raise UserError(f"tier.url: {error}") from None
    tiering = TierService(
        config,
        outside,
        metadata,
        hosting,
        incarnation=incarnation,
        store=store,
        expirer=expirer,
        spawn=spawn,
    )
    try:
        await tiering.claim_first()
    except UserError:
        await tiering.close()
        raise
    return tiering


class TierService:
    """The tier of one broker. `open_tiering`, then `start`."""

    def __init__(  # noqa: PLR0913 - built in one place
        self,
        config: BrokerConfig,
        outside: Outside,
        metadata: ClusterImage,
        hosting: Hosting,
        *,
        incarnation: int,
        store: ObjectStore,
        expirer: Worker,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.on_fenced: Callable[[str], None] = lambda _why: None
        """Called once, where the cluster was taken over: the node must stop."""
        self._config = config
        self._outside = outside
        self._metadata = metadata
        self._hosting = hosting
        self._spawn = spawn
        self._url = config.tier_url
        self._partitions: dict[HostedPartition, PartitionArchiver] = {}
        self._copiers: dict[str, Worker] = {}
        self._incarnation = incarnation
        self._state: StateUpload | None = None
        self._claimed = False
        self._versions = 0  # of all manifests, when the claim was last seen
        self._fenced = False  # the cluster was taken over
        self._refused = False  # the bucket turned out to be another cluster's
        self._started = asyncio.Event()
        self._closed = False
        self._log = structlog.get_logger()
        self._threads = _threads(config)
        self._expirer, self._store = expirer, store
        self._reads = RemoteReads(config, outside, store)
        self._bucket = Bucket(
            config,
            outside,
            store,
            metadata.cluster_id,
            lambda: metadata.image,
            self._copier,
            lambda: self._expirer,
            CopyPace(config, outside.clock),
            self._check_incarnation,
            Archives(store),
            Leases(store, metadata.cluster_id),
        )
        self._deleted_topics = DeletedTopics(self._bucket, metadata, incarnation)

    async def claim_first(self) -> None:
        """Claim the bucket at the start of the node. Raises UserError as `open_tiering` says."""
        try:
            await self._claim()
        except Fenced as error:
            raise UserError(f"tier.url: {error}; {_SUPERSEDED}") from error
        except UserError as error:
            raise UserError(f"tier.url: {error}") from None
        except Unavailable as error:
            if not self._metadata.image.brokers:
                raise UserError(f"tier.url: {error}") from None
            self._log.warning("bucket not reached yet", url=self._url, reason=str(error))
        except Corrupt as error:
            raise UserError(f"tier.url: bucket {self._url} cannot be used: {error}") from error

    def start(self, groups: Groups) -> None:
        """Start to tier the led partitions, and upload the cluster's state with the offsets that `groups` committed."""
        self._state = StateUpload(
            self._bucket,
            self._metadata,
            self._hosting,
            groups,
            self._incarnation,
            lambda: self._claimed,
        )
        self._hosting.on_rolled.append(self._wake)
        self._hosting.on_transition.append(self._on_transition)
        self._hosting.on_tier_changed.append(self._led)
        for hosted in self._hosting.all():
            if hosted.replica.leads:
                self._led(hosted)
        self._started.set()
        self._spawn(self._repeat())

    async def close(self) -> None:
        """Wait a bounded time for running calls. Later ones end with the process; a sweep removes what they leave."""
        self._closed = True
        await self._upload_last()
        closing = [
            asyncio.get_running_loop().create_task(worker.close())
            for worker in (*self._copiers.values(), *self._reads.workers, self._expirer)
        ]
        _done, late = await asyncio.wait(closing, timeout=_CLOSE_S)
        for task in late:
            task.cancel()
        if late:
            self._log.warning("tier calls left unfinished", threads=len(late))

    def configure(self, config: BrokerConfig) -> None:
        """Apply changed settings. A replaced pool of threads ends once it has done its submitted work."""
        before, self._threads = self._threads, _threads(config)
        ending = self._reads.configure(config)
        self._bucket.pace.configure(config)
        if self._threads[_EXPIRERS] != before[_EXPIRERS]:
            ending.append(self._expirer)
            self._expirer = _start_expirer(config, self._outside)
        if self._threads[_COPIERS] != before[_COPIERS]:
            ending += self._copiers.values()
            self._copiers.clear()
        for worker in ending:
            self._spawn(worker.close())

    def _copier(self, hosted: HostedPartition) -> Worker:
        """The threads that copy from this partition's directory."""
        path = hosted.directory.path
        if path not in self._copiers:
            threads = self._threads[_COPIERS]
            self._copiers[path] = self._outside.workers.start(
                f"tier-copy {path}", threads, background=True
            )
        return self._copiers[path]

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
        tier = await self._tier(hosted)
        segment = tier.lookup.known_at(offset)
        if segment is None:
            segment = await self._reads.find(hosted, partial(tier.lookup.at, offset))
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
            self._reads.progress(hosted, tier, offset, found.next_offset, found.size)
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
            start = segment.entry.last_offset + 1  # its latest record lay below the start asked for

    async def max_timestamp(self, hosted: HostedPartition) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the bucket's latest record by timestamp. Raises Rejected as `read` does."""
        tier = await self._tier(hosted)
        segment = await self._reads.find(hosted, tier.lookup.at_max_timestamp, search=True)
        if segment is None:
            return None
        return await self._reads.search(hosted, segment, segment.entry.max_timestamp)

    def known(self, hosted: HostedPartition) -> TierWriter | None:
        """Return the partition's tier, or None until its manifest is read."""
        partition = self._partitions.get(hosted)
        return partition.tier if partition is not None and partition.activated.is_set() else None

    async def _tier(self, hosted: HostedPartition) -> TierWriter:
        """Return the partition's tier; after a start, wait a bounded time for its manifest.

        Raises Rejected(REPLICA_NOT_AVAILABLE), which clients retry: the bucket's records are not lost.
        """
        partition = self._partitions.get(hosted)
        if partition is None or not partition.activated.is_set():
            try:
                async with asyncio.timeout(_ACTIVATION_S):
                    await self._started.wait()
                    partition = self._partitions.get(hosted)
                    if partition is not None:
                        await partition.activated.wait()
            except TimeoutError:
                partition = None
        hosted.check_hosted()
        if partition is None:
            raise Rejected(
                ErrorCode.replica_not_available, f"{hosted.name}: its manifest is not read yet"
            )
        return partition.tier

    async def _claim(self) -> None:
        """Claim the bucket before the first upload. Raises UserError (another cluster has it), Unavailable, Corrupt."""
        if not self._claimed:
            now_ms = self._outside.clock.now_ms()
            store, cluster_id = self._store, self._metadata.cluster_id

            def claim() -> None:
                claim_bucket(store, cluster_id, now_ms)
                check_incarnation(store, cluster_id, self._incarnation)

            await self._expirer.submit(claim)
            self._claimed = True

    async def _keep_claim(self) -> None:
        """Claim the bucket, and claim it again if it was emptied or recreated.

        The claim is read again once new manifest versions were uploaded. After a new claim, each partition's next cycle
        registers its topic, and the cluster's state is uploaded again.
        """
        tips = [partition.tier.manifest for partition in self._partitions.values()]
        versions = sum(tip.version for tip in tips if tip is not None)
        if self._claimed and versions != self._versions:
            owner = await self._expirer.submit(partial(read_claim, self._store))
            if owner is None or owner.cluster_id != self._metadata.cluster_id:
                self._log.error("bucket was emptied: what only it had is gone", url=self._url)
                self._claimed = False
                for partition in self._partitions.values():
                    partition.activate_again()
                if self._state is not None:
                    self._state.tell_again()
            self._versions = versions
        await self._claim()

    async def _check_incarnation(self) -> None:
        """Raise Fenced, and stop the node, if the cluster was taken over. Raises Unavailable, Corrupt."""
        store, cluster_id = self._store, self._metadata.cluster_id
        try:
            await self._expirer.submit(
                lambda: check_incarnation(store, cluster_id, self._incarnation)
            )
        except Fenced as error:
            self._taken_over(error)
            raise

    def _taken_over(self, error: Fenced) -> None:
        """Stop the node, once: no reader would see the records that it acknowledges from here on."""
        if not self._fenced:
            self._fenced = True
            self._log.error("fenced: the cluster was taken over", reason=str(error))
            self.on_fenced(f"{error}; {_SUPERSEDED}")

    async def _upload(self) -> None:
        """Upload the cluster's state, repeatedly, until the node is fenced."""
        assert self._state is not None, "started"
        try:
            await self._state.repeat()
        except Fenced as error:
            self._taken_over(error)

    async def _upload_last(self) -> None:
        """Upload the cluster's state at a clean stop, with the offsets committed last."""
        if self._state is None or not self._claimed or self._fenced:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._state.upload()
        except (Unavailable, Corrupt, Fenced, TimeoutError) as error:
            self._log.warning("cluster state not in the bucket", reason=str(error) or "timed out")

    def _on_transition(self, transition: Transition, hosted: HostedPartition) -> None:
        match transition:
            case Transition.LED:
                self._led(hosted)
            case Transition.RESIGNED:
                self._resigned(hosted)
            case Transition.DELETED:
                self._deleted(hosted)
            case Transition.FOLLOWED | Transition.STOPPED:
                pass

    def _led(self, hosted: HostedPartition) -> None:
        config = hosted.log.config
        # A disabled tier's objects are deleted, even if a crash came between (KIP-950).
        may_be_there = config.remote_log_delete_on_disable or hosted.was_tiered
        if hosted not in self._partitions and (config.remote_storage_enable or may_be_there):
            self._partitions[hosted] = PartitionArchiver(self._bucket, hosted)
            self._deleted_topics.tiered(hosted.key.topic_id)
        self._wake(hosted)

    def _wake(self, hosted: HostedPartition) -> None:
        partition = self._partitions.get(hosted)
        if (
            partition is not None
            and self._claimed
            and not self._closed
            and hosted.directory.failure is None
            and partition.wants_cycle()
        ):
            self._spawn(partition.run())

    def _resigned(self, hosted: HostedPartition) -> None:
        """Archive no more of a partition: another broker may lead it, its log directory failed, or it was deleted."""
        self._reads.forget(hosted)
        partition = self._partitions.pop(hosted, None)
        if partition is not None:
            partition.resign()
            self._deleted_topics.resigned(partition)

    def _deleted(self, hosted: HostedPartition) -> None:
        if self._deleted_topics.deleted(hosted.key.topic_id) and not self._closed:
            self._spawn(self._forget_topics())

    async def _forget_topics(self) -> None:
        """Remove deleted topics from the bucket, once it is claimed (`deleted_topics.py`)."""
        if self._claimed:
            try:
                await self._deleted_topics.forget()
            except Fenced as error:
                self._taken_over(error)

    async def _repeat(self) -> None:
        interval_s = self._config.int("remote.log.manager.task.interval.ms") / 1000
        backoff = self._bucket.backoff()
        uploading = False
        while not (self._refused or self._fenced):
            wait_s = interval_s
            try:
                await self._keep_claim()
            except (Unavailable, Corrupt) as error:
                self._log.warning("bucket not reached", url=self._url, reason=str(error))
                wait_s = backoff.failed()
            except UserError as error:
                self._refused = True
                self._log.error("tiering is off", reason=str(error))
            except Fenced as error:
                self._taken_over(error)
            else:
                if not uploading:
                    self._spawn(self._upload())
                    uploading = True
                for hosted in self._hosting.all():
                    if hosted.replica.leads:
                        self._led(hosted)
                await self._forget_topics()
            await asyncio.sleep(wait_s)


def _start_expirer(config: BrokerConfig, outside: Outside) -> Worker:
    return outside.workers.start("tier-expire", config.int(_EXPIRERS), background=True)


def _threads(config: BrokerConfig) -> dict[str, int]:
    return {name: config.int(name) for name in (_COPIERS, _EXPIRERS)}
