"""One HTTP request by the standard library, which a plain install has.

In: a URL, a body. Out: the answer, whatever its status; Unavailable without one. It follows no redirect, uses no proxy,
reads no more than a bound, waits for no answer that comes byte by byte, and never shows a user or a password.
"""

import io
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from stratalog.errors import Unavailable, UserError

__all__ = ["Answer", "Deadline", "ask", "checked_url", "post", "shown"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Any answer, good or not. `date` is the header's text, empty where there is none."""

    status: int
    body: bytes
    date: str = ""


class Deadline:
    """The end of an exchange: a socket's own timeout starts again with each byte that comes."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def limit(self, connection: socket.socket) -> None:
        """Let the next operation of a socket last no longer. Raises TimeoutError where the time is over."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)


class _Read(io.RawIOBase):
    """The bytes that a socket receives before a deadline, for `HTTPResponse`."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._deadline.limit(self._connection)
        return self._connection.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the reader that `HTTPResponse` asks its socket for."""
        return io.BufferedReader(self)


def shown(url: str) -> str:
    """Return a URL without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def checked_url(url: str, option: str = "URL") -> str:
    """Return the URL. Raises UserError, which names `option`, for one that is not of HTTP."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_one = False
    if not is_one:
        raise UserError(f"{option}: this is not accepted; accepted: http://host:port/path")
    return url


def ask(
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
    bytes_max: int = 16 << 20,
) -> Answer:
    """GET a URL, or POST a body to it. A user and a password in the URL are sent as basic authentication.

    `timeout_s` is for the whole exchange.
    Raises UserError for a URL that is none, or a certificate that is not trusted; Unavailable.
    """
    parts = urlsplit(checked_url(url))
    host, port = parts.hostname or "", parts.port
    sent = dict(headers or {})
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        sent["Authorization"] = "Basic " + b64encode(pair).decode()
    connection = (
        HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
        if parts.scheme == "https"
        else HTTPConnection(host, port, timeout=timeout_s)
    )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    method = "GET" if body is None else "POST"
    deadline = Deadline(timeout_s)
    try:
        connection.connect()
        deadline.limit(connection.sock)
        connection.request(method, path, body=body, headers=sent)
        reader = cast("socket.socket", _Read(connection.sock, deadline))
        answer = HTTPResponse(reader, method=method)
        answer.begin()
        data = answer.read(bytes_max + 1)
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"{shown(url)}: {error.verify_message}") from error
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unavailable(f"{shown(url)}: {why}") from error
    finally:
        connection.close()
    if len(data) > bytes_max:
        raise Unavailable(f"{shown(url)}: an answer of more than {bytes_max} bytes")
    return Answer(answer.status, data, answer.getheader("date", ""))


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> int:
    """Return the status of the answer to a POST (`ports.Post`). Raises as `ask`."""
    return ask(url, body=body, headers=headers, timeout_s=timeout_s, bytes_max=64 << 10).status
