"""A connection to a broker without its socket.

In: calls to make, and bytes that arrived. Out: bytes to send, and answers by correlation id. It never does I/O: a
shell sends the result of `send`, receives into `get_buffer`, and passes on the result of `received`.

Kafka answers a connection's requests in order. So an answer belongs to the oldest open request, and a wrong
correlation id means that the stream is lost.
"""

import os
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from stratalog.client.apis import API_VERSIONS, SASL_HANDSHAKE, SPOKEN
from stratalog.client.calls import Call
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable
from stratalog.ports import Buffer
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.frames import FrameReader

MAX_FRAME_BYTES = 512 << 20
"""A Fetch answer may carry one batch of any size the topic allows."""
_OTHERS = {
    b"HTTP": "it answers as an HTTP server",
    b"SSH-": "it answers as an SSH server",
    b"\x15\x03": "it answers with TLS; set security.protocol=SSL, or SASL_SSL with a login",
}
"""First bytes of an answer, to the server that sends it."""
_OF_AUTHORITY: Final = "set ssl.truststore.location to the certificate of its authority"
_OF_NAME: Final = "connect by a name that the certificate has"
_REMEDIES: Final = {
    9: "compare the clocks of both machines",
    10: "renew it",
    62: _OF_NAME,
    64: _OF_NAME,
} | dict.fromkeys((18, 19, 20, 21), _OF_AUTHORITY)
"""By OpenSSL's number of what is wrong with a server's certificate."""
CERTIFICATE_REFUSED: Final = "its certificate is refused"


def reason(error: OSError) -> str:
    """Return the system's text of an error (asyncio's text would repeat the address)."""
    verified = getattr(error, "verify_message", "")  # of an ssl.SSLCertVerificationError
    if verified:
        remedy = _REMEDIES.get(getattr(error, "verify_code", 0), "")
        return f"{CERTIFICATE_REFUSED}: {verified.rstrip('.')}" + (remedy and f"; {remedy}")
    if getattr(error, "library", ""):  # of an ssl.SSLError, whose number is none of the system's
        return f"TLS failed: {str(getattr(error, 'reason', error)).replace('_', ' ').lower()}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


class DamagedAnswer(Unavailable):
    """What arrived is no answer of a sound broker; `api_key` is that of the request, None where none is open."""

    def __init__(self, message: str, api_key: int | None = None) -> None:
        super().__init__(message)
        self.api_key = api_key


class _Open(Struct, frozen=True):
    correlation_id: int
    version: int
    call: Call[Any]


