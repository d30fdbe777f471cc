"""The other nodes of the metadata quorum: where they listen, and the connections to them.

In: requests of this node's member. Out: responses, or that there is none. It never repeats a request: the quorum does.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from stratalog.broker.coordination.quorum_wire import response_of, wire_request
from stratalog.client.peer import Peer
from stratalog.config.quorum_settings import Address
from stratalog.errors import Rejected, Unavailable
from stratalog.ports import Network
from stratalog.quorum.messages import FetchRequest, FetchSnapshotRequest, Response, Send

__all__ = ["QuorumPeers"]

_log = structlog.get_logger()


class QuorumPeers:
    """See the module. A fetch may wait at the leader, so fetches have a connection of their own."""

    def __init__(
        self,
        network: Network,
        addresses: Mapping[int, Address],
        *,
        cluster_id: str,
        request_timeout_ms: int,
    ) -> None:
        self._network = network
        self._addresses = addresses
        self._cluster_id = cluster_id
        self._timeout_s = request_timeout_ms / 1000
        self._peers: dict[tuple[int, bool], Peer] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._refused: set[tuple[int, str]] = set()

    def address_of(self, node_id: int) -> Address | None:
        """Return where a node's controller listens; None where that is not known."""
        return self._addresses.get(node_id)

    def send(self, sent: Send, answered: Callable[[Response | None], None]) -> None:
        """Send a request; `answered` gets the response, or None where the node cannot be asked."""
        task = asyncio.get_running_loop().create_task(self._send(sent, answered))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def close(self) -> None:
        """Close the connections."""
        for task in self._sending:
            task.cancel()
        for peer in self._peers.values():
            peer.close()

    async def _send(self, sent: Send, answered: Callable[[Response | None], None]) -> None:
        response = None
        try:
            is_fetch = isinstance(sent.request, FetchRequest | FetchSnapshotRequest)
            peer = self._peer(sent.to, is_fetch=is_fetch)
            if peer is not None:
                request = wire_request(sent.request, self._cluster_id)
                response = response_of(await peer.request(request))
        except Unavailable:
            pass  # the quorum asks again
        except Rejected as error:
            if (sent.to, error.message) not in self._refused:
                self._refused.add((sent.to, error.message))
                _log.warning("quorum request refused", node=sent.to, reason=error.message)
        answered(response)

    def _peer(self, node_id: int, *, is_fetch: bool) -> Peer | None:
        peer = self._peers.get((node_id, is_fetch))
        address = self._addresses.get(node_id)
        if peer is None and address is not None:
            peer = self._peers[node_id, is_fetch] = Peer(
                self._network, *address, client_id="raft", timeout_s=self._timeout_s
            )
        return peer
