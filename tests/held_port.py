"""A port of 127.0.0.1 that stays one server's, also before its first start and while it is down.

In: the server's owner. Out: the port. No other process gets it as long as the owner lives.
"""

import socket
import weakref


def held_port(owner: object) -> int:
    """Hold a free port for the owner, and return it. Only servers that name it may listen on it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server's: both may have it
    held.bind(("127.0.0.1", 0))
    weakref.finalize(owner, held.close)
    port: int = held.getsockname()[1]
    return port
