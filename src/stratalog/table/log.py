"""The log as a planner sees it: topics, the extent of each partition, and offsets by timestamp.

In: options. Out: topics, `Extent`s with their pinned manifests, offsets. It uses the brokers if the options name any,
else the bucket alone. It never reads records, except one range of batches in the bucket to look up a timestamp.

With both, the brokers have the log's start and end, and the bucket's manifests list the part that it holds. The bucket
must belong to these brokers. A pinned manifest serves one plan.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import EARLIEST, LATEST, TOPIC, TopicInfo
from stratalog.errors import BadOption, Corrupt
from stratalog.table.leasing import Leasing
from stratalog.table.options import Options, Selection
from stratalog.table.places import Shared, client_of, damage_log, refused_topic, store_at
from stratalog.table.plan import Range, Task
from stratalog.tier.bucket.commit import load_latest, run
from stratalog.tier.formats.manifest import Manifest, RemoteSegment
from stratalog.tier.formats.paths import partition_prefix
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.reading.reader import Bucket, open_bucket
from stratalog.wire.ids import ZERO_ID, TopicIdPartition, TopicPartition


@dataclass(frozen=True, slots=True)
class LogTopic:
    """A topic that the query reads: some or all of its `partition_count` partitions.

    `gaps`: it is compacted, so offsets may be absent.
    """

    topic_id: UUID
    name: str
    partitions: tuple[int, ...]
    gaps: bool
    partition_count: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The readable part of a partition: offsets [start, end), and the segments in the bucket."""

    start: int
    end: int
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The chosen topics and their partitions at one moment."""

    topics: Mapping[UUID, LogTopic]
    extents: Mapping[TopicIdPartition, Extent]


class Log:
    """Brokers, bucket or both. Raises BadOption where the log lacks a requested topic or partition, Unavailable,
    Corrupt, Rejected.
    """

    def __init__(self, options: Options, shared: Shared) -> None:
        self._options = options
        self._client: BlockingClient | None = client_of(shared) if options.bootstrap else None
        self._bucket: Bucket | None = (
            open_bucket(store_at(options.tier_url)) if options.tier_url else None
        )
        self._leasing = (
            Leasing(
                self._bucket.store, self._bucket.cluster_id, options.client_id, options.lease_ms
            )
            if self._bucket is not None
            else None
        )

    @property
    def has_broker(self) -> bool:
        return self._client is not None

    def snapshot(self) -> Snapshot:
        """Return the present topics and extents, with the newest manifests."""
        topics = (
            self._broker_topics(self._client) if self._client is not None else self._bucket_topics()
        )
        if self._client is not None:
            extents = self._broker_extents(self._client, topics)
        else:
            extents = self._bucket_extents(topics)
        return Snapshot({topic.topic_id: topic for topic in topics}, extents)

    def offsets_at(
        self, snapshot: Snapshot, wanted: Mapping[TopicIdPartition, int]
    ) -> dict[TopicIdPartition, int | None]:
        """Return the first offset whose record is not older than a timestamp (epoch ms); None where all are older."""
        if self._client is not None:
            names = {
                TopicPartition(snapshot.topics[key.topic_id].name, key.partition): key
                for key in wanted
            }
            timestamps = {name: wanted[key] for name, key in names.items()}
            listed = self._client.list_offsets(timestamps, isolation=self._options.isolation)
            return {
                names[name]: (at.offset if at.offset >= 0 else None) for name, at in listed.items()
            }
        return {
            key: self._bucket_offset_at(snapshot.extents[key], when) for key, when in wanted.items()
        }

    def not_before(
        self, snapshot: Snapshot, wanted: Mapping[TopicIdPartition, int]
    ) -> dict[TopicIdPartition, int | None]:
        """Return an offset below which every record is older than a timestamp (epoch ms); None where all are older.

        The manifests answer where a live segment may hold such a record; brokers answer for the other partitions. This
        opens no object.
        """
        found = {key: self._first_live(snapshot.extents[key], when) for key, when in wanted.items()}
        left = {key: when for key, when in wanted.items() if found[key] is None}
        if self._client is None or not left:
            return found
        # To a broker, a negative timestamp means a place in the log.
        early = {key: snapshot.extents[key].start for key, when in left.items() if when < 0}
        unanswered = {key: when for key, when in left.items() if when >= 0}
        return {**found, **early, **self.offsets_at(snapshot, unanswered)}

    def located(
        self, ranges: Iterable[tuple[Range, Manifest | None]]
    ) -> list[tuple[Range, list[RemoteSegment]]]:
        """Return the bucket's segments of each range; archive manifests outside all ranges stay closed."""
        return [
            (wanted, self._live(manifest, wanted.first, wanted.end)) for wanted, manifest in ranges
        ]

    def leased(
        self, tasks: Sequence[Task], ranges: Iterable[tuple[Range, Manifest | None]]
    ) -> list[Task]:
        """Return the tasks, with a read lease on their objects in the bucket."""
        if self._leasing is None:
            return list(tasks)
        manifests = {
            TopicIdPartition(wanted.topic_id, wanted.partition): manifest
            for wanted, manifest in ranges
            if manifest is not None
        }
        return self._leasing.leased(tasks, manifests)

    def release(self) -> None:
        """Remove the query's lease: it has ended."""
        if self._leasing is not None:
            self._leasing.release()

    def _first_live(self, extent: Extent, since_ms: int) -> int | None:
        """Return the first offset of the oldest segment that has a record of that time or later; None without one."""
        if extent.manifest is None or self._bucket is None:
            return None
        live = self._bucket.archives.live(extent.manifest, first=extent.start, since_ms=since_ms)
        try:
            segment = next(live, None)
        except Corrupt:
            if self._options.fail_on_data_loss:
                raise
            return extent.start  # `located` reports the damage
        return None if segment is None else max(extent.start, segment.entry.base_offset)

    def _live(self, manifest: Manifest | None, first: int, end: int) -> list[RemoteSegment]:
        if manifest is None or self._bucket is None:
            return []
        unreadable = damage_log(fail=self._options.fail_on_data_loss)
        live = self._bucket.archives.live(manifest, first=first, end=end, unreadable=unreadable)
        return list(live)

    # --- topics -----------------------------------------------------------------------------------------------

    def _broker_topics(self, client: BlockingClient) -> list[LogTopic]:
        options = self._options
        pattern = options.selection is Selection.PATTERN
        info = client.metadata(None if pattern else list(options.topics))
        if self._bucket is not None and info.cluster_id != self._bucket.cluster_id:
            raise BadOption(
                f"the bucket {options.tier_url} belongs to cluster {self._bucket.cluster_id}, "
                f"{options.bootstrap} is cluster {info.cluster_id}"
            )
        found = info.topics
        if pattern:
            chosen = re.compile(options.topics[0])
            found = {
                name: topic
                for name, topic in found.items()
                if chosen.search(name) and not topic.is_internal
            }
        for name, topic in found.items():
            if topic.error:
                raise refused_topic(name, topic.error, options.bootstrap)
            if topic.topic_id == ZERO_ID:
                raise BadOption(f"topic {name} at {options.bootstrap} has no id")
        compacted = self._compacted(client, found)
        return [
            LogTopic(
                topic.topic_id,
                name,
                self._chosen(name, topic.partitions),
                name in compacted,
                len(topic.partitions),
            )
            for name, topic in sorted(found.items())
        ]

    def _compacted(self, client: BlockingClient, topics: Mapping[str, TopicInfo]) -> set[str]:
        """Return topics that may have gaps: compacted ones, and those whose policy is unknown."""
        if not topics:
            return set()
        found = set()
        for resource in client.describe_configs([(TOPIC, name) for name in topics]):
            policies = [
                entry.value or "" for entry in resource.entries if entry.name == "cleanup.policy"
            ]
            if resource.error or not policies or "compact" in policies[0]:
                found.add(resource.name)
        return found

    def _bucket_topics(self) -> list[LogTopic]:
        assert self._bucket is not None, "neither brokers nor a bucket"
        options = self._options
        topics_by_name = {topic.name: topic for topic in self._bucket.topics()}
        if options.selection is Selection.PATTERN:
            chosen = re.compile(options.topics[0])
            names = [name for name in topics_by_name if chosen.search(name)]
        else:
            names = list(options.topics)
        topics = []
        for name in sorted(names):
            if name not in topics_by_name:
                raise BadOption(f"topic {name} is not in the bucket {options.tier_url}")
            topic = topics_by_name[name]
            compacted = "compact" in topic.configs.get("cleanup.policy", "")
            partitions = self._chosen(name, range(topic.partitions))
            topics.append(LogTopic(topic.topic_uuid, name, partitions, compacted, topic.partitions))
        return topics

    def _chosen(self, name: str, partitions: Iterable[int]) -> tuple[int, ...]:
        existing = sorted(partitions)
        if self._options.selection is not Selection.ASSIGN:
            return tuple(existing)
        wanted = self._options.assigned[name]
        missing = [index for index in wanted if index not in existing]
        if missing:
            raise BadOption(f"topic {name} has no partition {missing[0]}")
        return wanted

    # --- extents ----------------------------------------------------------------------------------------------

    def _broker_extents(
        self, client: BlockingClient, topics: Iterable[LogTopic]
    ) -> dict[TopicIdPartition, Extent]:
        keys = {
            TopicPartition(topic.name, index): TopicIdPartition(topic.topic_id, index)
            for topic in topics
            for index in topic.partitions
        }
        # Read the manifests first: segments archived later are behind the seam, and the broker still serves them.
        manifests = {key: self._manifest(*key) for key in keys.values()}
        starts = client.list_offsets(dict.fromkeys(keys, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(keys, LATEST), isolation=self._options.isolation)
        return {
            key: Extent(starts[name].offset, ends[name].offset, manifests[key])
            for name, key in keys.items()
        }

    def _bucket_extents(self, topics: Iterable[LogTopic]) -> dict[TopicIdPartition, Extent]:
        extents = {}
        for topic in topics:
            for index in topic.partitions:
                manifest = self._manifest(topic.topic_id, index)
                start, end = (manifest.start_offset, manifest.tiered_end) if manifest else (0, 0)
                extents[TopicIdPartition(topic.topic_id, index)] = Extent(start, end, manifest)
        return extents

    def _manifest(self, topic_id: UUID, partition: int) -> Manifest | None:
        if self._bucket is None:
            return None
        prefix = partition_prefix(self._bucket.cluster_id, topic_id, partition)
        return run(self._bucket.store, load_latest(prefix))

    def _bucket_offset_at(self, extent: Extent, timestamp: int) -> int | None:
        manifest = extent.manifest
        if manifest is None or self._bucket is None:
            return None
        fetcher = Fetcher(self._bucket.store)
        candidates = self._bucket.archives.live(manifest, first=extent.start, since_ms=timestamp)
        for segment in candidates:
            found = fetcher.offset_for_timestamp(segment, timestamp, extent.start)
            if found is not None:
                return found.offset
        return None
