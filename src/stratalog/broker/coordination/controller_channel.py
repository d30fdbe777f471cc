"""What this broker asks of the cluster's controller, on whichever node that is active.

In: requests of the broker itself. Out: the active controller's answers. It decides nothing. A request goes to this
process where that has the active controller, else over the network.

A request that finds no active controller is repeated until the caller's time is up. So the controller may carry one
out twice: each is such that the second time changes nothing, or is refused.

Kafka: NodeToControllerChannelManager.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from uuid import UUID

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.client.security import Dialer
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.quorum.controller import (
    BrokerHeartbeat,
    BrokerRegistration,
    Created,
    HeartbeatAnswer,
    NewTopic,
)
from stratalog.quorum.isr import IsrAnswer, IsrChange
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import RegisterControllerRecord

if TYPE_CHECKING:
    from stratalog.broker.coordination.remote_controller import RemoteController

__all__ = ["BrokersController", "ControllerChannel"]

A = TypeVar("A")
_RETRY_S: Final = 0.05
"""Kafka: the reconnect backoff of NodeToControllerChannelManager."""


class BrokersController(Protocol):
    """What a broker asks of a controller for itself. All raise Rejected, and Unavailable where no answer came."""

    async def register_broker(self, registration: BrokerRegistration) -> int: ...
    async def register_controller(self, record: RegisterControllerRecord) -> None: ...
    async def heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer: ...
    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool
    ) -> list[Created]: ...
    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range: ...
    async def alter_isrs(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]: ...
    async def assign_directories(
        self, broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
    ) -> dict[TopicIdPartition, ErrorCode]: ...


class ControllerChannel:
    """The way from one broker to the active controller.

    Every request raises Rejected: with the controller's code, or REQUEST_TIMED_OUT where no active controller answered
    in time.
    """

    def __init__(
        self,
        quorum: MetadataQuorum,
        local: LocalController,
        dialer: Dialer,
        *,
        cluster_id: str,
        session_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        """`session_timeout_s` bounds registration and heartbeats, `request_timeout_s` everything else."""
        self._quorum = quorum
        self._local = local
        self._dialer = dialer
        self._cluster_id = cluster_id
        self._session_s = session_timeout_s
        self._request_s = request_timeout_s
        self._remote: RemoteController | None = None
        quorum.on_leader_change.append(self._leave)

    def close(self) -> None:
        """Close every connection. Pending requests find no controller any more."""
        self._leave()

    def needs_other_voters(self, node_id: int) -> bool:
        """Return whether the node is a voter, and not the only one."""
        voters = self._quorum.voters.ids
        return node_id in voters and len(voters) > 1

    async def register_broker(self, registration: BrokerRegistration) -> int:
        """Register this broker, fenced; return its epoch."""
        return await self.ask(lambda one: one.register_broker(registration), self._session_s)

    async def register_controller(self, record: RegisterControllerRecord) -> None:
        """Note where a controller listens."""
        await self.ask(lambda one: one.register_controller(record), self._session_s)

    async def heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer:
        """Extend this broker's session; return the state that the controller has it in."""
        return await self.ask(lambda one: one.heartbeat(heartbeat), self._session_s)

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[Created]:
        """Create topics; one result each."""
        return await self.ask(
            lambda one: one.create_topics(topics, validate_only=False), self._request_s
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """Return a block of producer ids."""
        return await self.ask(
            lambda one: one.allocate_producer_ids(broker_id, broker_epoch), self._request_s
        )

    async def alter_isrs(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]:
        """Change ISRs of partitions that this broker leads; one answer each."""
        return await self.ask(
            lambda one: one.alter_isrs(broker_id, broker_epoch, changes), self._request_s
        )

    async def assign_directories(
        self, broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """Note in which directory this broker has each partition; one code each."""
        return await self.ask(
            lambda one: one.assign_directories(broker_id, broker_epoch, assigned), self._request_s
        )

    async def ask(
        self, request: Callable[["BrokersController"], Awaitable[A]], within_s: float
    ) -> A:
        """Return the answer of the active controller, whichever that is within this time."""
        return await self._repeat(lambda: request(self._controller()), within_s)

    async def forward(self, request_data: bytes, principal: bytes, host: bytes) -> bytes | None:
        """Have the active controller answer a client's request; return the response, with its header (KIP-590).

        Return None where this node has become the active controller. Raises Rejected with the code of the envelope.
        """

        async def attempt() -> bytes | None:
            if self._local.is_active:
                return None
            return await self._elsewhere().forward(request_data, principal, host)

        return await self._repeat(attempt, self._request_s)

    async def _repeat(self, attempt: Callable[[], Awaitable[A]], within_s: float) -> A:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            try:
                return await attempt()
            except Unavailable as error:
                reason = str(error)
            except Rejected as error:
                if error.code is not ErrorCode.not_controller:
                    raise
                reason = error.message
            if loop.time() + _RETRY_S >= deadline:
                raise Rejected(
                    ErrorCode.request_timed_out, f"no controller for {within_s:g} s: {reason}"
                )
            await asyncio.sleep(_RETRY_S)

    def _controller(self) -> "BrokersController":
        return self._local if self._local.is_active else self._elsewhere()

    def _elsewhere(self) -> "RemoteController":
        """Return the controller of another node. A node that leads from its start on imports nothing of one."""
        if self._remote is None:
            from stratalog.broker.coordination.remote_controller import (  # noqa: PLC0415
                RemoteController,
            )

            address = self._quorum.leader_address()
            if address is None:
                raise Unavailable("no active controller is known")
            self._remote = RemoteController(
                self._dialer,
                *address,
                cluster_id=self._cluster_id,
                session_timeout_s=self._session_s,
                request_timeout_s=self._request_s,
            )
        return self._remote

    def _leave(self) -> None:
        """Close the connections to a node that leads no more: its pending requests go to the next one at once."""
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()
