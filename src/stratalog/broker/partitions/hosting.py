"""Host partitions: the directory of each, and the actions that a change of metadata requires.

In: the metadata image and its deltas, the log directories. Out: hosted partitions (`hosted_partitions.py` finds them).
It never decides which partitions to host: metadata does.

At start every directory loads its partitions in parallel on its own thread. A directory that was closed cleanly is
trusted, any other is recovered from its recovery points. Directories of unknown partitions stay until a new partition
needs their name. Then they are renamed to `-stray`, and never deleted: metadata may have lost the records about them.
If metadata records a topic's deletion, or places a replica on other brokers, its directories are deleted. A partition
whose directory is damaged is offline.

The broker acts on a change at once. Clients may use a partition as soon as it is in the tables, because its effects run
after the creation of its directory. So a stalled drive delays requests for its partitions, and no other change. A
change of many partitions goes in slices, each in a turn of the event loop of its own.

A partition's role (`replication/roles.py`) says what the broker does with it. Subscribers learn what a new role
changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar
from uuid import UUID

import structlog

from stratalog.broker.partitions.checkpointing import Checkpoints
from stratalog.broker.partitions.creating import Creating, all_of
from stratalog.broker.partitions.hosted_partitions import HostedPartitions
from stratalog.broker.partitions.loading import Loaded, Loading
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.settings import configured_topics, log_configs
from stratalog.broker.slices import slices
from stratalog.broker.storage.asides import Asides
from stratalog.broker.storage.directory import LogDirectory
from stratalog.config import BrokerConfig, LogConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.tail import TailBudget
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import (
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
from stratalog.wire.ids import TopicIdPartition, TopicPartition

T = TypeVar("T")
OnHosted = Callable[[HostedPartition], None]
_PARTITIONS_A_TURN: Final = 100
_DISCARDED_A_TURN: Final = 1000
"""Larger than other slices, because each slice that creates partitions costs a sync of its log directory."""
_SETTINGS_A_TURN: Final = 1000


OnTransition = Callable[[Transition, HostedPartition], None]


class Hosting(HostedPartitions):
    """The partitions of this broker. Call `start`, then `apply` for each metadata change."""

    def __init__(
        self,
        config: BrokerConfig,
        node_id: int,
        directories: Sequence[LogDirectory],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        super().__init__(node_id)
        self.directories = directories
        self._config = config
        self._clock = clock
        self.asides = Asides(entropy)
        self._tails = TailBudget()
        self._turn = asyncio.Lock()
        self.checkpoints = Checkpoints(self)
        self._log = structlog.get_logger()
        self.resumed: list[tuple[TopicIdPartition, str]] = []
        """Moves that a crash interrupted, with their target directories."""
        self.previous_epoch = NO_EPOCH
        """The broker epoch that the last clean shutdown left; -1 where it was not clean in every directory."""
        self.on_transition: list[OnTransition] = []
        self.on_placed: list[Callable[[dict[TopicIdPartition, UUID]], None]] = []
        """Called with partitions whose directory differs from the one in metadata, and with their directory."""
        self.on_rolled: list[OnHosted] = []
        self.on_tier_changed: list[OnHosted] = []
        self.defers: Callable[[HostedPartition, Role], bool] = lambda _hosted, _role: False
        """Returns whether a role must wait: then `take` is called once it need not."""
        self.bucket_clean_end: Callable[[HostedPartition], Awaitable[int]] | None = None
        """Returns the offset below which the bucket's part of a tiered partition is clean."""

    @property
    def is_deleting(self) -> bool:
        """Whether a crash now could leave a directory that only the metadata log knows to be deleted."""
        return bool(self._changing) or self.asides.is_deleting

    async def start(self, image: Image, removed_topics: Collection[UUID]) -> None:
        """Load the partitions on disk, and create those that metadata has and the disk lacks. Lead nothing yet: see
        `apply`.

        An unreadable directory counts as failed; no partition that may be in it is created elsewhere. Raises UserError
        where two directories hold the same partition.
        """
        self._image = image

        def add(found: Loaded) -> None:
            name = found.name
            partition = found.topic.partitions[name.partition]
            self._add(
                HostedPartition(
                    TopicIdPartition(found.topic.id, name.partition),
                    name,
                    found.log,
                    found.directory,
                    self._replica(partition, partition.leader_epoch, found.high_watermark),
                    self._clock,
                    was_tiered=found.was_tiered,
                    on_rolled=self._rolled,
                )
            )

        loading = Loading(self.asides, self.checkpoints, self._clock, self._tails, add)
        configs = log_configs(image, self._node_id, self._config)
        await loading.run(self.directories, image, self._node_id, removed_topics, configs)
        self.damaged, self.resumed = loading.damaged, loading.resumed
        self.previous_epoch = loading.previous_epoch
        creating = Creating(self.asides, self._tails, configs, loading.lost)
        for part in slices(replicas_of(image, self._node_id), _PARTITIONS_A_TURN):
            for topic, index, partition in part:
                self._create(creating, topic, index, partition.leader_epoch, is_new=False)
            await asyncio.sleep(0)
        creating.flush()
        for part in slices(replicas_of(image, self._node_id), _PARTITIONS_A_TURN):
            for topic, index, partition in part:
                self._admit(creating, TopicIdPartition(topic.id, index), partition)
            creating.writes += self._configure(((topic, index) for topic, index, _ in part), image)
            await asyncio.sleep(0)
        await all_of(creating.writes)

    def apply(self, image: Image, delta: Delta) -> "asyncio.Future[None] | None":
        """Carry out a metadata change: delete and create partitions, take new roles and settings.

        The future, if any, waits for the directories of new partitions.
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
        async with self._turn:  # the lock is granted in the order of requests
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
        for part in slices(names, _SETTINGS_A_TURN):
            creating.writes += self._configure(part, image)
            if len(part) == _SETTINGS_A_TURN:
                yield True

    def _delete(self, changed: Mapping[TopicIdPartition, Role]) -> Iterator[bool]:
        gone: list[HostedPartition] = []
        deleted = ((key, role) for key, role in changed.items() if isinstance(role, Delete))
        for part in slices(deleted, _PARTITIONS_A_TURN):
            gone += self._retire(part)
            if len(part) == _PARTITIONS_A_TURN:
                yield True
        for part_gone in slices(gone, _DISCARDED_A_TURN):
            yield from self._discard(part_gone)
            if len(part_gone) == _DISCARDED_A_TURN:
                yield True

    def _keep(
        self, creating: Creating, image: Image, changed: Mapping[TopicIdPartition, Role]
    ) -> Iterator[bool]:
        """Create missing partitions, in one write for each log directory; then give each partition its role."""
        kept = [(key, role) for key, role in changed.items() if not isinstance(role, Delete)]
        for part in slices(kept, _PARTITIONS_A_TURN):
            for key, role in part:
                if not isinstance(role, Stop):
                    # A start creates each replica that may have led. One that is created now begins its epoch, also
                    # one that was added while no broker led.
                    topic = image.topics_by_id[key.topic_id]
                    self._create(creating, topic, key.partition, NO_EPOCH, is_new=role.is_new)
            if len(part) == _PARTITIONS_A_TURN:
                yield True
        creating.flush()
        for part in slices(kept, _PARTITIONS_A_TURN):
            for key, role in part:
                topic = image.topics_by_id[key.topic_id]
                self._admit(creating, key, topic.partitions[key.partition])
                self._take(self.by_id.get(key), role)
            self._notify_placed(key for key, _ in part)
            if len(part) == _PARTITIONS_A_TURN:
                yield True

    # Creating

    def _create(
        self, creating: Creating, topic: Topic, index: int, epoch: int, *, is_new: bool
    ) -> None:
        """Create a partition that is not here, empty. `is_new`: metadata placed no replica here before.

        `epoch` is the newest leader epoch in which this broker has a role: a start gives it that of the metadata, a
        change gives it the next role.
        """
        key = TopicIdPartition(topic.id, index)
        if key in self.by_id or key in self.damaged:
            return  # an empty log must not replace a damaged one
        loaded = self.checkpoints.directories
        if not is_new and len(loaded) < len(self.directories):
            return  # the missing directory may hold the log: another one must not begin at offset 0
        name = TopicPartition(topic.name, index)
        directory = creating.place(loaded, self.per_directory)
        if directory is None:
            self._log.error("no log directory is left", partition=str(name))
            return
        creating.create(name, topic, directory, epoch, self._clock.steady_ms())

    def _admit(self, creating: Creating, key: TopicIdPartition, partition: Partition) -> None:
        """Add a created partition to the tables, once the creation of its directory is queued."""
        made = creating.made.pop(key, None)
        if made is not None:
            replica = self._replica(partition, made.leader_epoch, made.log.log_end_offset)
            self._add(
                HostedPartition(
                    key,
                    made.name,
                    made.log,
                    made.directory,
                    replica,
                    self._clock,
                    on_rolled=self._rolled,
                )
            )

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

    def _rolled(self, hosted: HostedPartition) -> None:
        for react in self.on_rolled:
            react(hosted)

    # Settings

    def _configure(
        self, partitions: Iterable[tuple[Topic, int]], image: Image
    ) -> "list[asyncio.Future[None]]":
        """Give partitions their topics' settings; return the writes to wait for."""
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
        hosted.configure(config)
        for react in self.on_tier_changed if changes_tier and hosted.replica.leads else ():
            react(hosted)
        return hosted.log.log_start_offset > start

    # Roles

    def _take(self, hosted: HostedPartition | None, role: Lead | Follow | Stop) -> None:
        """Give a partition its role, and notify the subscribers of what that changes."""
        if hosted is None or hosted.deleted or hosted.directory.failure is not None:
            return  # it is stopped already
        if hosted.rewriting is not None:
            hosted.rewriting.add_done_callback(lambda _: self._take(hosted, role))
            return
        if not self.defers(hosted, role):
            self.take(hosted, role)

    def take(self, hosted: HostedPartition, role: Lead | Follow | Stop) -> None:
        """Give a partition its role now."""
        for transition in hosted.take(role):
            self._notify(transition, hosted)

    def stop(self, hosted: HostedPartition, error: Rejected | None = None) -> None:
        """Stop a partition until its next role: it neither leads nor follows. Each pending append gets `error`."""
        if hosted.resign(hosted.replica.leader_epoch, error):
            self._notify(Transition.RESIGNED, hosted)
        self._notify(Transition.STOPPED, hosted)

    def stop_failed(self, directory: LogDirectory) -> None:
        """Stop the partitions of a failed directory: each pending append gets KAFKA_STORAGE_ERROR.

        A partition whose move is about to end may live elsewhere soon: `moves.py` calls this again after the move.
        """
        assert directory.failure is not None, "it has failed"
        for hosted in self.all():
            if hosted.directory is directory and not hosted.is_holding:
                self.stop(hosted, directory.refusal(directory.failure))

    def _notify(self, transition: Transition, hosted: HostedPartition) -> None:
        for react in self.on_transition:
            react(transition, hosted)

    def _notify_placed(self, keys: Iterable[TopicIdPartition]) -> None:
        placed = self.unassigned(keys) if len(self.directories) > 1 else {}
        for react in self.on_placed if placed else ():
            react(placed)

    # Deleting

    def _retire(
        self, deleted: Iterable[tuple[TopicIdPartition, Delete]]
    ) -> Iterator[HostedPartition]:
        """Remove partitions from the tables, and answer all their pending requests."""
        for key, role in deleted:
            hosted = self._remove(key)
            if hosted is None:
                continue
            name, led = hosted.name, hosted.replica.leads
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
        """Delete, in this turn, the files of removed partitions in a directory."""
        for _ in self._put_aside(directory, gone):
            pass

    def _put_aside(
        self, directory: LogDirectory, gone: Sequence[HostedPartition]
    ) -> Iterator[bool]:
        """Rename the partitions first, as Kafka does, so that their names are free at once; delete the files later.

        The checkpoints drop their lines first: a later topic of the same name must not inherit them.
        """
        self.checkpoints.forget(directory, gone)
        with suppress(Rejected):  # the failed directory has its own line in the log
            if self.checkpoints.names_any(directory, gone):
                written = yield from self.checkpoints.write_in_steps(directory)
                written.add_done_callback(lambda written: written.exception())
            self.asides.discard(directory, [one.log.directory for one in gone])

    async def close(self, broker_epoch: int) -> None:
        """Close every log cleanly, once every change is carried out; the mark of it has the broker epoch."""
        async with self._turn:
            await self.checkpoints.close(broker_epoch)
