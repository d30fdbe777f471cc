"""The partitions this broker hosts: which directory each lives in, and what a change of metadata asks of them.

In: the metadata image and its deltas, the log directories. Out: hosted partitions, found by name or id. It never
decides what should be hosted: metadata does.

At start every directory loads its partitions in parallel on its own thread; a directory closed cleanly is believed,
any other is recovered from its recovery points. Directories of partitions that metadata does not know are set aside
as `-stray`, never deleted.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog

from stratalog.broker.directory import LogDirectory
from stratalog.broker.partition import HostedPartition, PartitionIdentity
from stratalog.config import BrokerConfig, LogConfig, log_config
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.checkpoints import (
    CLEAN_SHUTDOWN,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_offsets,
)
from stratalog.log.effects import (
    Effect,
    ListDirectory,
    Program,
    Read,
    RemoveTree,
    Rename,
    SyncDirectory,
    Unlink,
    WriteFile,
)
from stratalog.log.partition_log import PartitionLog, create
from stratalog.log.recovery import load
from stratalog.metadata.image import Image, Topic
from stratalog.ports import Clock, Entropy
from stratalog.replication.partition import PartitionReplica
from stratalog.tier.manifest import decode as decode_manifest
from stratalog.wire.ids import topic_id_text

_METADATA_BYTES_MAX: Final = 4096
_CHECKPOINT_BYTES_MAX: Final = 64 << 20
METADATA_DIRECTORY: Final = "__cluster_metadata-0"
TIER_MANIFEST: Final = "tier-manifest"
"""A partition's last known manifest, beside its log."""


