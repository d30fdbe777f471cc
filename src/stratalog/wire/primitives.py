"""The protocol's primitive types, for the messages that are written by hand here.

In: a buffer and a position, or a value. Out: the value and the next position, or bytes. It never reads past the end:
it raises Corrupt (`struct.error` and IndexError, too, mean that: callers turn `ENDED` into their own error).

Legacy strings have an i16 length, bytes and arrays an i32 one, -1 for null; compact ones (KIP-482) an unsigned varint
of length + 1, 0 for null.
"""

# ruff: noqa: FBT001 - called for every field of a message: keywords would cost

from struct import Struct
from struct import error as struct_error
from typing import Final

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.budget import STRING_BYTES, TAG_BYTES, DecodeBudget
from stratalog.wire.varint import encode_unsigned, read_unsigned

__all__ = [
    "ENDED",
    "I16",
    "I32",
    "read_array_length",
    "read_bytes",
    "read_length",
    "read_string",
    "skip_tags",
    "write_length",
    "write_string",
]

ENDED: Final = (Corrupt, struct_error, IndexError)
"""What a reader raises where the bytes are not what they should be."""

I16: Final = Struct(">h")
I32: Final = Struct(">i")


def read_length(buffer: Buffer, position: int, flexible: bool, legacy: Struct) -> tuple[int, int]:
    """A length, -1 for null; `legacy` is its type in versions that are not flexible."""
    if not flexible:
        (length,) = legacy.unpack_from(buffer, position)
        if length < -1:
            raise Corrupt(f"a length of {length}")
        return length, position + legacy.size
    byte = buffer[position]
    if byte < 0x80:
        return byte - 1, position + 1
    length, position = read_unsigned(buffer, position)
    return length - 1, position


def read_string(
    buffer: Buffer, position: int, flexible: bool, budget: DecodeBudget
) -> tuple[str | None, int]:
    """Return a nullable string and the next position."""
    length, position = read_length(buffer, position, flexible, I16)
    if length < 0:
        return None, position
    end = position + length
    if end > len(buffer):
        raise Corrupt(f"a string of {length} bytes runs past the end")
    budget.charge(STRING_BYTES + length)
    try:
        return str(buffer[position:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise Corrupt("a string is not UTF-8") from error


def read_bytes(view: memoryview, position: int, flexible: bool) -> tuple[memoryview | None, int]:
    """Nullable bytes (or records), not copied."""
    length, position = read_length(view, position, flexible, I32)
    if length < 0:
        return None, position
    end = position + length
    if end > len(view):
        raise Corrupt(f"a field of {length} bytes runs past the end")
    return view[position:end], end


def read_array_length(buffer: Buffer, position: int, flexible: bool) -> tuple[int, int]:
    """How many items follow, -1 for null. Every item takes a byte at least, so no more than what is left."""
    length, position = read_length(buffer, position, flexible, I32)
    if length > len(buffer) - position:
        raise Corrupt(f"an array of {length} items in {len(buffer) - position} bytes")
    return length, position


def skip_tags(buffer: Buffer, position: int, budget: DecodeBudget) -> int:
    """Return the position after a tagged-field section of which no tag matters."""
    byte = buffer[position]
    if byte == 0:
        return position + 1
    count, position = read_unsigned(buffer, position)
    for _ in range(count):
        budget.charge(TAG_BYTES)
        _tag, position = read_unsigned(buffer, position)
        size, position = read_unsigned(buffer, position)
        position += size
        if position > len(buffer):
            raise Corrupt("a tagged field runs past the end")
    return position


def write_length(out: bytearray, length: int, flexible: bool, legacy: Struct) -> None:
    """`length`, -1 for null."""
    if flexible:
        if length < 0x7F:
            out.append(length + 1)
        else:
            out += encode_unsigned(length + 1)
    else:
        out += legacy.pack(length)


def write_string(out: bytearray, value: str | None, flexible: bool) -> None:
    """A nullable string."""
    if value is None:
        write_length(out, -1, flexible, I16)
        return
    encoded = value.encode("utf-8")
    write_length(out, len(encoded), flexible, I16)
    out += encoded
