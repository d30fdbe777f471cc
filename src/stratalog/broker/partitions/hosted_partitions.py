"""Find this broker's partitions by topic id and index, or by name for old protocol versions.

In: partitions that `hosting.py` adds and removes, the metadata image. Out: a hosted partition, or Kafka's error code
for one that is not here. It never decides which partitions are hosted.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from uuid import UUID

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import LogDirectory
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import EMPTY, Topic
from stratalog.wire.ids import TopicIdPartition, topic_id_text


class HostedPartitions:
    """Every partition of this broker."""

    def __init__(self, node_id: int) -> None:
        self.by_id: dict[TopicIdPartition, HostedPartition] = {}
        self._all: list[HostedPartition] | None = None
        """What `all` returned, while no partition has gone since.

        A new list of 100,000 partitions costs 40 to 60 ms: garbage collection examines each of them, once.
        """
        self.damaged: dict[TopicIdPartition, str] = {}
        """Partitions that are offline, as their directories are damaged, with the reason."""
        self.per_directory: Counter[LogDirectory] = Counter()
        """How many partitions each log directory has."""
        self._topics: dict[str | UUID, dict[int, HostedPartition]] = {}
        """The partitions of each topic, by its name and by its id. Every request looks here, without building a
        tuple.
        """
        self._node_id = node_id
        self._image = EMPTY
        self._changing: list[Collection[TopicIdPartition]] = []
        """The partitions of each pending change, in order."""

    def find(self, topic: str | UUID, index: int) -> HostedPartition | None:
        """Return the hosted partition of that topic, by name or by id, or None."""
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def get(self, topic: str, index: int) -> HostedPartition:
        """Return the hosted partition; raises Rejected as Kafka's `ReplicaManager.getPartitionOrError`.

        UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER where the partition exists and this broker does not host it
        (yet); KAFKA_STORAGE_ERROR where the partition is damaged or its log directory is offline.
        """
        found = self.find(topic, index)
        if found is None:
            raise self._missing(self._image.topic(topic), f"{topic}-{index}", index)
        found.check_hosted()
        return found

    def get_by_id(self, topic_id: UUID, index: int) -> HostedPartition:
        """Return the hosted partition of that id; raises Rejected as `get`, and UNKNOWN_TOPIC_ID."""
        found = self.find(topic_id, index)
        if found is None:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is None:
                raise Rejected(ErrorCode.unknown_topic_id, f"no topic {topic_id_text(topic_id)}")
            raise self._missing(topic, f"{topic.name}-{index}", index)
        found.check_hosted()
        return found

    def _missing(self, topic: Topic | None, name: str, index: int) -> Rejected:
        partition = None if topic is None else topic.partitions.get(index)
        if topic is None or partition is None:
            return Rejected(ErrorCode.unknown_topic_or_partition, f"no partition {name}")
        key = TopicIdPartition(topic.id, index)
        if self._node_id not in partition.replicas or any(key in one for one in self._changing):
            return Rejected(ErrorCode.not_leader_or_follower, f"{name} is not here, or not yet")
        reason = self.damaged.get(key, f"the log directory of {name} is away")
        return Rejected(ErrorCode.kafka_storage_error, reason)

    def all(self) -> Iterable[HostedPartition]:
        """Return every hosted partition. Later removals do not affect the list; new partitions join it."""
        if self._all is None:
            self._all = list(self.by_id.values())
        return self._all

    def unassigned(self, keys: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, UUID]:
        """Return those of these partitions whose directory differs from the one in metadata, with their directory."""
        found: dict[TopicIdPartition, UUID] = {}
        for key in keys:
            hosted, partition = self.by_id.get(key), self._image.partition(*key)
            if hosted is None or partition is None:
                continue
            if hosted.is_holding or hosted.directory.failure is not None:
                continue
            if partition.directory_of(self._node_id) != hosted.directory.id:
                found[key] = hosted.directory.id
        return found

    def relocate(self, hosted: HostedPartition, directory: LogDirectory) -> None:
        """Note that the partition lives in another log directory."""
        if self.by_id.get(hosted.key) is hosted:
            self.per_directory[hosted.directory] -= 1
            self.per_directory[directory] += 1
        hosted.directory = directory
        hosted.copies = [directory]

    def _add(self, hosted: HostedPartition) -> None:
        if hosted.key in self.by_id:
            self._all = None
        elif self._all is not None:
            self._all.append(hosted)
        self.by_id[hosted.key] = hosted
        self.per_directory[hosted.directory] += 1
        partitions = self._topics.setdefault(hosted.key.topic_id, {})
        partitions[hosted.key.partition] = hosted
        self._topics[hosted.name.topic] = partitions

    def _remove(self, key: TopicIdPartition) -> HostedPartition | None:
        """Take a partition out of the tables; return it, or None where it is not here."""
        self.damaged.pop(key, None)
        hosted = self.by_id.pop(key, None)
        if hosted is None:
            return None
        self._all = None
        self.per_directory[hosted.directory] -= 1
        partitions = self._topics[key.topic_id]
        del partitions[key.partition]
        if not partitions:
            del self._topics[key.topic_id]
            # Another topic may have come under that name since.
            if self._topics.get(hosted.name.topic) is partitions:
                del self._topics[hosted.name.topic]
        return hosted