OnHosted = Callable[[HostedPartition], None]


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
        self._by_name: dict[tuple[str, int], HostedPartition] = {}
        self._config = config
        self._node_id = node_id
        self._clock = clock
        self._entropy = entropy
        self._may_lead = False
        self._removing: asyncio.Future[None] | None = None
        self._log = structlog.get_logger()
        self.on_led: list[OnHosted] = []
        self.on_deleted: list[OnHosted] = []
        self.on_rolled: list[OnHosted] = []

    def find(self, topic: str, index: int) -> HostedPartition | None:
        """The hosted partition of that name, or None."""
        return self._by_name.get((topic, index))

    def get(self, topic: str, index: int) -> HostedPartition:
        """As `find`; raises Rejected(UNKNOWN_TOPIC_OR_PARTITION)."""
        found = self._by_name.get((topic, index))
        if found is None:
            raise Rejected(ErrorCode.unknown_topic_or_partition, f"no partition {topic}-{index}")
        return found

    def get_by_id(self, topic_id: UUID, index: int) -> HostedPartition:
        """The hosted partition of that id; raises Rejected(UNKNOWN_TOPIC_ID)."""
        found = self.by_id.get((topic_id, index))
        if found is None:
            raise Rejected(
                ErrorCode.unknown_topic_id, f"no partition {topic_id_text(topic_id)}-{index}"
            )
        return found

    def all(self) -> Iterable[HostedPartition]:
        """Every hosted partition, safe against changes while iterating."""
        return list(self.by_id.values())

    async def start(self, image: Image) -> None:
        """Load what is on disk, create what metadata asks for and disk lacks. Leads nothing yet: see `apply`."""
        async with asyncio.TaskGroup() as loading:
            for directory in self.directories:
                loading.create_task(self._load_directory(directory, image))
        if all(directory.failure is None for directory in self.directories):
            for topic in image.topics_by_id.values():
                await self._host_topic(topic, image)
        self._may_lead = True

    async def apply(self, image: Image, changed: Iterable[UUID], deleted: Iterable[UUID]) -> None:
        """Do what changed metadata asks: delete, create, lead from a new epoch, take new settings."""
        for topic_id in deleted:
            for key in [key for key in self.by_id if key[0] == topic_id]:
                await self._delete(self.by_id[key])
        for topic_id in changed:
            topic = image.topics_by_id.get(topic_id)
            if topic is not None:
                await self._host_topic(topic, image)

    async def _host_topic(self, topic: Topic, image: Image) -> None:
        config = self._topic_config(topic, image)
        for index, partition in topic.partitions.items():
            if self._node_id not in partition.replicas:
                continue
            hosted = self.by_id.get((topic.id, index))
            if hosted is None:
                hosted = await self._create(PartitionIdentity(topic.id, topic.name, index), config)
                if hosted is None:
                    continue
            hosted.log.config = config
            if not self._may_lead or partition.leader != self._node_id:
                continue
            if partition.leader_epoch > hosted.replica.leader_epoch:
                hosted.become_leader(partition.leader_epoch)
                for react in self.on_led:
                    react(hosted)

    def _topic_config(self, topic: Topic, image: Image) -> LogConfig:
        return log_config(self._config, image.configs.get((2, topic.name), {}))

    async def _create(
        self, identity: PartitionIdentity, config: LogConfig
    ) -> HostedPartition | None:
        directory = self._directory_for_new()
        if directory is None:
            return None
        log, effects = create(str(identity), identity.topic_id, config, now_ms=self._clock.now_ms())
        try:
            await directory.write(effects)
        except Rejected as error:
            self._log.error("partition not created", partition=str(identity), reason=error.message)
            return None
        return self._add(identity, log, directory)

    def _directory_for_new(self) -> LogDirectory | None:
        """The sound directory with the fewest partitions."""
        counts = {id(directory): 0 for directory in self.directories if directory.failure is None}
        for hosted in self.by_id.values():
            if id(hosted.directory) in counts:
                counts[id(hosted.directory)] += 1
        sound = [directory for directory in self.directories if id(directory) in counts]
        return min(sound, key=lambda directory: counts[id(directory)], default=None)

    def _add(
        self, identity: PartitionIdentity, log: PartitionLog, directory: LogDirectory
    ) -> HostedPartition:
        replica = PartitionReplica(node_id=self._node_id)
        hosted = HostedPartition(identity, log, directory, replica, on_rolled=self._rolled)
        self.by_id[identity.topic_id, identity.index] = hosted
        self._by_name[identity.topic, identity.index] = hosted
        return hosted

    def _rolled(self, hosted: HostedPartition) -> None:
        for react in self.on_rolled:
            react(hosted)

    async def _delete(self, hosted: HostedPartition) -> None:
        """Rename first, as Kafka does, so that the name is free at once; remove after it."""
        identity = hosted.identity
        del self.by_id[identity.topic_id, identity.index]
        if self._by_name.get((identity.topic, identity.index)) is hosted:
            del self._by_name[identity.topic, identity.index]
        hosted.retire()
        aside = f"{hosted.log.directory}.{self._entropy.uuid().hex}-delete"
        effects: list[Effect] = [Rename(hosted.log.directory, aside), SyncDirectory("")]
        try:
            await hosted.directory.write(effects)
            self._removing = hosted.directory.write([RemoveTree(aside)])
        except Rejected as error:
            self._log.error("partition not removed", partition=str(identity), reason=error.message)
        for react in self.on_deleted:
            react(hosted)

    async def _load_directory(self, directory: LogDirectory, image: Image) -> None:
        survey = await directory.run(_survey())
        loaded = 0
        for name, topic_id in survey.partitions:
            topic = image.topics_by_id.get(topic_id) if topic_id is not None else None
            prefix, _, index_text = name.rpartition("-")
            index = int(index_text) if index_text.isdecimal() else -1
            if topic is None or topic.name != prefix or index not in topic.partitions:
                await self._set_aside(directory, name)
                continue
            program = load(
                name,
                self._topic_config(topic, image),
                clean=survey.clean,
                recovery_point=survey.recovery_points.get((prefix, index), 0),
                now_ms=self._clock.now_ms(),
                log_start_offset=survey.log_starts.get((prefix, index), 0),
                tiered_end=survey.tiered_ends.get(name, 0),
            )
            try:
                log = await directory.run(program)
            except Corrupt as error:
                directory.fail(OSError(f"{name}: {error}"))
                return
            self._tell_recovery(name, log)
            self._add(PartitionIdentity(topic.id, topic.name, index), log, directory)
            loaded += 1
        self._log.info(
            "log directory loaded", path=directory.path, partitions=loaded, clean=survey.clean
        )

    def _tell_recovery(self, name: str, log: PartitionLog) -> None:
        if log.recovered.bytes_cut:
            self._log.warning("torn tail cut", partition=name, bytes=log.recovered.bytes_cut)

    async def _set_aside(self, directory: LogDirectory, name: str) -> None:
        self._log.warning("stray partition set aside", path=directory.path, name=name)
        await directory.write([Rename(name, f"{name}.{self._entropy.uuid().hex}-stray")])

    async def checkpoint(self, directory: LogDirectory) -> None:
        """Write the directory's checkpoint files: recovery points, high watermarks, log starts."""
        hosted = [p for p in self.by_id.values() if p.directory is directory]
        keyed = {(p.identity.topic, p.identity.index): p for p in hosted}
        recovery = {key: p.log.recovery_point for key, p in keyed.items()}
        replication = {key: p.high_watermark for key, p in keyed.items()}
        start = {key: p.log.log_start_offset for key, p in keyed.items()}
        await directory.write(
            [
                WriteFile(RECOVERY_POINTS, encode_offsets(recovery)),
                WriteFile(REPLICATION_OFFSETS, encode_offsets(replication)),
                WriteFile(LOG_START_OFFSETS, encode_offsets(start)),
            ]
        )

    async def close(self) -> None:
        """Close every log cleanly, checkpoint, and leave the mark that nothing needs recovery."""
        now_ms = self._clock.now_ms()
        for directory in self.directories:
            if directory.failure is not None:
                continue
            try:
                for hosted in self.all():
                    if hosted.directory is directory:
                        await hosted.perform(hosted.log.close(now_ms))
                await self.checkpoint(directory)
                await directory.write([WriteFile(CLEAN_SHUTDOWN, encode_clean_shutdown(-1))])
            except Rejected as error:
                self._log.error("not closed cleanly", path=directory.path, reason=error.message)


