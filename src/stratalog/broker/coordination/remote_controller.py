"""The active controller on another node, as this broker reaches it.

In: requests of this broker. Out: the answers. It never repeats a request: `ControllerChannel` does.

Kafka has a NodeToControllerChannelManager for heartbeats, one for changes of partitions and one for clients' requests.
This broker also has one connection for each, so that none of them waits behind another.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from stratalog.broker.coordination import controller_rpcs as rpcs
from stratalog.broker.coordination.controller_registration_rpc import (
    check_registered,
    controller_request,
)
from stratalog.client.calls import error_of
from stratalog.client.peer import Peer
from stratalog.client.security import Dialer
from stratalog.errors import ErrorCode, Rejected
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
from stratalog.wire.messages.envelope import EnvelopeRequest

__all__ = ["RemoteController"]


class RemoteController:
    """The controller at `host:port`. Methods raise Rejected with its error, and Unavailable where no answer came."""

    def __init__(
        self,
        dialer: Dialer,
        host: str,
        port: int,
        *,
        cluster_id: str,
        session_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self._cluster_id = cluster_id

        def connection(purpose: str, timeout_s: float) -> Peer:
            return Peer(dialer, host, port, client_id=purpose, timeout_s=timeout_s)

        self._lifecycle = connection("heartbeat", session_timeout_s)
        self._partitions = connection("alter-partition", request_timeout_s)
        self._clients = connection("forwarding", request_timeout_s)

    def close(self) -> None:
        """Close the connections: what is pending raises Unavailable."""
        for peer in (self._lifecycle, self._partitions, self._clients):
            peer.close()

    async def register_broker(self, registration: BrokerRegistration) -> int:
        request = rpcs.registration_request(registration, self._cluster_id)
        return rpcs.registered_epoch(await self._lifecycle.request(request))

    async def register_controller(self, record: RegisterControllerRecord) -> None:
        request = controller_request(record)
        check_registered(await self._lifecycle.request(request))

    async def heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer:
        request = rpcs.heartbeat_request(heartbeat)
        return rpcs.heartbeat_answer(await self._lifecycle.request(request))

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool
    ) -> list[Created]:
        request = rpcs.creation_request(topics, validate_only=validate_only)
        return rpcs.topics_created(await self._clients.request(request))

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        request = rpcs.producer_ids_request(broker_id, broker_epoch)
        return rpcs.producer_ids(await self._clients.request(request))

    async def alter_isrs(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]:
        request = rpcs.isr_request(broker_id, broker_epoch, changes)
        return rpcs.isr_answers(await self._partitions.request(request))

    async def assign_directories(
        self, broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
    ) -> dict[TopicIdPartition, ErrorCode]:
        items = list(assigned.items())
        codes: dict[TopicIdPartition, ErrorCode] = {}
        for start in range(0, len(items), rpcs.REPLICAS_MAX):
            part = dict(items[start : start + rpcs.REPLICAS_MAX])
            request = rpcs.assignment_request(broker_id, broker_epoch, part)
            codes |= rpcs.assignment_codes(await self._partitions.request(request))
        return codes

    async def forward(self, request_data: bytes, principal: bytes, host: bytes) -> bytes:
        """Forward a client's request; return the response, with its header. Raises the envelope's error."""
        answer = await self._clients.request(
            EnvelopeRequest(
                request_data=request_data, request_principal=principal, client_host_address=host
            )
        )
        if answer.error_code:
            code = error_of(answer.error_code)
            raise Rejected(code, f"the controller answers Envelope with {code.name}")
        assert answer.response_data is not None
        return answer.response_data
