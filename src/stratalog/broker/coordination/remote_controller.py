"""The active controller on another node, as this broker reaches it.

In: requests of this broker. Out: the answers. It never repeats a request: `ControllerChannel` does.

Kafka has a NodeToControllerChannelManager for heartbeats, one for changes of partitions and one for clients' requests.
This broker also has one connection for each, so that none of them waits behind another.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from stratalog.broker.coordination import controller_rpcs as rpcs
from stratalog.broker.coordination.controller_registration_rpc import (
    check_registered,
    controller_request,
)
from stratalog.client.peer import Peer
from stratalog.client.security import Dialer
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.quorum.controller import (
    BrokerHeartbeat,
    BrokerRegistration,
    Created,
    HeartbeatAnswer,
    NewTopic,
)
from stratalog.quorum.isr import IsrAnswer, IsrChange
from stratalog.wire.envelope import decode_response
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import RegisterControllerRecord
from stratalog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

__all__ = ["RemoteController"]

_REQUEST: Final = struct.Struct(">hhi")
"""The start of a request: API, version, correlation id."""


class RemoteController:
    """The controller at `host:port`. Methods raise Rejected with its error, and Unavailable where no answer came, or a
    damaged one.
    """

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
        return await self._lifecycle.read(request, rpcs.registered_epoch)

    async def register_controller(self, record: RegisterControllerRecord) -> None:
        await self._lifecycle.read(controller_request(record), check_registered)

    async def heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer:
        request = rpcs.heartbeat_request(heartbeat)
        return await self._lifecycle.read(request, rpcs.heartbeat_answer)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool
    ) -> list[Created]:
        request = rpcs.creation_request(topics, validate_only=validate_only)
        names = [one.name for one in topics]
        return await self._clients.read(request, partial(rpcs.topics_created, names=names))

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        request = rpcs.producer_ids_request(broker_id, broker_epoch)
        return await self._clients.read(request, rpcs.producer_ids)

    async def alter_isrs(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]:
        request = rpcs.isr_request(broker_id, broker_epoch, changes)
        return await self._partitions.read(request, partial(rpcs.isr_answers, changes=changes))

    async def assign_directories(
        self, broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
    ) -> dict[TopicIdPartition, ErrorCode]:
        items = list(assigned.items())
        codes: dict[TopicIdPartition, ErrorCode] = {}
        for start in range(0, len(items), rpcs.REPLICAS_MAX):
            part = dict(items[start : start + rpcs.REPLICAS_MAX])
            request = rpcs.assignment_request(broker_id, broker_epoch, part)
            read = partial(rpcs.assignment_codes, assigned=part)
            codes |= await self._partitions.read(request, read)
        return codes

    async def forward(self, request_data: bytes, principal: bytes, host: bytes) -> bytes:
        """Forward a client's request; return the response, with its header. Raises the envelope's error."""
        envelope = EnvelopeRequest(
            request_data=request_data, request_principal=principal, client_host_address=host
        )
        return await self._clients.read(envelope, partial(_enveloped, memoryview(request_data)))


def _enveloped(request: memoryview, answer: EnvelopeResponse) -> bytes:
    """Return the response in an envelope. Raises Corrupt where the client could not read it."""
    if answer.error_code:
        code = ErrorCode(answer.error_code)
        raise Rejected(code, f"the controller answers Envelope with {code.name}")
    if answer.response_data is None:
        raise Corrupt("an envelope without a response")
    # Kafka's ForwardingManager also reads each response, before the client does.
    key, version, wanted = _REQUEST.unpack_from(request)
    try:
        answered, _body = decode_response(key, version, memoryview(answer.response_data))
    except Rejected as error:
        raise Corrupt(str(error)) from error
    if answered != wanted:
        raise Corrupt(f"a response to request {answered} in the envelope of {wanted}")
    return answer.response_data