class ClientConnection:
    """One connection's protocol state. `versions` is empty until the shell stores an ApiVersions answer."""

    def __init__(
        self,
        peer: str,
        client_id: str,
        spoken: Mapping[int, tuple[int, int]] = SPOKEN,
        *,
        is_secured: bool = False,
    ) -> None:
        """`spoken`: for each API the lowest and highest version that the caller can build and read. `is_secured`:
        the shell's connection uses TLS.
        """
        self.peer = peer
        self._is_secured = is_secured
        self._spoken = spoken
        self.versions: Mapping[int, tuple[int, int]] = {}
        self._client_id = client_id
        self._frames = FrameReader(MAX_FRAME_BYTES)
        self._target = memoryview(b"")
        self._began = False  # a byte was received
        self._open: deque[_Open] = deque()
        self._next_id = 0

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return len(self._open)

    def send(self, call: Call[Any]) -> tuple[int, list[Buffer]]:
        """Return a correlation id, and the bytes of the request. Raises Rejected(UNSUPPORTED_VERSION)."""
        version = self._version(call.api_key, call.highest)
        correlation_id, self._next_id = self._next_id, (self._next_id + 1) & 0x7FFFFFFF
        pieces = encode_request(version, correlation_id, self._client_id, call.build(version))
        if call.unanswered is None:
            self._open.append(_Open(correlation_id, version, call))
        return correlation_id, pieces

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""
        self._target = self._frames.get_buffer(-1)
        return self._target

    def received(self, count: int) -> list[tuple[int, Any]]:
        """Return (correlation id, answer or the Rejected it means) of each answer that `count` more bytes complete.

        Raises DamagedAnswer for a malformed stream, and for an answer that makes no sense: close the connection then.
        """
        if not self._began:
            self._begin(bytes(self._target[: min(count, 4)]))
        try:
            frames = self._frames.buffer_updated(count)
        except Rejected as error:
            raise DamagedAnswer(f"broker {self.peer}: {error}", self._awaited) from error
        return [self._answer(frame) for frame in frames]

    def closed(self, reason: str = "") -> Unavailable:
        """Return the exception for a connection that the broker has closed."""
        text = f"broker {self.peer} closed the connection" + (reason and f": {reason}")
        is_first = self._next_id == 2 and bool(self._open)
        if is_first and self._open[0].call.api_key != SASL_HANDSHAKE:
            protocol = "SASL_SSL" if self._is_secured else "SASL_PLAINTEXT"
            text += f"; where its listener asks for a login, set security.protocol={protocol}"
        return Unavailable(text)

    def unreachable(self, error: Unavailable) -> Unavailable:
        """Return the exception for a connection whose first request, ApiVersions, failed with `error`."""
        hint = (
            "is this the port of a Kafka listener? Where it has TLS, set security.protocol=SSL, "
            "or SASL_SSL with a login"
        )
        if self._is_secured:
            text = str(error).lower()
            hint = "does it require a client's certificate, set by ssl.keystore.location?"
            if (
                "alert certificate" in text.replace("certificate required", "")
                or "unknown ca" in text
            ):
                hint = "it refuses the client's certificate, set by ssl.keystore.location"
        hint = "" if self._began else f"; {hint}"
        return Unavailable(f"broker {self.peer} unreachable: {error}{hint}")

    def refused(self, error: Rejected) -> Rejected:
        """Return the exception for a connection whose login failed with `error`: it names the broker."""
        return Rejected(error.code, f"broker {self.peer}: {error}")

    def _begin(self, first: bytes) -> None:
        """Raise Unavailable unless the first bytes can be a length: that of an ApiVersions answer begins with 0."""
        self._began = True
        if first[0]:
            hints = [f": {what}" for start, what in _OTHERS.items() if first.startswith(start)]
            raise DamagedAnswer(
                f"{self.peer} does not speak Kafka's protocol{''.join(hints)}", self._awaited
            )

    @property
    def _awaited(self) -> int | None:
        return self._open[0].call.api_key if self._open else None

    def _answer(self, frame: memoryview) -> tuple[int, Any]:
        if not self._open:
            raise DamagedAnswer(f"broker {self.peer} sent an answer to nothing", None)
        pending = self._open.popleft()
        key = pending.call.api_key
        try:
            correlation_id, body = decode_response(key, pending.version, frame)
        except (Corrupt, Rejected) as error:
            raise self._damaged(error, key) from error
        if correlation_id != pending.correlation_id:
            raise DamagedAnswer(
                f"broker {self.peer} answered {correlation_id}, not {pending.correlation_id}", key
            )
        try:
            return correlation_id, pending.call.read(body)
        except Rejected as error:
            return correlation_id, error
        except Corrupt as error:
            raise self._damaged(error, key) from error

    def _damaged(self, error: Exception, api_key: int) -> DamagedAnswer:
        return DamagedAnswer(
            f"broker {self.peer} sent an answer that cannot be read: {error}", api_key
        )

    def _version(self, api_key: int, limit: int) -> int:
        lowest, highest = self._spoken[api_key]
        highest = min(highest, limit)
        if api_key == API_VERSIONS:
            return highest
        served = self.versions.get(api_key)
        if served is None or served[0] > highest or served[1] < lowest:
            raise Rejected(
                ErrorCode.unsupported_version,
                f"broker {self.peer} does not serve API {api_key} in versions {lowest} to {highest}",
            )
        return min(highest, served[1])
