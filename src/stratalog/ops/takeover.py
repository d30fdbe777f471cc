"""Create a node from a bucket: the cluster's next life, in an empty log directory.

In: a store, an empty directory, perhaps the ids of other brokers. Out: the directory of a node that leads every
partition, from the end of the bucket's part; the other brokers are replicas, empty until they start. It starts nothing,
removes nothing from the bucket, and never touches a directory with other contents.

The order makes it safe to interrupt anywhere, and to run twice:

1. The directory gets `meta.properties.restoring`: all its later contents belong to this restore, and another restore
   may remove them. No broker starts on it.
2. The takeover claims the next incarnation: only one of several takeovers gets it, and the nodes of earlier lives are
fenced.
3. Topics are read only now. Each tiered partition gets a manifest version of a leader epoch far above any known one.
   After that its old leader can commit nothing.
4. Logs that continue where the bucket ends, committed offsets and metadata are written.
5. The file of step 1 is renamed to `meta.properties`: the node is complete.

Another run takes the next incarnation. A restored node's objects follow those in the bucket; no object is written
again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final
from uuid import UUID

from stratalog.broker.coordination.groups import OFFSETS_TOPIC
from stratalog.broker.storage.claim import read_meta
from stratalog.broker.storage.survey import METADATA_DIRECTORY, TIER_MANIFEST
from stratalog.config import LogConfig
from stratalog.coordinators.messages import NO_EPOCH
from stratalog.coordinators.placement import partition_for
from stratalog.coordinators.records import KeptOffset, offset_record
from stratalog.errors import Corrupt, UserError
from stratalog.log.checkpoints import (
    LEADER_EPOCHS,
    META_PROPERTIES,
    MetaProperties,
    encode_meta_properties,
)
from stratalog.log.creating import create
from stratalog.log.effects import (
    Append,
    Effect,
    MakeDirectory,
    Sync,
    Together,
    WriteFile,
    perform,
)
from stratalog.log.epochs import LeaderEpochs
from stratalog.log.producers import ProducerStates
from stratalog.log.segment import LOG, SNAPSHOT, segment_path
from stratalog.metadata.image import (
    DIRECTORY_UNASSIGNED,
    INCARNATION,
    TIER_RESOURCE,
    Image,
    Partition,
    ResourceType,
    Topic,
)
from stratalog.metadata.snapshot import encode_snapshot, snapshot_id
from stratalog.ops.restore import Found, FoundPartition, FoundTopic, InOrder, look
from stratalog.ports import Disk, Entropy, ObjectStore
from stratalog.tier.bucket.cluster_state import StateOffset, newest_state
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.incarnation import (
    check_incarnation,
    claim_incarnation,
    newest_incarnation,
)
from stratalog.tier.formats.manifest import Manifest, encode
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.reading.reader import open_bucket
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext
from stratalog.wire.ids import topic_id_parse, topic_id_text
from stratalog.wire.records import Record, build_batch

__all__ = ["ALONE", "RESTORING", "Spread", "Taken", "prepare", "take_over"]

RESTORING: Final = f"{META_PROPERTIES}.restoring"
_NOT_OURS: Final = {".lock", "lost+found"}
_EPOCHS_APART: Final = 1000
"""Times the incarnation: a bound of the leader epochs that the old cluster used after its last state. Clients must not
take the new leader for an older one.
"""
_PRODUCER_IDS_APART: Final = 1 << 32
"""Likewise for producer ids."""
_RECORDS_PER_BATCH: Final = 1000
_METADATA_EPOCH: Final = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a takeover. `moved`: committed offsets past the bucket's end, now at that end."""

    found: Found
    incarnation: int
    node_id: int
    moved: int
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The brokers that shall have the replicas, and how many replicas each partition gets; none: the node alone."""

    brokers: tuple[int, ...] = ()
    replication_factor: int = 1

    def check(self, node_id: int) -> None:
        """Raise UserError where the node is not among the brokers, or there are too few."""
        named = ", ".join(map(str, self.brokers))
        if self.brokers and node_id not in self.brokers:
            raise UserError(
                f"--brokers: {named} lack node {node_id}, which is restored; add it, or name another by --node-id"
            )
        if not 1 <= self.replication_factor <= max(1, len(self.brokers)):
            raise UserError(
                f"--replication-factor: {self.replication_factor} is not 1 to {max(1, len(self.brokers))}, "
                "the number of --brokers"
            )

    def replicas(self, node_id: int, turn: int) -> tuple[int, ...]:
        """Return the replicas of a partition; `turn` counts partitions, so that leaders go round the brokers."""
        ring = self.brokers or (node_id,)
        first = turn % len(ring)
        return (ring[first:] + ring[:first])[: self.replication_factor]


ALONE: Final = Spread()


@dataclass(frozen=True, slots=True)
class _Restored:
    """A restored partition; `manifest`, if any, was committed in `leader_epoch`."""

    index: int
    manifest: Manifest | None
    leader_epoch: int
    end_offset: int
    producers: ProducerStates
    damage: str | None


def prepare(path: str, disk: Disk) -> None:
    """Prepare an empty directory, or one with an unfinished restore, which is removed. Raises UserError for any
    other.
    """
    names = {entry.name for entry in disk.list("")} - _NOT_OURS
    if RESTORING not in names:
        if names:
            meta = read_meta(path, disk)
            held = (
                f"is node {meta.node_id}'s of cluster {meta.cluster_id}"
                if meta is not None
                else f"is not empty ({min(names)}, …)"
            )
            raise UserError(f"log directory {path} {held}: a node is restored into an empty one")
        return
    for entry in disk.list(""):
        if entry.name in _NOT_OURS or entry.name == RESTORING:
            continue
        if entry.is_directory:
            disk.remove_tree(entry.name)
        else:
            disk.unlink(entry.name)


def take_over(  # noqa: PLR0913 - the source, the destination, and the ports
    store: ObjectStore,
    path: str,
    disk: Disk,
    node_id: int | None,
    *,
    spread: Spread = ALONE,
    entropy: Entropy,
    now_ms: int,
    in_order: InOrder,
) -> Taken:
    """Take the bucket's cluster over and write its node; `node_id` None means the id of the state's writer.

    `disk` is the locked directory at `path`. Raises UserError where the directory is not empty, no cluster owns the
    bucket, or another takeover came first; Fenced after a later one; Unavailable and Corrupt: retry.
    """
    prepare(path, disk)
    cluster_id = open_bucket(store).cluster_id
    if node_id is None:
        state, _ = newest_state(store, cluster_id, newest_incarnation(store, cluster_id))
        node_id = 1 if state is None else state.node_id
    spread.check(node_id)
    meta = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=entropy.uuid())
    assert meta.directory_id is not None
    disk.write_file(RESTORING, encode_meta_properties(meta))
    life = claim_incarnation(
        store,
        cluster_id,
        node_id=node_id,
        write_id=topic_id_text(entropy.uuid()),
        now_ms=now_ms,
    )
    found = look(store, in_order)
    # Otherwise the epochs in the bucket may be a later life's, and this takeover must not exceed them.
    check_incarnation(store, cluster_id, life.incarnation)
    restored = in_order(
        partial(_fence, store, found, topic, partition, (node_id, entropy, now_ms))
        for topic in found.topics
        for partition in topic.partitions
    )
    topics = [(topic, [next(restored) for _ in topic.partitions]) for topic in found.topics]
    groups = _Offsets(found, topics)
    effects: list[Effect] = []
    for topic, partitions in topics:
        for one in partitions:
            data = groups.batches(one.index, now_ms) if topic.name == OFFSETS_TOPIC else ()
            effects += _log(topic, one, data, now_ms)
    place = _Place(node_id, meta.directory_id, spread)
    image = _image(found, topics, place, life.incarnation)
    effects += _metadata(image, now_ms)
    together = Together()
    together.add(effects)
    for effect in together.all():
        perform(disk, effect)
    check_incarnation(store, cluster_id, life.incarnation)
    disk.rename(RESTORING, META_PROPERTIES)
    disk.sync_directory("")
    damaged = [one.damage for _, partitions in topics for one in partitions if one.damage]
    return Taken(found, life.incarnation, node_id, groups.moved, (*found.damaged, *damaged))


def _fence(
    store: ObjectStore,
    found: Found,
    topic: FoundTopic,
    partition: FoundPartition,
    writer: tuple[int, Entropy, int],
) -> _Restored:
    """Fence all earlier leaders of the partition; return the manifest that it continues from."""
    node_id, entropy, now_ms = writer
    # Of two takeovers at once the later incarnation's epoch is higher, in any order of their reads.
    index, epoch = partition.index, partition.leader_epoch + _EPOCHS_APART * found.incarnation
    if not topic.is_registered:
        return _Restored(index, None, epoch, 0, ProducerStates(), None)
    context, folder = (
        WriterContext(store, entropy),
        PartitionFolder(found.cluster_id, topic.id, index),
    )
    tier = TierWriter.activate(context, folder, topic.name, Writer(node_id, epoch), now_ms=now_ms)
    manifest = tier.manifest
    end = FoundPartition(index, manifest, partition.in_state).end_offset
    producers, damage = ProducerStates(), None
    try:
        # The last one, or none where nothing is live.
        for segment in ArchiveManifests(store).live(manifest, first=manifest.tiered_end - 1):
            snapshot = load_index(store, segment).producer_snapshot
            producers = ProducerStates.decode(snapshot, now_ms) if snapshot else producers
    except Corrupt as corrupt:
        damage = f"repeats of idempotent producers of {topic.name}-{index} are not known: {corrupt}"
    return _Restored(index, manifest, epoch, end, producers, damage)


class _Offsets:
    """Committed offsets as records of the partitions that coordinate their groups."""

    def __init__(self, found: Found, topics: Sequence[tuple[FoundTopic, list[_Restored]]]) -> None:
        self.moved = 0
        self._records: dict[int, list[tuple[bytes, bytes | None]]] = {}
        ends = {
            (topic.name, one.index): one.end_offset
            for topic, partitions in topics
            for one in partitions
        }
        parts = next((len(found) for topic, found in topics if topic.name == OFFSETS_TOPIC), 0)
        for group, offsets in found.groups.items() if parts else ():
            records = self._records.setdefault(partition_for(group, parts), [])
            for one in offsets:
                kept = self._kept(one, ends.get((one.topic, one.partition), one.offset))
                records.append(offset_record(group, one.topic, one.partition, kept))

    def _kept(self, one: StateOffset, end: int) -> KeptOffset:
        """Return the offset, at most the partition's end: a later offset would skip new records."""
        moves = one.offset > end
        self.moved += moves
        return KeptOffset(
            end if moves else one.offset,
            NO_EPOCH if moves else one.leader_epoch,
            one.metadata,
            one.commit_ms,
            one.expire_ms,
            topic_id_parse(one.topic_id),
        )

    def batches(self, partition: int, now_ms: int) -> Iterator[bytearray]:
        """Yield one partition's log."""
        records = self._records.get(partition, [])
        for start in range(0, len(records), _RECORDS_PER_BATCH):
            some = records[start : start + _RECORDS_PER_BATCH]
            yield build_batch(
                (Record(0, now_ms, key, value, ()) for key, value in some),
                base_offset=start,
                leader_epoch=0,
            )


