"""Run the controller on the metadata log while this node leads the log.

In: deciding functions. Out: their answers, once the records are durable and this broker acted on them. It decides
nothing: `quorum.controller` does.

The controller's image runs ahead of the commit, and decisions see it. `ClusterImage` has the committed one.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.metadata_log import MetadataLog
from stratalog.broker.coordination.runtime import Runtime
from stratalog.broker.slices import slices
from stratalog.config import BrokerConfig, DynamicConfigs, check_topic_configs
from stratalog.errors import Corrupt, ErrorCode, UserError
from stratalog.metadata.delegation_tokens import TokenSecret
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Image
from stratalog.ports import Clock
from stratalog.quorum.brokers import ELECTED_AT_ONCE
from stratalog.quorum.controller import Controller, TopicRules
from stratalog.quorum.delegation_tokens import TokenRules
from stratalog.quorum.electorate import ElectionDefaults
from stratalog.quorum.internal_topics import growths
from stratalog.quorum.metadata_batches import encode_batch
from stratalog.quorum.partition_index import PartitionIndex
from stratalog.statemachine import Decision

__all__ = ["ActiveController", "open_controller"]

_log = structlog.get_logger()

A = TypeVar("A")
_INDEXED_AT_ONCE: Final = 1000
"""Partitions that the controller adds to its index in one turn of the event loop."""

_SWEPT_AT_ONCE: Final = 1000
"""Expired tokens that one decision removes."""
_LATE_MS: Final = 1500
_AGAIN_MS: Final = 400
"""A silent broker is fenced so much after its session's end."""


