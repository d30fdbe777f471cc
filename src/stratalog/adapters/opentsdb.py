"""Send points to a receiver of OpenTSDB's line or HTTP protocol.

In: batches of points. Out: how many of them the receiver refused, or Unavailable. It keeps no batch: the caller sends
again what was not taken. A point sent twice is one point, since it has its time.
"""

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from stratalog.adapters.http_request import Deadline, ask, shown
from stratalog.errors import Unavailable

__all__ = ["HttpReceiver", "LineReceiver", "Receiver", "Refused"]

_RETRIED: Final = {408, 429}
_ANSWER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Refused:
    """Points of a batch that the receiver does not accept, and its reason."""

    points: int = 0
    why: str = ""


class Receiver(Protocol):
    """Takes one batch at a time."""

    def send(self, batch: bytes, points: int, timeout_s: float) -> Refused:
        """Send a batch within `timeout_s`. Raises Unavailable where the receiver may take it later."""

    def close(self) -> None:
        """Close the connection."""


class HttpReceiver:
    """OpenTSDB's `/api/put`: a batch is a JSON array, compressed with gzip."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}?summary"

    def send(self, batch: bytes, points: int, timeout_s: float) -> Refused:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer = ask(self._url, body=batch, headers=headers, timeout_s=timeout_s)
        if answer.status == 204:
            return Refused()
        text = answer.body[:200].decode("utf-8", "replace").strip()
        why = f"{shown(self._url)}: status {answer.status}: {text}"
        if answer.status >= 500 or answer.status in _RETRIED:
            raise Unavailable(why)
        with suppress(ValueError, TypeError, KeyError):  # OpenTSDB counts; other receivers say less
            return Refused(int(json.loads(answer.body)["failed"]), why)
        return Refused(0 if answer.status == 200 else points, why)

    def close(self) -> None:
        """Nothing is open between two batches."""


class LineReceiver:
    """OpenTSDB's lines over TCP.

    Lines have no answer. After each batch the receiver is asked for its version: it answers once it has read the
    lines, and it complains about lines before that (as OpenTSDB's own collector does it).
    """

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self._socket: socket.socket | None = None

    def send(self, batch: bytes, points: int, timeout_s: float) -> Refused:
        deadline = Deadline(timeout_s)
        try:
            connection = self._connected(timeout_s)
            deadline.limit(connection)
            connection.sendall(batch + b"version\n")
            complaints = self._complaints(connection, deadline)
        except OSError as error:
            self.close()
            why = str(error) or type(error).__name__
            raise Unavailable(f"{self._place[0]}:{self._place[1]}: {why}") from error
        first = complaints[0].decode("utf-8", "replace") if complaints else ""
        return Refused(min(points, len(complaints)), first)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _connected(self, timeout_s: float) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._place, timeout_s)
        self._socket.settimeout(0)
        with suppress(BlockingIOError):
            self._read(self._socket)  # the rest of the version
        return self._socket

    def _complaints(self, connection: socket.socket, deadline: Deadline) -> list[bytes]:
        """Wait for the version; return the lines before it."""
        data = b""
        while True:
            deadline.limit(connection)
            data += self._read(connection)
            lines = data.split(b"\n")
            is_answered = any(line and not b"put:".startswith(line[:4]) for line in lines)
            if is_answered or len(data) > _ANSWER_BYTES_MAX:
                return [line for line in lines if line.startswith(b"put:")]

    @staticmethod
    def _read(connection: socket.socket) -> bytes:
        data = connection.recv(_ANSWER_BYTES_MAX)
        if not data:
            raise ConnectionResetError("the receiver closed the connection")
        return data
