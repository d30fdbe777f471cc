"""The settings of a cluster on one machine."""

from stratalog.config import BrokerConfig
from stratalog.config.local_cluster import NodePorts, node_settings

PORTS = {1: NodePorts(11, 21), 2: NodePorts(12, 22), 3: NodePorts(13, 23)}


def test_each_node_has_its_own_ports_and_all_name_the_same_voters() -> None:
    settings = {node: node_settings(node, PORTS, f"data-{node}") for node in PORTS}
    voters = {one["controller.quorum.voters"] for one in settings.values()}
    assert voters == {"1@127.0.0.1:21,2@127.0.0.1:22,3@127.0.0.1:23"}
    assert settings[2]["node.id"] == "2"
    assert settings[2]["log.dirs"] == "data-2"


def test_a_broker_accepts_the_settings_and_serves_clients_on_one_listener() -> None:
    config, _ = BrokerConfig.load(node_settings(3, PORTS, "data"), strict=True)
    assert [str(one) for one in config.listeners] == ["PLAINTEXT://127.0.0.1:13"]
    assert config.log_dirs == ("data",)