class ActiveController:
    """The controller while this node leads the metadata log: the `Machine` of its runtime."""

    lost = ErrorCode.not_controller
    flush = True
    first_records: Sequence[Any] = ()
    """The users and the level that an empty log begins with."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        log: MetadataLog,
        image: ClusterImage,
        index: PartitionIndex,
        silent_since: Mapping[int, int],
    ) -> None:
        """`silent_since`: nodes that may be gone, and the steady time at which they fell silent."""
        self._config = config
        self._log = log
        self._node_id = config.int("node.id")
        self._image = image
        rules = TopicRules(
            partitions_default=config.int("num.partitions"),
            replication_factor_default=config.int("default.replication.factor"),
            check_configs=lambda configs: check_topic_configs(configs, self.decided_config()),
            elections=self.election_defaults,
        )
        self._clock = clock
        self._looked_ms = clock.steady_ms()
        self._controller = Controller(
            rules,
            image.image,
            index,
            config.int("broker.session.timeout.ms"),
            token_rules=_token_rules(config),
        )
        self._controller.start_sessions(self._node_id, clock.steady_ms(), silent_since)
        self._runtime: Runtime[Any] = Runtime(log, clock, self)

    @property
    def index(self) -> PartitionIndex:
        """The cluster's partitions, as decided so far; read only."""
        return self._controller.index

    async def submit(self, decide: Callable[[Controller], Decision[Any, A]]) -> A:
        """Return the answer of a decision once it is committed. Raises the error that the decision raised, or
        Rejected(NOT_CONTROLLER).
        """
        return await self._runtime.submit(lambda _now: decide(self._controller))

    async def bootstrap(self) -> None:
        """Write the first records of an empty log.

        Raises UserError for a log of a metadata version that this broker does not know.
        """
        try:
            await self.submit(lambda controller: controller.bootstrap(self.first_records))
        except Corrupt as error:
            raise UserError(
                f"{self._log.directory.path}/{self._log.log.directory}: {error}"
            ) from error

    def append_open(self) -> None:
        """Append what is decided: the next record of the log is another writer's."""
        self._runtime.append_open()

    def resign(self) -> None:
        """Decide nothing more: another node leads. What is not committed fails with NOT_CONTROLLER."""
        self._runtime.resign()

    def now_ms(self) -> int:
        """Return the steady time, for decisions about sessions."""
        return self._clock.steady_ms()

    def wall_ms(self) -> int:
        """Return the wall clock's time, for decisions about delegation tokens."""
        return self._clock.now_ms()

    async def fence_stale_brokers(self) -> float:
        """Fence every broker whose session has timed out, one decision each; return the seconds until the next call.

        Two calls in quick succession fence a broker, not one: the process may have been paused, and heartbeats wait to
        be read. Raises NOT_CONTROLLER.
        """
        now_ms = self.now_ms()
        was_looking = now_ms - self._looked_ms <= _LATE_MS
        self._looked_ms = now_ms
        if was_looking:
            while (stale := self._controller.stale_broker(self.now_ms())) is not None:
                await self.leave(stale)
                await self.submit(lambda one: one.fence_stale_broker(self.now_ms()))
        next_ms = self._controller.next_session_end_ms(self.now_ms())
        return max(next_ms - self.now_ms(), _AGAIN_MS) / 1000

    async def leave(self, broker_id: int) -> None:
        """Take a broker that goes out of its ISRs slice by slice, where they are many. Raises NOT_CONTROLLER."""
        for part in slices(self._controller.partitions_to_leave(broker_id), ELECTED_AT_ONCE):
            await self.submit(partial(Controller.leave, broker_id=broker_id, keys=part))

    async def balance_leaders(self) -> None:
        """Give leaderships back to preferred leaders, slice by slice. Raises NOT_CONTROLLER."""
        for part in slices(list(self.index.imbalanced), ELECTED_AT_ONCE):
            await self.submit(partial(Controller.balance, keys=part))
            await asyncio.sleep(0)

    async def remove_expired_tokens(self) -> None:
        """Remove the delegation tokens whose time is over, slice by slice. Raises NOT_CONTROLLER."""
        while removed := await self.submit(
            lambda one: one.remove_expired_tokens(self.wall_ms(), _SWEPT_AT_ONCE)
        ):
            _log.info("delegation tokens expired", count=len(removed), first=removed[0])
            await asyncio.sleep(0)

    async def grow_internal_topics(self) -> None:
        """Add replicas to internal topics where brokers have joined, slice by slice. Raises NOT_CONTROLLER."""
        wanted = {
            "__consumer_offsets": self._config.int("offsets.topic.replication.factor"),
            "__transaction_state": self._config.int("transaction.state.log.replication.factor"),
        }
        for part in slices(growths(self._controller.image, wanted), ELECTED_AT_ONCE):
            await self.submit(
                partial(Controller.alter_reassignments, changes=part, may_change_factor=True)
            )
            await asyncio.sleep(0)

    def election_defaults(self) -> ElectionDefaults:
        """Return the values of the settings that decide elections where a topic does not set them."""
        config = self.decided_config()
        return ElectionDefaults(
            config.int("min.insync.replicas"), config.bool("unclean.leader.election.enable")
        )

    def decided_config(self) -> BrokerConfig:
        """Return the broker's settings as decided so far, committed or not: the next decision must respect them."""
        image = self._controller.image
        return DynamicConfigs.of(image.configs, self._node_id).over(self._config)

    # The runtime's machine

    def apply(self, base_offset: int, records: Sequence[Any]) -> tuple[Image, Delta]:
        delta = self._controller.replay_batch(base_offset, records)
        return self._controller.image, delta

    def publish(self, change: tuple[Image, Delta]) -> "asyncio.Future[None] | None":
        """Let this broker act on committed records."""
        return self._image.publish(*change)

    def encode(self, records: Sequence[Any], wall_ms: int) -> bytearray:
        return encode_batch(records, wall_ms)

    def bytes_of(self, records: Sequence[Any]) -> int:  # noqa: ARG002 - its log takes any batch
        return 0


def _token_rules(config: BrokerConfig) -> TokenRules:
    return TokenRules(
        TokenSecret(config.token_secret),
        config.int("delegation.token.max.lifetime.ms"),
        config.int("delegation.token.expiry.time.ms"),
    )


async def open_controller(
    config: BrokerConfig,
    clock: Clock,
    log: MetadataLog,
    image: ClusterImage,
    first: Sequence[Any],
    silent_since: Mapping[int, int],
) -> ActiveController:
    """Make the controller of a node that leads the log and has applied all of it. `first` begins an empty log."""
    index = PartitionIndex()
    added = 0
    for topic in image.image.topics_by_id.values():
        index.add(topic)
        added += len(topic.partitions)
        if added > _INDEXED_AT_ONCE:
            added = 0
            await asyncio.sleep(0)
    opened = ActiveController(config, clock, log, image, index, silent_since)
    opened.first_records = first
    return opened
