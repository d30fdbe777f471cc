"""Encode and decode the subscriptions and assignments that consumers exchange through their group.

In: a member's opaque bytes, or topics and partitions. Out: the other. Reading never fails: malformed bytes give an
empty subscription or assignment.

The bytes are the client library's (Kafka: ConsumerProtocolSubscription, ConsumerProtocolAssignment): a version, then
topics (with partitions), then user data. Later versions only append.
"""

from collections.abc import Collection, Iterable
from struct import Struct, error
from typing import Final

from stratalog.wire.ids import TopicPartition

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_NO_USER_DATA: Final = _I32.pack(-1)


def decode_assignment(data: memoryview) -> tuple[TopicPartition, ...]:
    """Return the partitions assigned."""
    found = []
    try:
        (topics,), position = _I32.unpack_from(data, _I16.size), _I16.size + _I32.size
        for _ in range(topics):
            (length,) = _I16.unpack_from(data, position)
            position += _I16.size
            topic = bytes(data[position : position + length]).decode()
            (count,) = _I32.unpack_from(data, position + length)
            position += length + _I32.size
            for _ in range(count):
                (index,) = _I32.unpack_from(data, position)
                found.append(TopicPartition(topic, index))
                position += _I32.size
    except (error, UnicodeDecodeError):
        return ()
    return tuple(found)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the assignment of these partitions for a member, in version 0, which every consumer reads."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    out = bytearray(_I16.pack(0) + _I32.pack(len(topics)))
    for topic, indexes in topics.items():
        out += _text(topic) + _I32.pack(len(indexes))
        for index in indexes:
            out += _I32.pack(index)
    return bytes(out + _NO_USER_DATA)


def encode_subscription(topics: Collection[str]) -> bytes:
    """Return a consumer's subscription for its group's leader (Kafka: ConsumerProtocolSubscription, version 0)."""
    out = bytearray(_I16.pack(0) + _I32.pack(len(topics)))
    for topic in topics:
        out += _text(topic)
    return bytes(out + _NO_USER_DATA)


def decode_subscription(data: memoryview) -> tuple[str, ...]:
    """Return the topics of a consumer's subscription; ignore fields of later versions."""
    found = []
    try:
        (topics,), position = _I32.unpack_from(data, _I16.size), _I16.size + _I32.size
        for _ in range(topics):
            (length,) = _I16.unpack_from(data, position)
            position += _I16.size
            found.append(bytes(data[position : position + length]).decode())
            position += length
    except (error, UnicodeDecodeError):
        return ()
    return tuple(found)


def _text(topic: str) -> bytes:
    encoded = topic.encode()
    return _I16.pack(len(encoded)) + encoded
