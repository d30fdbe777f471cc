"""Free ports: different ones, outside of those that outgoing connections get."""

import socket
from pathlib import Path

from stratalog.adapters.free_ports import free_ports, is_free


def test_ports_differ_are_free_and_are_not_given_to_connections() -> None:
    found = free_ports(50)
    assert len(set(found)) == 50
    assert all(map(is_free, found))
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert min(found) >= 10_000
    assert max(found) < first


def test_a_port_with_a_listener_is_not_free() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert is_free(port)
