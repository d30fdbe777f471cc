"""Upload the cluster's state: topics, settings and committed offsets, so that a node can be restored from the bucket
alone.

In: metadata, hosted partitions, groups. Out: versions of the cluster's state in the bucket
(`tier/bucket/cluster_state.py`), every `tier.state.interval.ms` with a change, and at a clean stop. It never blocks the
event loop. A bucket that fails delays no client: a later interval uploads the newest state.

Each broker knows the ends of the partitions that it leads, and the offsets of the groups that it coordinates. Its
version has all others from the newest one before (`state_merging.py`).

The upload leaves out secret settings.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.broker.coordination.runtime import in_turns
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.tier.bucket import ClaimedBucket
from stratalog.broker.tier.state_merging import merged
from stratalog.config.broker_settings import is_secret
from stratalog.coordinators.records import KeptOffset
from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable
from stratalog.metadata.image import TIER_RESOURCE, Image, ResourceType
from stratalog.tier.bucket.cluster_state import (
    ClusterState,
    StateOffset,
    StatePartition,
    StateTopic,
    newest_state,
    put_state,
    state_version,
)
from stratalog.tier.bucket.incarnation import check_incarnation
from stratalog.wire.ids import TopicIdPartition, topic_id_text

Ends = dict[TopicIdPartition, tuple[int, int]]
"""Log start and end of each led partition."""
_UNKNOWN: Final = (-1, -1)
_CLOSE_S: Final = 5.0
_ATTEMPTS_MAX: Final = 8


class StateUpload:
    """The upload of one cluster's state. Run one `upload` at a time; without the claim on the bucket it uploads
    nothing.
    """

    def __init__(
        self,
        bucket: ClaimedBucket,
        metadata: ClusterImage,
        hosting: Hosting,
        groups: Groups,
    ) -> None:
        self._bucket = bucket
        self._metadata = metadata
        self._hosting = hosting
        self._groups = groups
        self._claims = 0
        self._version = 0
        self._uploaded: tuple[int, Ends] | None = None
        self._log = structlog.get_logger()

    async def repeat(self) -> None:
        """Upload at every interval, until the cluster was taken over."""
        interval_s = self._bucket.config.int("tier.state.interval.ms") / 1000
        backoff = self._bucket.backoff()
        wait_s = interval_s
        while not self._bucket.claim.is_fenced:
            await asyncio.sleep(wait_s)
            try:
                await self.upload()
            except Fenced as error:
                self._bucket.claim.fence(error)
            except (Unavailable, Corrupt) as error:
                self._log.warning("cluster state not in the bucket", reason=str(error))
                wait_s = backoff.failed()
            else:
                backoff.succeeded()
                wait_s = interval_s

    async def close(self) -> None:
        """Upload at a clean stop, with the offsets committed last. Wait a bounded time."""
        if self._bucket.claim.is_fenced:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.upload()
        except (Unavailable, Corrupt, Fenced, TimeoutError) as error:
            self._log.warning("cluster state not in the bucket", reason=str(error) or "timed out")

    async def upload(self) -> None:
        """Upload the present state; send no request if nothing has changed since the last upload.

        While some groups' offsets are not loaded, nothing is uploaded: a cluster's first version must have them. Raises
        Fenced, Unavailable, Corrupt.
        """
        image = self._metadata.image
        ends: Ends = {}
        await in_turns(self._note_ends(ends))
        # Committed offsets are records of a partition, too, so its end shows their changes.
        seen = (image.offset, ends)
        bucket, claim = self._bucket, self._bucket.claim
        if self._claims != claim.times:  # a bucket that was claimed again has no state
            self._claims, self._version, self._uploaded = claim.times, 0, None
        if seen == self._uploaded or self._is_loading() or not claim.is_held:
            return
        cluster_id, incarnation = claim.cluster_id, claim.incarnation
        now_ms = bucket.outside.clock.now_ms()
        coordinated = frozenset(self._groups.coordinated)
        committed: list[tuple[str, list[tuple[str, int, KeptOffset]]]] = []
        await in_turns(map(committed.append, self._groups.committed()))
        try:
            await self._groups.all_committed()
        except Rejected:
            return  # these offsets may never be committed; the next coordinator uploads its own
        at_least = self._version

        def put() -> int | None:
            check_incarnation(bucket.store, cluster_id, incarnation)
            mine = ClusterState(
                cluster_id=cluster_id,
                incarnation=incarnation,
                node_id=bucket.config.int("node.id"),
                written_ms=now_ms,
                next_producer_id=image.next_producer_id,
                brokers=_brokers(image),
                topics=_topics(image, ends),
                groups={group: _offsets(kept) for group, kept in committed if kept},
                metadata_offset=image.offset,
            )
            for _ in range(_ATTEMPTS_MAX):
                version = state_version(bucket.store, cluster_id, incarnation, at_least)
                before, _damaged = newest_state(bucket.store, cluster_id, incarnation)
                if before is not None and before.incarnation != incarnation:
                    before = None
                state = merged(before, mine, coordinated)
                if state is None:
                    return None
                if put_state(bucket.store, state, version):
                    return version + 1
            raise Unavailable(f"{bucket.store.url}: other brokers upload the cluster's state")

        version = await bucket.threads.expirer.submit(put)
        if version is not None:  # else this broker's metadata is behind: a later interval uploads
            self._version, self._uploaded = version, seen

    def _is_loading(self) -> bool:
        """Return whether this broker leads a partition of the offsets topic that it will coordinate and does not yet.

        The offsets of a partition that cannot be read stay as they are in the bucket.
        """
        groups = self._groups
        unread = {one.name.partition for one in groups.not_loaded}
        return any(
            hosted.name.topic == OFFSETS_TOPIC
            and hosted.replica.leads
            and hosted.name.partition not in groups.coordinated | unread
            for hosted in self._hosting.all()
        )

    def _note_ends(self, ends: Ends) -> Iterator[None]:
        for hosted in self._hosting.all():
            if hosted.replica.leads:
                ends[hosted.key] = hosted.log.log_start_offset, hosted.high_watermark
            yield


def _brokers(image: Image) -> dict[str, dict[str, str]]:
    return {
        name: {key: value for key, value in sorted(configs.items()) if not is_secret(key)}
        for (kind, name), configs in sorted(image.configs.items())
        if kind == ResourceType.BROKER and (kind, name) != TIER_RESOURCE
    }


def _topics(image: Image, ends: Ends) -> tuple[StateTopic, ...]:
    topics = sorted(image.topics_by_id.values(), key=lambda topic: topic.name)
    return tuple(
        StateTopic(
            name=topic.name,
            topic_id=topic_id_text(topic.id),
            configs=dict(sorted(image.topic_configs(topic.name).items())),
            partitions=tuple(
                StatePartition(
                    partition.leader_epoch, *ends.get(TopicIdPartition(topic.id, index), _UNKNOWN)
                )
                for index, partition in sorted(topic.partitions.items())
            ),
        )
        for topic in topics
    )


def _offsets(kept: list[tuple[str, int, KeptOffset]]) -> tuple[StateOffset, ...]:
    return tuple(
        StateOffset(
            topic,
            topic_id_text(one.topic_id),
            partition,
            one.offset,
            one.leader_epoch,
            one.metadata,
            one.commit_timestamp_ms,
            one.expire_timestamp_ms,
        )
        for topic, partition, one in kept
    )
