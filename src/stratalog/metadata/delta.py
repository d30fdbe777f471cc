"""Apply records to an image, and list what they change.

In: an image, then records in order. Out: the next image, and the changes by id, on which a broker acts. It never
decides and never does I/O.

A delta makes a next version only of the maps that a record touches, once each. So a whole log through one delta costs
one version, and a change to one of many topics what that topic costs (`layered.py`). Kafka: MetadataDelta; the rules
for each record are those of its `replay` methods.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar, get_args
from uuid import UUID

from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.metadata.image import (
    NO_LEADER,
    Broker,
    Endpoint,
    FeatureRange,
    Image,
    Partition,
    ResourceType,
    Topic,
)
from stratalog.metadata.layered import finished, next_version
from stratalog.wire.ids import check_stored_name
from stratalog.wire.internal.control import ControlRecord
from stratalog.wire.internal.marker_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    ZkMigrationStateRecord,
)
from stratalog.wire.internal.metadata_records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from stratalog.wire.internal.security_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

K = TypeVar("K")
V = TypeVar("V")
_LEADER_UNCHANGED = -2
_fields_of = attrgetter(
    "replicas",
    "isr",
    "leader",
    "leader_epoch",
    "partition_epoch",
    "directories",
    "removing_replicas",
    "adding_replicas",
    "leader_recovery_state",
    "eligible_leader_replicas",
    "last_known_elr",
)
"""The fields that `partition_of` reads."""
_TRANSACTION = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
_KEYS: dict[type[Any], Callable[[Any], Any]] = {
    AccessControlEntryRecord: attrgetter("id"),
    ClientQuotaRecord: lambda one: (
        tuple(
            sorted((e.entity_type, e.entity_name is None, e.entity_name or "") for e in one.entity)
        ),
        one.key,
    ),
    DelegationTokenRecord: attrgetter("token_id"),
    UserScramCredentialRecord: attrgetter("name", "mechanism"),
}
"""What identifies a record that no node of ours acts on."""
_REMOVED_BY: dict[type[Any], type[Any]] = {
    RemoveAccessControlEntryRecord: AccessControlEntryRecord,
    RemoveDelegationTokenRecord: DelegationTokenRecord,
    RemoveUserScramCredentialRecord: UserScramCredentialRecord,
}


class _Map(Generic[K, V]):
    """A mapping with a next version of its own from the first change on, and again after `give`."""

    __slots__ = ("_mine", "now")

    def __init__(self, base: Mapping[K, V]) -> None:
        self.now = base
        self._mine: MutableMapping[K, V] | None = None

    def set(self, key: K, value: V) -> None:
        self._writable()[key] = value

    def drop(self, key: K) -> None:
        """Raise KeyError where it is not there."""
        del self._writable()[key]

    def give(self) -> Mapping[K, V]:
        """Return the mapping; this object never writes to it again."""
        if self._mine is not None:
            self.now, self._mine = finished(self._mine), None
        return self.now

    def _writable(self) -> MutableMapping[K, V]:
        if self._mine is None:
            self.now = self._mine = next_version(self.now)
        return self._mine


class Delta:
    """Collects records on top of `base`; `image()` may be taken at any time, and again later.

    Changes since `base`: `changed_partitions` (topic id -> indexes, created ones included), `created_topics`,
    `deleted_topics` (id -> the topic as it was), `changed_configs` (resource type, name), `changed_brokers`,
    `changed_features`. A topic created and deleted within one delta is in none of them.
    """

    def __init__(self, base: Image) -> None:
        self.base = base
        self.offset = base.offset
        self.epoch = base.epoch
        self.next_producer_id = base.next_producer_id
        self.created_topics: set[UUID] = set()
        self.deleted_topics: dict[UUID, Topic] = {}
        self.changed_partitions: dict[UUID, set[int]] = {}
        self.changed_configs: set[tuple[int, str]] = set()
        self.changed_brokers: set[int] = set()
        self.changed_features: set[str] = set()
        self.removed_topics: set[UUID] = set()
        """Every topic that a record deleted, also one that another record of this delta created."""
        self._transaction = None if base.open_transaction is None else list(base.open_transaction)
        self._features = _Map(base.features)
        self._brokers = _Map(base.brokers)
        self._controllers = _Map(base.controllers)
        self._topics = _Map(base.topics_by_id)
        self._names = _Map(base.topic_ids_by_name)
        self._configs = _Map(base.configs)
        self._foreign = _Map(base.foreign)
        self._partitions: dict[UUID, dict[int, Partition]] = {}
        self._last: tuple[UUID, dict[int, Partition], set[int]] | None = None
        """The topic of the last partition record: the next one is often of the same topic."""
        self._alike: tuple[tuple[Any, ...], Partition] | None = None
        """The last partition record's fields and its partition: the next one is often equal."""

    def replay(self, offset: int, record: Any) -> None:
        """Apply the record at `offset`; inside a transaction keep it until that ends.

        Raises Corrupt for a record that contradicts earlier ones.
        """
        if self._transaction is not None and not isinstance(record, _TRANSACTION):
            self._transaction.append((offset, record))
        else:
            self._apply(offset, record)
        self.offset = offset

    def _apply(self, offset: int, record: Any) -> None:
        apply = self._APPLY.get(type(record))
        if apply is None:
            raise Corrupt(f"offset {offset}: {type(record).__name__} is not supported")
        try:
            apply(self, record)
        except KeyError as error:
            raise Corrupt(
                f"offset {offset}: {record} refers to {error}, which is not there"
            ) from error

    def replay_all(self, base_offset: int, records: Iterable[Any]) -> None:
        """Apply the records of one batch."""
        for index, record in enumerate(records):
            self.replay(base_offset + index, record)

    def image(self) -> Image:
        """Return the image after everything replayed so far."""
        for topic_id, partitions in self._partitions.items():
            self._topics.set(topic_id, replace(self._topics.now[topic_id], partitions=partitions))
        self._partitions, self._last = {}, None
        return Image(
            offset=self.offset,
            epoch=self.epoch,
            features=self._features.give(),
            brokers=self._brokers.give(),
            controllers=self._controllers.give(),
            topics_by_id=self._topics.give(),
            topic_ids_by_name=self._names.give(),
            configs=self._configs.give(),
            next_producer_id=self.next_producer_id,
            foreign=self._foreign.give(),
            open_transaction=None if self._transaction is None else tuple(self._transaction),
        )

    def _partitions_of(self, topic_id: UUID) -> dict[int, Partition]:
        """Return the topic's partitions, as a map that this delta may change."""
        mine = self._partitions.get(topic_id)
        if mine is None:
            mine = self._partitions[topic_id] = dict(self._topics.now[topic_id].partitions)
        return mine

    def _changing(self, topic_id: UUID) -> tuple[dict[int, Partition], set[int]]:
        """Return the topic's partitions, as a map that this delta may change, and the indexes that changed."""
        last = self._last
        if last is None or last[0] is not topic_id:
            changed = self.changed_partitions.get(topic_id)
            partitions = self._partitions_of(topic_id)
            if changed is None:
                changed = self.changed_partitions[topic_id] = set()
            last = self._last = topic_id, partitions, changed
        return last[1], last[2]

    def _feature(self, record: FeatureLevelRecord) -> None:
        self.changed_features.add(record.name)
        if record.feature_level != 0:
            self._features.set(record.name, record.feature_level)
        elif record.name in self._features.now:
            self._features.drop(record.name)

    def _register(self, record: RegisterBrokerRecord) -> None:
        self.changed_brokers.add(record.broker_id)
        self._brokers.set(record.broker_id, broker_of(record))

    def _registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        changed: dict[str, Any] = {}
        if record.fenced:
            changed["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changed["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        self._brokers.set(
            broker.id,
            replace(
                broker,
                **changed,
                directories=record.log_dirs or broker.directories,
                cordoned_directories=(
                    broker.cordoned_directories
                    if record.cordoned_log_dirs is None
                    else record.cordoned_log_dirs
                ),
            ),
        )

    def _fence(self, record: FenceBrokerRecord) -> None:
        broker = self._broker(record.id, record.epoch)
        self._brokers.set(broker.id, replace(broker, fenced=True))

    def _unfence(self, record: UnfenceBrokerRecord) -> None:
        broker = self._broker(record.id, record.epoch)
        self._brokers.set(broker.id, replace(broker, fenced=False))

    def _unregister(self, record: UnregisterBrokerRecord) -> None:
        self._brokers.drop(self._broker(record.broker_id, record.broker_epoch).id)

    def _broker(self, broker_id: int, epoch: int) -> Broker:
        broker = self._brokers.now[broker_id]
        if broker.epoch != epoch:
            raise Corrupt(f"broker {broker_id} is at epoch {broker.epoch}, not {epoch}")
        self.changed_brokers.add(broker_id)
        return broker

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        self._controllers.set(record.controller_id, record)

    def _topic(self, record: TopicRecord) -> None:
        if record.topic_id in self._topics.now or record.name in self._names.now:
            raise Corrupt(f"topic {record.name} ({record.topic_id}) is there already")
        try:
            check_stored_name(record.name)  # it becomes the name of directories
        except ValueError as error:
            raise Corrupt(str(error)) from None
        self._topics.set(record.topic_id, Topic(record.topic_id, record.name))
        self._names.set(record.name, record.topic_id)
        self.created_topics.add(record.topic_id)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topics.now[record.topic_id]
        self.removed_topics.add(topic.id)
        self._topics.drop(topic.id)
        self._names.drop(topic.name)
        self._last = None
        self._partitions.pop(topic.id, None)
        self.changed_partitions.pop(topic.id, None)
        key = (int(ResourceType.TOPIC), topic.name)
        if key in self._configs.now:
            self._configs.drop(key)
            self.changed_configs.add(key)
        if topic.id in self.created_topics:
            self.created_topics.remove(topic.id)
        else:
            self.deleted_topics[topic.id] = self.base.topics_by_id[topic.id]

    def _partition(self, record: PartitionRecord) -> None:
        fields = _fields_of(record)
        if self._alike is None or self._alike[0] != fields:
            self._alike = fields, partition_of(record)
        partitions, changed = self._changing(record.topic_id)
        partitions[record.partition_id] = self._alike[1]
        changed.add(record.partition_id)

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        partitions, changed = self._changing(record.topic_id)
        partitions[record.partition_id] = changed_partition(partitions[record.partition_id], record)
        changed.add(record.partition_id)

    def _clear_elr(self, record: ClearElrRecord) -> None:
        """Clear eligible leader replicas; an empty name means those of every topic (KIP-966)."""
        names = [record.topic_name] if record.topic_name else list(self._names.now)
        for topic_id in [self._names.now[name] for name in names]:
            partitions = self._partitions_of(topic_id)
            for index, partition in partitions.items():
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    partitions[index] = replace(
                        partition, eligible_leader_replicas=(), last_known_elr=()
                    )
                    self.changed_partitions.setdefault(topic_id, set()).add(index)

    def _config(self, record: ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        values = dict(self._configs.now.get(key, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._configs.set(key, values)
        elif key in self._configs.now:
            self._configs.drop(key)
        self.changed_configs.add(key)

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _keep(self, record: Any) -> None:
        self._foreign.set((type(record).__name__, _KEYS[type(record)](record)), record)

    def _forget(self, record: Any) -> None:
        kept = _REMOVED_BY[type(record)]
        self._foreign.drop((kept.__name__, _KEYS[kept](record)))

    def _quota(self, record: ClientQuotaRecord) -> None:
        key = (ClientQuotaRecord.__name__, _KEYS[ClientQuotaRecord](record))
        if not record.remove:
            self._foreign.set(key, record)
        elif key in self._foreign.now:
            self._foreign.drop(key)

    def _begin(self, record: BeginTransactionRecord) -> None:
        if self._transaction is not None:
            raise Corrupt(f"{record} stands in a transaction")
        self._transaction = []

    def _end(self, record: EndTransactionRecord) -> None:
        for offset, one in self._ended(record):
            self._apply(offset, one)

    def _abort(self, record: AbortTransactionRecord) -> None:
        self._ended(record)

    def _ended(self, record: Any) -> list[tuple[int, Any]]:
        """Return the records of the open transaction, which is open no more."""
        records, self._transaction = self._transaction, None
        if records is None:
            raise Corrupt(f"{record} stands in no transaction")
        return records

    def _nothing(self, record: Any) -> None:
        """Ignore a record that changes no state; its offset still counts."""

    _APPLY: ClassVar[dict[type[Any], Callable[["Delta", Any], None]]] = {
        FeatureLevelRecord: _feature,
        RegisterBrokerRecord: _register,
        BrokerRegistrationChangeRecord: _registration_change,
        FenceBrokerRecord: _fence,
        UnfenceBrokerRecord: _unfence,
        UnregisterBrokerRecord: _unregister,
        RegisterControllerRecord: _register_controller,
        TopicRecord: _topic,
        RemoveTopicRecord: _remove_topic,
        PartitionRecord: _partition,
        PartitionChangeRecord: _partition_change,
        ClearElrRecord: _clear_elr,
        ConfigRecord: _config,
        ProducerIdsRecord: _producer_ids,
        AccessControlEntryRecord: _keep,
        DelegationTokenRecord: _keep,
        UserScramCredentialRecord: _keep,
        RemoveAccessControlEntryRecord: _forget,
        RemoveDelegationTokenRecord: _forget,
        RemoveUserScramCredentialRecord: _forget,
        ClientQuotaRecord: _quota,
        BeginTransactionRecord: _begin,
        EndTransactionRecord: _end,
        AbortTransactionRecord: _abort,
        NoOpRecord: _nothing,
        ZkMigrationStateRecord: _nothing,
        **dict.fromkeys(get_args(ControlRecord), _nothing),
    }


def apply(image: Image, offset: int, record: Any) -> Image:
    """Return `image` after one more record; it copies each map that the record touches.

    For many records use a Delta.
    """
    delta = Delta(image)
    delta.replay(offset, record)
    return delta.image()


def broker_of(record: RegisterBrokerRecord) -> Broker:
    """Return the broker that the record registers."""
    return Broker(
        id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        endpoints=tuple(
            Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points
        ),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        directories=record.log_dirs,
        cordoned_directories=record.cordoned_log_dirs,
        features=tuple(
            FeatureRange(f.name, f.min_supported_version, f.max_supported_version)
            for f in record.features
        ),
    )


def partition_of(record: PartitionRecord) -> Partition:
    """Return the partition that the record creates; without the field it has no eligible replicas."""
    return Partition(
        replicas=record.replicas,
        isr=record.isr,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=record.directories,
        removing_replicas=record.removing_replicas,
        adding_replicas=record.adding_replicas,
        leader_recovery_state=record.leader_recovery_state,
        eligible_leader_replicas=record.eligible_leader_replicas or (),
        last_known_elr=record.last_known_elr or (),
    )


def changed_partition(before: Partition, record: PartitionChangeRecord) -> Partition:
    """Return the partition after the change. Null means unchanged. A named leader, even the same one, starts a leader
    epoch (PartitionRegistration).
    """
    names_leader = record.leader != _LEADER_UNCHANGED
    assert not names_leader or record.leader >= NO_LEADER

    def or_before(new: V | None, old: V) -> V:
        return old if new is None else new

    return Partition(
        replicas=or_before(record.replicas, before.replicas),
        isr=or_before(record.isr, before.isr),
        leader=record.leader if names_leader else before.leader,
        leader_epoch=before.leader_epoch + names_leader,
        partition_epoch=before.partition_epoch + 1,
        directories=or_before(record.directories, before.directories),
        removing_replicas=or_before(record.removing_replicas, before.removing_replicas),
        adding_replicas=or_before(record.adding_replicas, before.adding_replicas),
        leader_recovery_state=(
            before.leader_recovery_state
            if record.leader_recovery_state < 0
            else record.leader_recovery_state
        ),
        eligible_leader_replicas=or_before(
            record.eligible_leader_replicas, before.eligible_leader_replicas
        ),
        last_known_elr=or_before(record.last_known_elr, before.last_known_elr),
    )
