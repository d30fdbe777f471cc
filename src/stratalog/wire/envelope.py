"""Requests and responses, whole: header and body, both directions.

In: a frame (without its length) and a budget, or a header's fields and a body. Out: a `Received` or a body, or the
buffers to send (with their length). It raises no other exceptions than the documented ones.

Bodies are the generated classes of `wire/messages`, read and written by the functions beside them. The response to a
Fetch may be a `fetch.EncodedResponse`.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from struct import Struct
from typing import Any, Final

import msgspec

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Buffer
from stratalog.wire.apis import API_VERSIONS, APIS, FETCH, FLEXIBLE_FROM, NEVER, is_flexible
from stratalog.wire.budget import TRUSTED, DecodeBudget
from stratalog.wire.codecs import codec
from stratalog.wire.fetch import EncodedResponse, addressed
from stratalog.wire.message_fields import UNREADABLE, skip_tags
from stratalog.wire.messages import Request

__all__ = [
    "Received",
    "RequestHeader",
    "UnsupportedVersion",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "parse_header",
]

_HEADER_BYTES: Final = 10
_read_header: Final = Struct(">hhih").unpack_from
_REQUEST_START: Final = Struct(">ihhi")
_RESPONSE_START: Final = Struct(">ii")
_CLIENT_ID_LENGTH: Final = Struct(">h")
_CORRELATION_ID: Final = Struct(">i")
_NONE_SERVED: Final = (1, 0)
_KNOWN_MAX: Final = 64
_KNOWN_BYTES_MAX: Final = 512
_known_fetches: Final[dict[tuple[int, bytes], Any]] = {}
"""Bodies of Fetch requests, by version and bytes: short ones, of which each takes 40 KiB at most."""


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """A request without its body. Kafka: RequestHeader versions 1 and 2 (the second adds tags, which are skipped)."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


class Received(msgspec.Struct, frozen=True):
    """A whole request; `body` is of the API's class in `wire/messages`."""

    header: RequestHeader
    body: Any


class UnsupportedVersion(Rejected):
    """A key or version that is not served. ApiVersions still answers, from `request_header` (KIP-511)."""

    def __init__(self, request_header: RequestHeader) -> None:
        super().__init__(
            ErrorCode.unsupported_version,
            f"API key {request_header.api_key} version {request_header.version} is not served",
        )
        self.request_header = request_header


def parse_header(frame: memoryview, budget: DecodeBudget) -> tuple[RequestHeader, int]:
    """Return a request's header and the position of its body; raises Rejected(INVALID_REQUEST) for a malformed header.

    For an unknown key or version the position assumes a header without tags.
    """
    try:
        api_key, version, correlation_id, length = _read_header(frame)
        position = _HEADER_BYTES
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise Corrupt("the client id runs past the end")
            client_id = frame[position:end].tobytes().decode()
            position = end
        elif length != -1:
            raise Corrupt(f"a client id of {length} bytes")
        if version >= FLEXIBLE_FROM.get(api_key, NEVER):
            tags = frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags, budget)
    except UNREADABLE as error:
        raise Rejected(ErrorCode.invalid_request, f"not a request header: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id), position


def decode_request(
    frame: memoryview, served: Mapping[int, tuple[int, int]], budget: DecodeBudget
) -> Received:
    """Return the request in `frame`, if it is within `served` (key -> oldest and newest version).

    Records of a Produce request are views of `frame`.

    Raises UnsupportedVersion (a Rejected with the header), Rejected(INVALID_REQUEST) for anything unparsable, and
    OverBudget for a request that would take more memory than `budget` allows.

    Reads the header as `parse_header` does, which would take 0.15 µs more for a call and a look-up of its own.
    """
    try:
        api_key, version, correlation_id, length = _read_header(frame)
        oldest, newest = served.get(api_key, _NONE_SERVED)
        if not oldest <= version <= newest:
            raise UnsupportedVersion(parse_header(frame, budget)[0])
        read, has_records, flexible = _request_reader(api_key, version)
        data = frame if has_records else frame.tobytes()
        position = _HEADER_BYTES
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise Corrupt("the client id runs past the end")
            client_id = frame[position:end].tobytes().decode()
            position = end
        elif length != -1:
            raise Corrupt(f"a client id of {length} bytes")
        if flexible:
            tags = frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags, budget)
        body = read(data, position, budget)
    except UNREADABLE as error:
        header, _ = parse_header(frame, budget)  # which raises if the header is malformed
        name = APIS[header.api_key].name
        raise Rejected(ErrorCode.invalid_request, f"not a request of {name}: {error}") from error
    return Received(RequestHeader(api_key, version, correlation_id, client_id), body)


