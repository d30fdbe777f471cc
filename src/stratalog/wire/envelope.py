"""Requests and responses, whole: header and body, both directions.

In: a frame (without its length) and a budget, or a header's fields and a body. Out: a `Request` or a body, or the
buffers to send (with their length). It is the one door to kio, and never lets another exception than the documented
ones through.

Bodies are kio's classes, made through `request(key, version)` and `response(key, version)`, save two that would cost
a copy: Produce requests (`produce.ProduceRequest`) and Fetch responses (`fetch.FetchResponse`) in every version. Two
more are quicker: the answer to a Produce may be `produce.ProduceResponse`, and Fetch requests are read as
`fetch_request.FetchRequest` (they are written from kio's). The answer to a Fetch may be a `fetch.EncodedResponse`.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from struct import Struct
from typing import Any, Final, NamedTuple

from msgspec import Struct as Message

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Buffer
from stratalog.wire import fetch, fetch_request, produce
from stratalog.wire.apis import API_VERSIONS, APIS, FETCH, PRODUCE, is_flexible
from stratalog.wire.budget import TRUSTED, DecodeBudget
from stratalog.wire.construct import EntityTypes, body_class
from stratalog.wire.construct import request_types as request
from stratalog.wire.construct import response_types as response
from stratalog.wire.entity_reader import decode
from stratalog.wire.entity_writer import encode
from stratalog.wire.messages import Codec
from stratalog.wire.primitives import ENDED, I32, skip_tags

__all__ = [
    "EntityTypes",
    "Request",
    "RequestHeader",
    "UnsupportedVersion",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "parse_header",
    "request",
    "response",
]

UNREADABLE: Final = (*ENDED, UnicodeDecodeError)
"""What a generated reader raises where the data are no such message."""
_HEADER: Final = Struct(">hhih")
_REQUEST_START: Final = Struct(">ihhi")
_CLIENT_ID_LENGTH: Final = Struct(">h")


class RequestHeader(NamedTuple):
    """Who asks for what. Kafka: RequestHeader versions 1 and 2 (the second only adds tags, which are skipped)."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


