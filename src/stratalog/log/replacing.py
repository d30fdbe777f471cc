"""Swap cleaned segments into a log, safe against a crash at every step, with Kafka's file names.

In: a cleaned segment in `.cleaned` files, and the segments whose place it takes. Out: the effects of the swap, in
order. It never decides what a cleaned segment holds.

1. `.cleaned` files become `.swap` files, the log's first. From here on a start completes the swap (`swaps.py`).
2. Replaced files become `.deleted` files. They are durable as such before the next step: else a power loss could
   leave old segments beside the new one.
3. `.swap` files get their names.

Kafka: `LocalLog.replaceSegments`.
"""

from bisect import bisect_left
from collections.abc import Sequence

from stratalog.log.effects import Effect, Rename, SyncDirectory
from stratalog.log.retention import DeletedFiles, deleted_paths
from stratalog.log.segment import CLEANED, SWAP, Segment, segment_path
from stratalog.log.tail import TailCache

__all__ = ["Swaps"]


class Swaps:
    """The swaps of one log, one at a time. It changes the log's own list of segments, its set of snapshots, its tail.

    The tail drops what was replaced: the new index lists no aborted transaction whose records the cleaning has removed.
    """

    __slots__ = ("_deleted", "_segments", "_snapshots", "_tail", "_under_way")

    def __init__(
        self,
        segments: list[Segment],
        snapshots: set[int],
        deleted: DeletedFiles,
        tail: TailCache,
    ) -> None:
        self._tail = tail
        self._segments = segments
        self._snapshots = snapshots
        self._deleted = deleted
        self._under_way: tuple[Segment, list[Segment]] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether files may have other names than the segments say: nothing may be read from them, nor deleted."""
        return self._under_way is not None

    def begin(
        self, fresh: Segment, old: Sequence[Segment], unlink_at_ms: int
    ) -> tuple[Effect, ...]:
        """Return the effects that put a cleaned segment in the place of `old`; the caller then calls `end`.

        Empty, and nothing begins, where the log does not have these very segments any more.
        """
        assert self._under_way is None, "one swap after another"
        first = bisect_left(self._segments, old[0].base_offset, key=lambda one: one.base_offset)
        here = self._segments[first : first + len(old)]
        if len(here) < len(old) or any(a is not b for a, b in zip(here, old, strict=True)):
            return ()
        self._under_way = fresh, here
        merged = {one.base_offset for one in old[1:]} & self._snapshots
        self._snapshots -= merged
        gone = deleted_paths(old, merged)
        return (
            *self._deleted.make_way(gone),
            *_renamed(fresh, CLEANED, SWAP),
            *_durably(fresh, self._deleted.take_out(gone, unlink_at_ms)),
            *_renamed(fresh, SWAP, ""),
        )

    def end(self, *, is_done: bool) -> None:
        """Note that the effects of `begin` are performed, or that they failed: the directory is offline then."""
        assert self._under_way is not None, "a swap is under way"
        (fresh, old), self._under_way = self._under_way, None
        if is_done:
            first = self._segments.index(old[0])
            self._segments[first : first + len(old)] = [fresh]
            self._tail.forget_before(old[-1].next_offset)


def _renamed(segment: Segment, old: str, new: str) -> list[Effect]:
    paths = [
        segment_path(segment.directory, segment.base_offset, suffix)
        for suffix in segment.file_suffixes()
    ]
    return _durably(segment, [Rename(path + old, path + new) for path in paths])


def _durably(segment: Segment, effects: Sequence[Effect]) -> list[Effect]:
    return [*effects, SyncDirectory(segment.directory)]
