"""Read all entries of a manifest, in itself and in its archive manifests, opened on demand.

In: a store, manifests. Out: live segments in the order of offsets, with every byte of their entries checked. It never
lists the bucket, never writes, and opens no archive manifest that offsets or times rule out.
"""

from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c
from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.ports import ObjectStore
from stratalog.tier.formats.archive_manifest import Archive, decode_archive
from stratalog.tier.formats.manifest import (
    ArchivedManifest,
    Entry,
    Manifest,
    RemoteSegment,
    SegmentState,
)
from stratalog.tier.formats.paths import SegmentName, segment_path
from stratalog.tier.reading.cache import ByteCache
from stratalog.wire.ids import topic_id_parse

__all__ = ["ArchiveManifests"]

CACHE_BYTES: Final = 16 << 20
_OLDEST_MAX: Final = 1000
_OFFSET_MAX: Final = (1 << 63) - 1


class ArchiveManifests:
    """The archive manifests of one bucket; about `cache_bytes` of opened ones are kept. Blocking; for any thread.

    All methods that open any raise Corrupt naming the object (missing too: the manifest is older than
    `remote.delete.grace.ms`, or the bucket is damaged) and Unavailable.
    """

    def __init__(self, store: ObjectStore, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._opened: ByteCache[Archive] = ByteCache(cache_bytes)
        self._oldest: ByteCache[Entry] = ByteCache(_OLDEST_MAX)
        self.damage: dict[str, str] = {}

    def open(self, manifest: Manifest, named: ArchivedManifest) -> Archive:
        """Return the whole archive; `manifest` names those of its entries that `Archive.span_of` gives."""
        archive = self._opened.get(named.id)
        if archive is not None:
            return archive
        path = manifest.archive_path(named)
        try:
            try:
                archive = self._read(manifest, named, path)
            except Corrupt:  # the object may appear later
                archive = self._read(manifest, named, path)
        except Corrupt as corrupt:
            self.damage[path] = str(corrupt)
            raise
        self.damage.pop(path, None)
        self._opened.put(named.id, archive, archive.memory_bytes)
        return archive

    def _read(self, manifest: Manifest, named: ArchivedManifest, path: str) -> Archive:
        try:
            data = self._store.get(path)
        except FileNotFoundError as missing:
            raise Corrupt(f"{path}: missing") from missing
        if (len(data), crc32c(data)) != (named.size, named.crc):
            raise Corrupt(f"{path}: not the archive manifest that the manifest names")
        return decode_archive(data, manifest.topic_uuid, manifest.partition, path)

    def damage_of(self, manifest: Manifest) -> dict[str, str]:
        """Return the archive manifests of `manifest` that could not be opened at the last attempt: the reason by
        path.
        """
        paths = map(manifest.archive_path, manifest.archives)
        return {path: self.damage[path] for path in paths if path in self.damage}

    def oldest(self, manifest: Manifest, named: ArchivedManifest) -> Entry:
        """Return the oldest entry; cached, because retention reads it repeatedly."""
        entry = self._oldest.get((named.id, named.base_offset))
        if entry is None:
            archive = self.open(manifest, named)
            entry = archive.entry(archive.span_of(named)[0])
            self._oldest.put((named.id, named.base_offset), entry, 1)
        return entry

    def live(
        self,
        manifest: Manifest,
        *,
        first: int = 0,
        end: int = _OFFSET_MAX,
        since_ms: int | None = None,
        unreadable: Callable[[Corrupt], None] | None = None,
    ) -> Iterator[RemoteSegment]:
        """Yield the segments that readers may read, in the order of offsets, of those that touch offsets [first, end).

        With `since_ms` only those with a record of that time (epoch ms) or later. `unreadable` receives the reason for
        an unreadable archive manifest, whose segments are left out; without `unreadable`, raises Corrupt.
        """
        for named in manifest.live_archives():
            if named.base_offset >= end:
                return
            if named.last_offset < first:
                continue
            if since_ms is not None and named.max_timestamp < since_ms:
                continue
            try:
                yield from self._of(manifest, named, first, end, since_ms)
            except Corrupt as fault:
                if unreadable is None:
                    raise
                unreadable(fault)
        for segment in manifest.recent():
            entry = segment.entry
            if entry.base_offset >= end:
                return
            if entry.last_offset >= first and (since_ms is None or entry.max_timestamp >= since_ms):
                yield segment

    def entries(self, manifest: Manifest) -> Iterator[Entry]:
        """Yield all entries, live or not."""
        for named in manifest.archives:
            yield from self.entries_of(manifest, named)
        yield from manifest.segments

    def entries_of(self, manifest: Manifest, named: ArchivedManifest) -> Iterator[Entry]:
        """Yield the entries of an archive manifest, with its state.

        None where they are removed already: an archive manifest is removed after all objects that it names, and then
        dropped from the manifest.
        """
        if named.segments and not self._is_gone(manifest, named):
            archive = self.open(manifest, named)
            for at in range(*archive.span_of(named)):
                yield replace(archive.entry(at), state=named.state, state_ms=named.state_ms)

    def _is_gone(self, manifest: Manifest, named: ArchivedManifest) -> bool:
        if named.state is not SegmentState.COPY_FINISHED:
            try:
                self._store.size(manifest.archive_path(named))
            except FileNotFoundError:
                return True
        return False

    def _of(
        self,
        manifest: Manifest,
        named: ArchivedManifest,
        first: int,
        end: int,
        since_ms: int | None,
    ) -> Iterator[RemoteSegment]:
        archive = self.open(manifest, named)
        start, stop = archive.span_of(named)
        positions = range(max(start, archive.span(first, _OFFSET_MAX)[0]), stop)
        wanted = iter(positions)
        if since_ms is not None:
            wanted = archive.younger(positions.start, stop, since_ms)
        prefix = manifest.prefix
        for at in wanted:
            entry = archive.entry(at)
            if entry.base_offset >= end:
                return
            object_id = topic_id_parse(entry.id)
            name = SegmentName(entry.base_offset, entry.last_offset, entry.leader_epoch, object_id)
            yield RemoteSegment(segment_path(prefix, name), entry)
