"""Host partitions: the directory of each, and the actions that a change of metadata requires.

In: the metadata image and its deltas, the log directories. Out: hosted partitions, found by name or id. It never
decides which partitions to host: metadata does.

At start every directory loads its partitions in parallel on its own thread. A directory that was closed cleanly is
trusted, any other is recovered from its recovery points. Directories of unknown partitions stay until a new partition
needs their name. Then they are renamed to `-stray`, and never deleted: metadata may have lost the records about them.
Directories of topics whose deletion metadata records are deleted. A partition whose directory is damaged is offline.

A change is acted on at once. A partition may be used as soon as it is in the tables, because its effects run after
the creation of its directory, in the same order. So a stalled drive delays requests for its partitions, and no other
change. A change of many partitions goes in slices, each in a turn of the event loop of its own.

A partition's role (`replication/roles.py`) says what the broker does with it. Subscribers learn what a new role
changes.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

import structlog

from stratalog.broker.partitions.checkpointing import Checkpoints
from stratalog.broker.partitions.creating import Creating, all_of
from stratalog.broker.partitions.loading import Loaded, Loading
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.settings import configured_topics, log_configs
from stratalog.broker.storage.asides import Asides
from stratalog.broker.storage.directory import LogDirectory
from stratalog.config import BrokerConfig, LogConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.partition_log import PartitionLog
from stratalog.log.tail import TailBudget
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import (
    EMPTY,
    Image,
    Partition,
    Topic,
)
from stratalog.ports import Clock, Entropy
from stratalog.replication.partition import NO_EPOCH, PartitionReplica
from stratalog.replication.roles import (
    Delete,
    Follow,
    Lead,
    Role,
    Stop,
    Transition,
    replicas_of,
    roles,
)
from stratalog.wire.ids import TopicIdPartition, TopicPartition, topic_id_text

T = TypeVar("T")
OnHosted = Callable[[HostedPartition], None]
_PARTITIONS_A_TURN: Final = 100
_DISCARDED_A_TURN: Final = 1000
"""More at once, for each such slice costs a sync of its log directory."""
_SETTINGS_A_TURN: Final = 1000


OnTransition = Callable[[Transition, HostedPartition], None]


class Hosting:
    """Every partition of this broker, by topic id and index, and by name for the wire's sake."""

    def __init__(
        self,
        config: BrokerConfig,
        node_id: int,
        directories: Sequence[LogDirectory],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.directories = directories
        self.by_id: dict[TopicIdPartition, HostedPartition] = {}
        self._topics: dict[str | UUID, dict[int, HostedPartition]] = {}
        """The partitions of each topic, by its name and by its id: each request looks here, and makes no tuple."""
        self._config = config
        self._node_id = node_id
        self._clock = clock
        self.asides = Asides(entropy)
        self._tails = TailBudget()
        self._image = EMPTY
        self._turn = asyncio.Lock()
        self._changing: list[Collection[TopicIdPartition]] = []
        """The partitions of each change that is not carried out yet, in order."""
        self.checkpoints = Checkpoints(self.by_id)
        self._log = structlog.get_logger()
        self.damaged: dict[TopicIdPartition, str] = {}
        """Partitions that are offline, as their directories are damaged, with the reason."""
        self.resumed: list[tuple[TopicIdPartition, str]] = []
        """Moves that a crash ended, with the directory they went to."""
        self.on_transition: list[OnTransition] = []
        self.on_placed: list[Callable[[dict[TopicIdPartition, UUID]], None]] = []
        """Called with partitions that metadata does not know to be where they are, and with that directory."""
        self.on_rolled: list[OnHosted] = []
        self.on_tier_changed: list[OnHosted] = []

    def find(self, topic: str | UUID, index: int) -> HostedPartition | None:
        """Return the hosted partition of that topic, by name or by id, or None."""
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def get(self, topic: str, index: int) -> HostedPartition:
        """As `find`; raises Rejected as Kafka's `ReplicaManager.getPartitionOrError`.

        UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER where metadata knows it and it is not here, or not yet;
        KAFKA_STORAGE_ERROR where its log directory is offline or it is damaged.
        """
        found = self.find(topic, index)
        if found is None:
            raise self._missing(self._image.topic(topic), f"{topic}-{index}", index)
        found.check_hosted()
        return found

    def get_by_id(self, topic_id: UUID, index: int) -> HostedPartition:
        """The hosted partition of that id; raises Rejected as `get`, and UNKNOWN_TOPIC_ID."""
        found = self.find(topic_id, index)
        if found is None:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is None:
                raise Rejected(ErrorCode.unknown_topic_id, f"no topic {topic_id_text(topic_id)}")
            raise self._missing(topic, f"{topic.name}-{index}", index)
        found.check_hosted()
        return found

    def _missing(self, topic: Topic | None, name: str, index: int) -> Rejected:
        partition = None if topic is None else topic.partitions.get(index)
        if topic is None or partition is None:
            return Rejected(ErrorCode.unknown_topic_or_partition, f"no partition {name}")
        key = TopicIdPartition(topic.id, index)
        if self._node_id not in partition.replicas or any(key in one for one in self._changing):
            return Rejected(ErrorCode.not_leader_or_follower, f"{name} is not here, or not yet")
        reason = self.damaged.get(key, f"the log directory of {name} is away")
        return Rejected(ErrorCode.kafka_storage_error, reason)

    def all(self) -> Iterable[HostedPartition]:
        """Every hosted partition, safe against changes while iterating."""
        return list(self.by_id.values())

    @property
    def is_deleting(self) -> bool:
        """Whether a crash now could leave a directory that only the metadata log knows to be deleted."""
        return bool(self._changing) or self.asides.is_deleting

    async def start(self, image: Image, removed_topics: Collection[UUID]) -> None:
        """Load what is on disk, create what metadata asks for and disk lacks. Leads nothing yet: see `apply`.

        A directory that cannot be read is left out, as a failed one; nothing is created then that may be in it. Raises
        UserError where two directories hold the same partition.
        """
        self._image = image

        def add(found: Loaded) -> None:
            name = found.name
            partition = found.topic.partitions[name.partition]
            replica = self._replica(partition, partition.leader_epoch, found.high_watermark)
            hosted = self._add(
                TopicIdPartition(found.topic.id, name.partition),
                name,
                found.log,
                found.directory,
                replica,
            )
            hosted.was_tiered = found.was_tiered

        loading = Loading(self.asides, self.checkpoints, self._clock, self._tails, add)
        configs = log_configs(image, self._node_id, self._config)
        await loading.run(self.directories, image, self._node_id, removed_topics, configs)
        self.damaged, self.resumed = loading.damaged, loading.resumed
        creating = Creating(self.asides, self._tails, configs, loading.lost)
        for part in _slices(replicas_of(image, self._node_id), _PARTITIONS_A_TURN):
            for topic, index, partition in part:
                self._create(creating, topic, index, partition, is_new=False)
            await asyncio.sleep(0)
        creating.flush()
        for part in _slices(replicas_of(image, self._node_id), _PARTITIONS_A_TURN):
            for topic, index, partition in part:
                self._admit(creating, TopicIdPartition(topic.id, index), partition)
            creating.writes += self._configure(((topic, index) for topic, index, _ in part), image)
            await asyncio.sleep(0)
        await all_of(creating.writes)

    def apply(self, image: Image, delta: Delta) -> "asyncio.Future[None] | None":
        """Do what changed metadata asks: delete, create, take new roles and new settings.

        The future, where there is one, waits for new partitions' directories.
        """
        self._image = image
        changed = roles(delta, image, self._node_id)
        creating = Creating(
            self.asides, self._tails, log_configs(image, self._node_id, self._config)
        )
        steps = self._carry_out(
            creating, image, changed, configured_topics(image, delta, self._node_id)
        )
        if not self._changing and next(steps, None) is None:
            return creating.done()
        self._changing.append(changed)
        return asyncio.get_running_loop().create_task(self._go_on(steps, creating))

    async def _go_on(self, steps: Iterator[bool], creating: Creating) -> None:
        """Carry out the rest of a change, once all changes before it are carried out."""
        async with self._turn:  # it is given in the order in which they ask
            try:
                for _ in steps:
                    await asyncio.sleep(0)
            finally:
                del self._changing[0]
        await all_of(creating.writes)

    def _carry_out(
        self,
        creating: Creating,
        image: Image,
        changed: Mapping[TopicIdPartition, Role],
        configured: Iterable[Topic],
    ) -> Iterator[bool]:
        """Carry a change out; yield True where another turn should go on."""
        yield from self._delete(changed)
        yield from self._keep(creating, image, changed)
        names = ((topic, index) for topic in configured for index in topic.partitions)
        for part in _slices(names, _SETTINGS_A_TURN):
            creating.writes += self._configure(part, image)
            if len(part) == _SETTINGS_A_TURN:
                yield True

    def _delete(self, changed: Mapping[TopicIdPartition, Role]) -> Iterator[bool]:
        gone: list[HostedPartition] = []
        deleted = ((key, role) for key, role in changed.items() if isinstance(role, Delete))
        for part in _slices(deleted, _PARTITIONS_A_TURN):
            gone += self._remove(part)
            if len(part) == _PARTITIONS_A_TURN:
                yield True
        for part_gone in _slices(gone, _DISCARDED_A_TURN):
            yield from self._discard(part_gone)
            if len(part_gone) == _DISCARDED_A_TURN:
                yield True

    def _keep(
        self, creating: Creating, image: Image, changed: Mapping[TopicIdPartition, Role]
    ) -> Iterator[bool]:
        """Create what is missing, in one write for each log directory; then give each partition its role."""
        kept = [(key, role) for key, role in changed.items() if not isinstance(role, Delete)]
        for part in _slices(kept, _PARTITIONS_A_TURN):
            for key, role in part:
                if not isinstance(role, Stop):
                    topic = image.topics_by_id[key.topic_id]
                    partition = topic.partitions[key.partition]
                    self._create(creating, topic, key.partition, partition, is_new=role.is_new)
            if len(part) == _PARTITIONS_A_TURN:
                yield True
        creating.flush()
        for part in _slices(kept, _PARTITIONS_A_TURN):
            for key, role in part:
                topic = image.topics_by_id[key.topic_id]
                self._admit(creating, key, topic.partitions[key.partition])
                self._take(self.by_id.get(key), role)
            self._notify_placed(key for key, _ in part)
            if len(part) == _PARTITIONS_A_TURN:
                yield True

    # Creating

    def _create(
        self, creating: Creating, topic: Topic, index: int, partition: Partition, *, is_new: bool
    ) -> None:
        """Create a partition that is not here, empty. `is_new`: metadata placed no replica here before."""
        key = TopicIdPartition(topic.id, index)
        if key in self.by_id or key in self.damaged:
            return  # what is damaged must not be taken for empty
        loaded = self.checkpoints.directories
        if not is_new and len(loaded) < len(self.directories):
            return  # it may be in the directory that is away: another one must not begin at 0
        name = TopicPartition(topic.name, index)
        directory = creating.place(loaded, self.by_id.values())
        if directory is None:
            self._log.error("no log directory is left", partition=str(name))
            return
        # Nothing was written in the epoch of a new replica; another one's may have been led before a restart.
        epoch = NO_EPOCH if is_new else partition.leader_epoch
        creating.create(name, topic, directory, epoch, self._clock.steady_ms())

    def _admit(self, creating: Creating, key: TopicIdPartition, partition: Partition) -> None:
        """Put a partition that was created into the tables, once its directory's write is queued."""
        made = creating.made.pop(key, None)
        if made is not None:
            replica = self._replica(partition, made.leader_epoch, made.log.log_end_offset)
            self._add(key, made.name, made.log, made.directory, replica)

    def _replica(
        self, partition: Partition, leader_epoch: int, high_watermark: int
    ) -> PartitionReplica:
        return PartitionReplica(
            node_id=self._node_id,
            replicas=partition.replicas,
            isr=partition.isr,
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
        )

    def _add(
        self,
        key: TopicIdPartition,
        name: TopicPartition,
        log: PartitionLog,
        directory: LogDirectory,
        replica: PartitionReplica,
    ) -> HostedPartition:
        hosted = HostedPartition(
            key, name, log, directory, replica, self._clock, on_rolled=self._rolled
        )
        self.by_id[key] = hosted
        partitions = self._topics.setdefault(key.topic_id, {})
        partitions[key.partition] = hosted
        self._topics[name.topic] = partitions
        return hosted

    def _rolled(self, hosted: HostedPartition) -> None:
        for react in self.on_rolled:
            react(hosted)

    # Settings

    def _configure(
        self, partitions: Iterable[tuple[Topic, int]], image: Image
    ) -> "list[asyncio.Future[None]]":
        """Give partitions their topics' settings; return what must be waited for."""
        restarted: set[LogDirectory] = set()
        config_of = log_configs(image, self._node_id, self._config)
        for topic, index in partitions:
            hosted = self.by_id.get(TopicIdPartition(topic.id, index))
            if hosted is None:
                continue
            if self._configure_one(hosted, config_of(topic)):
                restarted.add(hosted.directory)
        loop = asyncio.get_running_loop()
        return [loop.create_task(self.checkpoints.write(one)) for one in restarted]

    def _configure_one(self, hosted: HostedPartition, config: LogConfig) -> bool:
        """Configure one log; return whether its start rose to the local start, which the checkpoints must record."""
        start = hosted.log.log_start_offset
        changes_tier = config.remote_storage_enable != hosted.log.config.remote_storage_enable
        hosted.log.configure(config)
        for react in self.on_tier_changed if changes_tier and hosted.replica.leads else ():
            react(hosted)
        return hosted.log.log_start_offset > start

    # Roles

    def _take(self, hosted: HostedPartition | None, role: Lead | Follow | Stop) -> None:
        """Give a partition its role, and tell subscribers what that changes."""
        if hosted is None or hosted.directory.failure is not None:
            return  # it is stopped already
        begins = role.leader_epoch > hosted.replica.leader_epoch
        if isinstance(role, Lead):
            if hosted.lead(role.leader_epoch, role.replicas, role.isr):
                self._notify(Transition.LED, hosted)
            return
        if hosted.resign(role.leader_epoch):
            self._notify(Transition.RESIGNED, hosted)
        if begins:
            follows = isinstance(role, Follow)
            self._notify(Transition.FOLLOWED if follows else Transition.STOPPED, hosted)

    def stop_failed(self, directory: LogDirectory) -> None:
        """Stop what lives in a directory that failed: each pending append gets KAFKA_STORAGE_ERROR.

        A partition whose move is about to end may live elsewhere soon: `moves.py` calls this again once it has ended.
        """
        assert directory.failure is not None, "it has failed"
        for hosted in self.all():
            if hosted.directory is directory and not hosted.is_holding:
                error = directory.refusal(directory.failure)
                if hosted.resign(hosted.replica.leader_epoch, error):
                    self._notify(Transition.RESIGNED, hosted)
                    self._notify(Transition.STOPPED, hosted)

    def _notify(self, transition: Transition, hosted: HostedPartition) -> None:
        for react in self.on_transition:
            react(transition, hosted)

    def _notify_placed(self, keys: Iterable[TopicIdPartition]) -> None:
        placed = self.unassigned(keys) if len(self.directories) > 1 else {}
        for react in self.on_placed if placed else ():
            react(placed)

    def unassigned(self, keys: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, UUID]:
        """Return those of these partitions that metadata does not know to be where they are, with where that is."""
        found: dict[TopicIdPartition, UUID] = {}
        for key in keys:
            hosted, partition = self.by_id.get(key), self._image.partition(*key)
            if hosted is None or partition is None:
                continue
            if hosted.is_holding or hosted.directory.failure is not None:
                continue
            if partition.directory_of(self._node_id) != hosted.directory.id:
                found[key] = hosted.directory.id
        return found

    # Deleting

    def _remove(
        self, deleted: Iterable[tuple[TopicIdPartition, Delete]]
    ) -> Iterator[HostedPartition]:
        """Take partitions out of the tables, and answer all that is pending."""
        for key, role in deleted:
            self.damaged.pop(key, None)
            hosted = self.by_id.pop(key, None)
            if hosted is None:
                continue
            name = hosted.name
            partitions = self._topics[key.topic_id]
            del partitions[key.partition]
            if not partitions:
                del self._topics[key.topic_id]
                if (
                    self._topics.get(name.topic) is partitions
                ):  # no topic has come under that name since
                    del self._topics[name.topic]
            led = hosted.replica.leads
            hosted.retire(
                Rejected(ErrorCode.unknown_topic_or_partition, f"{name} was deleted")
                if role.topic_is_deleted
                else Rejected(ErrorCode.not_leader_or_follower, f"{name} is not here any more")
            )
            if led:
                self._notify(Transition.RESIGNED, hosted)
            yield hosted

    def _discard(self, gone: Sequence[HostedPartition]) -> Iterator[bool]:
        for directory in self.directories:
            here = [one for one in gone if directory in one.copies]
            if here:
                yield from self._put_aside(directory, here)
        for hosted in gone:
            self._notify(Transition.DELETED, hosted)

    def put_aside(self, directory: LogDirectory, gone: Sequence[HostedPartition]) -> None:
        """Delete, in this turn, what a directory has of partitions that are not there any more."""
        for _ in self._put_aside(directory, gone):
            pass

    def _put_aside(
        self, directory: LogDirectory, gone: Sequence[HostedPartition]
    ) -> Iterator[bool]:
        """Rename first, as Kafka does, so that the name is free at once; remove after it.

        The checkpoints forget them before: another topic of that name must not be taken for what these were.
        """
        self.checkpoints.forget(directory, gone)
        with suppress(Rejected):  # the directory has failed, which has its own line
            if self.checkpoints.names_any(directory, gone):
                written = yield from self.checkpoints.write_in_steps(directory)
                written.add_done_callback(lambda written: written.exception())
            self.asides.discard(directory, [one.log.directory for one in gone])

    async def close(self) -> None:
        """Close every log cleanly, once every change is carried out."""
        async with self._turn:
            await self.checkpoints.close()


def _slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in order, `size` of them at a time."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
