"""Verify a bucket: check every object, and find objects that nothing refers to.

In: a store. Out: problems, each naming an object. It reads every byte and changes nothing; `sweep` removes orphans,
and nothing else.

Orphans come from crashes: an uploaded object that was never committed, a manifest version put again after its pruning,
a topic whose deletion stopped before its mark. A broker may be about to commit a young object, so an orphan must be
older than `grace_ms`. While a broker runs, a grace below ORPHAN_GRACE_MS may remove an object that it is about to name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.ports import ObjectInfo, ObjectStore
from stratalog.tier.bucket.cluster_state import ClusterState
from stratalog.tier.bucket.commit import decode_version, is_pruned, load_latest, run
from stratalog.tier.bucket.identity import DeletedTopic, Identity, TierTopic, read_claim
from stratalog.tier.bucket.identity import decode as decode_document
from stratalog.tier.bucket.incarnation import Incarnation
from stratalog.tier.bucket.leases import LEASE_MS, Lease
from stratalog.tier.formats.envelope import unseal
from stratalog.tier.formats.manifest import Entry, Manifest, RemoteSegment, SegmentState
from stratalog.tier.formats.paths import (
    CLAIM,
    archive_prefix,
    boundary_prefix,
    deleted_prefix,
    identity_path,
    incarnations_prefix,
    leases_prefix,
    manifest_prefix,
    partition_prefix,
    states_prefix,
    topic_version,
    topic_version_path,
    topics_prefix,
)
from stratalog.tier.formats.segment_object import SectionType, SegmentIndex, read_range
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.export import entry_runs
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.reading.reader import read_entries
from stratalog.tier.writing.tier_writer import ORPHAN_GRACE_MS
from stratalog.wire.ids import topic_id_parse

__all__ = ["ORPHAN_GRACE_MS", "Checked", "Problem", "find_orphans", "sweep", "verify"]

_DELETE_BATCH: Final = 1000
_Document = Identity | TierTopic | DeletedTopic | Incarnation | ClusterState | Lease


class Problem(NamedTuple):
    """Something wrong with one object. An orphan costs space, and `sweep` removes it; anything else is damage."""

    path: str
    what: str
    orphan: bool = False


@dataclass(slots=True)
class Checked:
    """Counts of checked objects: all objects of the cluster, and those that the newest manifests name."""

    objects: int = 0
    bytes: int = 0
    topics: int = 0
    segments: int = 0
    records: int = 0


@dataclass(slots=True)
class _Survey:
    """One pass over the bucket, with its findings so far."""

    store: ObjectStore
    now_ms: int
    grace_ms: int
    progress: Callable[[int, int], None]
    data: bool
    checked: Checked = field(default_factory=Checked)
    problems: list[Problem] = field(default_factory=list)
    bytes_done: int = 0

    def report(self, path: str, what: str) -> None:
        self.problems.append(Problem(path, what))

    def orphan(self, info: ObjectInfo, what: str) -> None:
        if info.modified_ms + self.grace_ms <= self.now_ms:
            self.problems.append(Problem(info.path, what, orphan=True))

    def advance(self, size: int) -> None:
        self.bytes_done += size
        self.progress(self.bytes_done, self.checked.bytes)


def verify(
    store: ObjectStore,
    *,
    now_ms: int,
    grace_ms: int = ORPHAN_GRACE_MS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    checked: Checked | None = None,
) -> list[Problem]:
    """Read the whole bucket; return its problems, damage first, and add the objects read to `checked`.

    Every object that the newest manifests name must exist with exactly the archived bytes. All other objects must be
    sound, and none may be an orphan. `progress` receives the bytes done and in total. Raises Unavailable.
    """
    survey = _Survey(store, now_ms, grace_ms, progress, data=True, checked=checked or Checked())
    _walk(survey)
    return sorted(survey.problems, key=lambda problem: problem.orphan)


def find_orphans(
    store: ObjectStore,
    *,
    now_ms: int,
    grace_ms: int = ORPHAN_GRACE_MS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Problem]:
    """Return the orphans, without reading segments.

    It reports none if a manifest or the registry is damaged: an object may seem to be an orphan because the object that
    names it is damaged.

    Raises Corrupt (naming the damaged object), Unavailable.
    """
    survey = _Survey(store, now_ms, grace_ms, progress, data=False)
    _walk(survey)
    for problem in survey.problems:
        if not problem.orphan:
            raise Corrupt(f"{problem.path}: {problem.what}; nothing was removed")
    return survey.problems


def sweep(
    store: ObjectStore,
    *,
    now_ms: int,
    grace_ms: int = ORPHAN_GRACE_MS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Problem]:
    """Remove orphans, and return them. Raises as `find_orphans`, before any removal."""
    orphans = find_orphans(store, now_ms=now_ms, grace_ms=grace_ms, progress=progress)
    paths = [orphan.path for orphan in orphans]
    for start in range(0, len(paths), _DELETE_BATCH):
        store.delete(paths[start : start + _DELETE_BATCH])
    return orphans


def _walk(survey: _Survey) -> None:
    store = survey.store
    try:
        claim = read_claim(store)
    except Corrupt as corrupt:
        survey.report(CLAIM, str(corrupt))
        return
    if claim is None:
        survey.report(CLAIM, "missing: the bucket has no owner")
        return
    cluster = claim.cluster_id
    # The list comes before the manifests. An object that they name and the list lacks is looked up again. An object in
    # the list that they do not name is either younger than any grace time, or an orphan.
    objects = {info.path: info for info in store.list(f"{cluster}/")}
    survey.checked.objects += len(objects)
    survey.checked.bytes += sum(info.size for info in objects.values())
    live, deleted = _registry(survey, cluster, objects)
    survey.checked.topics += len(live - deleted)
    registry = f"{cluster}/cluster/"
    folders: dict[str, list[ObjectInfo]] = {}
    for path, info in objects.items():
        if path.startswith(registry):
            continue
        parts = path.split("/")
        folder = "/".join(parts[:4]) + "/"
        if len(parts) < 5 or not _is_partition(cluster, parts):
            survey.orphan(info, "no place of an object")
            survey.advance(info.size)
        elif parts[2] in deleted:
            survey.advance(info.size)  # being removed
        else:
            folders.setdefault(folder, []).append(info)
    for folder, infos in sorted(folders.items()):
        if folder.split("/")[2] not in live:
            _unregistered(survey, folder, infos)
        _partition(survey, folder, infos)


def _unregistered(survey: _Survey, folder: str, infos: list[ObjectInfo]) -> None:
    """Report a lost registration: a topic is registered before its first object, and its registration is removed
    last.
    """
    if any(info.path.startswith(manifest_prefix(folder)) for info in infos):
        topic = folder.split("/")[2]
        survey.report(folder, f"the registry does not know topic {topic}")


def _is_partition(cluster: str, parts: list[str]) -> bool:
    try:
        prefix = partition_prefix(cluster, topic_id_parse(parts[2]), int(parts[3]))
    except (ValueError, OverflowError):
        return False
    return "/".join(parts[:4]) + "/" == prefix


def _registry(
    survey: _Survey, cluster: str, objects: dict[str, ObjectInfo]
) -> tuple[set[str], set[str]]:
    """Check the registry; the ids of its topics, and of those marked deleted (damaged objects count by their names)."""
    live: set[str] = set()
    deleted: set[str] = set()
    if identity_path(cluster) not in objects:
        survey.report(identity_path(cluster), "missing")
    for path, info in objects.items():
        if not path.startswith(f"{cluster}/cluster/"):
            continue
        survey.advance(info.size)
        first, version = topic_version(path)
        name = first.rpartition("/")[2]
        kind = _kind_of(cluster, path)
        document = None
        if kind is None:
            survey.orphan(info, "no object of the registry")
            continue
        if kind is TierTopic and topic_version_path(first, version + 1) in objects:
            continue  # it counts no more: its successor may have repaired it
        try:
            document = decode_document(survey.store.get(path), kind, path)
        except FileNotFoundError:
            continue  # the topic was removed since the list
        except Corrupt as corrupt:
            survey.report(path, str(corrupt))
        else:
            if document.cluster_id != cluster or getattr(document, "topic_id", name) != name:
                survey.report(path, "says that it is another object")
        _report_abandoned(survey, kind, info, document)
        if kind is TierTopic:
            live.add(name)
        elif kind is DeletedTopic:
            deleted.add(name)
    return live, deleted


def _kind_of(cluster: str, path: str) -> type[_Document] | None:
    if path == identity_path(cluster):
        return Identity
    kinds: dict[str, type[_Document]] = {
        topics_prefix(cluster): TierTopic,
        deleted_prefix(cluster): DeletedTopic,
        incarnations_prefix(cluster): Incarnation,
        states_prefix(cluster): ClusterState,
        leases_prefix(cluster): Lease,
    }
    return next((kinds[folder] for folder in kinds if path.startswith(folder)), None)


def _report_abandoned(
    survey: _Survey, kind: type[object], info: ObjectInfo, document: object
) -> None:
    """Report abandoned leases: a broker removes them only when they might hold objects that it wants to remove."""
    lives_ms = document.lives_ms if isinstance(document, Lease) else LEASE_MS
    if kind is Lease and info.modified_ms + lives_ms + survey.grace_ms <= survey.now_ms:
        survey.orphan(info, "a read lease that was abandoned")


def _partition(survey: _Survey, folder: str, infos: list[ObjectInfo]) -> None:
    segments = {info.path: info for info in infos if info.path.endswith(".seg")}
    archives = {i.path: i for i in infos if i.path.startswith(archive_prefix(folder))}
    versions = [info for info in infos if info.path.startswith(manifest_prefix(folder))]
    for info in infos:
        if info.path.startswith(boundary_prefix(folder)):
            _check_boundary(survey, info)
        elif info.path not in segments and info.path not in archives and info not in versions:
            survey.orphan(info, "no place of an object")
            survey.advance(info.size)
    sound = [_check_version(survey, folder, info) for info in versions]
    tip = None
    try:
        tip = run(survey.store, load_latest(folder))
    except Corrupt as corrupt:
        if all(sound):
            survey.report(folder, str(corrupt))
    else:
        if tip is None and segments:
            survey.report(manifest_prefix(folder), "no manifest names the segments in this folder")
    opened = _opened(survey, tip) if tip is not None else None
    if opened is None:
        for info in (*segments.values(), *archives.values()):
            survey.advance(info.size)
        return  # without the complete manifest no object counts as an orphan
    tip, entries = opened
    _check_archives(survey, tip, archives)
    _check_segments(survey, tip, entries, segments)


def _opened(survey: _Survey, tip: Manifest) -> tuple[Manifest, list[Entry]] | None:
    """Return the manifest, or a newer one, and all objects that it and its archive manifests name; None where one is
    damaged.
    """
    while True:
        try:
            return tip, list(ArchiveManifests(survey.store).entries(tip))
        except Corrupt as corrupt:
            # It may have been given up and removed since the manifest was read.
            newest = run(survey.store, load_latest(tip.prefix, tip))
            if newest is None or newest.version == tip.version:
                survey.report(str(corrupt).partition(": ")[0], str(corrupt))
                return None
            tip = newest


def _check_archives(survey: _Survey, tip: Manifest, objects: dict[str, ObjectInfo]) -> None:
    named = {tip.archive_path(one) for one in tip.archives}
    for path, info in objects.items():
        survey.advance(info.size)
        if path not in named:
            survey.orphan(info, "no manifest names it")


def _check_boundary(survey: _Survey, info: ObjectInfo) -> None:
    survey.advance(info.size)
    try:
        unseal(survey.store.get(info.path), info.path)
    except FileNotFoundError:
        pass  # replaced by one of the next level since the list
    except Corrupt as corrupt:
        survey.report(info.path, str(corrupt))


def _check_version(survey: _Survey, folder: str, info: ObjectInfo) -> bool:
    """Return whether a manifest version is sound; a version below the boundary is an orphan."""
    survey.advance(info.size)
    try:
        manifest = decode_version(survey.store.get(info.path), info.path)
    except FileNotFoundError:
        return True  # pruned since the list
    except Corrupt as corrupt:
        survey.report(info.path, str(corrupt))
        return False
    if run(survey.store, is_pruned(folder, manifest.version)):
        survey.orphan(info, "lies behind the boundary")
    return True


def _check_segments(
    survey: _Survey, tip: Manifest, entries: list[Entry], objects: dict[str, ObjectInfo]
) -> None:
    live = [entry for entry in entries if entry.state is SegmentState.COPY_FINISHED]
    survey.checked.segments += len(live)
    survey.checked.records += sum(entry.records for entry in live)
    for segment in (RemoteSegment(tip.path_of(entry), entry) for entry in live):
        try:
            _check_segment(survey, segment)
        except Corrupt as corrupt:
            # It may have been given up and removed since the manifest was read.
            newest = run(survey.store, load_latest(tip.prefix, tip))
            first = segment.entry.base_offset
            now = () if newest is None else ArchiveManifests(survey.store).live(newest, first=first)
            if segment in islice(now, 1):
                survey.report(segment.path, str(corrupt))
    named = {tip.path_of(entry) for entry in entries}
    for path, info in objects.items():
        if path not in named:
            survey.orphan(info, "no manifest names it")
            survey.advance(info.size)
    given_up = [entry for entry in entries if entry.state is not SegmentState.COPY_FINISHED]
    survey.advance(sum(entry.size for entry in given_up if tip.path_of(entry) in objects))


def _check_segment(survey: _Survey, segment: RemoteSegment) -> None:
    """Raise Corrupt where an object differs from the archived bytes."""
    entry = segment.entry
    try:
        size = survey.store.size(segment.path)
    except FileNotFoundError as missing:
        survey.advance(0)
        raise Corrupt(f"{segment.path}: missing") from missing
    if size != entry.size:
        survey.advance(size)
        raise Corrupt(f"{segment.path}: {size} bytes instead of {entry.size}")
    if not survey.data:
        survey.advance(size)
        return
    read = 0
    try:
        index = load_index(survey.store, segment)
        for first, stop in entry_runs(index.entries):
            piece = len(read_entries(survey.store, segment, index, first, stop))
            read += piece
            survey.advance(piece)
        _check_key_filter(survey.store, index)
    finally:
        survey.advance(entry.size - read)


def _check_key_filter(store: ObjectStore, index: SegmentIndex) -> None:
    """Raise Corrupt where an object's key filter differs from the archived bytes."""
    found = next((row for row in index.sections if row.type == SectionType.KEY_FILTER), None)
    if found is None:
        return
    if crc32c(read_range(store, index.path, found.position, found.length)) != found.crc:
        raise Corrupt(f"{index.path}: its key filter fails its checksum")
