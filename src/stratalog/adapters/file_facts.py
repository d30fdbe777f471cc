"""What the system knows of a file, with the time of its birth.

In: a path or an open file. Out: device, inode, birth, size and time of the last write. Python's `os.stat` has no birth
time on Linux, so this calls `statx`. It never opens a file and never reads one.
"""

import ctypes
import os
import resource
import struct
from stat import S_ISLNK, S_ISREG
from typing import Final, NamedTuple

__all__ = ["FileFacts", "facts_of", "facts_of_open", "raise_descriptor_limit"]

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_WANTED: Final = 0x7FF | 0x800
"""STATX_BASIC_STATS and STATX_BTIME."""
_HAS_BIRTH: Final = 0x800
_STRUCT_BYTES: Final = 256
_FIELDS: Final = struct.Struct("=I24xH2xQQ32xqI4x16xqI4x8xII")
"""Of `struct statx`: mask, mode, inode, size, birth (s, ns), last write (s, ns), device (major, minor)."""
_SECOND_NS: Final = 1_000_000_000

_statx = getattr(ctypes.CDLL(None), "statx", None)


class FileFacts(NamedTuple):
    """`born_ns` is 0 where the file system or the system does not know it."""

    device: int
    inode: int
    born_ns: int
    size: int
    modified_ns: int
    is_regular: bool
    is_link: bool


def facts_of(path: str, *, follows_links: bool = True) -> FileFacts | None:
    """Return the facts of what a path names; None for nothing, and for what cannot be reached."""
    found = _by_statx(_AT_FDCWD, os.fsencode(path), 0 if follows_links else _AT_SYMLINK_NOFOLLOW)
    if found is not None:
        return found
    try:  # a system or a sandbox without statx, or no such file
        return _from_stat(os.stat(path, follow_symlinks=follows_links))
    except OSError:
        return None


def facts_of_open(descriptor: int) -> FileFacts:
    """Return the facts of an open file. Raises OSError."""
    return _by_statx(descriptor, b"", _AT_EMPTY_PATH) or _from_stat(os.fstat(descriptor))


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard


def _by_statx(directory: int, path: bytes, flags: int) -> FileFacts | None:
    if _statx is None:
        return None
    buffer = ctypes.create_string_buffer(_STRUCT_BYTES)
    if _statx(directory, path, flags, _WANTED, buffer):
        return None
    (mask, mode, inode, size, born, born_ns, written, written_ns, major, minor) = (
        _FIELDS.unpack_from(buffer)
    )
    return FileFacts(
        os.makedev(major, minor),
        inode,
        born * _SECOND_NS + born_ns if mask & _HAS_BIRTH else 0,
        size,
        written * _SECOND_NS + written_ns,
        S_ISREG(mode),
        S_ISLNK(mode),
    )


def _from_stat(found: os.stat_result) -> FileFacts:
    born = getattr(found, "st_birthtime", 0.0)  # macOS and the BSDs
    return FileFacts(
        found.st_dev,
        found.st_ino,
        int(born * _SECOND_NS),
        found.st_size,
        found.st_mtime_ns,
        S_ISREG(found.st_mode),
        S_ISLNK(found.st_mode),
    )
