"""A read-only view of the bucket, for Spark and the command line.

In: a store. Out: topics, pinned manifests, checked bytes. It never writes, and needs no broker.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.errors import Corrupt, UserError
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.commit import load_latest, run
from stratalog.tier.bucket.identity import TierTopic, list_topics, read_claim
from stratalog.tier.formats.manifest import Manifest, RemoteSegment
from stratalog.tier.formats.paths import partition_prefix
from stratalog.tier.formats.segment_object import SegmentIndex, read_range
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import load_index

__all__ = ["Bucket", "load_index", "open_bucket", "read_entries"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A cluster's bucket. All methods read the store; they raise Corrupt naming the object, and Unavailable."""

    store: ObjectStore
    cluster_id: str
    archives: ArchiveManifests

    def topics(self) -> list[TierTopic]:
        """Return the topics that are not deleted, by name."""
        return list_topics(self.store, self.cluster_id)

    def topic(self, name: str) -> TierTopic | None:
        """Return the (newest) topic of that name.

        Raises Corrupt where a damaged registry entry may be that topic's.
        """
        damaged: dict[str, str] = {}
        topics = list_topics(self.store, self.cluster_id, damaged)
        named = [topic for topic in topics if topic.name == name]
        if not named and damaged:
            raise Corrupt(next(iter(damaged.values())))
        return named[-1] if named else None

    def manifest(self, topic: TierTopic, partition: int) -> Manifest | None:
        """Return the newest manifest of a partition; None where nothing was ever archived.

        The version is pinned: its objects stay readable for `remote.delete.grace.ms` after a later version drops them.
        """
        prefix = partition_prefix(self.cluster_id, topic.topic_uuid, partition)
        return run(self.store, load_latest(prefix))

    def live(self, manifest: Manifest, *, first: int = 0) -> Iterator[RemoteSegment]:
        """Yield the live segments of a pinned manifest in the order of offsets, from the one with offset `first` on."""
        return self.archives.live(manifest, first=first)

    def manifests(self, topic: TierTopic) -> dict[int, Manifest]:
        """Return the newest manifest of each partition that has one."""
        found = {number: self.manifest(topic, number) for number in range(topic.partitions)}
        return {number: manifest for number, manifest in found.items() if manifest is not None}


def open_bucket(store: ObjectStore) -> Bucket:
    """Open the bucket in a store. Raises UserError where it has no owner, Corrupt, Unavailable."""
    claim = read_claim(store)
    if claim is None:
        raise UserError(f"{store.url} holds no bucket of stratalog")
    return Bucket(store, claim.cluster_id, ArchiveManifests(store))


def read_entries(
    store: ObjectStore, segment: RemoteSegment, index: SegmentIndex, first: int, stop: int
) -> bytes:
    """Return the batches of index entries `first` to `stop` (excluded), in one request, every byte checked.

    Raises Corrupt naming the object where it is missing or altered; Unavailable.
    """
    entries = index.entries
    start = entries.positions[first]
    end = entries.positions[stop - 1] + entries.lengths[stop - 1]
    data = bytes(read_range(store, segment.path, start, end - start))
    entries.check(first, stop, data, segment.path)
    return data
