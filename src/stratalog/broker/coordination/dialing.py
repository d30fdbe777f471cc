"""How a node secures its connections to other nodes.

In: the settings, a network. Out: the `Dialer` of the connections between brokers, or to controllers. It opens none.
"""

from stratalog.client.security import PLAIN, ClientSecurity, Dialer
from stratalog.config import BrokerConfig
from stratalog.ports import Network

__all__ = ["dialer_to_brokers", "dialer_to_controllers"]


def dialer_to_brokers(config: BrokerConfig, network: Network) -> Dialer:
    """Return the dialer of connections to the inter-broker listeners of other nodes."""
    return Dialer(network, _security(config, config.inter_broker_listener))


def dialer_to_controllers(config: BrokerConfig, network: Network) -> Dialer:
    """Return the dialer of connections to controllers; Kafka: by the first of `controller.listener.names`."""
    names = config.list("controller.listener.names")
    return Dialer(network, _security(config, names[0].upper()) if names else PLAIN)


def _security(config: BrokerConfig, listener: str) -> ClientSecurity:
    return ClientSecurity(config.client_tls(listener))