@dataclass(slots=True)
class _Survey:
    """What a log directory holds: partition directories with their topic ids, and what its checkpoints say."""

    clean: bool = False
    partitions: list[tuple[str, UUID | None]] = field(default_factory=list)
    tiered_ends: dict[str, int] = field(default_factory=dict)
    recovery_points: dict[tuple[str, int], int] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)


def _survey() -> Program[_Survey]:
    """Look through a directory, remove what a deletion left.

    The mark of a clean shutdown is removed at once: from here on only a clean close puts it back.
    """
    entries = yield ListDirectory("")
    assert isinstance(entries, list)
    survey = _Survey(clean=any(entry.name == CLEAN_SHUTDOWN for entry in entries))
    for entry in entries:
        name = entry.name
        if not entry.is_directory or name == METADATA_DIRECTORY or name.endswith("-stray"):
            continue
        if name.endswith("-delete"):
            yield RemoveTree(name)
        elif "-" in name:
            survey.partitions.append((name, (yield from _topic_id(name))))
            survey.tiered_ends[name] = yield from _tiered_end(name)
    survey.recovery_points = yield from _offsets(RECOVERY_POINTS)
    survey.log_starts = yield from _offsets(LOG_START_OFFSETS)
    yield Unlink(CLEAN_SHUTDOWN)
    return survey


def _topic_id(directory: str) -> Program[UUID | None]:
    try:
        data = yield Read(f"{directory}/{PARTITION_METADATA}", 0, _METADATA_BYTES_MAX)
        assert isinstance(data, bytes)
        return decode_partition_metadata(data)
    except (FileNotFoundError, Corrupt):
        return None


def _tiered_end(directory: str) -> Program[int]:
    """Up to where the bucket is known to hold the partition; 0 where nothing is known."""
    try:
        data = yield Read(f"{directory}/{TIER_MANIFEST}", 0, _CHECKPOINT_BYTES_MAX)
        assert isinstance(data, bytes)
        return decode_manifest(data, f"{directory}/{TIER_MANIFEST}").tiered_end
    except (FileNotFoundError, Corrupt):
        return 0


def _offsets(path: str) -> Program[dict[tuple[str, int], int]]:
    try:
        data = yield Read(path, 0, _CHECKPOINT_BYTES_MAX)
        assert isinstance(data, bytes)
        return decode_offsets(data)
    except (FileNotFoundError, Corrupt):
        return {}  # from the start of each log, then
