"""A client beyond the connection rate of its address costs no TLS handshake: its connection is closed unread."""

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

from tests.integration.server_process import strata

from stratalog.testing.broker import TemporaryBroker

CONNECTIONS = 40
SHORT = {"quota.window.num": "2", "quota.window.size.seconds": "1"}


def test_connections_beyond_the_rate_get_no_handshake(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    with TemporaryBroker(SHORT, tls=True) as broker, ExitStack() as opened:
        config.write_text(
            f"bootstrap.servers={broker.address}\nsecurity.protocol=SSL\n"
            f"ssl.truststore.location={broker.authority.certificate}\n"
        )
        words = ("quota", "set", "--ip", "127.0.0.1", "--connection-creation-rate", "1")
        done = strata("--config", str(config), *words)
        assert done.returncode == 0, done.stderr
        host, _, port = broker.address.partition(":")
        place = host, int(port)
        waiting = [
            opened.enter_context(socket.create_connection(place, 20)) for _ in range(CONNECTIONS)
        ]
        context = ssl.create_default_context(cafile=str(broker.authority.certificate))
        served = 0
        for raw in waiting:
            try:
                with context.wrap_socket(raw, server_hostname=host):
                    served += 1
            except OSError:
                continue
    assert 0 < served < CONNECTIONS
