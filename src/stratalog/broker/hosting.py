"""The partitions this broker hosts: which directory each lives in, and what a change of metadata asks of them.

In: the metadata image and its deltas, the log directories. Out: hosted partitions, found by name or id. It never
decides what should be hosted: metadata does.

At start every directory loads its partitions in parallel on its own thread; a directory closed cleanly is believed,
any other is recovered from its recovery points. Directories of partitions that metadata does not know stay where they
are until their name is needed, and are renamed to `-stray` then, never deleted: metadata may have lost what knew them.
Those of topics whose deletion it remembers are deleted. A partition whose directory is damaged is offline.

A new partition goes where the most free bytes are for each partition, itself included: equal drives get equally many
(Kafka's rule), a drive of twice the room twice as many, and a topic of a hundred partitions does not fall on one drive
because that has a little more room today. Between equals the first of `log.dirs` is taken.

A change is acted on at once: a partition may be used as soon as it is in the tables, for what is asked of it is
performed after its directory was made, in the same order. So a stalled drive delays who waits for its partitions, and
no other change.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import structlog

from stratalog.broker.asides import Asides
from stratalog.broker.directory import LogDirectory
from stratalog.broker.loading import load_partition
from stratalog.broker.partition import HostedPartition, PartitionIdentity
from stratalog.broker.settling import Claim, Key, settle
from stratalog.broker.survey import (
    Checkpoint,
    NameAndIndex,
    Survey,
    checkpoint_files,
    index_of,
    partition_name,
    survey_directory,
)
from stratalog.config import BrokerConfig, DynamicConfigs, LogConfig, log_config
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.checkpoints import CLEAN_SHUTDOWN, encode_clean_shutdown
from stratalog.log.effects import (
    Effect,
    Rename,
    SyncDirectory,
    WriteFile,
    together,
)
from stratalog.log.partition_log import PartitionLog, TailBudget, create
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import EMPTY, Image, ResourceType, Topic
from stratalog.ports import Clock, Entropy
from stratalog.replication.partition import PartitionReplica
from stratalog.wire.ids import topic_id_text

OnHosted = Callable[[HostedPartition], None]
_UNIT_BYTES: Final = 64 << 20
"""What free space is counted in: less is no difference between two drives."""
_CLEAN: Final = WriteFile(CLEAN_SHUTDOWN, encode_clean_shutdown(-1))


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
        self.by_id: dict[tuple[UUID, int], HostedPartition] = {}
        self._by_name: dict[NameAndIndex, HostedPartition] = {}
        self._config = config
        self._node_id = node_id
        self._clock = clock
        self.asides = Asides(entropy)
        self._tails = TailBudget()
        self._image = EMPTY
        self._may_lead = False
        self._loaded: dict[LogDirectory, set[NameAndIndex]] = {}
        """Directories of which everything is known, with the names that their checkpoint files have."""
        self._log = structlog.get_logger()
        self.damaged: dict[Key, str] = {}
        """Partitions that are offline, as their directories are damaged, with the reason."""
        self.resumed: list[tuple[Key, str]] = []
        """Moves that a crash ended, with the directory they went to."""
        self.on_led: list[OnHosted] = []
        self.on_deleted: list[OnHosted] = []
        self.on_rolled: list[OnHosted] = []
        self.on_tier_changed: list[OnHosted] = []

    def find(self, topic: str, index: int) -> HostedPartition | None:
        """The hosted partition of that name, or None."""
        return self._by_name.get((topic, index))

    def get(self, topic: str, index: int) -> HostedPartition:
        """As `find`; raises Rejected: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR where its directory is away."""
        found = self._by_name.get((topic, index))
        if found is None:
            raise self._missing(self._image.topic(topic), f"{topic}-{index}", index)
        return found

    def get_by_id(self, topic_id: UUID, index: int) -> HostedPartition:
        """The hosted partition of that id; raises Rejected as `get`, and UNKNOWN_TOPIC_ID."""
        found = self.by_id.get((topic_id, index))
        if found is None:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is None:
                raise Rejected(ErrorCode.unknown_topic_id, f"no topic {topic_id_text(topic_id)}")
            raise self._missing(topic, f"{topic.name}-{index}", index)
        return found

    def _missing(self, topic: Topic | None, name: str, index: int) -> Rejected:
        if topic is not None and index in topic.partitions:
            reason = self.damaged.get((topic.id, index), f"the log directory of {name} is away")
            return Rejected(ErrorCode.kafka_storage_error, reason)
        return Rejected(ErrorCode.unknown_topic_or_partition, f"no partition {name}")

    def all(self) -> Iterable[HostedPartition]:
        """Every hosted partition, safe against changes while iterating."""
        return list(self.by_id.values())

    async def start(self, image: Image, removed_topics: Collection[UUID]) -> None:
        """Load what is on disk, create what metadata asks for and disk lacks. Leads nothing yet: see `apply`.

        A directory that cannot be read is left out, as a failed one; nothing is created then that may be in it. Raises
        UserError where two directories hold the same partition.
        """
        self._image = image
        surveys: dict[LogDirectory, Survey] = {}

        async def survey(directory: LogDirectory) -> None:
            try:
                surveys[directory] = await directory.run(survey_directory())
                await directory.space()
            except Rejected as error:
                surveys.pop(directory, None)
                self._log.error("log directory away", path=directory.path, reason=error.message)

        async def load_one(directory: LogDirectory, claim: Claim) -> None:
            try:
                await self._load_directory(directory, surveys[directory], claim)
            except Rejected as error:
                self._log.error("log directory away", path=directory.path, reason=error.message)

        async with asyncio.TaskGroup() as surveying:
            for directory in self.directories:
                surveying.create_task(survey(directory))
        surveys = {one: surveys[one] for one in self.directories if one in surveys}
        some_away = len(surveys) < len(self.directories)
        claims = settle(surveys, image, self._node_id, removed_topics, some_away=some_away)
        async with asyncio.TaskGroup() as loading:
            for directory, claim in claims.items():
                loading.create_task(load_one(directory, claim))
        topics = image.topics_by_id.values()
        writes = self._make(topics, image, None)
        await _all_of(writes + [one for topic in topics for one in self._host_topic(topic, image)])
        self._may_lead = True

    def apply(self, image: Image, delta: Delta) -> "asyncio.Future[None] | None":
        """Do what changed metadata asks: delete, create, lead from a new epoch, take new settings.

        The future, where there is one, waits for new partitions' directories.
        """
        self._image = image
        self._delete(delta.deleted_topics)
        changed = set(delta.changed_topics)
        for kind, name in delta.changed_configs:
            if kind == ResourceType.BROKER and name in ("", str(self._node_id)):
                changed.update(image.topics_by_id)
            topic = image.topic(name) if kind == ResourceType.TOPIC else None
            if topic is not None:
                changed.add(topic.id)
        topics = [image.topics_by_id[topic_id] for topic_id in changed]
        writes = self._make(topics, image, delta.base)
        for topic in topics:
            writes += self._host_topic(topic, image)
        if not writes:
            return None
        return asyncio.get_running_loop().create_task(_all_of(writes))

    def _make(
        self, topics: Iterable[Topic], image: Image, base: Image | None
    ) -> "list[asyncio.Future[None]]":
        """Make what is ours of topics and not here, all of it at once; what must be waited for.

        `base` is the image before these topics changed; None where their partitions may have been before.
        """
        effects: dict[LogDirectory, list[Effect]] = {}
        counts: dict[LogDirectory, int] | None = None
        for topic in topics:
            config = self._topic_config(topic, image)
            before = None if base is None else base.topics_by_id.get(topic.id)
            for index, partition in topic.partitions.items():
                key = topic.id, index
                if self._node_id not in partition.replicas or key in self.by_id:
                    continue
                if key in self.damaged:
                    continue  # its records must not be taken for none
                is_new = base is not None and (before is None or index not in before.partitions)
                if not is_new and len(self._loaded) < len(self.directories):
                    continue  # it may be in the directory that is away: another one must not begin at 0
                identity = PartitionIdentity(topic.id, topic.name, index)
                counts = self._counts_with_a_new_one() if counts is None else counts
                directory = _roomiest(counts)
                if directory is None:
                    self._log.error("no log directory is left", partition=str(identity))
                    continue
                counts[directory] += 1
                now_ms = self._clock.steady_ms()
                log, made = create(
                    str(identity), identity.topic_id, config, now_ms=now_ms, tails=self._tails
                )
                effects.setdefault(directory, []).extend(
                    (*self.asides.free(directory, str(identity)), *made)
                )
                self._add(identity, log, directory)
        return [directory.write(together(made)) for directory, made in effects.items()]

    def _host_topic(self, topic: Topic, image: Image) -> "list[asyncio.Future[None]]":
        """Configure and lead what is here of a topic; what must be waited for."""
        config = self._topic_config(topic, image)
        begun_anew: set[LogDirectory] = set()
        for index, partition in topic.partitions.items():
            hosted = self.by_id.get((topic.id, index))
            if hosted is None or self._node_id not in partition.replicas:
                continue
            if self._configure(hosted, config):
                begun_anew.add(hosted.directory)
            if not self._may_lead or partition.leader != self._node_id:
                continue
            if partition.leader_epoch > hosted.replica.leader_epoch:
                hosted.become_leader(partition.leader_epoch)
                for react in self.on_led:
                    react(hosted)
        return [one.write(self._checkpoint(one)) for one in begun_anew]

    def _configure(self, hosted: HostedPartition, config: LogConfig) -> bool:
        """Whether the log begins anew, with what is on this disk: to be written down."""
        start = hosted.log.log_start_offset
        changes_tier = config.remote_storage_enable != hosted.log.config.remote_storage_enable
        hosted.log.configure(config)
        for react in self.on_tier_changed if changes_tier and hosted.replica.leads else ():
            react(hosted)
        return hosted.log.log_start_offset > start

    def _topic_config(self, topic: Topic, image: Image) -> LogConfig:
        broker = DynamicConfigs.of(image.configs, self._node_id).over(self._config)
        return log_config(broker, image.topic_configs(topic.name))

    def _counts_with_a_new_one(self) -> dict[LogDirectory, int]:
        """The partitions of each sound directory, a new one included."""
        counts = {one: 1 for one in self.directories if one in self._loaded and one.failure is None}
        for hosted in self.by_id.values():
            if hosted.directory in counts:
                counts[hosted.directory] += 1
        return counts

    def unassigned(self, topics: Iterable[UUID] | None = None) -> dict[Key, UUID]:
        """The partitions (of these topics) that metadata does not know to be where they are, with where that is."""
        found: dict[Key, UUID] = {}
        chosen = self._image.topics_by_id if topics is None else topics
        for topic_id in chosen:
            topic = self._image.topics_by_id.get(topic_id)
            for index, partition in topic.partitions.items() if topic is not None else ():
                hosted = self.by_id.get((topic_id, index))
                if hosted is None or hosted.is_holding or hosted.directory.failure is not None:
                    continue
                if partition.directory_of(self._node_id) != hosted.directory.id:
                    found[topic_id, index] = hosted.directory.id
        return found

    def _add(
        self, identity: PartitionIdentity, log: PartitionLog, directory: LogDirectory
    ) -> HostedPartition:
        replica = PartitionReplica(node_id=self._node_id)
        hosted = HostedPartition(
            identity, log, directory, replica, self._clock, on_rolled=self._rolled
        )
        self.by_id[identity.topic_id, identity.index] = hosted
        self._by_name[identity.topic, identity.index] = hosted
        return hosted

    def _rolled(self, hosted: HostedPartition) -> None:
        for react in self.on_rolled:
            react(hosted)

    # Deleting

    def _delete(self, topics: Collection[UUID]) -> None:
        if not topics:
            return
        gone = [hosted for key, hosted in self.by_id.items() if key[0] in topics]
        self.damaged = {key: why for key, why in self.damaged.items() if key[0] not in topics}
        for hosted in gone:
            identity = hosted.identity
            del self.by_id[identity.topic_id, identity.index]
            if self._by_name.get((identity.topic, identity.index)) is hosted:
                del self._by_name[identity.topic, identity.index]
            hosted.retire()
        for directory in self.directories:
            here = [one for one in gone if directory in one.copies]
            if here and directory.failure is None:
                self.put_aside(directory, here)
        for hosted in gone:
            for react in self.on_deleted:
                react(hosted)

    def put_aside(self, directory: LogDirectory, gone: Iterable[HostedPartition]) -> None:
        """Delete what a directory has of partitions that are not there any more.

        Rename first, as Kafka does, so that the name is free at once; remove after it. The checkpoints forget them
        before: another topic of that name must not be taken for what these were.
        """
        effects: list[Effect] = []
        names = {(one.identity.topic, one.identity.index) for one in gone}
        if names & self._loaded[directory]:
            effects += self._checkpoint(directory)
        self.asides.discard(directory, [one.log.directory for one in gone], effects)

    # Loading

    async def _load_directory(self, directory: LogDirectory, survey: Survey, claim: Claim) -> None:
        leftovers = survey.leftovers
        self.asides.keep(directory, (*claim.stray, *claim.left, *claim.damaged))
        deleted = self.asides.rename_deleted(claim.deleted)
        leftovers += deleted.values()
        effects: list[Effect] = [Rename(name, aside) for name, aside in deleted.items()]
        for future, name in claim.promoted.items():
            effects += [*self.asides.free(directory, name), Rename(future, name)]
        if effects:
            await directory.write([*effects, SyncDirectory("")])
        for name in claim.stray:
            reason = survey.unreadable.get(name, "metadata does not know its topic id")
            self._log.warning("stray partition", path=directory.path, partition=name, reason=reason)
        for name, (key, reason) in claim.damaged.items():
            self._damage(key, name, f"{directory.path}/{reason}")
        for name in claim.left:
            self._log.error("its log directory is away", partition=name, untouched=directory.path)
        topics = {topic.id: topic for _name, topic in claim.loaded}
        configs = {key: self._topic_config(one, self._image) for key, one in topics.items()}
        for name, topic in claim.loaded:
            await self._load(directory, name, topic, configs[topic.id], survey)
        self.resumed += [(key, directory.path) for key in claim.resumed]
        self._loaded[directory] = survey.checkpointed
        if not survey.checkpointed <= {
            (one.identity.topic, one.identity.index) for one in self._in(directory)
        }:
            # Before anything of such a name is made anew: it must not inherit.
            await directory.write([*self._checkpoint(directory), SyncDirectory("")])
        self.asides.remove(directory, leftovers)
        self._log.info(
            "log directory loaded",
            path=directory.path,
            partitions=len(claim.loaded),
            clean=survey.clean,
        )

    async def _load(
        self,
        directory: LogDirectory,
        found: str,
        topic: Topic,
        config: LogConfig,
        survey: Survey,
    ) -> None:
        name = partition_name(found)
        identity = PartitionIdentity(topic.id, topic.name, index_of(name))
        now_ms = self._clock.steady_ms()
        try:
            log = await load_partition(
                directory, found, survey, config, now_ms=now_ms, tails=self._tails
            )
        except (Corrupt, FileNotFoundError) as error:
            self.asides.keep(directory, [name])
            self._damage((topic.id, identity.index), name, f"{directory.path}/{error}")
        else:
            hosted = self._add(identity, log, directory)
            hosted.was_tiered = survey.tiered[found] is not None

    def _damage(self, key: Key, name: str, reason: str) -> None:
        """Serve nothing of a partition, and touch nothing of it."""
        self.damaged[key] = reason
        self._log.error("partition is damaged: it is offline", partition=name, reason=reason)

    # Keeping

    def _in(self, directory: LogDirectory) -> list[HostedPartition]:
        """What its checkpoints speak for: the partitions here, and those whose move here is about to end."""
        return [one for one in self.by_id.values() if directory in (one.directory, one.arriving)]

    def _checkpoint(self, directory: LogDirectory) -> list[WriteFile]:
        """The directory's checkpoint files as of now: recovery points, high watermarks, log starts."""
        checkpoints = {
            (one.identity.topic, one.identity.index): Checkpoint(
                one.recovery_point, one.high_watermark, one.log.log_start_offset
            )
            for one in self._in(directory)
        }
        self._loaded[directory] = set(checkpoints)
        return checkpoint_files(checkpoints)

    async def checkpoint(self, directory: LogDirectory) -> None:
        """Write the directory's checkpoint files. Raises Rejected where it has failed."""
        await directory.write(self._checkpoint(directory))
        await directory.space()

    async def close(self) -> None:
        """Close every log cleanly, checkpoint, and leave the mark that nothing needs recovery.

        Only where everything was loaded: the mark speaks for all that is in a directory.
        """
        closing = []
        for directory in self._loaded:
            hosted = self._in(directory)
            if directory.failure is None and not any(one.is_holding for one in hosted):
                effects = together(effect for one in hosted for effect in one.log.close())
                effects += [*self._checkpoint(directory), _CLEAN]
                closing.append((directory, directory.write(effects)))
        for directory, work in closing:
            try:
                await work
            except Rejected as error:
                self._log.error("not closed cleanly", path=directory.path, reason=error.message)


async def _all_of(writes: "Sequence[asyncio.Future[None]]") -> None:
    """Wait for all; a failed directory has told of itself already, and its partitions answer so."""
    if writes:
        await asyncio.wait(writes)
        for write in writes:
            write.exception()


def _roomiest(counts: Mapping[LogDirectory, int]) -> LogDirectory | None:
    """The directory with the most free bytes for each of its partitions."""
    return max(
        counts,
        key=lambda one: (one.free_bytes // _UNIT_BYTES / counts[one], -counts[one]),
        default=None,
    )
