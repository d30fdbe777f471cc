"""Complete replacements of segments that a crash interrupted, ours or Apache Kafka's.

In: a partition's directory with `.swap` files. Out: a program that leaves the directory as a completed replacement
does. It never decides what a cleaner keeps: the `.swap` files are the cleaner's committed result.

Kafka's cleaner writes a segment's replacement to `.cleaned` files. It commits by renaming these to `.swap`. Then it
removes the segments that were replaced, and renames `.swap` to the final name (Kafka: `LogLoader.load`, `LocalLog.
replaceSegments`).
"""

from stratalog.log.effects import (
    ListDirectory,
    Program,
    Rename,
    SyncDirectory,
    Unlink,
)
from stratalog.log.scanning import visit
from stratalog.log.segment import CLEANED, LOG, SWAP
from stratalog.ports import FileInfo
from stratalog.wire.batch import BatchHeader

__all__ = ["complete_swaps"]


def complete_swaps(directory: str, entries: list[FileInfo]) -> Program[list[FileInfo]]:
    """Complete the replacements in a directory; return its entries afterwards.

    A `.swap` file at or above the lowest `.cleaned` file belongs to a split of a segment that was not committed: it is
    removed (KAFKA-6264).
    """
    swaps = {one.name: one for one in entries if one.name.endswith(SWAP) and _offset(one.name) >= 0}
    if not swaps:
        return entries
    cleaned = [_offset(one.name) for one in entries if one.name.endswith(CLEANED)]
    lowest_cleaned = min((one for one in cleaned if one >= 0), default=None)
    for name in list(swaps):
        if lowest_cleaned is not None and _offset(name) >= lowest_cleaned:
            yield Unlink(f"{directory}/{name}")
            del swaps[name]
    first, end = -1, -1
    for name in sorted(swaps):
        if name.endswith(LOG + SWAP):
            base = _offset(name)
            first = base if first < 0 else first
            end = max(end, (yield from _next_offset(f"{directory}/{name}", base, swaps[name].size)))
    for entry in entries:
        if not entry.name.endswith(SWAP) and first <= _offset(entry.name) < end:
            yield Unlink(f"{directory}/{entry.name}")
    for name in sorted(swaps):
        yield Rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
    yield SyncDirectory(directory)
    found = yield ListDirectory(directory)
    assert isinstance(found, list)
    return found


def _offset(name: str) -> int:
    """Return the offset in a file's name, -1 where the name has none."""
    stem = name.partition(".")[0]
    return int(stem) if len(stem) == 20 and stem.isascii() and stem.isdigit() else -1


def _next_offset(path: str, base_offset: int, size: int) -> Program[int]:
    """Return the offset behind a file's last whole batch, `base_offset` where it has none."""
    end = base_offset

    def take(header: BatchHeader, _view: memoryview) -> bool:
        nonlocal end
        end = header.next_offset
        return True

    yield from visit(path, 0, size, take)
    return end
