"""Track how long each dropped object has been unreferenced, on the steady clock.

In: manifests as they are committed, steady time. Out: the objects that may be removed. It never reads a wall clock. A
leader counts from its own commit that dropped the object, or from the start of its leadership. So neither a stepped
clock nor another machine's clock can shorten the grace period. A new leader begins the period again, and objects stay
longer.
"""

from typing import Final

from stratalog.tier.formats.manifest import ArchivedManifest, Entry, Manifest, SegmentState

__all__ = ["GracePeriods"]

_LIVE: Final = SegmentState.COPY_FINISHED
_Key = tuple[str, int, int]


class GracePeriods:
    """The times at which one partition's leader saw each object dropped."""

    def __init__(self) -> None:
        self._seen: dict[_Key, tuple[int, int]] = {}

    def note(self, manifest: Manifest, steady_ms: int) -> None:
        """Note a committed version."""
        gone = [_key(one) for one in manifest.everything() if one.state is not _LIVE]
        now = steady_ms, manifest.version
        self._seen = {key: self._seen.get(key, now) for key in gone}

    def due(
        self, manifest: Manifest, before_ms: int, pinned: int | None = None
    ) -> tuple[list[Entry], list[ArchivedManifest]]:
        """Return the objects dropped at `before_ms` (steady) or earlier that are in no version from `pinned` on."""
        return (
            [one for one in manifest.segments if self._is_due(one, before_ms, pinned)],
            [one for one in manifest.archives if self._is_due(one, before_ms, pinned)],
        )

    def _is_due(self, one: Entry | ArchivedManifest, before_ms: int, pinned: int | None) -> bool:
        seen = self._seen.get(_key(one)) if one.state is not _LIVE else None
        return seen is not None and seen[0] <= before_ms and (pinned is None or seen[1] <= pinned)


def _key(one: Entry | ArchivedManifest) -> _Key:
    return one.id, one.base_offset, one.last_offset
