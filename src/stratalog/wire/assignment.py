"""What a consumer is told to read: the assignment inside the classic group protocol's opaque bytes.

In: a member's assignment. Out: its (topic, partition)s. It never fails: what makes no sense is nobody's assignment.

The bytes are the client library's (Kafka: ConsumerProtocolAssignment): a version, then topics with partitions, then
user data. Later versions only append.
"""

from struct import Struct, error
from typing import Final

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")


def decode_assignment(data: memoryview) -> tuple[tuple[str, int], ...]:
    """(topic, partition) of each partition assigned."""
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
                found.append((topic, _I32.unpack_from(data, position)[0]))
                position += _I32.size
    except (error, UnicodeDecodeError):
        return ()
    return tuple(found)
