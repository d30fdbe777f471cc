"""Open the metadata log of this node and lead it.

In: the metadata log's directory. Out: the log, led in a new epoch, and a replay of its records. It decides no change of
the cluster, and never writes a snapshot.

The quorum has one node today. Opening the log makes this node its leader, in an epoch above every earlier one. The
epoch is durable before the first record of that epoch is written.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from stratalog.broker.coordination.quorum_log import QuorumLog
from stratalog.broker.coordination.runtime import load
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import METADATA_DIRECTORY, parse_directory_name
from stratalog.config import LogConfig
from stratalog.errors import Corrupt, Rejected, UserError
from stratalog.log.checkpoints import PARTITION_METADATA
from stratalog.log.creating import create
from stratalog.log.effects import ListDirectory, Program, Read, WriteFile
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery import load as recover
from stratalog.log.recovery import read_topic_id
from stratalog.log.segment import LOG
from stratalog.metadata.replay import Replay
from stratalog.metadata.snapshot import (
    SnapshotId,
    decode_snapshot,
    image_of,
    parse_file_name,
    snapshot_id,
)
from stratalog.ports import Clock, Outside
from stratalog.quorum.member import Member
from stratalog.quorum.messages import AppendControl, Persist
from stratalog.quorum.metadata_batches import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    decode_record,
    encode_control_batch,
)
from stratalog.quorum.raft import Raft
from stratalog.quorum.saved_state import (
    QUORUM_STATE_FILE,
    QuorumState,
    decode_quorum_state,
    encode_quorum_state,
)
from stratalog.quorum.states import Timeouts
from stratalog.quorum.voters import (
    KRAFT_VERSION,
    Voter,
    VoterHistory,
    VoterSet,
    voter_set,
    voters_record,
)
from stratalog.replication.partition import PartitionReplica
from stratalog.wire.batch import BatchHeader, parse_header
from stratalog.wire.ids import TopicIdPartition, TopicPartition, topic_id_text
from stratalog.wire.internal.control_records import VotersRecord
from stratalog.wire.records import Record

__all__ = ["MetadataLog", "open_metadata_log"]

_FILE_BYTES_MAX: Final = 1 << 30
_LOG_CONFIG: Final = LogConfig(retention_ms=-1, segment_bytes=1 << 30)
_STATE_PATH: Final = f"{METADATA_DIRECTORY}/{QUORUM_STATE_FILE}"
_RESTORE: Final = "restore the node from its bucket (docs/recovery.md)"
_REPAIR: Final = "cut the log there with `strata storage repair --accept-loss`"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MetadataLog:
    """The metadata log, and its quorum as this node sees it."""

    directory: LogDirectory
    partition: HostedPartition
    leader_id: int
    leader_epoch: int
    voters: VotersRecord

    @property
    def high_watermark(self) -> int:
        """Offset below which every record is committed."""
        return self.partition.high_watermark

    async def close(self) -> None:
        """Close the log cleanly."""
        if self.directory.failure is None:
            try:
                await self.partition.perform(self.partition.log.close())
            except Rejected as error:
                _log.error("metadata log not closed cleanly", reason=error.message)


async def open_metadata_log(
    node_id: int, directory: LogDirectory, outside: Outside
) -> tuple[MetadataLog, Replay]:
    """Read snapshot and log, then lead the log in a new epoch; the replay ends with the first records of that epoch.

    Raises UserError where a file is damaged. Opening cuts nothing but a torn tail.
    """
    clock = outside.clock
    try:
        found = await directory.run(_read_state())
        replay = found.replay
        state = decode_quorum_state(found.state) if found.state else QuorumState()
        image = replay.image()
        start_offset = image.offset + 1
        log = await _open_log(directory, clock, exists=found.exists, start_offset=start_offset)
        alone = (node_id,)
        partition = HostedPartition(
            TopicIdPartition(METADATA_TOPIC_ID, 0),
            TopicPartition(METADATA_TOPIC, 0),
            log,
            directory,
            PartitionReplica(node_id=node_id, replicas=alone, isr=alone),
            clock,
        )
        await load(partition, partial(_replay_record, replay))
    except (Corrupt, Rejected) as error:
        raise UserError(f"{directory.path}/{METADATA_DIRECTORY} cannot be read: {error}") from error
    view = QuorumLog(log, snapshot_id(image) if start_offset else None)
    return await _lead(directory, outside, partition, view, state, replay), replay


def _replay_of(identity: SnapshotId, data: bytes) -> Replay:
    try:
        snapshot = decode_snapshot(data)
    except Corrupt as error:
        raise Corrupt(f"{identity.file_name()}: {error}; {_RESTORE}") from error
    voters = next((one for one in snapshot.control if isinstance(one, VotersRecord)), None)
    return Replay(image_of(snapshot, identity), voters)


def _replay_record(replay: Replay, header: BatchHeader, record: Record) -> None:
    decoded = decode_record(record, is_control=header.is_control)
    replay.replay(record.offset, header.leader_epoch, decoded)


async def _open_log(
    directory: LogDirectory, clock: Clock, *, exists: bool, start_offset: int
) -> PartitionLog:
    now_ms = clock.steady_ms()
    if not exists:
        log, effects = create(
            METADATA_DIRECTORY,
            METADATA_TOPIC_ID,
            _LOG_CONFIG,
            now_ms=now_ms,
            start_offset=start_offset,
        )
        await directory.write(effects)
        return log
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
        log = await directory.run(program)
    except Corrupt as error:
        raise UserError(f"{directory.path}/{error}; {_RESTORE} or {_REPAIR}") from error
    if log.recovered.bytes_cut:
        _log.warning("torn tail cut", partition=METADATA_DIRECTORY, bytes=log.recovered.bytes_cut)
    return log


async def _lead(
    directory: LogDirectory,
    outside: Outside,
    partition: HostedPartition,
    view: QuorumLog,
    state: QuorumState,
    replay: Replay,
) -> MetadataLog:
    """Take part in a quorum of one voter, which is elected at once."""
    node_id, clock = partition.replica.node_id, outside.clock
    me = Voter(node_id, directory.id)
    alone = VoterSet((me,))
    is_logged = replay.voters is not None and voter_set(replay.voters) == alone
    logged = [(view.end_offset - 1, alone)] if is_logged else []
    member = Member(
        me.key,
        view,
        VoterHistory(alone, logged, kraft_version=KRAFT_VERSION),
        saved=state,
        timeouts=Timeouts(),
        entropy=outside.entropy,
    )
    raft = Raft(member)
    for output in raft.start(clock.steady_ms()):
        match output:
            case Persist(saved):
                await directory.write([WriteFile(_STATE_PATH, encode_quorum_state(saved))])
            case AppendControl(epoch, records):
                partition.lead(epoch, partition.replica.replicas, partition.replica.isr)
                wall_ms = clock.now_ms()
                batch = memoryview(encode_control_batch(records, wall_ms))
                appended = await partition.commit(batch, parse_header(batch), wall_ms, flush=True)
                for offset, record in enumerate(records, appended.base_offset):
                    replay.replay(offset, epoch, record)
            case _:
                raise AssertionError(f"a quorum of one has nothing to do with {output}")
    assert raft.is_leader
    return MetadataLog(directory, partition, node_id, raft.epoch, voters_record(raft.voters))


@dataclass(frozen=True, slots=True)
class _Saved:
    """The contents of a metadata directory beside its log; `replay` has applied the snapshot."""

    exists: bool
    replay: Replay
    state: bytes | None


def _read_state() -> Program[_Saved]:
    entries = yield ListDirectory(METADATA_DIRECTORY)
    assert isinstance(entries, list)
    yield from _check_topic_id()
    snapshots = [found for entry in entries if (found := parse_file_name(entry.name)) is not None]
    replay = Replay()
    if snapshots:
        newest = max(snapshots, key=lambda found: (found.end_offset, found.epoch))
        data = yield Read(f"{METADATA_DIRECTORY}/{newest.file_name()}", 0, _FILE_BYTES_MAX)
        assert isinstance(data, bytes)
        replay = _replay_of(newest, data)  # on this thread: a large snapshot takes seconds
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
    if not exists and not snapshots:
        others = yield ListDirectory("")
        assert isinstance(others, list)
        names = {entry.name for entry in others if entry.is_directory} - {METADATA_DIRECTORY}
        partition = next((name for name in sorted(names) if parse_directory_name(name)), None)
        if partition is not None:
            raise Corrupt(
                f"there is no .log file, but partition {partition} lies beside it; set metadata.log.dir "
                f"to the directory that has the metadata log, or {_RESTORE}"
            )
    return _Saved(exists, replay, state)


def _check_topic_id() -> Program[None]:
    try:
        found = yield from read_topic_id(METADATA_DIRECTORY)
        if found not in (None, METADATA_TOPIC_ID):
            raise Corrupt(f"topic_id {topic_id_text(found)} is not the metadata log's")
    except Corrupt as error:
        raise Corrupt(
            f"{PARTITION_METADATA}: {error}; remove the file: the next start writes a new one"
        ) from error
