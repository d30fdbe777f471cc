"""Build the parts of one broker.

In: settings, ports, and the parts that a node opens first. Out: the parts by name; each handler's `Needs` are a subset.
It decides nothing.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from msgspec.structs import replace

from stratalog.broker.apis import apis_of_brokers
from stratalog.broker.coordination.broker_peers import BrokerPeers
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.cluster_metadata import ClusterMetadata
from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.coordination.dialing import dialer_to_brokers
from stratalog.broker.coordination.forwarding import Forwarding
from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.coordination.markers import Markers
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.producer_ids import ProducerIds
from stratalog.broker.coordination.stranded import StrandedTransactions
from stratalog.broker.coordination.topics import Topics
from stratalog.broker.coordination.transactions import TRANSACTIONS_TOPIC, Transactions
from stratalog.broker.coordination.users import users_of
from stratalog.broker.coordination.verification import Verification
from stratalog.broker.metrics import BrokerMetrics
from stratalog.broker.network.authorizer import Authorizer
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.dispatch import Api
from stratalog.broker.network.large import LargeRequests
from stratalog.broker.network.sasl import Users
from stratalog.broker.network.standard_authorizer import standard_authorizer
from stratalog.broker.network.throttling import Throttling
from stratalog.broker.partitions.cleaning import Cleaners
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.moves import Moves
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.purgatory import Purgatory
from stratalog.broker.partitions.recompression import Recompression
from stratalog.broker.replication.leading import Leading
from stratalog.broker.replication.replication import Replication
from stratalog.broker.telemetry.telemetry import Telemetry
from stratalog.broker.tier.reads import Reads
from stratalog.config import BrokerConfig
from stratalog.coordinators.transactions import TransactionSettings
from stratalog.coordinators.turn import GroupSettings
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Clock, Outside
from stratalog.quorum.controller import NewTopic
from stratalog.replication.fetch_sessions import FetchSessions
from stratalog.wire.messages.fetch import FetchPartition

if TYPE_CHECKING:
    from stratalog.broker.tier.service import TierService

_FINE: Final = (ErrorCode.none, ErrorCode.topic_already_exists)


class Coordinator(Protocol):
    """A coordinator whose state is in the partitions of an internal topic."""

    async def lead(self, partition: HostedPartition) -> None:
        """Load a partition that this broker now leads, then coordinate its groups or transactions."""

    def resign(self, partition: HostedPartition) -> None:
        """Stop coordinating the partition's groups or transactions."""


