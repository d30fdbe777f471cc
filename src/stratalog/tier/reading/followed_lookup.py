"""Find the segments of a partition that another broker leads: only the leader knows the newest manifest.

In: a store, a partition's folder, the steady time. Out: remote segments, as `SegmentLookup` finds them. It reads the
manifest when a consumer needs it, and never by itself.

An object stays in the bucket for a grace period after a manifest has dropped it. So a manifest that is younger than
half of that period names no object that is gone.

Kafka: a follower's `RemoteLogManager` reads `__remote_log_metadata` instead.
"""

from collections.abc import Callable
from typing import NamedTuple

from stratalog.errors import Unavailable
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.commit import load_latest, run
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.lookup import SegmentLookup

__all__ = ["FollowedLookup"]


class _Version(NamedTuple):
    """The segments of one manifest version, and the steady time (ms) before it was read."""

    lookup: SegmentLookup
    read_ms: int


class FollowedLookup:
    """Finds segments as `SegmentLookup` does. Any thread may call it."""

    def __init__(
        self,
        store: ObjectStore,
        archives: ArchiveManifests,
        prefix: str,
        steady_ms: Callable[[], int],
        grace_ms: int,
    ) -> None:
        """`grace_ms` is `remote.delete.grace.ms`."""
        self._store = store
        self._archives = archives
        self._prefix = prefix
        self._steady_ms = steady_ms
        self._grace_ms = grace_ms
        self._version: _Version | None = None  # replaced as a whole

    def at_if_loaded(self, offset: int) -> RemoteSegment | None:
        """Return the segment that covers `offset`; None also where the manifest is too old. Never blocks."""
        lookup = self._fresh()
        return None if lookup is None else lookup.at_if_loaded(offset)

    def at(self, offset: int) -> RemoteSegment | None:
        """Return the segment that covers `offset`; None where the newest manifest has none. Blocking.

        Raises Unavailable, also where a stale list shows no manifest yet; Corrupt naming a damaged object.
        """
        lookup = self._fresh()
        found = None if lookup is None else lookup.at(offset)
        return self._read().at(offset) if found is None else found

    def _fresh(self) -> SegmentLookup | None:
        version = self._version
        is_fresh = version is not None and self._steady_ms() - version.read_ms < self._grace_ms // 2
        return version.lookup if version is not None and is_fresh else None

    def _read(self) -> SegmentLookup:
        """Read the newest manifest."""
        now_ms = self._steady_ms()
        manifest = run(self._store, load_latest(self._prefix))
        if manifest is None:
            raise Unavailable(f"{self._prefix}: no manifest is found yet")
        lookup = SegmentLookup(lambda: manifest, self._archives)
        self._version = _Version(lookup, now_ms)
        return lookup
