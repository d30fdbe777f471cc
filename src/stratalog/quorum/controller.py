"""The controller: decide changes of the cluster, and hold its image.

In: requests; decided records to replay. Out: decisions (records to append as one batch, and an answer). It never
appends, waits or does I/O, and only `replay_batch` changes its state (`statemachine.py`).

The image is always that of the last replayed record. Every decision uses it, so it sees all earlier decisions
applied. Kafka: QuorumController and its *ControlManager classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl, AclFilter, Acls
from stratalog.metadata.client_quotas import ClientQuotas
from stratalog.metadata.delegation_tokens import DelegationTokens
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import (
    EMPTY,
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    Image,
    Partition,
)
from stratalog.metadata.levels import check_level
from stratalog.ports import Entropy
from stratalog.quorum import acls, brokers, client_quotas, delegation_tokens
from stratalog.quorum.broker_sessions import SESSION_TIMEOUT_MS, BrokerSessions
from stratalog.quorum.brokers import BrokerHeartbeat, BrokerRegistration, HeartbeatAnswer
from stratalog.quorum.client_quotas import QuotaAlteration
from stratalog.quorum.configurations import Alteration, Altered, SettingRules, alter_records
from stratalog.quorum.delegation_tokens import NewToken, TokenRules
from stratalog.quorum.directories import assign_directories
from stratalog.quorum.electorate import Cluster
from stratalog.quorum.features import (
    SUPPORTED_FEATURES,
    FeatureUpdate,
    feature_records,
    initial_records,
)
from stratalog.quorum.isr import IsrAnswer, IsrChange, alter_isrs
from stratalog.quorum.leaders import Elected, balance, elect_leaders
from stratalog.quorum.partition_index import PartitionIndex
from stratalog.quorum.partitions import Extended, MorePartitions, extend_records
from stratalog.quorum.reassignment import (
    Reassigned,
    Reassignment,
    alter_reassignments,
    reassignments,
)
from stratalog.quorum.scram_credentials import Deletion, Upsertion, alteration_records
from stratalog.quorum.topics import (
    Charge,
    Created,
    Deleted,
    NewTopic,
    TopicRules,
    check_topic_name,
    collision_key,
    create_records,
    delete_records,
    free,
)
from stratalog.quorum.voters import KRAFT_VERSION
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.internal.marker_records import AbortTransactionRecord
from stratalog.wire.internal.metadata_records import (
    FeatureLevelRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from stratalog.wire.internal.security_records import DelegationTokenRecord

__all__ = [
    "Alteration",
    "Altered",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "Controller",
    "Created",
    "Deleted",
    "Extended",
    "FeatureUpdate",
    "HeartbeatAnswer",
    "MorePartitions",
    "NewTopic",
    "TopicRules",
    "check_topic_name",
]

PRODUCER_ID_BLOCK = 1000
"""Kafka: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""


