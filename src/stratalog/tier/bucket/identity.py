"""The bucket's owner and its registry of topics, so that readers need no broker.

In: the cluster's id, its topics. Out: small sealed JSON objects, and back. It never holds records.

    stratalog                            the claim: one cluster owns the prefix (put if absent)
    <cluster-id>/cluster/identity        the cluster and its incarnation (put if absent)
    <cluster-id>/cluster/topics/<id>     a topic: name, partitions, configuration (put if absent)
    <cluster-id>/cluster/topics/<id>.<n> its version n, from 2 on: it has more partitions (put if absent)
    <cluster-id>/cluster/deleted/<id>    the mark that a topic is deleted (put if absent; goes when its objects are
    gone)

Each leader of a partition registers its topic, so a topic has several writers. A version is never changed, and none is
removed before its topic is. So versions have no gaps, and a writer that was paused, or whose request takes effect late,
finds its number taken.
"""

from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Final, TypeVar
from uuid import UUID

from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import decode as json_decode
from msgspec.json import encode as json_encode

from stratalog.errors import Corrupt, Unavailable, UserError
from stratalog.ports import AlreadyExists, ObjectStore
from stratalog.tier.formats.envelope import is_sealed, seal, unseal
from stratalog.tier.formats.paths import (
    CLAIM,
    deleted_path,
    deleted_prefix,
    identity_path,
    partition_prefix,
    topic_path,
    topic_version,
    topic_version_path,
    topics_prefix,
)
from stratalog.wire.ids import check_stored_name, topic_id_parse, topic_id_text

__all__ = [
    "Claim",
    "DeletedTopic",
    "Identity",
    "TierTopic",
    "claim_bucket",
    "delete_topic",
    "list_deleted",
    "list_topics",
    "read_claim",
    "register_topic",
    "remove_deleted_topics",
]

T = TypeVar("T")

FORMAT: Final = 1
_DELETE_BATCH: Final = 1000
_ATTEMPTS_MAX: Final = 16


class Claim(Struct, frozen=True, kw_only=True):
    """The claim of a cluster on the prefix."""

    format: int = FORMAT
    cluster_id: str
    created_ms: int


class Identity(Struct, frozen=True, kw_only=True):
    """A cluster; `incarnation` rises when it is restored from the bucket."""

    format: int = FORMAT
    cluster_id: str
    incarnation: int = 0
    created_ms: int


class TierTopic(Struct, frozen=True, kw_only=True):
    """A topic in the registry. `topic_id` is in 22 characters; `configs` are the topic's own, by Kafka's names."""

    format: int = FORMAT
    cluster_id: str
    name: str
    topic_id: str
    partitions: int
    configs: dict[str, str] = {}
    created_ms: int = 0

    @property
    def topic_uuid(self) -> UUID:
        """The topic's id."""
        return topic_id_parse(self.topic_id)


class DeletedTopic(Struct, frozen=True, kw_only=True):
    """The mark of a deleted topic."""

    format: int = FORMAT
    cluster_id: str
    name: str
    topic_id: str
    partitions: int
    deleted_ms: int


def decode(data: bytes, kind: type[T], path: str) -> T:
    """Return a registry object.

    Raises Corrupt naming `path` for altered bytes, an unknown format, and a name or id that is none.
    """
    try:
        document = json_decode(unseal(data, path), type=kind)
        _check_names(document)
    except (DecodeError, ValidationError, ValueError) as error:
        raise Corrupt(f"{path}: not a {kind.__name__}: {error}") from error
    found = getattr(document, "format", FORMAT)
    if found != FORMAT:
        raise Corrupt(f"{path}: of format {found}; this version reads {FORMAT}")
    return document


def _check_names(document: object) -> None:
    """Raise ValueError for a name or an id in a registry object that may not become a part of a path.

    Any writer to the bucket can make such an object, and a restore makes directories of its names.
    """
    for field in ("cluster_id", "name", "id"):
        name = getattr(document, field, None)
        if isinstance(name, str):
            check_stored_name(name, field.replace("_", " "))
    topic_id = getattr(document, "topic_id", None)
    if isinstance(topic_id, str):
        topic_id_parse(topic_id)
    for node_id in getattr(document, "brokers", ()):
        if node_id and not node_id.isdecimal():
            raise ValueError(f"node id {node_id[:300]!r}: it is no number")
    for topic in getattr(document, "topics", ()):
        _check_names(topic)


def encode(document: Struct) -> bytes:
    """Return the bytes to store."""
    return seal(json_encode(document))


def read_claim(store: ObjectStore) -> Claim | None:
    """Return the bucket's owner, or None. Raises Corrupt, Unavailable."""
    try:
        return decode(store.get(CLAIM), Claim, CLAIM)
    except FileNotFoundError:
        return None


