"""What handlers see of the node: its metadata, partitions, groups and tier, and the questions that need several.

In: a handler's question. Out: its answer. It holds no state of its own but the block of producer ids in hand.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import UUID

from stratalog.broker.apis import APIS
from stratalog.broker.coordination.cluster_metadata import ClusterMetadata
from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.broker.metrics import BrokerMetrics
from stratalog.broker.network.authorizer import AllowAll, Authorizer
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.dispatch import Api
from stratalog.broker.network.large import LargeRequests
from stratalog.broker.network.turns import Pace, Turns
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.moves import Moves
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.purgatory import Purgatory
from stratalog.broker.partitions.recompression import Recompression
from stratalog.config import (
    BrokerConfig,
    ConfigEntry,
    describe_broker,
    describe_every_broker,
    describe_topic,
)
from stratalog.coordinators.turn import GroupSettings
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.reading import NotLocal, Slices
from stratalog.metadata.image import (
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    NO_LEADER,
    Endpoint,
    Partition,
)
from stratalog.ports import Outside
from stratalog.quorum.controller import Created, Deleted, NewTopic, check_topic_name
from stratalog.quorum.metadata_batches import METADATA_TOPIC
from stratalog.quorum.topics import PARTITIONS_PER_REQUEST_MAX
from stratalog.replication.fetch_sessions import FetchSessions

if TYPE_CHECKING:
    from stratalog.broker.tier.service import TierService

_ATTEMPTS_MAX: Final = 5
_REMOTE: Final = "remote.storage.enable"
NO_CONTROLLER: Final = -1
LiveBroker = tuple[int, str, int, str | None]


class Standing(NamedTuple):
    """A partition as clients see it: `leader` is NO_LEADER with LEADER_NOT_AVAILABLE; `offline` are replicas."""

    error: ErrorCode
    leader: int
    offline: list[int]


class Coordinator(Protocol):
    """The part that coordinates what an internal topic's partitions record."""

    async def lead(self, partition: HostedPartition) -> None:
        """Load a partition that this broker now leads, then coordinate what it records."""

    def resign(self, partition: HostedPartition) -> None:
        """Stop coordinating what this partition records."""


