"""The other nodes of the metadata quorum: where they listen, and the connections to them.

In: requests of this node's member. Out: responses, or that there is none, or none that can be read. It never repeats a
request: the quorum does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from stratalog.broker.coordination.quorum_wire import response_of, wire_request
from stratalog.client.core import DamagedAnswer
from stratalog.client.peer import Peer
from stratalog.client.security import Dialer
from stratalog.config.quorum_settings import Address
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable, UserError
from stratalog.metadata.image import Endpoint
from stratalog.quorum.messages import (
    ANY_NODE,
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Response,
    Send,
)
from stratalog.wire.messages import Request
from stratalog.wire.messages.api_versions import ApiVersionsRequest

__all__ = ["QuorumPeers"]

R = TypeVar("R")
Answered = Callable[[Response | Corrupt | None], None]
_log = structlog.get_logger()


class QuorumPeers:
    """See the module. A fetch may wait at the leader, so fetches have a connection of their own."""

    def __init__(
        self,
        dialer: Dialer,
        addresses: Mapping[int, Address],
        servers: Sequence[Address],
        *,
        cluster_id: str,
        own_listener: str,
        request_timeout_ms: int,
    ) -> None:
        """`own_listener` names this node's controller listener, which a leader makes known."""
        self._dialer = dialer
        self._addresses = dict(addresses)
        self._named_addresses = dict(addresses)
        """The addresses that the settings or the log name. Another node's word counts until it leads nowhere."""
        self._servers = deque(servers)
        self._cluster_id = cluster_id
        self._own_listener = own_listener
        self._timeout_s = request_timeout_ms / 1000
        self._peers: dict[tuple[int, bool], Peer] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._refused: set[tuple[int, str]] = set()
        self._elsewhere: set[Address] = set()
        """The nodes that belong to another cluster."""
        # Without half of the voters there is no majority; any one bootstrap server is enough.
        self._elsewhere_max = len(servers) or (len(addresses) + 1) // 2
        self.on_elsewhere: Callable[[UserError], None] | None = None
        """Called where so many nodes belong to another cluster that this node cannot join a quorum."""

    def learn_voter(self, node_id: int, host: str, port: int) -> None:
        """Note where a voter listens, as the log says."""
        if host and port:
            self._named_addresses[node_id] = Address(host, port)
            self.learn(node_id, host, port)

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note where a node's controller listens, as another node says."""
        address = Address(host, port)
        if node_id >= 0 and host and port and self._addresses.get(node_id) != address:
            self._addresses[node_id] = address
            self._drop(node_id)

    def address_of(self, node_id: int) -> Address | None:
        """Return where a node's controller listens; None where that is not known."""
        return self._addresses.get(node_id)

    def send(self, sent: Send, answered: Answered) -> None:
        """Send a request; `answered` gets the response, why it is damaged, or None where the node cannot be asked."""
        task = asyncio.get_running_loop().create_task(self._send(sent, answered))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def close(self) -> None:
        """Close the connections."""
        for task in self._sending:
            task.cancel()
        for peer in self._peers.values():
            peer.close()

    async def ask(self, address: Address, request: Request[R]) -> R:
        """Send a request on a connection of its own; return the response. Raises Unavailable, Rejected."""
        peer = Peer(self._dialer, *address, client_id="raft", timeout_s=self._timeout_s)
        try:
            return await peer.request(request)
        finally:
            peer.close()

    async def kraft_versions(self, host: str, port: int) -> tuple[int, int]:
        """Ask a controller for its range of kraft.version. Raises Unavailable, Rejected."""
        answer = await self.ask(
            Address(host, port),
            ApiVersionsRequest(client_software_name="raft", client_software_version="1"),
        )
        found = [one for one in answer.supported_features if one.name == "kraft.version"]
        return (found[0].min_version, found[0].max_version) if found else (0, 0)

    async def _send(self, sent: Send, answered: Answered) -> None:
        response: Response | Corrupt | None = None
        address = None
        try:
            is_fetch = isinstance(sent.request, FetchRequest | FetchSnapshotRequest)
            peer = self._peer(sent.to, is_fetch=is_fetch)
            address = self._addresses.get(sent.to)
            if peer is not None:
                request = wire_request(sent.request, self._cluster_id, self._own_endpoint(sent))
                answer = await peer.request(request)
                response = response_of(sent.request, answer)
                self._learn_leader(response.leader_id, getattr(answer, "node_endpoints", ()))
                if address is not None:
                    self._elsewhere.discard(address)
        except DamagedAnswer as error:
            response = Corrupt(str(error))
        except Corrupt as error:
            response = error
        except Unavailable:
            self._forget(sent.to)  # the quorum asks again
        except Rejected as error:
            if (sent.to, error.message) not in self._refused:
                self._refused.add((sent.to, error.message))
                _log.warning("quorum request refused", node=sent.to, reason=error.message)
            if error.code is ErrorCode.inconsistent_cluster_id and address is not None:
                self._note_elsewhere(address)
        answered(response)

    def _learn_leader(self, leader_id: int, endpoints: Sequence[Any]) -> None:
        """Note where the leader listens that an answer names; a node of the voters or the settings has its address."""
        for one in endpoints:
            if one.node_id == leader_id:
                self.learn(leader_id, one.host, one.port)

    def _forget(self, node_id: int) -> None:
        """Return to the address that voters or settings name: the one that another node named leads nowhere."""
        address = self._named_addresses.get(node_id)
        if address is not None:
            self.learn(node_id, *address)

    def _own_endpoint(self, sent: Send) -> Endpoint | None:
        """Return where this node's controller listens, for a request with which it makes itself known as the leader."""
        if not isinstance(sent.request, BeginQuorumEpochRequest):
            return None
        own = self._addresses.get(sent.request.leader_id)
        return None if own is None else Endpoint(self._own_listener, *own)

    def _note_elsewhere(self, address: Address) -> None:
        self._elsewhere.add(address)
        if len(self._elsewhere) >= self._elsewhere_max and self.on_elsewhere is not None:
            setting = "controller.quorum." + ("bootstrap.servers" if self._servers else "voters")
            named = ", ".join(f"{one.host}:{one.port}" for one in sorted(self._elsewhere))
            self.on_elsewhere(
                UserError(
                    f"{setting}: {named} belong to another cluster, log.dirs to {self._cluster_id}: name this "
                    "cluster's controllers, or format empty directories with their cluster's id"
                )
            )

    def _drop(self, node_id: int) -> None:
        for is_fetch in (False, True):
            earlier = self._peers.pop((node_id, is_fetch), None)
            if earlier is not None:
                earlier.close()

    def _peer(self, node_id: int, *, is_fetch: bool) -> Peer | None:
        if node_id == ANY_NODE and self._servers:
            # Another one each time: of several some may be down.
            self._servers.rotate(-1)
            self._drop(ANY_NODE)
            self._addresses[ANY_NODE] = self._servers[0]
        peer = self._peers.get((node_id, is_fetch))
        address = self._addresses.get(node_id)
        if peer is None and address is not None:
            peer = self._peers[node_id, is_fetch] = Peer(
                self._dialer, *address, client_id="raft", timeout_s=self._timeout_s
            )
        return peer
