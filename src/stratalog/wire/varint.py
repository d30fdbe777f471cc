"""Variable-length integers of Kafka's records and flexible messages.

In: a buffer and a position, or an int. Out: the value and the next position, or bytes. It never reads past
the end of the buffer: it raises Corrupt.

Seven bits a byte, lowest first, the top bit says that another byte follows. Signed ones are zigzag (0, -1, 1, -2…).
Kafka: `org.apache.kafka.common.utils.ByteUtils`.
"""

from typing import Final

from stratalog.errors import Corrupt
from stratalog.ports import Buffer

__all__ = [
    "ONE_BYTE",
    "encode_signed",
    "encode_unsigned",
    "read_signed",
    "read_unsigned",
]

ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
"""The unsigned varints of one byte, for writers that avoid a function call for each."""


def read_unsigned(buffer: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """Return the unsigned varint at `position` and the position after it.

    Raises Corrupt where the buffer ends inside the varint, or its length or value exceeds `bits` (32 or 64).
    """
    try:
        byte = buffer[position]
        if byte < 0x80:
            return byte, position + 1
        value = byte & 0x7F
        byte = buffer[position + 1]
        if byte < 0x80:
            return value | byte << 7, position + 2
        shift = 7
        position += 1
        while byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > bits:
                raise Corrupt("a variable-length integer does not end")
            position += 1
            byte = buffer[position]
    except IndexError:
        raise Corrupt("a variable-length integer runs past the end") from None
    value |= byte << shift
    if value >> bits:
        raise Corrupt(f"a variable-length integer does not fit {bits} bits")
    return value, position + 1


def read_signed(buffer: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """Return the zigzag varint at `position` and the position after it; raises Corrupt as `read_unsigned`."""
    value, position = read_unsigned(buffer, position, bits)
    return (value >> 1) ^ -(value & 1), position


def encode_unsigned(value: int) -> bytes:
    """Return `value` (0 or more) as an unsigned varint."""
    assert value >= 0, "an unsigned varint is not negative"
    if value < 0x80:
        return ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_signed(value: int) -> bytes:
    """Return `value` (any sign, 64 bits at most) as a zigzag varint."""
    return encode_unsigned(value << 1 if value >= 0 else ((-value) << 1) - 1)