def _log(
    topic: FoundTopic, one: _Restored, batches: Iterable[bytearray], now_ms: int
) -> list[Effect]:
    """Write a partition's directory: only `batches` are local, all other records are in the bucket."""
    directory = f"{topic.name}-{one.index}"
    end = one.end_offset
    _, made = create(directory, topic.id, LogConfig(), now_ms=now_ms, start_offset=end)
    effects: list[Effect] = [*made]
    data = list(batches)
    if data:
        path = segment_path(directory, 0, LOG)
        effects += [Append(path, 0, data), Sync(path)]
    if one.manifest is not None:
        # Without the epochs in archive manifests: for an older epoch the leader answers its first known offset.
        recent = one.manifest.recent()
        epochs = LeaderEpochs(sorted(p for segment in recent for p in segment.entry.leader_epochs))
        effects += [
            WriteFile(f"{directory}/{LEADER_EPOCHS}", epochs.encode()),
            WriteFile(f"{directory}/{TIER_MANIFEST}", encode(one.manifest)),
        ]
    if len(one.producers):
        snapshot = segment_path(directory, end, SNAPSHOT)
        effects.append(WriteFile(snapshot, one.producers.encode()))
    return effects


@dataclass(frozen=True, slots=True)
class _Place:
    """The node that is restored, its directory, and the brokers beside it."""

    node_id: int
    directory_id: UUID
    spread: Spread

    def partition(self, turn: int, leader_epoch: int) -> Partition:
        """Return a partition that the node leads, alone in sync.

        Where it shall have no replica, it is one until the others are in sync, as in a reassignment.
        """
        target = self.spread.replicas(self.node_id, turn)
        leaves = () if self.node_id in target else (self.node_id,)
        replicas = target + leaves
        return Partition(
            replicas=replicas,
            isr=(self.node_id,),
            leader=self.node_id,
            leader_epoch=leader_epoch,
            directories=tuple(
                self.directory_id if one == self.node_id else DIRECTORY_UNASSIGNED
                for one in replicas
            ),
            adding_replicas=target if leaves else (),
            removing_replicas=leaves,
        )


