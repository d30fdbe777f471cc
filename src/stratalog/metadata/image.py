"""The cluster at one offset of its metadata log, as an immutable value.

In: nothing; `delta.py` builds each next image. Out: brokers, topics by id, configurations, features. Nothing here
changes, so a caller may keep an image and read it at any time.

The maps are dictionaries, large ones of two layers (`layered.py`). No code writes to them once the image is built.
Kafka: MetadataImage and its parts.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from msgspec import Struct, field

from stratalog.wire.internal.metadata_records import RegisterControllerRecord

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
METADATA_VERSION_LEVEL = 30
"""4.3-IV0: the newest that Kafka 4.3 writes in production, and what our record versions correspond to."""
METADATA_VERSION_MIN = 25
"""4.0-IV3: that of a cluster of Apache Kafka 4.0. Up to `METADATA_VERSION_LEVEL` one record changed (CORDONED_FROM)."""
CORDONED_FROM = 30
"""The level of metadata.version from which records of brokers name cordoned directories (KIP-1066)."""

ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"
"""The feature of KIP-966; at level 1 the controller keeps eligible leader replicas."""

NO_LEADER = -1
ForeignKey = tuple[str, Any]
"""The name of a record's class, and what of the record is unique among its kind."""

# Kafka: LeaderRecoveryState (KIP-704).
RECOVERED = 0
RECOVERING = 1
"""The leader was elected uncleanly and has not reported yet that it recovered."""

# Kafka: DirectoryId (KIP-858).
DIRECTORY_MIGRATING = UUID(int=0)
DIRECTORY_UNASSIGNED = UUID(int=1)
DIRECTORY_LOST = UUID(int=2)
DIRECTORY_RESERVED_MAX = 99
"""Ids up to here are reserved, and belong to no directory."""


class ResourceType(IntEnum):
    """The kind of resource that a configuration belongs to (Kafka: ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


TIER_RESOURCE: Final = (int(ResourceType.BROKER), "tier")
"""The resource of what each broker must know of the bucket. No broker has this name, so no client can alter it, and
Apache Kafka's nodes keep it and ignore it."""
INCARNATION: Final = "incarnation"


class Endpoint(Struct, frozen=True):
    """Where a broker listens; `security_protocol` is Kafka's number (0: PLAINTEXT)."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class FeatureRange(Struct, frozen=True):
    """The levels of a feature that a node can work with."""

    name: str
    min_level: int
    max_level: int


class Broker(Struct, frozen=True):
    """A registered broker. `epoch` is one incarnation's registration: later ones are higher."""

    id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    directories: tuple[UUID, ...] = ()
    cordoned_directories: tuple[UUID, ...] | None = None
    features: tuple[FeatureRange, ...] = ()

    @property
    def is_active(self) -> bool:
        """Return whether the broker may lead and be in sync: it is neither fenced nor shutting down."""
        return not (self.fenced or self.in_controlled_shutdown)

    @property
    def is_cordoned(self) -> bool:
        """Return whether none of its directories takes new replicas (KIP-1066)."""
        return bool(self.directories) and set(self.directories) <= set(
            self.cordoned_directories or ()
        )


class Partition(Struct, frozen=True):
    """The replicas of a partition and its leader.

    `leader_epoch` grows whenever a leader is named, also the same one again; `partition_epoch` with every change.
    `directories` goes with `replicas`, place by place.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[UUID, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory_of(self, broker_id: int) -> UUID | None:
        """Return the log directory that the broker's replica is known to be in; None while none is assigned."""
        if broker_id not in self.replicas or not self.directories:
            return None
        found = self.directories[self.replicas.index(broker_id)]
        return found if found.int > DIRECTORY_RESERVED_MAX else None


class Topic(Struct, frozen=True):
    """A topic; its partitions by index. A name created again gets another id."""

    id: UUID
    name: str
    partitions: Mapping[int, Partition] = field(default_factory=dict)


class Image(Struct, frozen=True):
    """The cluster after the record at `offset`; `epoch` is the quorum leader's at that record.

    Invariant: `topic_ids_by_name` names exactly the topics of `topics_by_id`.
    """

    offset: int = -1
    epoch: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controllers: Mapping[int, RegisterControllerRecord] = field(default_factory=dict)
    topics_by_id: Mapping[UUID, Topic] = field(default_factory=dict)
    topic_ids_by_name: Mapping[str, UUID] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    foreign: Mapping[ForeignKey, Any] = field(default_factory=dict)
    """The records of users, rights, quotas and delegation tokens, as they are."""
    open_transaction: tuple[tuple[int, Any], ...] | None = None
    """Records of a metadata transaction that has not ended, with their offsets; they count once it ends (KIP-868)."""

    def topic(self, name: str) -> Topic | None:
        topic_id = self.topic_ids_by_name.get(name)
        return None if topic_id is None else self.topics_by_id[topic_id]

    def partition(self, topic_id: UUID, index: int) -> Partition | None:
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(index)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Return the settings of the topic itself; empty where it has none."""
        return self.configs.get((ResourceType.TOPIC, name), {})

    @property
    def incarnation(self) -> int:
        """The life of the cluster in its bucket; 0 for one that was never restored."""
        return int(self.configs.get(TIER_RESOURCE, {}).get(INCARNATION, "0"))


EMPTY = Image()