@cache
def _request_reader(api_key: int, version: int) -> tuple[Callable[..., Any], bool, bool]:
    found = codec(api_key)
    read = found.read_request[version]
    if api_key == FETCH:
        read = partial(_read_fetch, version, read)
    return read, found.request_has_records, is_flexible(api_key, version)


def _read_fetch(
    version: int, read: Callable[..., Any], data: bytes, position: int, budget: DecodeBudget
) -> Any:
    """Return the body of a Fetch request. All consumers at a partition's tail send the same bytes: they share one."""
    if len(data) - position > _KNOWN_BYTES_MAX:
        return read(data, position, budget)
    raw = data[position:]
    body = _known_fetches.get((version, raw))
    if body is None:
        body = read(raw, 0, budget)
        if len(_known_fetches) == _KNOWN_MAX:
            _known_fetches.clear()
        _known_fetches[version, raw] = body
    return body


def encode_response(api_key: int, version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """Return the response to send, its length first. Fetched records are not copied."""
    if type(body) is EncodedResponse:
        return addressed(body, version, correlation_id)
    write, start = _response_writer(api_key, version)
    out = bytearray(start)
    pieces = write(out, body)
    size = len(out) - 4
    if len(pieces) > 1:
        size = sum(map(len, pieces)) - 4
    _RESPONSE_START.pack_into(out, 0, size, correlation_id)
    return pieces


@cache
def _response_writer(
    api_key: int, version: int
) -> tuple[Callable[[bytearray, Any], list[Buffer]], bytes]:
    """Return the writer, and the bytes before the body: a length, a correlation id, and the tags of a header."""
    flexible = is_flexible(api_key, version) and api_key != API_VERSIONS
    return codec(api_key).write_response[version], bytes(_RESPONSE_START.size + flexible)


def encode_request(
    version: int, correlation_id: int, client_id: str | None, body: Request[Any]
) -> list[Buffer]:
    """Return the request to send, its length first. Records to produce are not copied.

    Raises Rejected(UNSUPPORTED_VERSION) where the version cannot carry a value of `body`.
    """
    api_key = body.KEY
    out = bytearray(_REQUEST_START.size)
    if client_id is None:
        out += _CLIENT_ID_LENGTH.pack(-1)
    else:
        encoded = client_id.encode("utf-8")
        out += _CLIENT_ID_LENGTH.pack(len(encoded))
        out += encoded
    if is_flexible(api_key, version):
        out.append(0)
    pieces = codec(api_key).write_request[version](out, body)
    size = sum(len(piece) for piece in pieces) - 4
    _REQUEST_START.pack_into(out, 0, size, api_key, version, correlation_id)
    return pieces


def decode_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
    """Return the correlation id and body of the response to a request of this key and version; raises Corrupt.

    Records of a Fetch response are views of `frame`.
    """
    found = codec(api_key)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        position = _CORRELATION_ID.size
        if is_flexible(api_key, version) and api_key != API_VERSIONS:
            tags = frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags, TRUSTED)
        data = frame if found.response_has_records else bytes(frame)
        return correlation_id, found.read_response[version](data, position, TRUSTED)
    except UNREADABLE as error:
        name = APIS[api_key].name
        raise Corrupt(f"not a response of {name} version {version}: {error}") from error
