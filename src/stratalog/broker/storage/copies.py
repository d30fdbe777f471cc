"""Decide which copy of a partition counts where log directories hold several, and handle the other copies.

In: the contents of each directory (`survey.py`), the metadata. Out: for each directory, names to load, rename, delete
or keep aside. It decides only; `hosting.py` acts.

A move between directories commits metadata's assignment of a partition to a directory (`moves.py`). The copy there
counts, under its own name or not yet renamed; every other copy is a leftover of the move. For a partition in an offline
directory, a copy in another directory does not count: it may be old.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct, field

from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import (
    Survey,
    future_of,
    parse_directory_name,
    partition_name,
)
from stratalog.errors import UserError
from stratalog.log.checkpoints import PARTITION_METADATA
from stratalog.metadata.image import Image, Topic
from stratalog.wire.ids import TopicIdPartition, TopicPartition, topic_id_text


class Claim(Struct):
    """The decision about each partition directory within one log directory, by name.

    `promoted`: copies of committed moves, with their new names; they are loaded, too. `left`: directories to leave
    alone. `stray`: directories that metadata does not know. `damaged`: the only directory of a partition, without a
    readable topic id; with the reason. `resumed`: moves to this directory that a crash interrupted.
    """

    loaded: list[tuple[str, Topic]] = field(default_factory=list)
    promoted: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    damaged: dict[str, tuple[TopicIdPartition, str]] = field(default_factory=dict)
    resumed: list[TopicIdPartition] = field(default_factory=list)


class Lost(NamedTuple):
    """A partition whose directory is missing: the directory's path, the log's first offset and its end."""

    path: str
    start: int
    end: int


class _Cluster(NamedTuple):
    """The cluster that this broker, `node_id`, knows, and the topics whose deletion it has replayed."""

    image: Image
    node_id: int
    removed_topics: Collection[UUID]


class _Copies(Struct):
    """One partition's directories: those of its name, those of running moves, and those of its name with another id or
    an unreadable one, with the reason.
    """

    named: dict[LogDirectory, str] = field(default_factory=dict)
    futures: dict[LogDirectory, list[str]] = field(default_factory=dict)
    doubtful: dict[LogDirectory, tuple[str, str]] = field(default_factory=dict)


def choose_copies(
    surveys: Mapping[LogDirectory, Survey],
    image: Image,
    node_id: int,
    removed_topics: Collection[UUID],
    *,
    some_away: bool,
) -> dict[LogDirectory, Claim]:
    """Decide on everything at once. Raises UserError where two directories hold a partition and nothing says which.

    The image is that of a node that has caught up: a replica that it places elsewhere is deleted.
    """
    claims = {directory: Claim() for directory in surveys}
    found: dict[TopicIdPartition, _Copies] = {}
    cluster = _Cluster(image, node_id, removed_topics)
    for directory, survey in surveys.items():
        _find(directory, survey, cluster, claims[directory], found)
    homes = {directory.id: directory for directory in surveys}
    for key, copies in found.items():
        topic = image.topics_by_id[key.topic_id]
        assigned = topic.partitions[key.partition].directory_of(node_id)
        home = None if assigned is None else homes.get(assigned)
        # Where the partition may be in another directory, a directory of its name may belong to an earlier topic.
        may_be_elsewhere = bool(copies.named or copies.futures or some_away)
        if assigned is not None and home is None and some_away:
            for directory, name in copies.named.items():
                claims[directory].left.append(name)
            for directory, names in copies.futures.items():
                claims[directory].left += names
        else:
            _choose_one(key, topic, claims, copies, home)
        for directory, (name, reason) in copies.doubtful.items():
            if may_be_elsewhere:
                claims[directory].stray.append(name)
            else:
                claims[directory].damaged[name] = key, reason
    return claims


def find_lost(surveys: Mapping[LogDirectory, Survey]) -> dict[TopicPartition, Lost]:
    """Return the partitions that the checkpoints have at offsets above 0, and that have no directory.

    A checkpoint forgets a partition before its directory is deleted, so these directories were lost.
    """
    found: dict[TopicPartition, Lost] = {}
    for directory, survey in surveys.items():
        names = {partition_name(name) for name, _id in (*survey.partitions, *survey.futures)}
        names |= {name.rpartition(".")[0] for name in survey.leftovers}
        for key, recovery_point in survey.recovery_points.items():
            high_watermark = survey.high_watermarks.get(key, 0)
            name = str(key)
            if name not in names and min(recovery_point, high_watermark) > 0:
                start, end = survey.log_starts.get(key, 0), max(recovery_point, high_watermark)
                found[key] = Lost(f"{directory.path}/{name}", min(start, end), end)
    return found


def _find(
    directory: LogDirectory,
    survey: Survey,
    cluster: _Cluster,
    claim: Claim,
    found: dict[TopicIdPartition, _Copies],
) -> None:
    image, node_id, removed_topics = cluster
    for name, topic_id in survey.partitions:
        key = _key(image, parse_directory_name(name), topic_id)
        if key is not None and not _is_replica(image, key, node_id):
            claim.deleted.append(name)
        elif key is not None:
            found.setdefault(key, _Copies()).named[directory] = name
        elif topic_id in removed_topics or name in survey.unborn:
            claim.deleted.append(name)
        elif (key := _named(image, name)) is not None:
            reason = survey.unreadable.get(name) or _of_another(name, topic_id, key.topic_id)
            found.setdefault(key, _Copies()).doubtful[directory] = name, reason
        else:
            claim.stray.append(name)
    for name, topic_id in survey.futures:
        key = _key(image, parse_directory_name(future_of(name)), topic_id)
        if key is None or not _is_replica(image, key, node_id):
            claim.deleted.append(name)
        else:
            found.setdefault(key, _Copies()).futures.setdefault(directory, []).append(name)


def _choose_one(
    key: TopicIdPartition,
    topic: Topic,
    claims: Mapping[LogDirectory, Claim],
    copies: _Copies,
    home: LogDirectory | None,
) -> None:
    named, futures = copies.named, copies.futures
    if home is not None and home not in named and home in futures:
        future, *others = futures.pop(home)
        if others:
            # A move waits until an abandoned copy is renamed, so only an earlier version of this program can have left
            # two.
            raise UserError(
                f"{home.path}: {future} and {others[0]} are both copies of {future_of(future)}: "
                f"move the one with fewer bytes away"
            )
        claims[home].promoted[future] = future_of(future)
        claims[home].loaded.append((future, topic))
        winner: LogDirectory | None = home
    elif home is not None and home in named:
        winner = home
    else:
        # No move was committed, or a person moved the directory: use the only one.
        if len(named) > 1:
            name = next(iter(named.values()))
            both = " and ".join(sorted(directory.path for directory in named))
            raise UserError(
                f"log.dirs: {both} both hold {name}: move one of the two directories away"
            )
        winner = next(iter(named), None)
    for directory, name in named.items():
        claim = claims[directory]
        if directory is winner:
            claim.loaded.append((name, topic))
        else:
            claim.deleted.append(name)
    for directory, names in futures.items():
        claims[directory].deleted += names
        if winner is not None and directory is not winner:
            claims[directory].resumed.append(key)


def _key(
    image: Image, name: TopicPartition | None, topic_id: UUID | None
) -> TopicIdPartition | None:
    """Return the partition of that name and id, if metadata has it."""
    topic = None if topic_id is None else image.topics_by_id.get(topic_id)
    if (
        topic is None
        or name is None
        or name.topic != topic.name
        or name.partition not in topic.partitions
    ):
        return None
    return TopicIdPartition(topic.id, name.partition)


def _is_replica(image: Image, key: TopicIdPartition, node_id: int) -> bool:
    """Return whether this broker has a replica: if not, it moved to another broker while this one was down."""
    return node_id in image.topics_by_id[key.topic_id].partitions[key.partition].replicas


def _named(image: Image, directory: str) -> TopicIdPartition | None:
    """Return the partition that has the name of a directory, whatever id the directory has."""
    name = parse_directory_name(directory)
    topic = None if name is None else image.topic(name.topic)
    return None if topic is None else _key(image, name, topic.id)


def _of_another(directory: str, found: UUID | None, wanted: UUID) -> str:
    ids = ["none" if one is None else topic_id_text(one) for one in (found, wanted)]
    return f"{directory}/{PARTITION_METADATA} has topic id {ids[0]}, the topic of that name has {ids[1]}"
