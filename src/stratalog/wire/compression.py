"""Compress and decompress the records of batches.

In: a codec's number in the batch attributes, and bytes. Out: compressed or decompressed bytes. It never decompresses
more than the caller allows, whatever the input claims.

Kafka's formats: gzip; snappy in the framing of xerial's SnappyOutputStream (raw is read too); the lz4 frame with
independent blocks of 64 KiB and no content size (`Lz4BlockInputStream` refuses linked blocks); the zstd frame.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from cramjam import DecompressionError, gzip, lz4, snappy, zstd

from stratalog.errors import Corrupt
from stratalog.ports import Buffer

__all__ = [
    "CODECS",
    "CODEC_NAMES",
    "GZIP",
    "LZ4",
    "NONE",
    "SNAPPY",
    "ZSTD",
    "Oversized",
    "compress",
    "decompress",
    "decompress_into",
]

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""By number."""
CODECS: Final = {name: number for number, name in enumerate(CODEC_NAMES)}
"""Number by name."""

MAX_BYTES: Final = 256 << 20
_GZIP_LEVEL: Final = 6
_LZ4_LEVEL: Final = 9
_LZ4_FAST: Final = 1
_ZSTD_LEVEL: Final = 3
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_XERIAL_BLOCK: Final = 32 << 10
_LENGTH: Final = Struct(">i")
_FIRST_GUESS: Final = 64 << 10
_BUFFER_IS_FULL: Final = "whole buffer"
_INTO: Final[dict[int, Callable[[Any, Any], int]]] = {
    GZIP: gzip.decompress_into,
    LZ4: lz4.decompress_into,
    ZSTD: zstd.decompress_into,
}


class Oversized(Corrupt):
    """Raised for data that is larger than the caller allows."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Return `data` in the codec's Kafka format. An unknown codec is a bug of the caller.

    `level` means what Kafka's `compression.*.level` does, None its default: gzip -1 is zlib's own choice, lz4 9 the
    fast compressor and every other level the thorough one (KIP-390).
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(gzip.compress(data, level=_GZIP_LEVEL if level in (None, -1) else level))
    if codec == SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == LZ4:
        chosen = _LZ4_FAST if level in (None, _LZ4_LEVEL) else level
        compressor = lz4.Compressor(level=chosen, content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    assert codec == ZSTD, f"no codec {codec}"
    return bytes(zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def decompress(codec: int, data: Buffer, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return `data` decompressed.

    Raises Corrupt for bytes that are not the codec's or an unknown codec, Oversized for more than `max_bytes`.
    """
    if codec == NONE and len(data) <= max_bytes:
        return bytes(data)
    size = min(max_bytes, max(_FIRST_GUESS, len(data) * 8))
    while True:
        target = bytearray(size)
        try:
            return bytes(memoryview(target)[: decompress_into(codec, data, target)])
        except Corrupt as error:
            failure = type(error), str(error)
        # Raised here, without its cause: a kept exception must not keep the memory alive.
        del target
        kind, reason = failure
        if kind is not Oversized or size == max_bytes:
            raise kind(reason)
        size = min(max_bytes, size * 4)


def decompress_into(codec: int, data: Buffer, target: bytearray | memoryview) -> int:
    """Decompress `data` into the front of `target`; return the number of bytes, and write no more than that.

    Raises Oversized where `target` is too small, Corrupt for bytes that are not the codec's or an unknown codec.
    """
    if codec == NONE:
        if len(data) > len(target):
            raise Oversized(_too_large(target))
        target[: len(data)] = data
        return len(data)
    if codec == SNAPPY:
        return _snappy_into(memoryview(data), memoryview(target))
    into = _INTO.get(codec)
    if into is None:
        raise Corrupt(f"unknown compression codec {codec}")
    try:
        return into(data, target)
    except DecompressionError as error:
        # Only the error's text distinguishes a full buffer from bad input.
        if _BUFFER_IS_FULL in str(error):
            raise Oversized(_too_large(target)) from error
        raise Corrupt(f"cannot decompress into {len(target)} bytes: {error}") from error


def _too_large(target: bytearray | memoryview) -> str:
    return f"records of more than {len(target)} bytes"


def _compress_xerial(data: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        pieces.append(_LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _snappy_into(data: memoryview, target: memoryview) -> int:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _block_into(data, target)
    total = 0
    position = len(_XERIAL_HEADER)
    end = len(data)
    while position < end:
        if position + 4 > end:
            raise Corrupt("a snappy block's length is cut short")
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if length < 0 or position + length > end:
            raise Corrupt(f"a snappy block of {length} bytes in {end - position}")
        total += _block_into(data[position : position + length], target[total:])
        position += length
    return total


def _block_into(block: memoryview, target: memoryview) -> int:
    try:
        if snappy.decompress_raw_len(block) > len(target):
            raise Oversized(_too_large(target))
        return int(snappy.decompress_raw_into(block, target)) if len(target) else 0
    except DecompressionError as error:
        raise Corrupt(f"not a snappy block: {error}") from error