def _image(
    found: Found,
    topics: Sequence[tuple[FoundTopic, list[_Restored]]],
    place: _Place,
    incarnation: int,
) -> Image:
    """Return metadata in which the node leads everything; its next start names it leader in epochs one higher.

    Brokers that join later learn the incarnation from it.

    It has no feature levels: the first controller sets them, as for a new cluster.
    """
    state, node_id = found.state, place.node_id
    configs = {
        (int(ResourceType.TOPIC), topic.name): topic.configs for topic, _ in topics if topic.configs
    }
    for name, changed in state.brokers.items() if state is not None else ():
        owner = str(node_id) if state is not None and name == str(state.node_id) else name
        if changed:
            configs[int(ResourceType.BROKER), owner] = changed
    configs[TIER_RESOURCE] = {INCARNATION: str(incarnation)}
    turns = count()
    by_id = {
        topic.id: Topic(
            topic.id,
            topic.name,
            {one.index: place.partition(next(turns), one.leader_epoch) for one in partitions},
        )
        for topic, partitions in topics
    }
    seen = [id_ for _, parts in topics for one in parts for id_, _ in one.producers.items()]
    first_unused = max(
        [state.next_producer_id if state is not None else 0, *(id_ + 1 for id_ in seen)]
    )
    return Image(
        offset=0,
        epoch=_METADATA_EPOCH,
        topics_by_id=by_id,
        topic_ids_by_name={topic.name: topic.id for topic in by_id.values()},
        configs=configs,
        next_producer_id=(first_unused // _PRODUCER_IDS_APART + 1) * _PRODUCER_IDS_APART,
    )


def _metadata(image: Image, now_ms: int) -> list[Effect]:
    path = f"{METADATA_DIRECTORY}/{snapshot_id(image).file_name()}"
    return [
        MakeDirectory(METADATA_DIRECTORY),
        WriteFile(path, encode_snapshot(image, now_ms, now_ms)),
    ]
