"""Find the cluster that a node could restore from a bucket alone.

In: a store. Out: the cluster's topics with the segments of each partition, its committed offsets, and the number of
offsets known to be missing. It changes nothing (`takeover.py` does), and needs no broker.

Two places in the bucket name topics. The registry has the tiered topics, kept current by their leaders. The cluster's
state has all topics, as of the time it was written. Where they differ on a name, the registry counts if its entry is
newer. Topics marked as deleted are left out.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from stratalog.broker.coordination.groups import OFFSETS_TOPIC
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
from stratalog.tier.formats.paths import topic_version
from stratalog.tier.reading.reader import Bucket, open_bucket
from stratalog.wire.ids import topic_id_parse

T = TypeVar("T")
_UNKNOWN: Final = StatePartition(-1, -1, -1)


class InOrder(Protocol):
    """Runs calls, perhaps several at a time, and returns their results in order."""

    def __call__(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]: ...


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A partition in the bucket.

    `manifest` is None where nothing was ever tiered; `in_state` is its entry in the cluster's state.
    """

    index: int
    manifest: Manifest | None
    in_state: StatePartition

    @property
    def end_offset(self) -> int:
        """Return the next offset of the restored log: the end of the bucket's part."""
        manifest = self.manifest
        return 0 if manifest is None else max(manifest.tiered_end, manifest.log_start_offset)

    @property
    def missing(self) -> int:
        """Return the number of offsets that the cluster's state has and the bucket lacks; later offsets are unknown."""
        start = max(self.end_offset, self.in_state.log_start_offset)
        return max(0, self.in_state.end_offset - start)

    @property
    def leader_epoch(self) -> int:
        """The highest known leader epoch; -1 for none."""
        written = -1 if self.manifest is None else self.manifest.leader_epoch
        return max(written, self.in_state.leader_epoch)


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
        """The number of missing offsets in all partitions; 0 for the offsets topic, whose contents are in the state."""
        if self.name == OFFSETS_TOPIC:
            return 0
        return sum(one.missing for one in self.partitions)


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of a bucket. `state` is None where it has none of the cluster; `damaged` are lines for people."""

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
    """Read a bucket's newest manifests, its registry, and its newest undamaged state.

    Raises UserError where no cluster owns the bucket, Corrupt naming a damaged object that is indispensable,
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
    """A topic in the registry, in the state, or in both."""

    registered: TierTopic | None
    in_state: StateTopic | None

    @property
    def partitions(self) -> int:
        in_state = len(self.in_state.partitions) if self.in_state is not None else 0
        return max(in_state, self.registered.partitions if self.registered is not None else 0)


def _registered(
    bucket: Bucket, state: ClusterState | None, damaged: list[str]
) -> dict[str, TierTopic]:
    """Return the topics of the registry, by id.

    The state's entry replaces a damaged one; without it the topic is left out. `damaged` gets a line for each.
    """
    found: dict[str, str] = {}
    topics = list_topics(bucket.store, bucket.cluster_id, found, probe=True)
    in_state = {topic.topic_id: topic for topic in state.topics} if state is not None else {}
    for path, why in found.items():
        state_topic = in_state.get(topic_version(path)[0].rpartition("/")[2])
        if state_topic is None:
            damaged.append(f"{why}; the topic is left out")
            continue
        damaged.append(f"{why}; the topic comes from the cluster's state")
        topics.append(
            TierTopic(
                cluster_id=bucket.cluster_id,
                name=state_topic.name,
                topic_id=state_topic.topic_id,
                partitions=len(state_topic.partitions),
                configs=state_topic.configs,
            )
        )
    return {topic.topic_id: topic for topic in topics}


def _named(
    bucket: Bucket, registered: dict[str, TierTopic], state: ClusterState | None
) -> list[_Named]:
    """Return the topics, by name."""
    deleted = {mark.topic_id for mark in list_deleted(bucket.store, bucket.cluster_id)}
    in_state = {topic.topic_id: topic for topic in state.topics} if state is not None else {}
    state_ms = state.written_ms if state is not None else -1
    by_name = {topic.name: id_ for id_, topic in in_state.items() if id_ not in deleted}
    for id_, topic in registered.items():  # of one name the newest comes last
        if topic.name not in by_name or topic.created_ms > state_ms:
            by_name[topic.name] = id_
    return [_Named(registered.get(id_), in_state.get(id_)) for _, id_ in sorted(by_name.items())]


def _topic(one: _Named, manifests: Iterator[Manifest | None]) -> FoundTopic:
    described = one.in_state or one.registered
    assert described is not None, "registry or state names it"
    in_state = one.in_state.partitions if one.in_state is not None else ()
    return FoundTopic(
        name=described.name,
        id=topic_id_parse(described.topic_id),
        configs=described.configs,
        partitions=tuple(
            FoundPartition(
                number,
                next(manifests) if one.registered is not None else None,
                in_state[number] if number < len(in_state) else _UNKNOWN,
            )
            for number in range(one.partitions)
        ),
        is_registered=one.registered is not None,
    )
