"""The cluster's metadata on this node: its log, its controller, and the broker's actions on changes.

In: decisions that handlers and the node request. Out: answers, once the records are durable, replayed and acted on by
this broker. It decides nothing: `quorum.controller` does.

The quorum has one node today. Opening the log makes this node its leader, in an epoch above any it ever had, saved
before the first record of that epoch is written.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from stratalog.broker.coordination.runtime import Runtime, load
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import Failure, LogDirectory
from stratalog.broker.storage.survey import METADATA_DIRECTORY, parse_directory_name
from stratalog.config import (
    BrokerConfig,
    ClusterRules,
    DynamicConfigs,
    LogConfig,
    check_topic_configs,
)
from stratalog.errors import Corrupt, ErrorCode, Rejected, UserError
from stratalog.log.checkpoints import PARTITION_METADATA
from stratalog.log.creating import create
from stratalog.log.effects import ListDirectory, Program, Read, Unlink, WriteFile
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery import load as recover
from stratalog.log.recovery import read_topic_id
from stratalog.log.segment import LOG
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import EMPTY, Endpoint, Image, Topic
from stratalog.metadata.snapshot import (
    SnapshotId,
    decode_snapshot,
    image_of,
    parse_file_name,
    snapshot_batches,
    snapshot_id,
)
from stratalog.ports import Outside
from stratalog.quorum.controller import (
    Alteration,
    Altered,
    BrokerRegistration,
    Controller,
    Created,
    Deleted,
    Extended,
    FeatureUpdate,
    MorePartitions,
    NewTopic,
    TopicRules,
)
from stratalog.quorum.metadata_batches import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    decode_record,
    encode_batch,
    encode_control_batch,
)
from stratalog.quorum.single import (
    QUORUM_STATE_FILE,
    QuorumState,
    Voter,
    become_leader,
    decode_quorum_state,
    encode_quorum_state,
    snapshot_control,
)
from stratalog.replication.partition import PartitionReplica
from stratalog.replication.roles import replicas_of
from stratalog.statemachine import Decision, Now
from stratalog.wire.batch import BatchHeader, parse_header
from stratalog.wire.ids import TopicIdPartition, TopicPartition, topic_id_text
from stratalog.wire.internal.control_records import VotersRecord
from stratalog.wire.internal.metadata_records import RemoveTopicRecord
from stratalog.wire.records import Record

A = TypeVar("A")
OnChange = Callable[[Image, Delta], "asyncio.Future[None] | None"]
_ACTIVATED_AT_ONCE: Final = 1000
"""Partitions that a start names itself the leader of in one turn."""
_FILE_BYTES_MAX: Final = 1 << 30
_LOG_CONFIG: Final = LogConfig(retention_ms=-1, segment_bytes=1 << 30)
_STATE_PATH: Final = f"{METADATA_DIRECTORY}/{QUORUM_STATE_FILE}"
_RESTORE: Final = "restore the node from its bucket (docs/recovery.md)"
_REPAIR: Final = "cut the log there with `strata storage repair --accept-loss`"


class ClusterMetadata:
    """`open`, then `lead`, then `register`; then it may be asked. It is the `Machine` of its runtime.

    The controller's image runs ahead of the commit, and decisions see it; `image` is what is committed.
    """

    lost = ErrorCode.not_controller
    flush = True

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        cluster_id: str,
        directory: LogDirectory,
        directory_ids: Sequence[UUID],
        *,
        on_change: OnChange,
    ) -> None:
        """`on_change(image, delta)` acts on a change; the answer of what changed it waits for its future."""
        self.cluster_id = cluster_id
        self._config = config
        self._outside = outside
        self._node_id = config.int("node.id")
        self._directory = directory
        self._directory_ids = tuple(directory_ids)
        self._on_change = on_change
        self._controller = Controller()
        self._image = EMPTY
        self._runtime: Runtime[Any] | None = None
        self._state = QuorumState()
        self._broker_epoch = -1
        self._loaded_from = 0
        self._loaded_epoch = -1
        self._snapshotting: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()
        self.holds: list[Callable[[], bool]] = []
        """Each returns whether a part still needs records that a snapshot lacks: deletions to carry out."""
        self.registered = False
        """Whether the image says where this broker can be reached now, and not before it was restarted."""
        self.removed_topics: set[UUID] = set()
        """Topics whose deletion was replayed at the start: a crash may have come before their directories went."""

    @property
    def image(self) -> Image:
        """The cluster as of the last committed record."""
        return self._image

    def topic(self, name: str) -> Topic | None:
        """The topic of that name, or None."""
        return self._image.topic(name)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What was set for a topic."""
        return self._image.topic_configs(name)

    @property
    def is_snapshotting(self) -> bool:
        """Whether a snapshot is being written."""
        return self._snapshotting is not None

    @property
    def dynamic_configs(self) -> DynamicConfigs:
        """What was set for this broker while it runs, and for every broker."""
        return DynamicConfigs.of(self.image.configs, self._node_id)

    def _decided_config(self) -> BrokerConfig:
        """Return the broker's settings as decided so far, committed or not: the next decision is held to them."""
        image = self._controller.image
        return DynamicConfigs.of(image.configs, self._node_id).over(self._config)

    async def open(self) -> None:
        """Read snapshot and log. Raises UserError where they are damaged: nothing is cut then but a torn tail."""
        try:
            found = await self._directory.run(_read_state())
            image = EMPTY
            voters = None
            if found.snapshot is not None:
                identity, data = found.snapshot
                try:
                    snapshot = decode_snapshot(data)
                except Corrupt as error:
                    raise Corrupt(f"{identity.file_name()}: {error}; {_RESTORE}") from error
                image = image_of(snapshot, identity)
                voters = next((r for r in snapshot.control if isinstance(r, VotersRecord)), None)
            rules = TopicRules(
                partitions_default=self._config.int("num.partitions"),
                replication_factor_default=self._config.int("default.replication.factor"),
                check_configs=lambda configs: check_topic_configs(configs, self._decided_config()),
            )
            self._controller = Controller(rules, image)
            self._controller.voters = voters
            self._state = decode_quorum_state(found.state) if found.state else QuorumState()
            self._loaded_from = image.offset + 1
            self._loaded_epoch = image.epoch
            partition = await self._open_log(exists=found.exists, start_offset=self._loaded_from)
            await load(partition, self._replay_loaded)
        except (Corrupt, Rejected) as error:
            raise UserError(
                f"{self._directory.path}/{METADATA_DIRECTORY} cannot be read: {error}"
            ) from error
        self._runtime = Runtime(partition, self._outside.clock, self)
        await self._become_leader(partition)

    async def lead(self) -> None:
        """First records of an empty log: the metadata version. Raises UserError for a version we do not know."""
        try:
            await self._submit(lambda _now: self._controller.bootstrap())
        except Corrupt as error:
            raise UserError(f"{self._directory.path}/{METADATA_DIRECTORY}: {error}") from error

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Register this broker in a new incarnation, unfence it, and let it lead what it led in new leader epochs."""
        registration = BrokerRegistration(
            id=self._node_id,
            incarnation_id=self._outside.entropy.uuid(),
            endpoints=tuple(endpoints),
            rack=self._config.str("broker.rack") or None,
            directories=self._directory_ids,
        )
        self._broker_epoch = await self._submit(
            lambda _now: self._controller.register_broker(registration)
        )
        await self._submit(
            lambda _now: self._controller.unfence_broker(self._node_id, self._broker_epoch)
        )
        mine = (
            TopicIdPartition(topic.id, index)
            for topic, index, _ in replicas_of(self._image, self._node_id)
        )
        while part := list(islice(mine, _ACTIVATED_AT_ONCE)):
            await self._submit(partial(self._activate, part))
        self.registered = True

    def _activate(self, partitions: Sequence[TopicIdPartition], _now: Now) -> Decision[Any, int]:
        return self._controller.activate_leaders(self._node_id, partitions)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool
    ) -> list[Created]:
        """Create topics; one result each."""
        entropy = self._outside.entropy
        return await self._submit(
            lambda _now: self._controller.create_topics(
                topics, entropy, validate_only=validate_only
            )
        )

    async def delete_topics(self, topics: Sequence[str | UUID]) -> list[Deleted]:
        """Delete topics by name or id; one result each."""
        return await self._submit(lambda _now: self._controller.delete_topics(topics))

    async def create_partitions(
        self, asked: Sequence[MorePartitions], *, validate_only: bool
    ) -> list[Extended]:
        """Add partitions to topics; one result each."""
        entropy = self._outside.entropy
        return await self._submit(
            lambda _now: self._controller.create_partitions(
                asked, entropy, validate_only=validate_only
            )
        )

    async def alter_configs(
        self, asked: Sequence[Alteration], *, validate_only: bool
    ) -> list[Altered]:
        """Change settings of topics and brokers; one result each."""
        return await self._submit(
            lambda _now: self._controller.alter_configs(
                asked, ClusterRules(self._decided_config()), validate_only=validate_only
            )
        )

    async def update_features(self, asked: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Set levels of features, all or none; raises Rejected."""
        await self._submit(
            lambda _now: self._controller.update_features(asked, validate_only=validate_only)
        )

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids for this broker."""
        return await self._submit(
            lambda _now: self._controller.allocate_producer_ids(self._node_id, self._broker_epoch)
        )

    async def assign_directories(
        self, assigned: Mapping[TopicIdPartition, UUID]
    ) -> set[TopicIdPartition]:
        """Have it noted in which directory partitions are; those of them that are still this broker's."""
        return await self._submit(
            lambda _now: self._controller.assign_directories(self._node_id, assigned)
        )

    async def close(self) -> None:
        """Close the log cleanly. A snapshot under way is given up."""
        if self._snapshotting is not None:
            self._snapshotting.cancel()
        if self._runtime is not None and self._directory.failure is None:
            partition = self._runtime.partition
            try:
                await partition.perform(partition.log.close())
            except Rejected as error:
                self._log.error("metadata log not closed cleanly", reason=error.message)

    async def _submit(self, decide: Callable[[Now], Decision[Any, A]]) -> A:
        assert self._runtime is not None, "open first"
        return await self._runtime.submit(decide)

    async def _open_log(self, *, exists: bool, start_offset: int) -> HostedPartition:
        now_ms = self._outside.clock.steady_ms()
        log: PartitionLog
        if exists:
            program = recover(
                METADATA_DIRECTORY,
                _LOG_CONFIG,
                clean=False,
                recovery_point=start_offset,
                now_ms=now_ms,
                topic_id=METADATA_TOPIC_ID,
                log_start_offset=start_offset,
                synced=True,
            )
            try:
                log = await self._directory.run(program)
            except Corrupt as error:
                raise UserError(
                    f"{self._directory.path}/{error}; {_RESTORE} or {_REPAIR}"
                ) from error
            if log.recovered.bytes_cut:
                self._log.warning(
                    "torn tail cut", partition=METADATA_DIRECTORY, bytes=log.recovered.bytes_cut
                )
        else:
            log, effects = create(
                METADATA_DIRECTORY,
                METADATA_TOPIC_ID,
                _LOG_CONFIG,
                now_ms=now_ms,
                start_offset=start_offset,
            )
            await self._directory.write(effects)
        alone = (self._node_id,)
        replica = PartitionReplica(node_id=self._node_id, replicas=alone, isr=alone)
        key, name = TopicIdPartition(METADATA_TOPIC_ID, 0), TopicPartition(METADATA_TOPIC, 0)
        return HostedPartition(key, name, log, self._directory, replica, self._outside.clock)

    async def _become_leader(self, partition: HostedPartition) -> None:
        voter = Voter(self._node_id, self._directory.id)
        state, records = become_leader(
            self._state,
            voter,
            log_epoch=self._controller.image.epoch,
            voters=self._controller.voters,
        )
        await self._directory.write([WriteFile(_STATE_PATH, encode_quorum_state(state))])
        self._state = state
        partition.lead(state.leader_epoch, partition.replica.replicas, partition.replica.isr)
        self._controller.start_epoch(state.leader_epoch)
        wall_ms = self._outside.clock.now_ms()
        batch = memoryview(encode_control_batch(records, wall_ms))
        appended = await partition.commit(batch, parse_header(batch), wall_ms, flush=True)
        self._controller.replay_batch(appended.base_offset, records)
        self._image = self._controller.image

    def _replay_loaded(self, header: BatchHeader, record: Record) -> None:
        if record.offset >= self._loaded_from:
            # The epoch lies outside the CRC: a damaged one must not end the node. The next epoch is above all of them.
            if header.leader_epoch > self._loaded_epoch:
                self._loaded_epoch = header.leader_epoch
                self._controller.start_epoch(header.leader_epoch)
            decoded = decode_record(record, is_control=header.is_control)
            self._controller.replay(record.offset, decoded)
            if isinstance(decoded, RemoveTopicRecord):
                self.removed_topics.add(decoded.topic_id)

    # The runtime's machine

    def apply(self, base_offset: int, records: Sequence[Any]) -> tuple[Image, Delta]:
        delta = self._controller.replay_batch(base_offset, records)
        return self._controller.image, delta

    def publish(self, change: tuple[Image, Delta]) -> "asyncio.Future[None] | None":
        """Have this broker act on what is committed."""
        self._image, delta = change
        done = self._on_change(self._image, delta)
        self._snapshot_if_due()
        return done

    def encode(self, records: Sequence[Any], wall_ms: int) -> bytearray:
        return encode_batch(records, wall_ms)

    def bytes_of(self, records: Sequence[Any]) -> int:  # noqa: ARG002 - its log takes any batch
        return 0

    def _snapshot_if_due(self) -> None:
        """Write a snapshot once the log has `metadata.log.max.record.bytes.between.snapshots`; drop what it replaces.

        The snapshot is of the committed image. Records ahead of it may share the segment that is closed here; that
        segment goes with a later snapshot.
        """
        assert self._runtime is not None
        log = self._runtime.partition.log
        limit = self._config.int("metadata.log.max.record.bytes.between.snapshots")
        if self.is_snapshotting or log.size < limit or self._directory.failure is not None:
            return
        if any(hold() for hold in self.holds):
            return
        self._snapshotting = asyncio.get_running_loop().create_task(self._snapshot(self._image))

    async def _snapshot(self, image: Image) -> None:
        """Encode the image batch by batch, each in a turn of its own, and put it in the place of older records."""
        assert self._runtime is not None
        log = self._runtime.partition.log
        clock = self._outside.clock
        wall_ms = clock.now_ms()
        identity = snapshot_id(image)
        data = bytearray()
        control = snapshot_control(self._controller.voters)
        for batch in snapshot_batches(image, wall_ms, wall_ms, control):
            data += batch
            await asyncio.sleep(0)
        path = f"{METADATA_DIRECTORY}/{identity.file_name()}"

        def written(error: Failure) -> None:
            self._snapshotting = None
            if error is None and self._directory.failure is None:
                log.raise_log_start(identity.end_offset)
                self._directory.perform(
                    log.due(clock.steady_ms(), wall_ms=clock.now_ms()), self._tell
                )
                dropped = self._directory.run(_drop_older(identity))
                dropped.add_done_callback(lambda dropped: self._tell(dropped.exception()))
            self._tell(error)

        self._directory.perform([*log.roll(clock.steady_ms()), WriteFile(path, data)], written)

    def _tell(self, error: Failure) -> None:
        if error is not None:
            self._log.error("metadata snapshot", reason=str(error))


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a metadata directory holds, unread."""

    exists: bool
    snapshot: tuple[SnapshotId, bytes] | None
    state: bytes | None


def _read_state() -> Program[_Saved]:
    entries = yield ListDirectory(METADATA_DIRECTORY)
    assert isinstance(entries, list)
    yield from _check_topic_id()
    snapshots = [found for entry in entries if (found := parse_file_name(entry.name)) is not None]
    snapshot = None
    if snapshots:
        newest = max(snapshots, key=lambda found: (found.end_offset, found.epoch))
        data = yield Read(f"{METADATA_DIRECTORY}/{newest.file_name()}", 0, _FILE_BYTES_MAX)
        assert isinstance(data, bytes)
        snapshot = newest, data
    state = None
    if any(entry.name == QUORUM_STATE_FILE for entry in entries):
        saved = yield Read(_STATE_PATH, 0, _FILE_BYTES_MAX)
        assert isinstance(saved, bytes)
        state = saved
    exists = any(entry.name.endswith(LOG) for entry in entries)
    if not exists and state is not None:
        raise Corrupt(
            f"there is no .log file, but {QUORUM_STATE_FILE}: the log was there; {_RESTORE}"
        )
    if not exists and snapshot is None:
        others = yield ListDirectory("")
        assert isinstance(others, list)
        names = {entry.name for entry in others if entry.is_directory} - {METADATA_DIRECTORY}
        partition = next((name for name in sorted(names) if parse_directory_name(name)), None)
        if partition is not None:
            raise Corrupt(
                f"there is no .log file, but partition {partition} lies beside it; set metadata.log.dir "
                f"to the directory that has the metadata log, or {_RESTORE}"
            )
    return _Saved(exists, snapshot, state)


def _check_topic_id() -> Program[None]:
    try:
        found = yield from read_topic_id(METADATA_DIRECTORY)
        if found not in (None, METADATA_TOPIC_ID):
            raise Corrupt(f"topic_id {topic_id_text(found)} is not the metadata log's")
    except Corrupt as error:
        raise Corrupt(
            f"{PARTITION_METADATA}: {error}; remove the file: the start writes it anew"
        ) from error


def _drop_older(kept: SnapshotId) -> Program[None]:
    entries = yield ListDirectory(METADATA_DIRECTORY)
    assert isinstance(entries, list)
    for entry in entries:
        found = parse_file_name(entry.name)
        if found is not None and found != kept:
            yield Unlink(f"{METADATA_DIRECTORY}/{entry.name}")