def claim_bucket(store: ObjectStore, cluster_id: str, now_ms: int) -> None:
    """Claim the bucket for this cluster, or confirm the claim. Call this before any other put.

    Raises UserError where another cluster owns the bucket (without a change), Unavailable, Corrupt.
    """
    mine = Claim(cluster_id=cluster_id, created_ms=now_ms)
    owner = _put_or_read(store, CLAIM, mine)
    if owner.cluster_id != cluster_id:
        raise UserError(
            f"bucket {store.url} belongs to cluster {owner.cluster_id}, not {cluster_id}"
        )
    identity = Identity(cluster_id=cluster_id, created_ms=now_ms)
    _put_or_read(store, identity_path(cluster_id), identity)


def _put_or_read(store: ObjectStore, path: str, document: T) -> T:
    """Put a document if absent; return the existing one."""
    assert isinstance(document, Struct), "only documents are put"
    try:
        store.put_if_absent(path, encode(document))
    except AlreadyExists:
        return decode(store.get(path), type(document), path)
    return document


def register_topic(  # noqa: PLR0913, PLR0917
    store: ObjectStore,
    cluster_id: str,
    topic_id: UUID,
    name: str,
    partitions: int,
    configs: Mapping[str, str],
    now_ms: int,
) -> TierTopic:
    """Register a topic, and return its newest entry. Without new partitions nothing is written.

    Call it before the first segment of the topic is archived: without the entry, the bucket alone cannot be read. Call
    it again when the number of partitions grows. The entry has the settings of that moment; the cluster's state has the
    current ones. A damaged entry gets a successor, a deleted topic gets none. Raises Unavailable (perhaps the entry was
    written: register again), Corrupt.
    """
    for _ in range(_ATTEMPTS_MAX):
        versions = _versions(store, topic_path(cluster_id, topic_id))
        newest = _sound(*versions[-1]) if versions else None
        if newest is not None and newest.partitions >= partitions:
            return newest
        sound = _sound_ones(versions)
        topic = TierTopic(
            cluster_id=cluster_id,
            name=name,
            topic_id=topic_id_text(topic_id),
            partitions=max(partitions, *(one.partitions for one in sound), 0),
            configs=dict(sorted(configs.items())),
            created_ms=sound[0].created_ms if sound else now_ms,
        )
        if _exists(store, deleted_path(cluster_id, topic_id)):
            return topic
        try:
            store.put_if_absent(topic_path(cluster_id, topic_id, len(versions) + 1), encode(topic))
        except AlreadyExists:
            continue  # of another leader: perhaps it has fewer partitions
        return topic
    raise Unavailable(f"{topic_path(cluster_id, topic_id)}: other brokers register the topic")


def _versions(store: ObjectStore, first: str, number: int = 1) -> list[tuple[str, bytes]]:
    """Return path and bytes of each version of a topic from `number` on; `first` is the first one's path."""
    versions: list[tuple[str, bytes]] = []
    with suppress(FileNotFoundError):
        while True:
            path = topic_version_path(first, number + len(versions))
            versions.append((path, store.get(path)))
    return versions


def _sound_ones(versions: list[tuple[str, bytes]]) -> list[TierTopic]:
    """Return the entries that are not altered. Raises Corrupt for an entry of a later release."""
    return [topic for version in versions if (topic := _sound(*version)) is not None]


def _sound(path: str, data: bytes) -> TierTopic | None:
    """Return the entry; None for an altered one. Raises Corrupt for an entry of a later release."""
    try:
        return decode(data, TierTopic, path)
    except Corrupt:
        if is_sealed(data):
            raise
        return None


def _exists(store: ObjectStore, path: str) -> bool:
    try:
        store.size(path)
    except FileNotFoundError:
        return False
    return True


def list_topics(
    store: ObjectStore,
    cluster_id: str | None = None,
    damaged: dict[str, str] | None = None,
    *,
    probe: bool = False,
) -> list[TierTopic]:
    """Return the topics in the bucket that are not deleted, by name. Empty for a bucket without an owner.

    With `probe` a list that is out of date hides no version of a topic that it names; that costs one more request for
    each topic. Raises Corrupt naming the object, or adds it to `damaged` (path: reason) if given; Unavailable.
    """
    if cluster_id is None:
        claim = read_claim(store)
        if claim is None:
            return []
        cluster_id = claim.cluster_id
    deleted = {info.path.rsplit("/", 1)[-1] for info in store.list(deleted_prefix(cluster_id))}
    listed: dict[str, int] = {}
    for info in store.list(topics_prefix(cluster_id)):
        first, version = topic_version(info.path)
        if first.rsplit("/", 1)[-1] not in deleted:
            listed[first] = max(version, listed.get(first, 0))
    topics = []
    for first, version in listed.items():
        found = _newest(store, first, version, probe=probe)
        if found is None:
            continue  # the topic was removed since the list
        path, data = found
        try:
            topics.append(decode(data, TierTopic, path))
        except Corrupt as corrupt:
            if damaged is None:
                raise
            damaged[path] = str(corrupt)
    return sorted(topics, key=lambda topic: (topic.name, topic.created_ms))


