"""The parts of one node's controller listeners, put together.

In: settings, ports, the cluster's metadata. Out: the parts by name: the `Needs` of each handler are some of them. It
decides nothing. A node with both roles has a `Broker` beside it.
"""

from stratalog.broker.apis import apis_of_controllers
from stratalog.broker.coordination.cluster_metadata import ClusterMetadata
from stratalog.broker.coordination.forwarding import Forwarding
from stratalog.broker.coordination.topics import Topics
from stratalog.broker.coordination.users import users_of
from stratalog.broker.metrics import BrokerMetrics
from stratalog.broker.network.authorizer import Authorizer
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.large import LargeRequests
from stratalog.broker.network.standard_authorizer import standard_authorizer
from stratalog.config import BrokerConfig
from stratalog.ports import Outside

__all__ = ["ControllerServer"]


class ControllerServer:
    """What handlers on a controller's listener work with, by the names that they have in `Broker`."""

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        cluster: ClusterMetadata,
        client_memory: ClientMemory,
    ) -> None:
        self.apis = apis_of_controllers()
        self.config = config
        self.metrics = BrokerMetrics(self.apis)
        self.clock = outside.clock
        self.client_memory = client_memory
        self.large = LargeRequests(outside.workers)
        self.quorum = cluster.quorum
        self.local_controller = cluster.local_controller
        self.topics = Topics(config, cluster.controller, {})
        self.metadata = cluster.image
        self.authorizer: Authorizer | None = standard_authorizer(config, cluster.image)
        self.forwarding = Forwarding(
            cluster.local_controller, cluster.controller, config, self.authorizer
        )
        self.throttling = cluster.throttling
        self.audit = cluster.audit
        self.users = users_of(cluster.image, outside, config)
        self.cluster = cluster.image
        """What handlers that a broker's listener has too ask of `Broker.cluster`: the image, and the cluster's id."""
