"""The connections of one broker to other brokers, for one purpose.

In: a broker's id. Out: the connection to its present address. It sends nothing.

Kafka: `InterBrokerSendThread`.
"""

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.client.peer import Peer
from stratalog.client.security import Dialer
from stratalog.errors import Unavailable


class BrokerPeers:
    """Connections by broker id, opened on demand."""

    def __init__(
        self,
        cluster: ClusterView,
        dialer: Dialer,
        *,
        purpose: str,
        listener: str,
        timeout_s: float,
    ) -> None:
        """`purpose` is part of the client id; `listener` is the one between brokers; `timeout_s` bounds a request."""
        self._cluster = cluster
        self._dialer = dialer
        self._client_id = f"broker-{cluster.node_id}-{purpose}"
        self._listener = listener
        self._timeout_s = timeout_s
        self._peers: dict[int, Peer] = {}

    def get(self, node_id: int) -> Peer:
        """Return the connection to a broker. Raises Unavailable where the broker is not active."""
        broker = self._cluster.live_broker(node_id, self._listener)
        if broker is None:
            raise Unavailable(f"broker {node_id} is not active")
        _node, host, port, _rack = broker
        peer = self._peers.get(node_id)
        if peer is not None and (peer.host, peer.port) != (host, port):
            peer.close()
            peer = None
        if peer is None:
            peer = self._peers[node_id] = Peer(
                self._dialer, host, port, client_id=self._client_id, timeout_s=self._timeout_s
            )
        return peer

    def close_fenced(self) -> None:
        """Close the connections to brokers that are not active: other brokers lead their partitions now.

        A machine without power, or a paused process, answers nothing: its requests would wait for their time-out.
        """
        brokers = self._cluster.image.brokers
        for node_id in list(self._peers):
            broker = brokers.get(node_id)
            if broker is None or not broker.is_active:
                self._peers.pop(node_id).close()

    def close(self) -> None:
        """Close every connection: pending and later requests raise Unavailable."""
        for peer in self._peers.values():
            peer.close()