class Broker:
    """The node's parts and the operations that handlers use."""

    supported_features: Mapping[str, tuple[int, int]] = {
        METADATA_VERSION: (METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL)
    }

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        metadata: ClusterMetadata,
        hosting: Hosting,
        tiering: "TierService | None",
        moves: Moves,
    ) -> None:
        self.apis: dict[int, Api] = dict(APIS)
        """By key. The broker has its own copy, so that a test may replace one handler."""
        self.config = config
        self.metrics = BrokerMetrics(self.apis)
        self.authorizer: Authorizer = AllowAll()
        self.clock = outside.clock
        self.node_id = config.int("node.id")
        self.cluster_id = metadata.cluster_id
        self.metadata = metadata
        self.hosting = hosting
        self.tiering = tiering
        self.fetch_bytes_max = config.int("fetch.max.bytes")
        self.client_memory = ClientMemory(-1, -1)  # a node has limits, and gives its own
        self.turns = Turns(outside.clock.elapsed_ns)  # its node's, once it has connections
        self.large = LargeRequests(outside.workers)
        self.recompression = Recompression(outside.workers)
        self.moves = moves
        self.groups = Groups(
            _group_settings(config),
            outside.clock,
            outside.entropy,
            partition_count=self._offsets_partitions,
            create_topic=self._create_offsets_topic,
            topic_id=self._topic_id,
        )
        self.coordinators: Mapping[str, Coordinator] = {OFFSETS_TOPIC: self.groups}
        """By internal topic: what its partitions' leader coordinates."""
        self.internal_topics = frozenset(self.coordinators)
        self.purgatory = Purgatory()
        self.fetch_sessions: FetchSessions[Any] = FetchSessions(
            config.int("max.incremental.fetch.session.cache.slots"), outside.entropy
        )
        self._producer_ids = range(0)
        self._producer_ids_asked = asyncio.Lock()

    def live_brokers(self, listener: str) -> list[LiveBroker]:
        """Return (node id, host, port, rack) of each broker that is not fenced, as clients of `listener` reach it.

        A broker without that listener appears with its first endpoint. The list is empty until this broker registered.
        """
        if not self.metadata.registered:
            return []
        return [
            (broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in self.metadata.image.brokers.values()
            if broker.is_active and (endpoint := _endpoint(broker.endpoints, listener)) is not None
        ]

    def controller_id(self) -> int:
        """Return the broker to which clients send what the controller decides; NO_CONTROLLER while none is active.

        It is this one where it is active. Kafka: `MetadataCache.getRandomAliveBrokerId`, for any broker forwards.
        """
        active = [broker.id for broker in self.metadata.image.brokers.values() if broker.is_active]
        return self.node_id if self.node_id in active else min(active, default=NO_CONTROLLER)

    def standing(self, topic_id: UUID, index: int, partition: Partition) -> Standing:
        """Return a partition's state for clients. It has no leader if this broker leads it offline."""
        offline: list[int] = []
        leader = partition.leader
        if self.node_id in partition.replicas:
            hosted = self.hosting.by_id.get((topic_id, index))
            if hosted is None or hosted.directory.failure is not None:
                offline = [self.node_id]
        if leader in offline:
            leader = NO_LEADER
        error = ErrorCode.leader_not_available if leader == NO_LEADER else ErrorCode.none
        return Standing(error, leader, offline)

    def check_in_sync_replicas(self, hosted: HostedPartition) -> None:
        """Raise Rejected(NOT_ENOUGH_REPLICAS) where fewer replicas are in sync than acks=all needs.

        A partition never needs more than it has replicas (Kafka: `Partition.effectiveMinIsr`).
        """
        replica = hosted.replica
        needed = min(hosted.log.config.min_insync_replicas, len(replica.replicas))
        if len(replica.isr) < needed:
            raise Rejected(
                ErrorCode.not_enough_replicas,
                f"{hosted.identity} has {len(replica.isr)} in-sync replicas; it needs {needed} "
                f"(min.insync.replicas is {hosted.log.config.min_insync_replicas})",
            )

    # Reading

    def read(
        self,
        hosted: HostedPartition,
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        minimum_one_batch: bool,
    ) -> Slices | Awaitable[Slices]:
        """Read as `HostedPartition.read` does; records that left the local disk come from the bucket."""
        try:
            found = hosted.read(
                offset, max_bytes, end_offset=end_offset, minimum_one_batch=minimum_one_batch
            )
        except NotLocal:
            return self._tier(hosted).read(
                hosted, offset, max_bytes, end_offset, minimum_one_batch=minimum_one_batch
            )
        if isinstance(found, Slices):
            return found
        span = (offset, max_bytes, end_offset)
        return self._or_tiered(hosted, found, span, minimum_one_batch=minimum_one_batch)

    async def _or_tiered(
        self,
        hosted: HostedPartition,
        local: Awaitable[Slices],
        span: tuple[int, int, int],
        *,
        minimum_one_batch: bool,
    ) -> Slices:
        try:
            return await local
        except NotLocal:  # local retention deleted it while the read waited for the drive
            return await self._tier(hosted).read(hosted, *span, minimum_one_batch=minimum_one_batch)

    def _tier(self, hosted: HostedPartition) -> "TierService":
        if self.tiering is None:
            raise Rejected(
                ErrorCode.kafka_storage_error,
                f"{hosted.identity} is in a bucket; tier.url is not set",
            )
        return self.tiering

    async def offset_for_timestamp(
        self, hosted: HostedPartition, timestamp: int
    ) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after `timestamp`, in bucket or on disk, or None.

        Raises `Rejected`, retriable where the bucket cannot be read: the disk alone would give a wrong answer.
        """
        for _ in range(_ATTEMPTS_MAX):
            log = hosted.log
            start = log.local_start_offset
            if log.log_start_offset < start:
                found = await self._tier(hosted).offset_for_timestamp(hosted, timestamp)
                if found is not None:
                    return found
            local = await hosted.look(partial(log.offset_for_timestamp, timestamp))
            if log.local_start_offset == start:
                return None if local is None else (local[0], local[1])
        raise Rejected(ErrorCode.leader_not_available, f"{hosted.identity}: retention is under way")

    async def max_timestamp(self, hosted: HostedPartition) -> tuple[int, int]:
        """Return (offset, timestamp) of the record with the latest timestamp; (-1, -1) for an empty log."""
        log = hosted.log
        latest = max(segment.max_timestamp for segment in log.segments)
        local = await hosted.look(partial(log.offset_for_timestamp, latest))
        found = (-1, -1) if local is None else (local[0], local[1])
        if log.log_start_offset < log.local_start_offset:
            tiered = await self._tier(hosted).max_timestamp(hosted)
            if tiered is not None and tiered[1] >= found[1]:
                return tiered
        return found

    # Topics

    def name_error(self, name: str) -> ErrorCode | None:
        """Return INVALID_TOPIC_EXCEPTION for a name that no topic can have, else None."""
        try:
            check_topic_name(name)
        except Rejected as error:
            return error.code
        return None

    def may_create(self, *, allowed: bool) -> bool:
        """Return whether a request for a missing topic creates it."""
        return allowed and self.config.bool("auto.create.topics.enable")

    async def create_automatically(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create topics with the broker's defaults; return the errors by topic name."""
        errors: dict[str, ErrorCode] = {}
        if len(names) * self.config.int("num.partitions") > PARTITIONS_PER_REQUEST_MAX:
            return dict.fromkeys(names, ErrorCode.policy_violation)
        async for part in Pace(self.turns).parts(names):
            errors |= await self._create_some(part)
        return errors

    async def _create_some(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        try:
            asked = []
            for name in names:
                if name in self.internal_topics:
                    await self.groups.ensure_topic()
                elif name != METADATA_TOPIC:  # a client finds it unknown, as in Kafka
                    asked.append(NewTopic(name, -1, -1, {}, {}))
            created = await self.create_topics(asked)
        except Rejected as error:
            return dict.fromkeys(names, error.code)
        fine = (ErrorCode.none, ErrorCode.topic_already_exists)
        return {topic.name: topic.error for topic in created if topic.error not in fine}

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Created]:
        """Create topics; return once this broker hosts its replicas of them."""
        if self.config.bool("tier.enable"):
            topics = [self._tiered(topic) for topic in topics]
        return await self.metadata.create_topics(topics, validate_only=validate_only)

    def _tiered(self, topic: NewTopic) -> NewTopic:
        """Return a new topic with the tier on, unless its settings say otherwise or it is compacted.

        The setting is stored with the topic: a later change of `tier.enable` does not reach it.
        """
        policies = topic.configs.get(
            "cleanup.policy", ",".join(self.config.list("log.cleanup.policy"))
        )
        if "compact" in policies or _REMOTE in topic.configs:
            return topic
        return replace(topic, configs={**topic.configs, _REMOTE: "true"})

    async def delete_topics(self, topics: Sequence[str | UUID]) -> list[Deleted]:
        """Delete topics by name or id."""
        return await self.metadata.delete_topics(topics)

    def describe_topic(self, configs: Mapping[str, str]) -> list[ConfigEntry]:
        """Return a topic's settings, given the ones set on the topic."""
        return describe_topic(self.config, configs, self.metadata.dynamic_configs)

    def describe_broker(self) -> list[ConfigEntry]:
        """Return this broker's settings."""
        return describe_broker(self.config, self.metadata.dynamic_configs)

    def describe_every_broker(self) -> list[ConfigEntry]:
        """Return the settings that were set for all brokers of the cluster."""
        return describe_every_broker(self.metadata.dynamic_configs.every)

    # Producers and groups

    async def next_producer_id(self) -> int:
        """Return an id that no producer of this cluster ever had."""
        async with self._producer_ids_asked:
            if not self._producer_ids:
                self._producer_ids = await self.metadata.allocate_producer_ids()
            producer_id = self._producer_ids[0]
            self._producer_ids = self._producer_ids[1:]
            return producer_id

    def _topic_id(self, name: str) -> UUID | None:
        return self.metadata.image.topic_ids_by_name.get(name)

    def _offsets_partitions(self) -> int:
        topic = self.metadata.topic(OFFSETS_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    async def _create_offsets_topic(self) -> None:
        config = self.config
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.int("offsets.topic.segment.bytes")),
        }
        topic = NewTopic(OFFSETS_TOPIC, config.int("offsets.topic.num.partitions"), 1, {}, configs)
        for created in await self.create_topics([topic]):
            if created.error not in (ErrorCode.none, ErrorCode.topic_already_exists):
                raise Rejected(ErrorCode.coordinator_not_available, created.message or "")


def _endpoint(endpoints: Sequence[Endpoint], listener: str) -> Endpoint | None:
    return next((one for one in endpoints if one.name == listener), next(iter(endpoints), None))


def _group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
        session_timeout_ms_min=config.int("group.min.session.timeout.ms"),
        session_timeout_ms_max=config.int("group.max.session.timeout.ms"),
        size_max=config.int("group.max.size"),
        offset_metadata_bytes_max=config.int("offset.metadata.max.bytes"),
        offsets_retention_minutes=config.int("offsets.retention.minutes"),
        offsets_retention_check_interval_ms=config.int("offsets.retention.check.interval.ms"),
    )
