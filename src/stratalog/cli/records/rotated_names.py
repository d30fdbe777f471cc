"""The names that a rotation gives to a log: app.log.1, app.log-20261124.gz, app-20261124.log.

In: names of files. Out: the names that they may have had before. It never looks at a disk.
"""

import re
from functools import lru_cache
from typing import Final

__all__ = ["PACKED_SUFFIXES", "names_before", "unpacked_name"]

PACKED_SUFFIXES: Final = (".gz", ".xz", ".zst", ".bz2", ".lz4", ".Z", ".zip", ".7z", ".lzma")
_ROTATION: Final = re.compile(r"[-._](?:\d[\dT:+._-]*|old|prev)")
_BEGIN: Final = re.compile(r"[-._](?=\d|old|prev)")


def unpacked_name(name: str) -> str:
    """Return a name without the suffix of a packer."""
    for suffix in PACKED_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


@lru_cache(maxsize=1 << 16)
def names_before(name: str) -> tuple[str, ...]:
    """Return the file's unpacked name, then each name that a rotation may have changed into it.

    The date or number is at the end (app.log.1) or before the last suffix (app-20261124.log).
    """
    plain = unpacked_name(name)
    stem, dot, ending = plain.rpartition(".")
    forms = [(plain, "")]
    if dot and stem:
        forms.append((stem, dot + ending))
    found = [plain]
    for text, rest in forms:
        for begin in _BEGIN.finditer(text):
            before = text[: begin.start()] + rest
            if begin.start() and before not in found and _ROTATION.fullmatch(text, begin.start()):
                found.append(before)
    return tuple(found)
