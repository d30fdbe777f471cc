"""Open a file of a log directory: plain, or packed by gzip, xz, bzip2 or zstd.

In: the path of a file. Out: an open file whose `read` and `seek` are of the unpacked bytes. It never keeps a packed
file in memory.
"""

import bz2
import gzip
import lzma
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

import cramjam

from stratalog.cli.records.rotated_names import PACKED_SUFFIXES
from stratalog.cli.records.tracked import Kind

__all__ = ["MAGIC_BYTES", "UNREADABLE", "kind_of", "unpacked"]

MAGIC_BYTES: Final = 10
UNREADABLE: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, cramjam.DecompressionError)
"""What reading raises: of the disk, of rights, of a packed file that is damaged or not whole yet."""

_GZIP: Final = b"\x1f\x8b\x08"
_XZ: Final = b"\xfd7zXZ\0"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_BZIP2: Final = (b"BZh", (b"1AY&SY", b"\x17rE8P\x90"))
"""The second part begins a block, or the end of a file without one."""
_FOREIGN: Final = (
    b"\x04\x22\x4d\x18",  # lz4
    b"\x1f\x9d",  # compress
    b"PK\x03\x04",  # zip
    b"7z\xbc\xaf\x27\x1c",
    b"LZIP",
    b"\x89LZO",
    b"\x5d\0\0",  # lzma, before xz
)


def kind_of(begin: bytes, name: str) -> Kind:
    """Return how a file is read that begins with these bytes, up to `MAGIC_BYTES` of them."""
    if begin.startswith((_GZIP, _XZ, _ZSTD)) or _is_bzip2(begin):
        return Kind.PACKED
    if len(begin) < MAGIC_BYTES and name.endswith(PACKED_SUFFIXES):
        return Kind.UNFINISHED
    return Kind.FOREIGN if begin.startswith(_FOREIGN) else Kind.PLAIN


def unpacked(file: BinaryIO) -> BinaryIO:
    """Return the unpacked bytes of an open packed file. Raises as `UNREADABLE`."""
    begin = file.read(MAGIC_BYTES)
    file.seek(0)
    if begin.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if begin.startswith(_XZ):
        return cast("BinaryIO", lzma.LZMAFile(file))
    if _is_bzip2(begin):
        return cast("BinaryIO", bz2.BZ2File(file))
    return _unpacked_zstd(file)


def _is_bzip2(begin: bytes) -> bool:
    return begin.startswith(_BZIP2[0]) and begin[4:10] in _BZIP2[1]


def _unpacked_zstd(file: BinaryIO) -> BinaryIO:
    """Unpack a whole file to the disk, as the library has no stream."""
    with tempfile.NamedTemporaryFile(prefix="strata-tail-") as place:
        cramjam.zstd.decompress_into(
            cramjam.File(f"/proc/self/fd/{file.fileno()}"),
            cramjam.File(place.name, read=True, write=True, truncate=True),
        )
        return Path(place.name).open("rb")
