"""HTTP requests to a group of equal servers; the only use of urllib3.

In: addresses, a method, a path, a body. Out: the answer, whatever its status; Unavailable without one. It never
repeats a request (the caller knows which ones may be), and never shows a user or a password.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from ssl import SSLCertVerificationError

import urllib3

from stratalog.errors import Unavailable, UserError
from stratalog.ports import Secret

__all__ = ["Answer", "Credentials", "HttpClient"]


@dataclass(frozen=True, slots=True, repr=False)
class Credentials(Secret):
    """A user and a password. Never printed."""

    user: str
    password: str

    def header(self) -> str:
        """Return the value of the `Authorization` header (RFC 7617, in UTF-8)."""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Answer:
    """Any answer, good or not."""

    status: int
    body: bytes


class HttpClient:
    """Connections to `hosts` (`https://host:port`), kept for the next request. Requests may come from several threads.

    `ca_file`: the authority of the servers' certificates; None: the system's.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        credentials: Credentials | None = None,
        ca_file: str | None = None,
        timeout_s: float,
        connections: int = 1,
    ) -> None:
        assert hosts, "a client without a server"
        trust = {"ca_certs": ca_file} if ca_file is not None else {}
        headers = {"Authorization": credentials.header()} if credentials is not None else {}
        self._hosts = tuple(hosts)
        self._pools = [
            urllib3.connection_from_url(
                host,
                maxsize=connections,
                retries=False,
                timeout=urllib3.Timeout(total=timeout_s),
                headers=headers,
                **(trust if host.startswith("https:") else {}),
            )
            for host in hosts
        ]
        self._turn = 0

    def request(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> Answer:
        """Send one request; after a failure the next one goes to another host.

        Raises Unavailable without a complete answer, and UserError for a certificate that is not trusted.
        """
        turn = self._turn % len(self._pools)
        pool, host = self._pools[turn], self._hosts[turn]
        headers = {**pool.headers, **({"Content-Type": kind} if body else {})}
        try:
            answer = pool.request(method, path, body=body or None, headers=headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason = _innermost(error)
            if isinstance(reason, SSLCertVerificationError):
                raise UserError(f"{host}: {reason.verify_message}") from error
            self._turn = turn + 1
            raise Unavailable(f"{host}: {str(reason) or type(reason).__name__}") from error
        if not any(name in answer.headers for name in ("content-length", "transfer-encoding")):
            # An answer that is cut off within its headers looks complete and empty.
            self._turn = turn + 1
            raise Unavailable(f"{host}: an answer that does not say how long it is")
        return Answer(answer.status, answer.data)

    def close(self) -> None:
        """End the connections."""
        for pool in self._pools:
            pool.close()


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost error, because urllib3 wraps the system's errors in its own."""
    while error.__cause__ is not None or error.__context__ is not None:
        inner = error.__cause__ or error.__context__
        assert inner is not None, "one of them is there"
        error = inner
    return error
