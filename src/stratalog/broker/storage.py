"""Whose a log directory is: claimed by lock, known by `meta.properties`, formatted on a first start.

In: open disks and who this node is. Out: the cluster's id and each directory's. It never starts a node and never
removes anything.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from stratalog.errors import Corrupt, UserError
from stratalog.log.checkpoints import (
    META_PROPERTIES,
    MetaProperties,
    decode_meta_properties,
    encode_meta_properties,
)
from stratalog.ports import Disk, Entropy
from stratalog.wire.ids import topic_id_text

_META_BYTES_MAX: Final = 64 * 1024
_IGNORED: Final = {".lock", "lost+found"}


def read_meta(path: str, disk: Disk) -> MetaProperties | None:
    """What a directory says of itself; None where it was never formatted. Raises UserError where it is damaged."""
    try:
        data = disk.read(META_PROPERTIES, 0, _META_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        return decode_meta_properties(data)
    except Corrupt as error:
        raise UserError(
            f"log directory {path}: {META_PROPERTIES} cannot be read: {error}"
        ) from error


def new_cluster_id(entropy: Entropy) -> str:
    """A cluster id as Kafka makes them: 22 characters, never one that starts like an option."""
    while (text := topic_id_text(entropy.uuid())).startswith("-"):
        pass
    return text


def format_directory(
    path: str, disk: Disk, node_id: int, cluster_id: str, entropy: Entropy
) -> MetaProperties:
    """Write `meta.properties` into a directory that has none and holds nothing. Raises UserError otherwise."""
    held = [entry.name for entry in disk.list("") if entry.name not in _IGNORED]
    if held:
        raise UserError(
            f"log directory {path} has no {META_PROPERTIES} but is not empty ({held[0]}, …): "
            "name an empty directory, or run `strata storage format` on it after moving these away"
        )
    meta = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=entropy.uuid())
    disk.write_file(META_PROPERTIES, encode_meta_properties(meta))
    return meta


def claim(
    disks: Sequence[tuple[str, Disk]], node_id: int, entropy: Entropy
) -> tuple[str, dict[str, UUID]]:
    """Lock every directory, format the empty ones; (cluster id, directory ids by path).

    Raises UserError, one line: locked by another process, or of another node or cluster.
    """
    metas: dict[str, MetaProperties] = {}
    for path, disk in disks:
        if not disk.lock():
            raise UserError(
                f"log directory {path} is in use by another process (its .lock is held)"
            )
        meta = read_meta(path, disk)
        if meta is None:
            continue
        if meta.node_id != node_id:
            raise UserError(
                f"log directory {path} belongs to node {meta.node_id}, this is node {node_id}: "
                "set node.id to it, or name another directory"
            )
        metas[path] = meta
    clusters = {meta.cluster_id for meta in metas.values()}
    if len(clusters) > 1:
        raise UserError(
            "log directories of different clusters: "
            + ", ".join(f"{path} is of {meta.cluster_id}" for path, meta in metas.items())
        )
    cluster_id = clusters.pop() if clusters else new_cluster_id(entropy)
    for path, disk in disks:
        if path not in metas:
            metas[path] = format_directory(path, disk, node_id, cluster_id, entropy)
    return cluster_id, {path: meta.directory_id or UUID(int=0) for path, meta in metas.items()}
