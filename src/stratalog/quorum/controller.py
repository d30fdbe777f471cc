"""The controller: decide changes of the cluster, and hold its image.

In: requests; decided records to replay. Out: decisions (records to append as one batch, and an answer). It never
appends, waits or does I/O, and only `replay_batch` changes its state (`statemachine.py`).

The image is always that of the last replayed record. Every decision uses it, so it sees all earlier decisions
applied. Kafka: QuorumController and its *ControlManager classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import (
    DIRECTORY_UNASSIGNED,
    EMPTY,
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    NO_LEADER,
    Broker,
    Endpoint,
    FeatureRange,
    Image,
)
from stratalog.metadata.snapshot import broker_record
from stratalog.ports import Entropy
from stratalog.quorum.configurations import Alteration, Altered, SettingRules, alter_records
from stratalog.quorum.features import FeatureUpdate, feature_records
from stratalog.quorum.partitions import Extended, MorePartitions, extend_records
from stratalog.quorum.single import KRAFT_VERSION
from stratalog.quorum.topics import (
    Created,
    Deleted,
    NewTopic,
    TopicRules,
    check_topic_name,
    collision_key,
    create_records,
    delete_records,
)
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
)

__all__ = [
    "Alteration",
    "Altered",
    "BrokerRegistration",
    "Controller",
    "Created",
    "Deleted",
    "Extended",
    "FeatureUpdate",
    "MorePartitions",
    "NewTopic",
    "TopicRules",
    "check_topic_name",
]

SUPPORTED_FEATURES = (
    FeatureRange("kraft.version", 0, 1),
    FeatureRange(METADATA_VERSION, METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),
)
PRODUCER_ID_BLOCK = 1000
"""Kafka: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's description of itself at its start. `incarnation_id` is new with every start."""

    id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    directories: tuple[UUID, ...] = ()
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES


