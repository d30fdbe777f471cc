"""Mutual TLS for one run: an authority of its own, and what it signs.

In: a directory. Out: settings of a broker, or of the nodes of a cluster, that serve only clients with a certificate of
the run, and settings of these clients. The keys end with the directory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stratalog.client.security import PLAIN, ClientSecurity, security_of


@dataclass(frozen=True, slots=True)
class Secured:
    """Settings of one broker, of each node of a cluster, and of clients, by Kafka's names. Without any: plain text."""

    broker: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, str] = field(default_factory=dict)

    @property
    def security(self) -> ClientSecurity:
        """The clients' settings as our own client takes them."""
        return security_of(self.clients) if self.clients else PLAIN


def mutual_tls(directory: Path) -> Secured:
    """Create an authority, and keys of a broker and of its clients, in a new directory that only its user reads."""
    from stratalog.testing.certificates import Authority  # noqa: PLC0415 - needs cryptography

    directory.mkdir(mode=0o700)
    authority = Authority(directory)
    trust = {"ssl.truststore.location": str(authority.certificate.resolve())}

    def keys(name: str) -> dict[str, str]:
        return trust | {"ssl.keystore.location": str(authority.issue(name).pem.resolve())}

    server = keys("broker") | {"ssl.client.auth": "required"}
    # The nodes are clients of one another: they show the same certificate, on both listeners of a local cluster.
    protocols = {"listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL"}
    return Secured(
        broker=server | {"listeners": "SSL://127.0.0.1:0"},
        nodes=server | protocols,
        clients=keys("pipeline") | {"security.protocol": "SSL"},
    )
