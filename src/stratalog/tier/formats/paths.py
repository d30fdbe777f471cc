"""The paths of all objects of the tier, below the bucket's prefix.

In: cluster, topic and object ids, partitions, offsets. Out: paths, and segment names read back. It never reads the
bucket. `docs/formats.md` has the same layout in prose.
"""

from hashlib import sha256
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.errors import Corrupt
from stratalog.wire.ids import topic_id_parse, topic_id_text

__all__ = [
    "CLAIM",
    "SegmentName",
    "archive_path",
    "archive_prefix",
    "boundary_path",
    "boundary_prefix",
    "deleted_path",
    "deleted_prefix",
    "identity_path",
    "incarnation_path",
    "incarnations_prefix",
    "lease_path",
    "leases_prefix",
    "manifest_path",
    "manifest_prefix",
    "manifest_version",
    "partition_prefix",
    "segment_name",
    "segment_path",
    "state_path",
    "states_prefix",
    "topic_path",
    "topic_version",
    "topic_version_path",
    "topics_prefix",
]

CLAIM: Final = "stratalog"
"""The only object at the root: it names the cluster that owns the prefix."""

SEGMENT_SUFFIX: Final = ".seg"


class SegmentName(NamedTuple):
    """The parts of a segment object's name."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    object_id: UUID


def partition_prefix(cluster_id: str, topic_id: UUID, partition: int) -> str:
    """Return the folder of one partition, with its final slash.

    The four hex digits spread partitions over an object store's key space: the first two bytes of SHA-256 of the
    topic id's 16 bytes and the partition as a big-endian i32.
    """
    spread = sha256(topic_id.bytes + partition.to_bytes(4, "big")).hexdigest()[:4]
    return f"{cluster_id}/{spread}/{topic_id_text(topic_id)}/{partition}/"


def segment_path(prefix: str, name: SegmentName) -> str:
    """Return the path of a segment object in a partition's folder."""
    base, last, epoch, object_id = name
    return f"{prefix}{base:020d}-{last:020d}-{epoch}-{topic_id_text(object_id)}{SEGMENT_SUFFIX}"


def segment_name(path: str) -> SegmentName | None:
    """Return the parts of a segment object's path; None for any other path."""
    name = path.rsplit("/", 1)[-1]
    if not name.endswith(SEGMENT_SUFFIX):
        return None
    parts = name.removesuffix(SEGMENT_SUFFIX).split("-", 3)
    try:
        base, last, epoch, object_id = parts
        return SegmentName(int(base), int(last), int(epoch), topic_id_parse(object_id))
    except ValueError:
        return None


def manifest_prefix(prefix: str) -> str:
    """Return the folder of a partition's manifest versions."""
    return f"{prefix}manifest/"


def manifest_path(prefix: str, version: int) -> str:
    """Return the path of one manifest version."""
    return f"{prefix}manifest/{version:020d}"


def manifest_version(path: str) -> int:
    """Return the version in a manifest's path. Raises Corrupt where there is none."""
    name = path.rsplit("/", 1)[-1]
    if len(name) != 20 or not name.isdecimal():
        raise Corrupt(f"{path}: not the name of a manifest version")
    return int(name)


def archive_prefix(prefix: str) -> str:
    """Return the folder of a partition's archive manifests."""
    return f"{prefix}archive/"


def archive_path(prefix: str, object_id: UUID) -> str:
    """Return the path of one archive manifest."""
    return archive_prefix(prefix) + topic_id_text(object_id)


def boundary_prefix(prefix: str) -> str:
    """Return the folder of a partition's boundary objects."""
    return f"{prefix}boundary/"


def boundary_path(prefix: str, level: int, number: int) -> str:
    """Return the path of a boundary object: all versions of this group may be removed (see `tier/bucket/commit.py`)."""
    return f"{prefix}boundary/{level}/{number:020d}"


def identity_path(cluster_id: str) -> str:
    """Return the path of the object that identifies this cluster's folder."""
    return f"{cluster_id}/cluster/identity"


def leases_prefix(cluster_id: str) -> str:
    """Return the folder of read leases."""
    return f"{cluster_id}/cluster/leases/"


def lease_path(cluster_id: str, lease_id: str) -> str:
    """Return the path of one query's read lease."""
    return leases_prefix(cluster_id) + lease_id


def topics_prefix(cluster_id: str) -> str:
    """Return the folder of the topic registry."""
    return f"{cluster_id}/cluster/topics/"


def topic_path(cluster_id: str, topic_id: UUID, version: int = 1) -> str:
    """Return the path of one version of a topic's registry object."""
    return topic_version_path(topics_prefix(cluster_id) + topic_id_text(topic_id), version)


def topic_version_path(first: str, version: int) -> str:
    """Return the path of a later version, from that of the `first`, which has no number in its name."""
    return first if version == 1 else f"{first}.{version:020d}"


class TopicVersion(NamedTuple):
    """A version of a topic's registry object; `first` is the path of the first one."""

    first: str
    version: int


def topic_version(path: str) -> TopicVersion:
    """Return the version that a path names."""
    first, _dot, version = path.rpartition(".")
    is_later = len(version) == 20 and version.isdecimal()
    return TopicVersion(first, int(version)) if is_later else TopicVersion(path, 1)


def deleted_prefix(cluster_id: str) -> str:
    """Return the folder of marks of deleted topics."""
    return f"{cluster_id}/cluster/deleted/"


def deleted_path(cluster_id: str, topic_id: UUID) -> str:
    """Return the path of a topic's deletion mark."""
    return deleted_prefix(cluster_id) + topic_id_text(topic_id)


def incarnations_prefix(cluster_id: str) -> str:
    """Return the folder of the cluster's incarnations."""
    return f"{cluster_id}/cluster/incarnations/"


def incarnation_path(cluster_id: str, incarnation: int) -> str:
    """Return the path of the object with which this incarnation begins."""
    return f"{incarnations_prefix(cluster_id)}{incarnation:020d}"


def states_prefix(cluster_id: str, incarnation: int | None = None) -> str:
    """Return the folder of the versions of the cluster's state, all or those of one incarnation."""
    folder = f"{cluster_id}/cluster/state/"
    return folder if incarnation is None else f"{folder}{incarnation:020d}/"


def state_path(cluster_id: str, incarnation: int, version: int) -> str:
    """Return the path of one version of the cluster's state."""
    return f"{states_prefix(cluster_id, incarnation)}{version:020d}"
