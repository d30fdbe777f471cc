"""How a node of a cluster logs in to others: settings that are unset or wrong are named."""

from collections.abc import Callable
from typing import Final

import pytest

from stratalog.adapters.network import TcpNetwork
from stratalog.broker.coordination.damaged_answers import DamagedAnswers
from stratalog.broker.coordination.dialing import dialer_to_brokers, dialer_to_controllers
from stratalog.client.security import Dialer
from stratalog.config import BrokerConfig
from stratalog.errors import UserError
from stratalog.ports import Network

WORD: Final = "planted-password"
MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS: Final = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2",
    "listeners": "NODES://127.0.0.1:3,CONTROLLER://127.0.0.1:1",
    "listener.security.protocol.map": "NODES:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "NODES",
    "controller.listener.names": "CONTROLLER",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
}
TO: Final[dict[str, tuple[str, Callable[[BrokerConfig, Network], Dialer]]]] = {
    "nodes": (
        "sasl.mechanism.inter.broker.protocol",
        lambda *given: dialer_to_brokers(*given, DamagedAnswers()),
    ),
    "controller": ("sasl.mechanism.controller.protocol", dialer_to_controllers),
}


@pytest.mark.parametrize("listener", TO)
def test_the_login_of_nodes_is_read_or_named(listener: str) -> None:
    setting, dialer = TO[listener]
    jaas = f"listener.name.{listener}.scram-sha-256.sasl.jaas.config"
    right = {setting: "SCRAM-SHA-256", jaas: f'{MODULE} required username="n" password="{WORD}";'}
    for change, line in (
        (
            {setting: "GSSAPI"},
            f"{setting}: 'GSSAPI' is not accepted where nodes log in to {listener.upper()}",
        ),
        ({setting: "OAUTHBEARER"}, f"{setting}: 'OAUTHBEARER' is not accepted where nodes log in"),
        ({jaas: ""}, f"{jaas} is not set; accepted: {MODULE} required username="),
        ({jaas: f'{MODULE} required password="{WORD}";'}, f"{jaas}: this value is not accepted"),
    ):
        with pytest.raises(UserError) as refused:
            dialer(BrokerConfig.load(SETTINGS | right | change)[0], TcpNetwork())
        assert str(refused.value).startswith(line)
        assert WORD not in str(refused.value)
    login = dialer(BrokerConfig.load(SETTINGS | right)[0], TcpNetwork()).security.login
    assert login is not None
    assert (login.mechanism, login.user, login.password) == ("SCRAM-SHA-256", "n", WORD)
