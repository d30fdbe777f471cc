"""Mark deleted topics in the bucket, and remove them after the grace time.

In: topics whose deletion the metadata log names. Out: marks and removals in the bucket. A missing topic never counts as
deleted: a newly formatted node must not remove the history. Until the marks are in the bucket, no metadata snapshot
replaces the records of those deletions. Each broker does all of that, whether it held the topic or not: marks are put
if absent, and an object is removed once.

After a takeover the node also looks, now and then, for topics that the old node registered since.
"""

import asyncio
from collections.abc import Iterable
from typing import Final
from uuid import UUID

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.tier.bucket import ClaimedBucket
from stratalog.broker.tier.partition_archiver import PartitionArchiver
from stratalog.errors import Corrupt, Unavailable
from stratalog.tier.bucket.identity import delete_topic, list_deleted, remove_deleted_topics
from stratalog.tier.bucket.incarnation import check_incarnation, mark_strays

_STRAYS_MS: Final = 3600_000
"""How often to look for topics that the old node registered since."""


class DeletedTopics:
    """The deleted topics of one cluster. Call `forget` now and then, and after each deletion."""

    def __init__(self, bucket: ClaimedBucket, metadata: ClusterImage) -> None:
        self._bucket = bucket
        self._metadata = metadata
        self._incarnation = bucket.claim.incarnation
        # A crash may have come between a deletion and its mark in the bucket.
        self._removed = set(metadata.removed_topics)
        metadata.holds.append(lambda: bool(self._removed))
        self._ending: set[PartitionArchiver] = set()
        self._marks_left = True
        self._marks_seen: dict[str, int] = {}
        self._strays_due_ms = 0
        self._forgetting = asyncio.Lock()
        self._log = structlog.get_logger()

    def resigned(self, partition: PartitionArchiver) -> None:
        """Note a partition that this broker stopped leading: objects of its last cycle must not outlive the topic."""
        self._ending = {one for one in (*self._ending, partition) if one.is_running}

    def deleted(self, topic_ids: Iterable[UUID]) -> None:
        """Note deleted topics: each broker marks them, as those that held one may be dead."""
        self._removed.update(topic_ids)

    async def forget(self) -> None:
        """Mark deleted topics in the bucket; remove topics whose mark is older than the grace time. Raises Fenced."""
        async with self._forgetting:
            bucket = self._bucket
            steady_ms = bucket.outside.clock.steady_ms()
            strays_due = bool(self._incarnation) and steady_ms >= self._strays_due_ms
            if not (self._removed or self._marks_left or strays_due):
                return
            for partition in list(self._ending):
                await partition.ended()
                self._ending.discard(partition)
            removed = list(self._removed)
            now_ms = bucket.outside.clock.now_ms()
            try:
                self._marks_left = await bucket.threads.expirer.submit(
                    lambda: self._forget(
                        removed, steady_ms=steady_ms, now_ms=now_ms, strays_due=strays_due
                    )
                )
            except (Unavailable, Corrupt) as error:
                self._log.warning(
                    "deleted topics not removed from the bucket yet", reason=str(error)
                )
            else:
                self._removed.difference_update(removed)
                if strays_due:
                    self._strays_due_ms = steady_ms + _STRAYS_MS

    def _forget(
        self, removed: list[UUID], *, steady_ms: int, now_ms: int, strays_due: bool
    ) -> bool:
        """Return whether marks are left. Runs on a thread. Raises Fenced, Unavailable, Corrupt."""
        bucket, metadata = self._bucket, self._metadata
        store, cluster_id = bucket.store, bucket.cluster_id
        # A topic that was deleted in an earlier incarnation may be in use in the present one.
        check_incarnation(store, cluster_id, self._incarnation)
        if strays_due:
            mark_strays(store, cluster_id, lambda: metadata.image.topics_by_id, now_ms)
        for topic_id in removed:
            delete_topic(store, cluster_id, topic_id, now_ms)
        marked = {mark.topic_id for mark in list_deleted(store, cluster_id)}
        # As for segments (`tier/writing/grace.py`), the grace time begins when this node first sees the mark.
        seen = self._marks_seen
        self._marks_seen = {one: seen.get(one, steady_ms) for one in marked}
        due_ms = steady_ms - bucket.config.int("remote.delete.grace.ms")
        due = {one for one, since in self._marks_seen.items() if since <= due_ms}
        due = {one for one in due if not bucket.leases.holds_topic(one, steady_ms)}
        remove_deleted_topics(store, cluster_id, due, set(metadata.image.topics_by_id))
        return bool(marked)
