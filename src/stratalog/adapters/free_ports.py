"""Find free ports of 127.0.0.1 for nodes that must name each other's ports before they listen.

In: a number of ports, or one port. Out: free ports, or whether one is free. It reserves no port: another process may
take one before the node does.

The ports lie below those that the system gives to outgoing connections. A node that is down would otherwise lose its
port to a connection, even to one of its own peers that tries to reach it.
"""

import os
import socket
from contextlib import ExitStack, closing
from typing import Final

from stratalog.errors import UserError

_HOST: Final = "127.0.0.1"
_FIRST: Final = 10_000
_OUTGOING: Final = "/proc/sys/net/ipv4/ip_local_port_range"
_OUTGOING_FIRST: Final = 32_768
"""Linux's default; other systems begin higher."""
_TRIES: Final = 1000


def free_ports(count: int) -> list[int]:
    """Return `count` different ports, chosen by chance. Raises UserError where there are too few."""
    span = max(_first_outgoing() - _FIRST, count)
    found: list[int] = []
    with ExitStack() as bound:
        for _ in range(_TRIES):
            if len(found) == count:
                return found
            port = _FIRST + int.from_bytes(os.urandom(4)) % span
            probe = bound.enter_context(closing(socket.socket()))
            if _bind(probe, port):
                found.append(port)
    raise UserError(f"{count} free ports from {_FIRST} on are not there: stop other servers")


def is_free(port: int) -> bool:
    """Return whether a node could listen on the port."""
    with closing(socket.socket()) as probe:
        return _bind(probe, port)


def _bind(probe: socket.socket, port: int) -> bool:
    # As asyncio does: connections that ended a moment ago do not count.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((_HOST, port))
        probe.listen(1)
    except OSError:
        return False
    return True


def _first_outgoing() -> int:
    try:
        with open(_OUTGOING, encoding="ascii") as file:
            return int(file.read().split()[0])
    except OSError:
        return _OUTGOING_FIRST
