"""Free ports: they differ, and the system does not give them to outgoing connections."""

import socket
from pathlib import Path

from stratalog.adapters.free_ports import free_ports, is_free


def test_ports_are_free_distinct_and_never_those_of_outgoing_connections() -> None:
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
