"""Claim a log directory by its lock and its `meta.properties`; format it on a first start.

In: open disks, the node's id and cluster. Out: the cluster's id and each directory's. It never starts a node and
never removes anything.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from stratalog.broker.storage.directory import LogDirectory
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, UserError
from stratalog.log.checkpoints import (
    META_PROPERTIES,
    MetaProperties,
    decode_meta_properties,
    encode_meta_properties,
)
from stratalog.metadata.image import DIRECTORY_RESERVED_MAX
from stratalog.ports import Disk, Entropy, Outside
from stratalog.wire.ids import ZERO_ID, topic_id_text

_META_BYTES_MAX: Final = 64 * 1024
_IGNORED: Final = {".lock", "lost+found"}


def read_meta(path: str, disk: Disk) -> MetaProperties | None:
    """Return the `meta.properties` of a directory; None where it was never formatted.

    Raises UserError where it is damaged.
    """
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
    """Return a cluster id as Kafka makes them: 22 characters, never one that starts like an option."""
    while (text := topic_id_text(entropy.uuid())).startswith("-"):
        pass
    return text


def format_directory(
    path: str,
    disk: Disk,
    node_id: int,
    cluster_id: str,
    entropy: Entropy,
    directory_id: UUID | None = None,
) -> MetaProperties:
    """Write `meta.properties` into a directory that has none and holds nothing; without `directory_id` with a new id.

    Raises UserError otherwise.
    """
    held = [entry.name for entry in disk.list("") if entry.name not in _IGNORED]
    if held:
        raise UserError(
            f"log directory {path} has no {META_PROPERTIES} but is not empty ({held[0]}, …): "
            "name an empty directory, or run `strata storage format` on it after moving these away"
        )
    meta = MetaProperties(
        cluster_id=cluster_id, node_id=node_id, directory_id=directory_id or entropy.uuid()
    )
    disk.write_file(META_PROPERTIES, encode_meta_properties(meta))
    return meta


def open_directories(
    config: BrokerConfig,
    outside: Outside,
    open_disk: Callable[[str], Disk],
    on_failed: Callable[[LogDirectory, BaseException], None],
) -> tuple[str, list[LogDirectory]]:
    """Open and claim the log directories; return the cluster's id and the directories. An unusable one is offline from
    the start.

    Raises UserError as `claim` does, and leaves nothing open then.
    """
    metadata_path = config.metadata_log_dir
    disks: dict[str, Disk] = {}
    failures: dict[str, OSError] = {}
    try:
        for path in config.log_dirs:
            try:
                disks[path] = open_disk(path)
            except OSError as error:
                failures[path] = error
        if metadata_path in failures:
            raise _unusable(metadata_path, failures[metadata_path])
        node_id = config.int("node.id")
        claimed = claim(
            list(disks.items()), node_id, outside.entropy, metadata_path, is_alone=config.is_alone
        )
    except UserError:
        for disk in disks.values():
            disk.close()
        raise
    failures |= claimed.failures
    for path in claimed.failures:
        disks[path].close()
    return claimed.cluster_id, [
        LogDirectory(
            path,
            failures.get(path) or disks[path],
            outside.workers,
            directory_id=claimed.directory_ids.get(path, ZERO_ID),
            on_failed=on_failed,
        )
        for path in config.log_dirs
    ]


class Claimed(Struct, frozen=True):
    """The claimed directories' ids by path, and the errors of unusable ones by path."""

    cluster_id: str
    directory_ids: Mapping[str, UUID]
    failures: Mapping[str, OSError]


def claim(
    disks: Sequence[tuple[str, Disk]],
    node_id: int,
    entropy: Entropy,
    metadata_path: str,
    *,
    is_alone: bool,
) -> Claimed:
    """Lock every directory; on the first start of a node format the empty ones, `metadata_path` last.

    A directory on a failing drive fails alone. So does an empty directory of a formatted node: probably its drive is
    not mounted. `strata storage format` adds a new directory, as in Kafka. Without `is_alone` the
    first one too is formatted so: with the cluster's id. Raises UserError, one line: locked by another process, of
    another node or cluster, damaged, not formatted, `metadata_path` unusable.
    """
    failures: dict[str, OSError] = {}
    metas: dict[str, MetaProperties] = {}
    empty: list[tuple[str, Disk]] = []
    for path, disk in disks:
        try:
            meta = _lock_and_read(path, disk, node_id)
        except OSError as error:
            failures[path] = error
            continue
        if meta is None:
            empty.append((path, disk))
        else:
            metas[path] = meta
    clusters = {meta.cluster_id for meta in metas.values()}
    if len(clusters) > 1:
        raise UserError(
            "log directories of different clusters: "
            + ", ".join(f"{path} is of {meta.cluster_id}" for path, meta in metas.items())
        )
    cluster_id = _only(clusters, metadata_path, entropy, is_alone=is_alone)
    is_formatted = metadata_path in metas
    for path, disk in sorted(empty, key=lambda one: one[0] == metadata_path):
        try:
            if is_formatted:
                raise OSError(
                    f"it has no {META_PROPERTIES}: mount its drive, "
                    "or run `strata storage format --ignore-formatted`"
                )
            metas[path] = format_directory(path, disk, node_id, cluster_id, entropy)
        except OSError as error:
            failures[path] = error
    if metadata_path in failures:
        raise _unusable(metadata_path, failures[metadata_path])
    ids: dict[str, UUID] = {}
    for path, disk in disks:
        if path in metas:
            try:
                ids[path] = _identified(disk, metas[path], entropy)
            except OSError as error:
                failures[path] = error
    return Claimed(cluster_id, ids, failures)


def _only(clusters: set[str], path: str, entropy: Entropy, *, is_alone: bool) -> str:
    """Return the id of the directories' cluster, a new one where they have none."""
    if clusters:
        return min(clusters)
    if not is_alone:
        raise UserError(
            f"log directory {path} is not formatted: give each node of the cluster the same id with "
            "`strata storage format -t ID`"
        )
    return new_cluster_id(entropy)


def _identified(disk: Disk, meta: MetaProperties, entropy: Entropy) -> UUID:
    """Return the directory's id; where `meta.properties` has none, write one (KIP-858)."""
    if meta.directory_id is not None:
        return meta.directory_id
    identity = entropy.uuid()
    disk.write_file(META_PROPERTIES, encode_meta_properties(replace(meta, directory_id=identity)))
    return identity


def _unusable(path: str, error: OSError) -> UserError:
    """Return the error message for a directory that the node cannot do without."""
    return UserError(f"log directory {path}: {error.strerror or error}")


def _lock_and_read(path: str, disk: Disk, node_id: int) -> MetaProperties | None:
    if not disk.lock():
        raise UserError(f"log directory {path} is in use by another process (its .lock is held)")
    meta = read_meta(path, disk)
    identity = None if meta is None else meta.directory_id
    if identity is not None and identity.int <= DIRECTORY_RESERVED_MAX:
        raise UserError(
            f"log directory {path}: {META_PROPERTIES} has the reserved directory.id {topic_id_text(identity)}: "
            "remove that line, and the start writes another one"
        )
    if meta is not None and meta.node_id != node_id:
        raise UserError(
            f"log directory {path} belongs to node {meta.node_id}, this is node {node_id}: "
            "set node.id to it, or name another directory"
        )
    return meta