class Request(NamedTuple):
    """A whole request; `body` is kio's class for this key and version (for Produce and Fetch: our own)."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


class UnsupportedVersion(Rejected):
    """A key or version that is not served. ApiVersions answers it all the same, from `request_header` (KIP-511)."""

    def __init__(self, request_header: RequestHeader) -> None:
        super().__init__(
            ErrorCode.unsupported_version,
            f"API key {request_header.api_key} version {request_header.version} is not served",
        )
        self.request_header = request_header


def parse_header(frame: memoryview, budget: DecodeBudget) -> tuple[RequestHeader, int]:
    """Return a request's header and where its body begins; raises Rejected(INVALID_REQUEST) where there is no header.

    Of a key or version that does not exist the position is only as good as the guess that its header has no tags.
    """
    key, version, correlation_id, client_id, position = _parse_header(frame, budget)
    return RequestHeader(key, version, correlation_id, client_id), position


def _parse_header(frame: memoryview, budget: DecodeBudget) -> tuple[int, int, int, str | None, int]:
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        position = _HEADER.size
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise Corrupt("the client id runs past the end")
            client_id = str(frame[position:end], "utf-8")
            position = end
        elif length != -1:
            raise Corrupt(f"a client id of {length} bytes")
        if is_flexible(api_key, version):
            position = skip_tags(frame, position, budget)
    except (*ENDED, UnicodeDecodeError) as error:
        raise Rejected(ErrorCode.invalid_request, f"not a request header: {error}") from error
    return api_key, version, correlation_id, client_id, position


@cache
def response_class(api_key: int) -> type[Message]:
    """Return the class of the responses of an API."""
    name = "".join(word.title() for word in APIS[api_key].name.split("_"))
    module = import_module(f"stratalog.wire.messages.{APIS[api_key].name}")
    found: type[Message] = getattr(module, f"{name}Response")
    return found


@cache
def codec(api_key: int) -> Codec:
    """Return the readers and writers of an API, and import them where they are new."""
    found: Codec = import_module(f"stratalog.wire.messages.{APIS[api_key].name}").CODEC
    return found


def decode_request(
    frame: memoryview, served: Mapping[int, tuple[int, int]], budget: DecodeBudget
) -> Request:
    """Return the request in `frame`, if it is within `served` (key -> oldest and newest version).

    Raises UnsupportedVersion (a Rejected with the header), Rejected(INVALID_REQUEST) for anything unparsable, and
    OverBudget for a request that would take more memory than `budget` allows.
    """
    key, version, correlation_id, client_id, position = _parse_header(frame, budget)
    span = served.get(key)
    if span is None or not span[0] <= version <= span[1]:
        raise UnsupportedVersion(RequestHeader(key, version, correlation_id, client_id))
    if key == PRODUCE:
        body: Any = produce.decode(frame[position:], version, budget)
    elif key == FETCH:
        body = fetch_request.decode(frame[position:], version, budget)
    else:
        try:
            body = codec(key).read_request[version](bytes(frame), position, budget)
        except UNREADABLE as error:
            raise Rejected(ErrorCode.invalid_request, str(error)) from error
    return Request(key, version, correlation_id, client_id, body)


def encode_response(api_key: int, version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """The answer to send, its length first. Fetched records are not copied."""
    out = bytearray(8)
    flexible = is_flexible(api_key, version)
    if flexible and api_key != API_VERSIONS:
        out.append(0)
    if api_key == FETCH:
        if type(body) is fetch.FetchResponse:
            topics = fetch.encode_topics(body.topics, version, body.node_endpoints)
            body = fetch.EncodedResponse(*body[:3], topics)
        return _framed(out, correlation_id, fetch.write(out, body, version))
    if type(body) is produce.ProduceResponse:
        produce.encode_response(out, body, version)
    elif isinstance(body, Message):
        codec(api_key).write_response[version](out, body)
    else:
        encode(body_class(api_key, version, "response"), out, body)
    _RESPONSE_START.pack_into(out, 0, len(out) - 4, correlation_id)
    return [out]


_RESPONSE_START: Final = Struct(">ii")


def _framed(start: bytearray, correlation_id: int, pieces: list[Buffer]) -> list[Buffer]:
    """`pieces`, of which `start` (room for a length and a correlation id first) is the first, as one frame."""
    size = -4
    for piece in pieces:
        size += len(piece)
    _RESPONSE_START.pack_into(start, 0, size, correlation_id)
    return pieces


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Any
) -> list[Buffer]:
    """The request to send, its length first. Records to produce are not copied."""
    out = bytearray(_REQUEST_START.size)
    if client_id is None:
        out += _CLIENT_ID_LENGTH.pack(-1)
    else:
        encoded = client_id.encode("utf-8")
        out += _CLIENT_ID_LENGTH.pack(len(encoded))
        out += encoded
    if is_flexible(api_key, version):
        out.append(0)
    pieces: list[Buffer] = [out]
    if type(body) is produce.ProduceRequest:
        pieces = produce.encode(body, version)
        out += pieces[0]
        pieces[0] = out
    elif isinstance(body, Message):
        pieces = codec(api_key).write_request[version](out, body)
    else:
        encode(body_class(api_key, version, "request"), out, body)
    size = sum(len(piece) for piece in pieces) - 4
    _REQUEST_START.pack_into(out, 0, size, api_key, version, correlation_id)
    return pieces


def decode_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
    """The correlation id and body of the answer to a request of this key and version; raises Corrupt.

    Fetch answers are `fetch.FetchResponse`, their records views of `frame`.
    """
    try:
        (correlation_id,) = I32.unpack_from(frame)
        position = 4
        if is_flexible(api_key, version) and api_key != API_VERSIONS:
            position = skip_tags(frame, position, TRUSTED)
    except ENDED as error:
        raise Corrupt(f"not a response header: {error}") from error
    if api_key == FETCH:
        return correlation_id, fetch.decode(frame[position:], version)
    body = decode(body_class(api_key, version, "response"), bytes(frame[position:]), TRUSTED)
    return correlation_id, body
