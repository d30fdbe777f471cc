"""Find the segment of one partition that covers an offset or a timestamp.

In: the newest manifest, offsets, timestamps. Out: remote segments. It opens archive manifests where necessary, and
never reads a segment object.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

from stratalog.errors import Corrupt
from stratalog.tier.formats.manifest import ArchivedManifest, Manifest, RemoteSegment, SegmentState
from stratalog.tier.reading.archives import ArchiveManifests

__all__ = ["SegmentLookup"]

_WINDOW_SEGMENTS: Final = 64
_WINDOWS_MAX: Final = 4


class SegmentLookup:
    """Finds segments in the newest manifest that `manifest` returns.

    Any thread may call it. `at`, `at_timestamp` and `at_max_timestamp` may open an archive manifest: they block then,
    and raise as `ArchiveManifests` does. `at_if_loaded` and `time_span_at` never block.
    """

    def __init__(self, manifest: Callable[[], Manifest], archives: ArchiveManifests) -> None:
        self._manifest = manifest
        self._archives = archives
        # Runs of segments that `at` found in archive manifests, the newest run first.
        self._windows: tuple[tuple[RemoteSegment, ...], ...] = ()

    def forget(self) -> None:
        """Drop the cached segments of archive manifests: the tier was removed from the topic."""
        self._windows = ()

    def at_if_loaded(self, offset: int) -> RemoteSegment | None:
        """Return the segment that covers `offset`; None also for a segment in an archive manifest."""
        manifest = self._manifest()
        if _archived_at(manifest, offset) is None:
            return manifest.recent_segment_for(offset)
        for window in self._windows:
            if window[0].entry.base_offset <= offset <= window[-1].entry.last_offset:
                return window[bisect_left(window, offset, key=lambda one: one.entry.last_offset)]
        return None

    def at(self, offset: int) -> RemoteSegment | None:
        """Return the segment that covers `offset`; None below the start offset and from the tiered end on.

        Caches the next segments of the same archive manifest for sequential consumers.
        """
        if (segment := self.at_if_loaded(offset)) is not None:
            return segment

        def look(manifest: Manifest) -> Iterator[RemoteSegment]:
            named = _archived_at(manifest, offset)
            end = named.last_offset + 1 if named is not None else 0
            return islice(self._archives.live(manifest, first=offset, end=end), _WINDOW_SEGMENTS)

        window = tuple(self._looked(look))
        if not window:
            return None
        self._windows = (window, *self._windows)[:_WINDOWS_MAX]
        return window[0]

    def time_span_at(self, offset: int) -> tuple[int, int] | None:
        """Return the least and greatest timestamp (epoch ms) near `offset`, without opening anything.

        The span is the segment's, or its archive manifest's. None where the bucket does not hold `offset`.
        """
        manifest, segment = self._manifest(), self.at_if_loaded(offset)
        if segment is not None:
            return segment.entry.min_timestamp, segment.entry.max_timestamp
        named = _archived_at(manifest, offset)
        return (named.min_timestamp, named.max_timestamp) if named is not None else None

    def at_timestamp(self, timestamp: int, start_offset: int = 0) -> RemoteSegment | None:
        """Return the first segment that has a record of `timestamp` (epoch ms) or later.

        Only segments that end at `start_offset` or later count. The record may be below `start_offset`, or below the
        log's start: if a search of the segment finds nothing, the caller continues after the segment's end.
        """
        start = max(self._manifest().start_offset, start_offset)
        return next(
            self._looked(lambda m: self._archives.live(m, first=start, since_ms=timestamp)), None
        )

    def at_max_timestamp(self, start_offset: int = 0) -> RemoteSegment | None:
        """Return the first segment with the greatest timestamp, of those that end at `start_offset` or later."""
        manifest = self._manifest()
        start = max(manifest.start_offset, start_offset)
        live = (
            one.max_timestamp
            for one in manifest.everything()
            if one.state is SegmentState.COPY_FINISHED and one.last_offset >= start
        )
        found = self.at_timestamp(max(live, default=0), start)
        if found is not None:
            return found
        # The greatest timestamp of an archive manifest is that of a segment below `start`.
        segments = self._looked(lambda m: self._archives.live(m, first=start))
        return max(segments, key=lambda one: one.entry.max_timestamp, default=None)

    def _looked(
        self, look: Callable[[Manifest], Iterator[RemoteSegment]]
    ) -> Iterator[RemoteSegment]:
        """Return the result of `look` in the manifest; repeat with the newest one if an archive manifest was
        replaced.
        """
        while True:
            manifest = self._manifest()
            found = look(manifest)
            try:
                first = next(found, None)
            except Corrupt:
                if self._manifest() is manifest:
                    raise
                continue
            return chain((first,), found) if first is not None else iter(())


def _archived_at(manifest: Manifest, offset: int) -> ArchivedManifest | None:
    """Return the archive manifest that names the segment of `offset`; None where none does."""
    if offset < manifest.start_offset:
        return None
    live = manifest.live_archives()
    return next((one for one in live if one.base_offset <= offset <= one.last_offset), None)
