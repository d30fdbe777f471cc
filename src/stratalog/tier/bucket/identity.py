"""The bucket's owner and its registry of topics, so that readers need no broker.

In: the cluster's id, its topics. Out: small sealed JSON objects, and back. It never holds records.

    stratalog                            the claim: one cluster owns the prefix (put if absent)
    <cluster-id>/cluster/identity        the cluster and its incarnation (put if absent)
    <cluster-id>/cluster/topics/<id>     a topic: name, partitions, configuration (as a leader found them)
    <cluster-id>/cluster/deleted/<id>    the mark that a topic is deleted (put if absent; goes when its objects are
    gone)
"""

from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Final, TypeVar
from uuid import UUID

from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import decode as json_decode
from msgspec.json import encode as json_encode

from stratalog.errors import Corrupt, UserError
from stratalog.ports import AlreadyExists, ObjectStore
from stratalog.tier.formats.envelope import is_sealed, seal, unseal
from stratalog.tier.formats.paths import (
    CLAIM,
    deleted_path,
    deleted_prefix,
    identity_path,
    partition_prefix,
    topic_path,
    topics_prefix,
)
from stratalog.wire.ids import topic_id_parse, topic_id_text

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
    """Return a registry object. Raises Corrupt naming `path` for altered bytes or an unknown format."""
    try:
        document = json_decode(unseal(data, path), type=kind)
    except (DecodeError, ValidationError) as error:
        raise Corrupt(f"{path}: not a {kind.__name__}: {error}") from error
    found = getattr(document, "format", FORMAT)
    if found != FORMAT:
        raise Corrupt(f"{path}: of format {found}; this version reads {FORMAT}")
    return document


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
    """Register a topic, and return its entry. An unchanged entry is not written.

    Call it before the first segment of the topic is archived: without the entry, the bucket alone cannot be read. Call
    it again when the number of partitions grows. The entry has the settings of that moment; the cluster's state has the
    current ones. A damaged entry is written again, a deleted topic is not. Raises Unavailable, Corrupt.
    """
    path = topic_path(cluster_id, topic_id)
    registered = _registered(store, path)
    topic = TierTopic(
        cluster_id=cluster_id,
        name=name,
        topic_id=topic_id_text(topic_id),
        partitions=max(partitions, registered.partitions if registered is not None else 0),
        configs=dict(sorted(configs.items())),
        created_ms=registered.created_ms if registered is not None else now_ms,
    )
    if topic != registered and not _exists(store, deleted_path(cluster_id, topic_id)):
        store.put(path, [encode(topic)])
    return topic


def _registered(store: ObjectStore, path: str) -> TierTopic | None:
    """Return the registered topic; None for a missing or altered object, which registering replaces."""
    try:
        data = store.get(path)
    except FileNotFoundError:
        return None
    try:
        return decode(data, TierTopic, path)
    except Corrupt:
        if is_sealed(data):
            raise  # of a later release
        return None


def _exists(store: ObjectStore, path: str) -> bool:
    try:
        store.size(path)
    except FileNotFoundError:
        return False
    return True


def list_topics(
    store: ObjectStore, cluster_id: str | None = None, damaged: dict[str, str] | None = None
) -> list[TierTopic]:
    """Return the topics in the bucket that are not deleted, by name. Empty for a bucket without an owner.

    Raises Corrupt naming the object, or adds it to `damaged` (path: reason) if given; Unavailable.
    """
    if cluster_id is None:
        claim = read_claim(store)
        if claim is None:
            return []
        cluster_id = claim.cluster_id
    deleted = {info.path.rsplit("/", 1)[-1] for info in store.list(deleted_prefix(cluster_id))}
    topics = []
    for info in store.list(topics_prefix(cluster_id)):
        if info.path.rsplit("/", 1)[-1] in deleted:
            continue
        try:
            topics.append(decode(store.get(info.path), TierTopic, info.path))
        except FileNotFoundError:
            continue  # the topic was removed since the list
        except Corrupt as corrupt:
            if damaged is None:
                raise
            damaged[info.path] = str(corrupt)
    return sorted(topics, key=lambda topic: (topic.name, topic.created_ms))


def delete_topic(store: ObjectStore, cluster_id: str, topic_id: UUID, now_ms: int) -> None:
    """Mark a topic deleted: readers that open the bucket no longer see it. May be repeated.

    Its objects stay for current readers, until `remove_deleted_topics`. Raises Unavailable, Corrupt.
    """
    path = topic_path(cluster_id, topic_id)
    try:
        topic = decode(store.get(path), TierTopic, path)
    except FileNotFoundError:
        return  # the topic was never registered, so the bucket has none of its objects; or it was removed already
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
    registered = _registered(store, topic_path(cluster_id, topic_id_parse(topic_id)))
    return DeletedTopic(
        cluster_id=cluster_id,
        name=registered.name if registered is not None else "",
        topic_id=topic_id,
        partitions=registered.partitions if registered is not None else 0,
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
        for partition in range(mark.partitions):
            prefix = partition_prefix(cluster_id, topic_id, partition)
            paths = [info.path for info in store.list(prefix)]
            for start in range(0, len(paths), _DELETE_BATCH):
                store.delete(paths[start : start + _DELETE_BATCH])
        store.delete([topic_path(cluster_id, topic_id)])
        store.delete([deleted_path(cluster_id, topic_id)])
        removed.append(mark)
    return removed