class Broker:
    """One broker's parts. A handler's `Needs` has some of them, by the same names and types."""

    apis: dict[int, Api]
    """By key. The broker has its own copy, so that a test may replace one handler."""
    client_memory: ClientMemory
    clock: Clock
    cluster: ClusterView
    config: BrokerConfig
    controller: ControllerChannel
    fetch_bytes_max: int
    fetch_sessions: FetchSessions[FetchPartition]
    forwarding: Forwarding
    groups: Groups
    hosting: Hosting
    large: LargeRequests
    leading: Leading
    local_controller: LocalController
    markers: Markers
    metadata: ClusterImage
    moves: Moves
    producer_ids: ProducerIds
    purgatory: Purgatory
    quorum: MetadataQuorum
    reads: Reads
    recompression: Recompression
    telemetry: Telemetry
    throttling: Throttling
    topics: Topics
    transactions: Transactions
    users: Users
    verification: Verification

    def __init__(  # noqa: PLR0913, PLR0917 - the parts that a node opens
        self,
        config: BrokerConfig,
        outside: Outside,
        cluster: ClusterMetadata,
        hosting: Hosting,
        tiering: "TierService | None",
        moves: Moves,
        client_memory: ClientMemory,
        replication: Replication,
    ) -> None:
        self.apis = apis_of_brokers(config)
        self.config = config
        self.metrics = BrokerMetrics(self.apis)
        self.clock = outside.clock
        self.metadata = metadata = cluster.image
        self.authorizer: Authorizer | None = standard_authorizer(config, metadata)
        self.controller = cluster.controller
        self.local_controller = cluster.local_controller
        self.forwarding = Forwarding(
            cluster.local_controller, cluster.controller, config, self.authorizer
        )
        self.quorum, self.throttling, self.audit = cluster.quorum, cluster.throttling, cluster.audit
        self.registration, self.answers = cluster.registration, cluster.answers
        self.hosting = hosting
        self.tiering = tiering
        self.fetch_bytes_max = config.int("fetch.max.bytes")
        self.reads = Reads(None if tiering is None else tiering.history)
        self.client_memory = client_memory
        self.large = LargeRequests(outside.workers)
        self.recompression = Recompression(outside.workers, outside.largest_timestamp)
        self.moves = moves
        self.replication = replication
        self.leading = replication.leading
        self.cleaners = Cleaners(hosting, moves, outside)
        self.groups = Groups(
            _group_settings(config),
            outside.clock,
            outside.entropy,
            partition_count=partial(self._partitions, OFFSETS_TOPIC),
            create_topic=self._create_offsets_topic,
            topic_id=self._topic_id,
        )
        internal = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
        self.cluster = ClusterView(
            config.int("node.id"), metadata, cluster.registration, hosting, internal
        )
        self.producer_ids = ProducerIds(cluster.controller, cluster.registration)
        peers = self._peers(outside, "markers")
        self.markers = Markers(self.cluster, hosting, self.groups, outside.clock, peers)
        self.transactions = self._transaction_coordinators()
        peers = self._peers(outside, "verification")
        self.verification = Verification(self.cluster, self.transactions, peers, config)
        self.coordinators: Mapping[str, Coordinator] = {
            OFFSETS_TOPIC: self.groups,
            TRANSACTIONS_TOPIC: self.transactions,
        }
        """The coordinator of each internal topic, by topic name."""
        ensure = {
            OFFSETS_TOPIC: self.groups.ensure_topic,
            TRANSACTIONS_TOPIC: self.transactions.ensure_topic,
        }
        self.telemetry = Telemetry(config, metadata, outside)
        self.topics = Topics(config, cluster.controller, ensure)
        self.purgatory, self.users = Purgatory(), users_of(metadata, outside, config)
        self.fetch_sessions = FetchSessions(
            config.int("max.incremental.fetch.session.cache.slots"), outside.entropy
        )

    def configure(self, in_effect: BrokerConfig) -> None:
        """Apply the settings that may change while the broker runs."""
        self.replication.configure(in_effect)
        self.moves.pace.configure(in_effect)
        self.cleaners.configure(in_effect)
        self.verification.configure(in_effect)
        if self.tiering is not None:
            self.tiering.configure(in_effect)

    def stranded(self) -> StrandedTransactions:
        """Return what ends the transactions that an earlier release left open."""
        return StrandedTransactions(
            self.cluster, self.hosting, self.transactions, self.markers, self.markers.peers
        )

    def _peers(self, outside: Outside, purpose: str) -> BrokerPeers:
        peers = BrokerPeers(
            self.cluster,
            dialer_to_brokers(self.config, outside.network, self.answers),
            purpose=purpose,
            listener=self.config.inter_broker_listener,
            timeout_s=self.config.int("replica.socket.timeout.ms") / 1000,
        )
        self.metadata.on_published.append(peers.close_fenced)
        return peers

    def _transaction_coordinators(self) -> Transactions:
        config = self.config
        return Transactions(
            TransactionSettings(
                config.int("transaction.max.timeout.ms"),
                config.int("transactional.id.expiration.ms"),
                config.int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
                config.int("request.timeout.ms"),
            ),
            self.clock,
            self.markers,
            self.producer_ids,
            partition_count=partial(self._partitions, TRANSACTIONS_TOPIC),
            create_topic=self._create_transactions_topic,
        )

    def _topic_id(self, name: str) -> UUID | None:
        return self.metadata.image.topic_ids_by_name.get(name)

    def _partitions(self, name: str) -> int:
        topic = self.metadata.topic(name)
        return 0 if topic is None else len(topic.partitions)

    async def _create_offsets_topic(self) -> None:
        config = self.config
        configs = {
            "compression.type": "producer",
            "segment.bytes": str(config.int("offsets.topic.segment.bytes")),
        }
        replicas = self._internal_replicas("offsets.topic.replication.factor")
        partitions = config.int("offsets.topic.num.partitions")
        await self._create_internal(NewTopic(OFFSETS_TOPIC, partitions, replicas, {}, configs))

    async def _create_transactions_topic(self) -> None:
        config = self.config
        configs = {
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.int("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        }
        replicas = self._internal_replicas("transaction.state.log.replication.factor")
        partitions = config.int("transaction.state.log.num.partitions")
        await self._create_internal(NewTopic(TRANSACTIONS_TOPIC, partitions, replicas, {}, configs))

    async def _create_internal(self, topic: NewTopic) -> None:
        """Create an internal topic, compacted. Raises Rejected."""
        topic = replace(topic, configs={"cleanup.policy": "compact", **topic.configs})
        for created in await self.topics.create([topic]):
            if created.error not in _FINE:
                raise Rejected(ErrorCode.coordinator_not_available, created.message or "")

    def _internal_replicas(self, name: str) -> int:
        """Return an internal topic's factor: as set, else the default where the cluster has so many nodes (0022).

        A voter counts before its node starts: a cluster of three must not begin with one replica. A voter whose
        controller has registered, and no broker, is a controller alone.
        """
        if self.config.is_set(name):
            return self.config.int(name)
        image = self.metadata.image
        to_come = set(self.quorum.voters.ids) - image.controllers.keys()
        return min(self.config.int(name), len(image.brokers.keys() | to_come))


def _group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
        session_timeout_ms_min=config.int("group.min.session.timeout.ms"),
        session_timeout_ms_max=config.int("group.max.session.timeout.ms"),
        size_max=config.int("group.max.size"),
        offset_metadata_bytes_max=config.int("offset.metadata.max.bytes"),
        offsets_retention_minutes=config.int("offsets.retention.minutes"),
        offsets_retention_check_interval_ms=config.int("offsets.retention.check.interval.ms"),
        commit_timeout_ms=config.int("offsets.commit.timeout.ms"),
    )
