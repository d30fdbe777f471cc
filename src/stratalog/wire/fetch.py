"""Encode a Fetch response once for many consumers, then address it to each of them.

In: topics with their records; each consumer's session and correlation id. Out: a frame in buffers. It never copies or
decodes records.

A hundred consumers at a partition's tail receive the same records at once. Their responses differ only before the
topics, at fixed places of the first buffer.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from stratalog.ports import Buffer
from stratalog.wire.apis import FETCH
from stratalog.wire.codecs import codec
from stratalog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, NodeEndpoint

__all__ = ["EncodedResponse", "EncodedTopics", "addressed", "encode_topics"]

_SESSIONS: Final = 7
_FLEXIBLE: Final = 12
_START: Final = Struct(">ii")
_ERROR_SESSION: Final = Struct(">hi")
_THROTTLE: Final = Struct(">i")


class EncodedTopics(msgspec.Struct, frozen=True):
    """A frame of one version for any number of consumers: `size` bytes, the error codes of its partitions."""

    pieces: Sequence[Buffer]
    size: int
    errors: Sequence[int]


class EncodedResponse(msgspec.Struct, frozen=True):
    """A `FetchResponse` that lacks only the consumer's own part."""

    error_code: int
    session_id: int
    topics: EncodedTopics
    throttle_time_ms: int = 0


def encode_topics(
    topics: Sequence[FetchableTopicResponse],
    version: int,
    leaders: Sequence[NodeEndpoint] = (),
) -> EncodedTopics:
    """Write a response with `topics`, but without a session or correlation id.

    `leaders` are the addresses of those that partitions name as their current leaders (KIP-951).
    """
    out = bytearray(_header_bytes(version))
    pieces = codec(FETCH).write_response[version](
        out, FetchResponse(responses=topics, node_endpoints=leaders)
    )
    size = 0
    for piece in pieces:
        size += len(piece)
    errors: list[int] = []
    for topic in topics:
        errors += [one.error_code for one in topic.partitions if one.error_code]
    return EncodedTopics(pieces, size, errors)


def addressed(response: EncodedResponse, version: int, correlation_id: int) -> list[Buffer]:
    """Return the frame for one consumer, its length first. All but the first buffer are shared."""
    topics = response.topics
    pieces = list(topics.pieces)
    pieces[0] = first = bytearray(pieces[0])
    _START.pack_into(first, 0, topics.size - 4, correlation_id)
    if response.throttle_time_ms:
        _THROTTLE.pack_into(first, _header_bytes(version), response.throttle_time_ms)
    if version >= _SESSIONS:
        # Behind the header stands the throttle time.
        at = _header_bytes(version) + 4
        _ERROR_SESSION.pack_into(first, at, response.error_code, response.session_id)
    return pieces


def _header_bytes(version: int) -> int:
    """Return the size of a frame's length and response header: a flexible version's header has a byte for tags."""
    return 9 if version >= _FLEXIBLE else 8
