"""Files of a directory as `strata tail` meets them: what a path names, what a rotation may have made of it.

In: paths. Out: device and inode, sizes, names beside a file, an open file. A path that names no regular file is None.
"""

import gzip
import os
import re
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Final, NamedTuple, cast

__all__ = [
    "FileKey",
    "is_family",
    "is_packed",
    "key_of",
    "opened",
    "packed_size",
    "rotated_of",
    "siblings",
    "stat_of",
]

_GZIP: Final = b"\x1f\x8b"
_ROTATION: Final = r"[-._](\d[\dT:+._-]*|old|prev)"
_SIBLINGS_MAX: Final = 2_000


class FileKey(NamedTuple):
    """What a file is while it exists."""

    device: int
    inode: int


def packed_size(file: BinaryIO) -> int:
    """Return the size of what a .gz file packs, modulo 2**32, from its last four bytes (RFC 1952)."""
    with Path(file.name).open("rb") as packed:
        size = packed.seek(0, os.SEEK_END)
        packed.seek(max(0, size - 4))
        return int.from_bytes(packed.read(4), "little")


def stat_of(path: str) -> os.stat_result | None:
    """Return what a regular file is; None for anything else, and for nothing."""
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return None
    return found if S_ISREG(found.st_mode) else None


def key_of(path: str) -> FileKey | None:
    """Return the device and inode of a regular file; None for anything else."""
    found = stat_of(path)
    return None if found is None else FileKey(found.st_dev, found.st_ino)


def rotated_of(path: str) -> list[str]:
    """Return the files beside a file whose names a rotation gives it: app.log.1, app.log-20261124.gz, app-2026.log."""
    one = Path(path)
    stem, ending = re.escape(one.stem), re.escape(one.suffix)
    rotated = re.compile(rf"({stem}{ending}{_ROTATION}|{stem}{_ROTATION}{ending})(\.gz)?")
    try:
        names = os.listdir(one.parent)  # noqa: PTH208 - names alone
    except OSError:
        return []
    return [str(one.parent / name) for name in names if rotated.fullmatch(name)]


def opened(path: str, key: FileKey) -> BinaryIO | None:
    """Open a file, through gzip where it is compressed; None where the path names no file or another one by now.

    Raises OSError where it cannot be read.
    """
    try:
        file: BinaryIO = Path(path).open("rb")  # noqa: SIM115 - it stays open
        try:
            packed = file.read(2) == _GZIP
        except OSError:
            file.close()
            raise
        if packed:
            file.close()
            file = cast("BinaryIO", gzip.open(path))  # noqa: SIM115
    except FileNotFoundError:
        return None
    found = os.fstat(file.fileno())
    if FileKey(found.st_dev, found.st_ino) != key:
        file.close()
        return None
    return file


def is_packed(file: object) -> bool:
    """Return whether an open file is read through gzip."""
    return isinstance(file, gzip.GzipFile)


def is_family(path: str, other: str) -> bool:
    """Return whether a rotation may give one of these names to the other file: app.log, app.log.1, app-2026.log.gz."""
    one, two = Path(path), Path(other)
    return one.parent == two.parent and one.name.split(".")[0][:3] == two.name.split(".")[0][:3]


def siblings(path: str) -> list[str]:
    """Return the files of a file's directory that may be it under another name, the newest first."""
    directory = Path(path).parent
    try:
        found = [one.path for one in os.scandir(directory) if one.is_file()]
    except OSError:
        return []
    close = [one for one in found if is_family(path, one)]
    return sorted(close, key=_modified, reverse=True)[:_SIBLINGS_MAX]


def _modified(path: str) -> float:
    found = stat_of(path)
    return 0.0 if found is None else found.st_mtime
