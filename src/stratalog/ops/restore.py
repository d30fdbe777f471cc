"""What a node could be made of from a bucket alone.

In: a store. Out: the cluster's topics with what the bucket has of each partition, its committed offsets, and how much
is known to be missing. It changes nothing (`takeover.py` does), and needs no broker.

Two things in the bucket name topics: the registry has those that are tiered, kept current as they are led; the
cluster's state has all of them, as of a moment ago. Where they differ on a name the registry counts if it has learned
of the topic since; what is marked as deleted is left out.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from stratalog.broker.groups import OFFSETS_TOPIC
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.cluster_state import (
    ClusterState,
    StateOffset,
    StatePartition,
    StateTopic,
    newest_state,
)
from stratalog.tier.bucket.identity import TierTopic, list_deleted, list_topics
from stratalog.tier.bucket.incarnation import newest_incarnation
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.reading.reader import Bucket, open_bucket
from stratalog.wire.ids import topic_id_parse

T = TypeVar("T")
_UNKNOWN: Final = StatePartition(-1, -1, -1)


class InOrder(Protocol):
    """Makes calls, several at a time perhaps, and gives their results in order."""

    def __call__(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]: ...


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A partition as the bucket has it.

    `manifest` is None where nothing was ever tiered; `told` is what its leader said of it.
    """

    index: int
    manifest: Manifest | None
    told: StatePartition

    @property
    def end_offset(self) -> int:
        """Where the log goes on: the end of what the bucket has."""
        manifest = self.manifest
        return 0 if manifest is None else max(manifest.tiered_end, manifest.log_start_offset)

    @property
    def missing(self) -> int:
        """Offsets that the leader told of and the bucket has not; what came after it told is not known."""
        start = max(self.end_offset, self.told.log_start_offset)
        return max(0, self.told.end_offset - start)

    @property
    def leader_epoch(self) -> int:
        """The highest that is known; -1 for none."""
        written = -1 if self.manifest is None else self.manifest.leader_epoch
        return max(written, self.told.leader_epoch)


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic; partitions are in order, from 0. `is_registered`: objects of it may be in the bucket."""

    name: str
    id: UUID
    configs: dict[str, str]
    partitions: tuple[FoundPartition, ...]
    is_registered: bool

    @property
    def missing(self) -> int:
        """Offsets of all partitions that are missing. What groups committed is in the state, not in their topic."""
        if self.name == OFFSETS_TOPIC:
            return 0
        return sum(one.missing for one in self.partitions)


@dataclass(frozen=True, slots=True)
class Found:
    """What a bucket holds. `state` is None where it was never told of the cluster; `damaged` are lines for people."""

    cluster_id: str
    incarnation: int
    state: ClusterState | None
    topics: tuple[FoundTopic, ...]
    damaged: tuple[str, ...]

    @property
    def groups(self) -> dict[str, tuple[StateOffset, ...]]:
        """Committed offsets by group."""
        return {} if self.state is None else self.state.groups


def look(store: ObjectStore, in_order: InOrder) -> Found:
    """Read what there is: the newest manifests, the registry, the newest sound state.

    Raises UserError where the bucket is nobody's, Corrupt naming what is damaged and cannot be done without,
    Unavailable.
    """
    bucket = open_bucket(store)
    incarnation = newest_incarnation(store, bucket.cluster_id)
    state, damaged = newest_state(store, bucket.cluster_id, incarnation)
    registered = _registered(bucket, state, damaged)
    named = _named(bucket, registered, state)
    manifests = in_order(
        partial(bucket.manifest, one.registered, number)
        for one in named
        if one.registered is not None
        for number in range(one.partitions)
    )
    topics = tuple(_topic(one, manifests) for one in named)
    return Found(bucket.cluster_id, incarnation, state, topics, tuple(damaged))


class _Named(NamedTuple):
    """A topic as those who name it have it."""

    registered: TierTopic | None
    told: StateTopic | None

    @property
    def partitions(self) -> int:
        told = len(self.told.partitions) if self.told is not None else 0
        return max(told, self.registered.partitions if self.registered is not None else 0)


def _registered(
    bucket: Bucket, state: ClusterState | None, damaged: list[str]
) -> dict[str, TierTopic]:
    """The topics of the registry, by id. One that is damaged there is as the state tells, else left out; `damaged` says
    which.
    """
    found: dict[str, str] = {}
    topics = list_topics(bucket.store, bucket.cluster_id, found)
    told = {topic.topic_id: topic for topic in state.topics} if state is not None else {}
    for path, why in found.items():
        known = told.get(path.rpartition("/")[2])
        if known is None:
            damaged.append(f"{why}; the topic is left out")
            continue
        damaged.append(f"{why}; the topic is as the cluster told")
        topics.append(
            TierTopic(
                cluster_id=bucket.cluster_id,
                name=known.name,
                topic_id=known.topic_id,
                partitions=len(known.partitions),
                configs=known.configs,
            )
        )
    return {topic.topic_id: topic for topic in topics}


def _named(
    bucket: Bucket, registered: dict[str, TierTopic], state: ClusterState | None
) -> list[_Named]:
    """The topics, by name."""
    deleted = {mark.topic_id for mark in list_deleted(bucket.store, bucket.cluster_id)}
    told = {topic.topic_id: topic for topic in state.topics} if state is not None else {}
    told_ms = state.written_ms if state is not None else -1
    by_name = {topic.name: id_ for id_, topic in told.items() if id_ not in deleted}
    for id_, topic in registered.items():  # of one name the newest comes last
        if topic.name not in by_name or topic.created_ms > told_ms:
            by_name[topic.name] = id_
    return [_Named(registered.get(id_), told.get(id_)) for _, id_ in sorted(by_name.items())]


def _topic(one: _Named, manifests: Iterator[Manifest | None]) -> FoundTopic:
    known = one.told or one.registered
    assert known is not None, "somebody named it"
    told = one.told.partitions if one.told is not None else ()
    return FoundTopic(
        name=known.name,
        id=topic_id_parse(known.topic_id),
        configs=known.configs,
        partitions=tuple(
            FoundPartition(
                number,
                next(manifests) if one.registered is not None else None,
                told[number] if number < len(told) else _UNKNOWN,
            )
            for number in range(one.partitions)
        ),
        is_registered=one.registered is not None,
    )