class Controller:
    """State machine of `__cluster_metadata`, in one epoch of this node's leadership."""

    def __init__(self, rules: TopicRules | None = None, image: Image = EMPTY) -> None:
        """`image`: the cluster as the log gives it, in the epoch that this node leads in."""
        self.image = image
        """After the last replayed record."""
        self._rules = rules or TopicRules()
        self._names: dict[str, set[str]] = {}
        """Topic names with '.' or '_', by the key on which they collide."""
        for name in image.topic_ids_by_name:
            self._name_appeared(name)

    def replay_batch(self, base_offset: int, records: Sequence[Any]) -> Delta:
        """Apply the records of one batch; the delta says what changed."""
        delta = Delta(self.image)
        delta.replay_all(base_offset, records)
        self.image = delta.image()
        for topic in delta.deleted_topics.values():
            self._name_vanished(topic.name)
        for topic_id in delta.created_topics:
            self._name_appeared(self.image.topics_by_id[topic_id].name)
        return delta

    def bootstrap(self) -> Decision[Any, int]:
        """The first records of an empty log; none later. Answer: the metadata version level.

        Raises Corrupt for a log of a level that we do not know: it must not be written to.
        """
        level = self.image.features.get(METADATA_VERSION)
        if level is None:
            record = FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL)
            return Decision([record], METADATA_VERSION_LEVEL)
        if level != METADATA_VERSION_LEVEL:
            raise Corrupt(
                f"the metadata log is at {METADATA_VERSION} {level}, known is {METADATA_VERSION_LEVEL}"
            )
        return Decision([], level)

    # Brokers

    def register_broker(self, asked: BrokerRegistration) -> Decision[Any, int]:
        """Register a broker, fenced; answer: its epoch.

        Asking again in the same incarnation answers the same epoch. Raises Rejected: INVALID_REGISTRATION (a directory
        of another broker), UNSUPPORTED_VERSION (a finalized feature it cannot work with).
        """
        image = self.image
        for other in image.brokers.values():
            shared = set(other.directories) & set(asked.directories)
            if other.id != asked.id and shared:
                raise Rejected(
                    ErrorCode.invalid_registration,
                    f"directory {next(iter(shared))} belongs to broker {other.id}",
                )
        ranges = {feature.name: feature for feature in asked.features}
        for name, level in image.features.items():
            known = ranges.get(name)
            if known is None or not known.min_level <= level <= known.max_level:
                raise Rejected(
                    ErrorCode.unsupported_version,
                    f"broker {asked.id} does not support {name} at level {level}",
                )
        before = image.brokers.get(asked.id)
        if before is not None and before.incarnation_id == asked.incarnation_id:
            return Decision([], before.epoch)
        # Any offset not used yet is above every earlier registration's epoch (Kafka takes the record's own).
        epoch = image.offset + 1
        broker = Broker(
            id=asked.id,
            epoch=epoch,
            incarnation_id=asked.incarnation_id,
            endpoints=asked.endpoints,
            rack=asked.rack,
            directories=asked.directories,
            features=asked.features,
        )
        return Decision([broker_record(broker)], epoch)

    def unfence_broker(self, broker_id: int, broker_epoch: int) -> Decision[Any, None]:
        """Let a registered broker lead; raises Rejected as `_registered`."""
        broker = self._registered(broker_id, broker_epoch)
        if not broker.fenced:
            return Decision([], None)
        record = BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, fenced=-1
        )
        return Decision([record], None)

    def activate_leaders(
        self, broker_id: int, partitions: Iterable[TopicIdPartition] | None = None
    ) -> Decision[Any, int]:
        """Name the broker leader, in a new leader epoch, of each partition (of these) it led or only it can lead.

        To be committed before a restarted leader's first append: records it may have lost with its page cache must not
        share an epoch with new ones. Answer: how many partitions.
        """
        image = self.image
        every = (
            TopicIdPartition(topic.id, index)
            for topic in image.topics_by_id.values()
            for index in sorted(topic.partitions)
        )
        records = [
            PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=broker_id)
            for topic_id, index in (every if partitions is None else partitions)
            if (partition := image.partition(topic_id, index)) is not None
            and (
                partition.leader == broker_id
                or (partition.leader == NO_LEADER and broker_id in partition.isr)
            )
        ]
        return Decision(records, len(records))

    def assign_directories(
        self, broker_id: int, assigned: Mapping[TopicIdPartition, UUID]
    ) -> Decision[Any, set[TopicIdPartition]]:
        """Note in which of its directories the broker has each partition (KIP-858). Answer: those that are its own."""
        records = []
        held = set()
        for key, directory in assigned.items():
            partition = self.image.partition(*key)
            if partition is None or broker_id not in partition.replicas:
                continue
            held.add(key)
            before = partition.directories or (DIRECTORY_UNASSIGNED,) * len(partition.replicas)
            at = partition.replicas.index(broker_id)
            after = (*before[:at], directory, *before[at + 1 :])
            if after != partition.directories:
                records.append(
                    PartitionChangeRecord(
                        partition_id=key.partition, topic_id=key.topic_id, directories=after
                    )
                )
        return Decision(records, held)

    def _registered(self, broker_id: int, broker_epoch: int) -> Broker:
        """Raises Rejected: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise Rejected(ErrorCode.broker_id_not_registered, f"broker {broker_id}")
        if broker.epoch != broker_epoch:
            raise Rejected(
                ErrorCode.stale_broker_epoch,
                f"broker {broker_id} is at epoch {broker.epoch}, not {broker_epoch}",
            )
        return broker

    # Topics and configurations

    def create_topics(
        self, asked: Sequence[NewTopic], entropy: Entropy, *, validate_only: bool = False
    ) -> Decision[Any, list[Created]]:
        """Create what can be created, all in one batch; each topic has its own result."""
        records, results = create_records(self.image, asked, self._rules, entropy, self._colliding)
        return Decision([] if validate_only else records, results)

    def delete_topics(self, wanted: Sequence[str | UUID]) -> Decision[Any, list[Deleted]]:
        """Delete topics by name or id; each has its own result."""
        records, results = delete_records(self.image, wanted)
        return Decision(records, results)

    def create_partitions(
        self, asked: Sequence[MorePartitions], entropy: Entropy, *, validate_only: bool = False
    ) -> Decision[Any, list[Extended]]:
        """Add partitions to what can be extended, all in one batch; each topic has its own result."""
        records, results = extend_records(self.image, asked, entropy)
        return Decision([] if validate_only else records, results)

    def alter_configs(
        self, asked: Sequence[Alteration], rules: SettingRules, *, validate_only: bool = False
    ) -> Decision[Any, list[Altered]]:
        """Change settings of topics and brokers, all in one batch; each resource has its own result."""
        records, results = alter_records(self.image, asked, rules)
        return Decision([] if validate_only else records, results)

    def update_features(
        self, asked: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> Decision[Any, None]:
        """Set every level or none; raises Rejected as `feature_records`."""
        levels = {
            "kraft.version": KRAFT_VERSION
        }  # a leader's first batch has it, and no image does
        records = feature_records(self.image, SUPPORTED_FEATURES, levels, asked)
        return Decision([] if validate_only else records, None)

    # Producer ids

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, count: int = PRODUCER_ID_BLOCK
    ) -> Decision[Any, range]:
        """Reserve a block of producer ids for the broker; raises Rejected as `_registered`."""
        self._registered(broker_id, broker_epoch)
        first = self.image.next_producer_id
        record = ProducerIdsRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + count
        )
        return Decision([record], range(first, first + count))

    # Names

    def _colliding(self, name: str) -> str | None:
        key = collision_key(name)
        others = self._names.get(key, set()) - {name} if key is not None else set()
        return min(others, default=None)

    def _name_appeared(self, name: str) -> None:
        key = collision_key(name)
        if key is not None:
            self._names.setdefault(key, set()).add(name)

    def _name_vanished(self, name: str) -> None:
        key = collision_key(name)
        if key is not None:
            self._names[key].discard(name)
            if not self._names[key]:
                del self._names[key]
