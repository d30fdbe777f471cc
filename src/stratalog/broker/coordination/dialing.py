"""How a node secures its connections to other nodes.

In: the settings, a network. Out: the `Dialer` of the connections between brokers, or to controllers. It opens none.
"""

from stratalog.broker.coordination.damaged_answers import DamagedAnswers
from stratalog.client.security import PLAIN, ClientSecurity, Dialer, login_of
from stratalog.config import BrokerConfig
from stratalog.config.sasl import PASSWORDS
from stratalog.errors import UserError
from stratalog.ports import Network

__all__ = ["dialer_to_brokers", "dialer_to_controllers"]


def dialer_to_brokers(config: BrokerConfig, network: Network, answers: DamagedAnswers) -> Dialer:
    """Return the dialer of connections to the inter-broker listeners of other nodes; `answers` counts damaged ones."""
    security = _security(
        config, config.inter_broker_listener, "sasl.mechanism.inter.broker.protocol"
    )
    return Dialer(network, security, damaged=answers.note)


def dialer_to_controllers(config: BrokerConfig, network: Network) -> Dialer:
    """Return the dialer of connections to controllers; Kafka: by the first of `controller.listener.names`."""
    names = config.list("controller.listener.names")
    if not names:
        return Dialer(network, PLAIN)
    listener = names[0].upper()
    return Dialer(network, _security(config, listener, "sasl.mechanism.controller.protocol"))


def _security(config: BrokerConfig, listener: str, setting: str) -> ClientSecurity:
    """Return the security of connections to other nodes. Raises UserError where the login is not set."""
    tls = config.client_tls(listener)
    if config.is_alone or not config.security_protocol(listener).startswith("SASL_"):
        return ClientSecurity(tls)
    mechanism = config.str(setting)
    if mechanism not in PASSWORDS:
        raise UserError(
            f"{setting}: {mechanism!r} is not accepted where nodes log in to {listener}; "
            f"accepted: {', '.join(PASSWORDS)}"
        )
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    return ClientSecurity(tls, login_of(name, str(config.get(name) or ""), mechanism))