def _newest(
    store: ObjectStore, first: str, listed: int, *, probe: bool
) -> tuple[str, bytes] | None:
    """Return path and bytes of a topic's version `listed`, or with `probe` of the newest one."""
    if probe:
        return next(reversed(_versions(store, first, listed)), None)
    path = topic_version_path(first, listed)
    try:
        return path, store.get(path)
    except FileNotFoundError:
        return None


def delete_topic(store: ObjectStore, cluster_id: str, topic_id: UUID, now_ms: int) -> None:
    """Mark a topic deleted: readers that open the bucket no longer see it. May be repeated.

    Its objects stay for current readers, until `remove_deleted_topics`. Raises Unavailable, Corrupt.
    """
    versions = _versions(store, topic_path(cluster_id, topic_id))
    if not versions:
        return  # the topic was never registered, so the bucket has none of its objects; or it was removed already
    path, data = versions[-1]
    topic = decode(data, TierTopic, path)
    mark = DeletedTopic(
        cluster_id=cluster_id,
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
        deleted_ms=now_ms,
    )
    with suppress(AlreadyExists):
        store.put_if_absent(deleted_path(cluster_id, topic_id), encode(mark))


def list_deleted(store: ObjectStore, cluster_id: str) -> list[DeletedTopic]:
    """Return the topics that are marked deleted and still have objects. Raises Unavailable, Corrupt."""
    marks = []
    for info in store.list(deleted_prefix(cluster_id)):
        with suppress(FileNotFoundError):
            data = store.get(info.path)
            try:
                marks.append(decode(data, DeletedTopic, info.path))
            except Corrupt:
                if is_sealed(data):
                    raise  # of a later release
                marks.append(_mark_by_name(store, cluster_id, info.path.rpartition("/")[2]))
    return marks


def _mark_by_name(store: ObjectStore, cluster_id: str, topic_id: str) -> DeletedTopic:
    """Return the content of a damaged mark, from the registry. The registry entry is removed last, so without one the
    topic has no objects left.
    """
    try:
        path = topic_path(cluster_id, topic_id_parse(topic_id))
    except ValueError as error:
        raise Corrupt(f"{deleted_prefix(cluster_id)}{topic_id}: not a mark: {error}") from error
    versions = _versions(store, path)
    sound = _sound_ones(versions)
    return DeletedTopic(
        cluster_id=cluster_id,
        name=sound[-1].name if sound else "",
        topic_id=topic_id,
        partitions=max((topic.partitions for topic in sound), default=0),
        deleted_ms=0,
    )


def remove_deleted_topics(
    store: ObjectStore,
    cluster_id: str,
    due: Container[str],
    living: Container[UUID] = frozenset(),
) -> list[DeletedTopic]:
    """Remove all objects of the topics (ids) of `due` that are marked deleted; return the removed topics.

    Each broker calls this regularly; without marks it costs one list. Of a `living` topic only the mark is removed:
    the node before a takeover put that mark too late.

    The mark is removed last, so that the next call continues after any interruption. Raises Unavailable, Corrupt.
    """
    removed = []
    for mark in list_deleted(store, cluster_id):
        topic_id = topic_id_parse(mark.topic_id)
        if topic_id in living:
            store.delete([deleted_path(cluster_id, topic_id)])
            continue
        if mark.topic_id not in due:
            continue
        _remove_objects(store, cluster_id, topic_id, mark.partitions)
        store.delete([deleted_path(cluster_id, topic_id)])
        removed.append(mark)
    return removed


def _remove_objects(store: ObjectStore, cluster_id: str, topic_id: UUID, partitions: int) -> None:
    """Remove a topic's partitions, then its versions in the registry.

    The newest version goes first, so that versions have no gap after an interruption. A leader that had just not seen
    the mark may have registered more than the mark's `partitions`.
    """
    versions = _versions(store, topic_path(cluster_id, topic_id))
    registered = [topic.partitions for topic in _sound_ones(versions)]
    for partition in range(max(partitions, *registered, 0)):
        prefix = partition_prefix(cluster_id, topic_id, partition)
        paths = [info.path for info in store.list(prefix)]
        for start in range(0, len(paths), _DELETE_BATCH):
            store.delete(paths[start : start + _DELETE_BATCH])
    for path, _data in reversed(versions):
        store.delete([path])
