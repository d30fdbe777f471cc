r"""JSON documents with a checksum.

In: JSON bytes. Out: the same with a checksum line, and back. It does not read the documents' contents.

Layout: the JSON on one line, `\n`, the CRC32C of the JSON as eight lower-case hex digits, `\n`.
"""

from typing import Final

from crc32c import crc32c

from stratalog.errors import Corrupt

__all__ = ["is_sealed", "seal", "unseal"]

TRAILER_SIZE: Final = 10


def seal(document: bytes) -> bytes:
    """Return the bytes to store for a JSON document without newlines."""
    return b"%b\n%08x\n" % (document, crc32c(document))


def is_sealed(data: bytes) -> bool:
    """Return whether the checksum matches."""
    return seal(data[:-TRAILER_SIZE]) == data


def unseal(data: bytes, path: str) -> bytes:
    """Return the JSON document in stored bytes. Raises Corrupt naming `path` where the checksum does not match."""
    if not is_sealed(data):
        raise Corrupt(f"{path}: the checksum does not match its {len(data)} bytes")
    return data[:-TRAILER_SIZE]