class Controller:
    """State machine of `__cluster_metadata`, in one epoch of this node's leadership."""

    def __init__(
        self,
        rules: TopicRules | None = None,
        image: Image = EMPTY,
        index: PartitionIndex | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        token_rules: TokenRules | None = None,
    ) -> None:
        """`image`: the cluster at the end of the log, at the start of this node's epoch; `index`: of its topics."""
        self.image = image
        """After the last replayed record."""
        self._rules = rules or TopicRules()
        self._names: dict[str, set[str]] = {}
        """Topic names with '.' or '_', by the key on which they collide."""
        self._sessions = BrokerSessions(session_timeout_ms)
        self.index = PartitionIndex(image.topics_by_id.values()) if index is None else index
        """Of the topics of `image`."""
        self._acls = Acls()
        self._quotas = ClientQuotas()
        self._token_rules = token_rules or TokenRules()
        self._tokens = DelegationTokens(self._token_rules.secret)
        self._loaded_at = image.offset
        self._registered_at: dict[int, int] = {}
        """The offset of each broker's registration in this epoch."""
        for name in image.topic_ids_by_name:
            self._name_appeared(name)

    def replay_batch(self, base_offset: int, records: Sequence[Any]) -> Delta:
        """Apply the records of one batch; the delta says what changed."""
        delta = Delta(self.image)
        delta.replay_all(base_offset, records)
        self.image = delta.image()
        self.index.follow(delta, self.image)
        for offset, record in enumerate(records, base_offset):
            if isinstance(record, RegisterBrokerRecord):
                self._registered_at[record.broker_id] = offset
            self._tokens.replay(record)
        for topic in delta.deleted_topics.values():
            self._name_vanished(topic.name)
        for topic_id in delta.created_topics:
            self._name_appeared(self.image.topics_by_id[topic_id].name)
        return delta

    def bootstrap(self, first: Sequence[Any] = ()) -> Decision[Any, int]:
        """Return the first records of a log without feature levels: a new one's or a restored one's.

        `first`: the records with which a new log begins; its users, and its level of metadata.version.

        Later none, or the end of a transaction that a controller of Apache Kafka left open. Answer: the level of
        metadata.version.

        Raises Corrupt for a log of an unknown level, which this controller must not write to.
        """
        level = self.image.features.get(METADATA_VERSION)
        records: list[Any] = []
        if self.image.open_transaction is not None:
            records.append(AbortTransactionRecord(reason="the controller changed"))
        if level is None:
            levels = [one.feature_level for one in first if isinstance(one, FeatureLevelRecord)]
            level = levels[0] if levels else METADATA_VERSION_LEVEL
            min_isr = self._rules.elections().min_insync_replicas
            users = [one for one in first if not isinstance(one, FeatureLevelRecord)]
            records += [*initial_records(self.image, min_isr, level), *users]
        check_level(level)
        return Decision(records, level)

    # Brokers

    def start_sessions(
        self, own_broker: int, now_ms: int, silent_since: Mapping[int, int] | None = None
    ) -> None:
        """Begin as the active controller: each unfenced broker has a session from now on, or from the steady time at
        which its node fell silent.

        The broker of this process gets none: its earlier incarnation has certainly ended.
        """
        others = (one for one in self.image.brokers.values() if one.id != own_broker)
        self._sessions.start(others, now_ms, silent_since)

    def register_broker(self, registration: BrokerRegistration, now_ms: int) -> Decision[Any, int]:
        """Register a broker, fenced; answer: its epoch. Raises Rejected as `brokers.register`."""
        return brokers.register(self._cluster(), self._sessions, registration, now_ms)

    def partitions_to_retire(
        self, registration: BrokerRegistration, now_ms: int
    ) -> Decision[Any, Sequence[TopicIdPartition]]:
        """Answer: the partitions that an earlier incarnation must leave first; raises Rejected as `register_broker`."""
        return brokers.partitions_to_retire(self._cluster(), self._sessions, registration, now_ms)

    def retire_broker(
        self, registration: BrokerRegistration, keys: Sequence[TopicIdPartition]
    ) -> Decision[Any, None]:
        """Take an earlier incarnation out of these partitions, ahead of `register_broker`."""
        return brokers.retire(self._cluster(), registration, keys)

    def elect_leaderless(
        self, request: BrokerHeartbeat, keys: Sequence[TopicIdPartition], now_ms: int
    ) -> Decision[Any, None]:
        """Elect leaders for these partitions, which `heartbeat` left leaderless, and extend the broker's session."""
        return brokers.elect_leaderless(self._cluster(), self._sessions, request, keys, now_ms)

    def heartbeat(
        self, request: BrokerHeartbeat, now_ms: int, *, at_once: bool = False
    ) -> Decision[Any, HeartbeatAnswer]:
        """Extend a broker's session, fence or unfence it; raises Rejected as `brokers.heartbeat`."""
        cluster = self._cluster()
        # A broker of an earlier epoch has seen its registration once it has applied the log up to the start of this
        # epoch.
        registered_at = self._registered_at.get(request.broker_id, self._loaded_at)
        return brokers.heartbeat(
            cluster,
            self._sessions,
            request,
            registered_at=registered_at,
            now_ms=now_ms,
            at_once=at_once,
        )

    def leave_at_heartbeat(
        self, request: BrokerHeartbeat, keys: Sequence[TopicIdPartition], now_ms: int
    ) -> Decision[Any, None]:
        """Take a broker out of these ISRs, which `heartbeat` named, and extend its session."""
        return brokers.leave_at_heartbeat(self._cluster(), self._sessions, request, keys, now_ms)

    def leave(self, broker_id: int, keys: Sequence[TopicIdPartition]) -> Decision[Any, None]:
        """Take a broker out of these ISRs, ahead of `fence_stale_broker` or `unregister_broker`."""
        return brokers.leave(self._cluster(), broker_id, keys)

    def partitions_to_leave(self, broker_id: int) -> Sequence[TopicIdPartition]:
        """Return the partitions for `leave`; none where one decision can handle all of them."""
        return brokers.partitions_to_leave(self._cluster(), broker_id)

    def stale_broker(self, now_ms: int) -> int | None:
        """Return the broker that `fence_stale_broker` fences."""
        return self._sessions.expired(now_ms)

    def next_session_end_ms(self, now_ms: int) -> int:
        """Return the steady time before which no broker's session times out."""
        return self._sessions.next_end_ms(now_ms)

    def fence_stale_broker(self, now_ms: int) -> Decision[Any, int | None]:
        """Fence one broker whose session has timed out; answer: which, or None."""
        return brokers.fence_stale(self._cluster(), self._sessions, now_ms)

    def unregister_broker(self, broker_id: int) -> Decision[Any, None]:
        """Remove a broker from the cluster; raises Rejected as `brokers.unregister`."""
        return brokers.unregister(self._cluster(), self._sessions, broker_id)

    def register_controller(self, record: RegisterControllerRecord) -> Decision[Any, None]:
        """Note where a controller listens and which features it supports (KIP-919)."""
        is_new = self.image.controllers.get(record.controller_id) != record
        return Decision([record] if is_new else [], None)

    # Partitions

    def alter_isrs(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Decision[Any, list[IsrAnswer]]:
        """Change ISRs as their leader asks; each partition has its own answer. Raises Rejected(STALE_BROKER_EPOCH)."""
        return alter_isrs(self._cluster(), broker_id, broker_epoch, changes)

    def elect_leaders(
        self, kind: int, partitions: Sequence[TopicPartition] | None
    ) -> Decision[Any, list[Elected]]:
        """Elect leaders of these partitions or of all; raises Rejected as `leaders.elect_leaders`."""
        return elect_leaders(self._cluster(), kind, partitions)

    def balance(self, keys: Sequence[TopicIdPartition]) -> Decision[Any, None]:
        """Give these partitions back to their preferred leaders, where those may lead."""
        return balance(self._cluster(), keys)

    def alter_reassignments(
        self, changes: Sequence[Reassignment], *, may_change_factor: bool
    ) -> Decision[Any, list[Reassigned]]:
        """Begin, replace or cancel reassignments; each partition has its own result."""
        return alter_reassignments(self._cluster(), changes, may_change_factor=may_change_factor)

    def reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> Decision[Any, list[tuple[TopicPartition, Partition]]]:
        """Return the partitions that are being reassigned, of these or of all."""
        return Decision([], reassignments(self._cluster(), partitions))

    def assign_directories(
        self, broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
    ) -> Decision[Any, dict[TopicIdPartition, ErrorCode]]:
        """Record which directory of a broker holds each partition; raises Rejected(STALE_BROKER_EPOCH)."""
        return assign_directories(self._cluster(), broker_id, broker_epoch, assigned)

    def _cluster(self) -> Cluster:
        return Cluster(self.image, self.index, self._rules.elections)

    # Topics and configurations

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        entropy: Entropy,
        charge: Charge = free,
        *,
        validate_only: bool = False,
    ) -> Decision[Any, list[Created]]:
        """Create the valid topics, all in one batch; each topic has its own result."""
        records, results = create_records(
            self.image, topics, self._rules, entropy, self._colliding, charge
        )
        return Decision([] if validate_only else records, results)

    def delete_topics(
        self, wanted: Sequence[str | UUID], charge: Charge = free
    ) -> Decision[Any, list[Deleted]]:
        """Delete topics by name or id; each has its own result."""
        records, results = delete_records(self.image, wanted, charge)
        return Decision(records, results)

    def create_partitions(
        self,
        additions: Sequence[MorePartitions],
        entropy: Entropy,
        charge: Charge = free,
        *,
        validate_only: bool = False,
    ) -> Decision[Any, list[Extended]]:
        """Add partitions to topics, all in one batch; each topic has its own result."""
        records, results = extend_records(self.image, additions, entropy, charge)
        return Decision([] if validate_only else records, results)

    def alter_configs(
        self, alterations: Sequence[Alteration], rules: SettingRules, *, validate_only: bool = False
    ) -> Decision[Any, list[Altered]]:
        """Change settings of topics and brokers, all in one batch; each resource has its own result."""
        records, results = alter_records(self.image, alterations, rules)
        return Decision([] if validate_only else records, results)

    def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> Decision[Any, None]:
        """Set every level or none; raises Rejected as `feature_records`."""
        levels = {"kraft.version": KRAFT_VERSION}  # in a leader's first batch, and in no image
        min_isr = self._rules.elections().min_insync_replicas
        records = feature_records(self.image, SUPPORTED_FEATURES, levels, updates, min_isr)
        return Decision([] if validate_only else records, None)

    # Producer ids

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, count: int = PRODUCER_ID_BLOCK
    ) -> Decision[Any, range]:
        """Reserve a block of producer ids for the broker; raises Rejected(STALE_BROKER_EPOCH)."""
        brokers.registered(self.image, broker_id, broker_epoch)
        first = self.image.next_producer_id
        record = ProducerIdsRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + count
        )
        return Decision([record], range(first, first + count))

    # Rights and quotas

    def alter_scram_credentials(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
    ) -> Decision[Any, dict[str, Rejected | None]]:
        """Change users' credentials; answer: for each user why it is refused, or None."""
        records, results = alteration_records(self.image, deletions, upsertions)
        return Decision(records, results)

    def create_acls(
        self, wanted: Sequence[Acl], entropy: Entropy
    ) -> Decision[Any, list[Rejected | None]]:
        """Create the valid ACLs, all in one batch; answer: for each why it is refused, or None."""
        self._acls.follow(self.image)
        records, results = acls.create_records(self._acls, wanted, entropy)
        return Decision(records, results)

    def delete_acls(self, filters: Sequence[AclFilter]) -> Decision[Any, list[acls.Matched]]:
        """Delete the ACLs that the filters match; answer: the ACLs of each filter, or why it is refused."""
        self._acls.follow(self.image)
        records, results = acls.delete_records(self._acls, filters)
        return Decision(records, results)

    def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
    ) -> Decision[Any, list[Rejected | None]]:
        """Set and remove quotas, all in one batch; answer: for each entity why it is refused, or None."""
        self._quotas.follow(self.image)
        records, results = client_quotas.alteration_records(self._quotas, alterations)
        return Decision([] if validate_only else records, results)

    # Delegation tokens; `wall_ms` is the time of the wall clock

    def create_token(
        self, wanted: NewToken, entropy: Entropy, wall_ms: int
    ) -> Decision[Any, DelegationTokenRecord]:
        """Create a token; answer: it. Raises Rejected as `delegation_tokens.new_record`."""
        token_id = delegation_tokens.new_id(entropy)
        record = delegation_tokens.new_record(
            self._token_rules, self.image, wanted, token_id, wall_ms
        )
        return Decision([record], record)

    def renew_token(
        self, key: bytes, client: str, period_ms: int, wall_ms: int
    ) -> Decision[Any, DelegationTokenRecord]:
        """Let the token of this key live longer; raises Rejected as `delegation_tokens.renew`."""
        token = self._tokens.of_key(self.image, key)
        return delegation_tokens.renew(self._token_rules, token, client, period_ms, wall_ms)

    def expire_token(
        self, key: bytes, client: str, period_ms: int, wall_ms: int
    ) -> Decision[Any, DelegationTokenRecord]:
        """Let the token of this key end; raises Rejected as `delegation_tokens.expire`."""
        token = self._tokens.of_key(self.image, key)
        return delegation_tokens.expire(self._token_rules, token, client, period_ms, wall_ms)

    def remove_expired_tokens(self, wall_ms: int, at_most: int) -> Decision[Any, Sequence[str]]:
        """Remove tokens whose time is over, some at once; answer: their ids."""
        return delegation_tokens.sweep(self.image, wall_ms, at_most)

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
