"""Open the metadata log of this node: recover it, and read what lies beside it.

In: the metadata log's directory. Out: the log, the saved state of the quorum, and a replay of its records. It
decides no change of the cluster, and leads nothing.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from msgspec import Struct

from stratalog.broker.coordination.metadata_log import (
    FILE_BYTES_MAX,
    LOG_CONFIG,
    PART,
    STATE_PATH,
    MetadataLog,
    replay_of,
)
from stratalog.broker.coordination.runtime import load
from stratalog.broker.storage.bootstrap_file import BOOTSTRAP_FILE, FirstRecord, first_records
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import METADATA_DIRECTORY, parse_directory_name
from stratalog.errors import Corrupt, Rejected, UserError
from stratalog.log.checkpoints import PARTITION_METADATA
from stratalog.log.creating import create
from stratalog.log.effects import ListDirectory, Program, Read, Unlink
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery import load as recover
from stratalog.log.recovery import read_topic_id
from stratalog.log.segment import LOG
from stratalog.metadata.image import METADATA_VERSION
from stratalog.metadata.levels import check_level, unreadable
from stratalog.metadata.replay import Replay
from stratalog.metadata.snapshot import SnapshotId, level_in, parse_file_name
from stratalog.ports import Clock
from stratalog.quorum.metadata_batches import METADATA_TOPIC_ID, decode_record
from stratalog.quorum.saved_state import QUORUM_STATE_FILE, QuorumState, decode_quorum_state
from stratalog.quorum.voters import Opening, VoterSet, opening, voter_set
from stratalog.wire.batch import BatchHeader
from stratalog.wire.ids import topic_id_text
from stratalog.wire.internal.control_records import LeaderChangeMessage, VotersRecord
from stratalog.wire.internal.metadata_records import FeatureLevelRecord
from stratalog.wire.records import Record

__all__ = ["OpenedLog", "open_metadata_log"]

_RESTORE: Final = "restore the node from its bucket (docs/recovery.md)"
_REPAIR: Final = "cut the log there with `strata storage repair --accept-loss`"
_LEVEL: Final = b"\x01\x0c"
"""A FeatureLevelRecord begins so: the version of the frame, its number."""
_log = structlog.get_logger()


class OpenedLog(Struct, frozen=True):
    """A metadata log as it was found: `voters` has each Voters record with its offset, that of the snapshot first."""

    log: MetadataLog
    state: QuorumState
    replay: Replay
    voters: list[tuple[int, VoterSet]]
    last_opening: Opening | None
    first_records: Sequence[FirstRecord]
    """The users and the level that an empty log begins with, where this node was formatted with some."""


async def open_metadata_log(
    directory: LogDirectory, clock: Clock, node_id: int, *, is_alone: bool
) -> OpenedLog:
    """Read snapshot and log; nothing is cut but a torn tail.

    With `is_alone` this node is the only voter: all of the log is committed, and the replay has it. Else the replay has
    the snapshot, and the quorum says how far the log counts. Raises UserError where a file is damaged, and for a level
    that is not known, where all of the log is committed: before the quorum appends to it.
    """
    replay = Replay()
    levels: list[FeatureLevelRecord] = []
    try:
        found = await directory.run(_read_state(is_alone=is_alone))
        replay = found.replay
        state = decode_quorum_state(found.state) if found.state else QuorumState()
        start_offset = replay.image().offset + 1
        local = await _open_log(directory, clock, exists=found.exists, start_offset=start_offset)
        log = MetadataLog(local, directory, clock, found.snapshot, found.snapshot_bytes)
        voters: list[tuple[int, VoterSet]] = []
        if replay.voters is not None:
            voters.append((start_offset - 1, voter_set(replay.voters)))
        openings: deque[Opening] = deque(maxlen=1)
        take = partial(_take_record, replay if is_alone else None, voters, openings, levels)
        await load(log, take, replay_batch=None if is_alone else _is_skipped)
        level = _level(replay, levels)
        is_lone = bool(voters) and voters[-1][1].ids == (node_id,)
        if (is_alone or (is_lone and levels)) and level is not None:
            check_level(level)
    except (Corrupt, Rejected) as error:
        reason = unreadable(error, _level(replay, levels))
        raise UserError(
            f"{directory.path}/{METADATA_DIRECTORY} cannot be read: {reason}"
        ) from error
    last = openings[0] if openings else None
    return OpenedLog(log, state, replay, voters, last, found.first_records)


def _take_record(
    replay: Replay | None,
    voters: list[tuple[int, VoterSet]],
    openings: deque[Opening],
    levels: list[FeatureLevelRecord],
    header: BatchHeader,
    record: Record,
) -> None:
    is_level = record.value is not None and record.value.startswith(_LEVEL)
    if replay is None and not header.is_control and not is_level:
        return
    decoded = decode_record(record, is_control=header.is_control)
    if isinstance(decoded, VotersRecord) and (not voters or record.offset > voters[-1][0]):
        voters.append((record.offset, voter_set(decoded)))
    if isinstance(decoded, LeaderChangeMessage):
        openings.append(opening(header.leader_epoch, record.offset, decoded))
    if replay is not None:
        replay.replay(record.offset, header.leader_epoch, decoded)
    elif isinstance(decoded, FeatureLevelRecord):
        levels.append(decoded)


def _is_skipped(header: BatchHeader, batch: memoryview) -> bool:
    """Return whether a batch has neither control records nor a level: the quorum reads the rest later."""
    return not (header.is_control or header.codec or _LEVEL in bytes(batch))


def _level(replay: Replay, later: Sequence[FeatureLevelRecord]) -> int | None:
    found = level_in(later)
    return replay.image().features.get(METADATA_VERSION) if found is None else found


async def _open_log(
    directory: LogDirectory, clock: Clock, *, exists: bool, start_offset: int
) -> PartitionLog:
    now_ms = clock.steady_ms()
    if not exists:
        log, effects = create(
            METADATA_DIRECTORY,
            METADATA_TOPIC_ID,
            LOG_CONFIG,
            now_ms=now_ms,
            start_offset=start_offset,
        )
        await directory.write(effects)
        return log
    program = recover(
        METADATA_DIRECTORY,
        LOG_CONFIG,
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


class _Saved(Struct, frozen=True):
    """What a metadata directory holds beside its log; `replay` has the snapshot."""

    exists: bool
    replay: Replay
    snapshot: SnapshotId | None
    snapshot_bytes: int
    state: bytes | None
    first_records: Sequence[FirstRecord]


def _read_state(*, is_alone: bool) -> Program[_Saved]:
    entries = yield ListDirectory(METADATA_DIRECTORY)
    assert isinstance(entries, list)
    yield from _check_topic_id()
    snapshots = [found for entry in entries if (found := parse_file_name(entry.name)) is not None]
    replay, newest, size = Replay(), None, 0
    if snapshots:
        newest = max(snapshots, key=lambda found: (found.end_offset, found.epoch))
        replay, size = yield from _read_snapshot(newest)
    state = None
    if any(entry.name == QUORUM_STATE_FILE for entry in entries):
        saved = yield Read(STATE_PATH, 0, FILE_BYTES_MAX)
        assert isinstance(saved, bytes)
        state = saved
    exists = any(entry.name.endswith(LOG) for entry in entries)
    # A crash while a fetched snapshot takes the log's place may leave none; the quorum has the records.
    if not exists and state is not None and (is_alone or not snapshots):
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
    for entry in entries:
        # A crash may have come before an older snapshot was dropped, or before a fetched one was whole.
        older = parse_file_name(entry.name) not in (None, newest)
        if older or entry.name.endswith(PART):
            yield Unlink(f"{METADATA_DIRECTORY}/{entry.name}")
    records: Sequence[FirstRecord] = ()
    beside = yield ListDirectory("")
    assert isinstance(beside, list)
    if any(entry.name == BOOTSTRAP_FILE for entry in beside):
        first = yield Read(BOOTSTRAP_FILE, 0, FILE_BYTES_MAX)
        assert isinstance(first, bytes)
        records = first_records(first)
        if not exists and (level := level_in(records)) is not None:
            check_level(level)  # before the log begins
    return _Saved(exists, replay, newest, size, state, records)


def _read_snapshot(snapshot: SnapshotId) -> Program[tuple[Replay, int]]:
    """Return the replay that begins with a snapshot, and the snapshot's bytes. Raises Corrupt."""
    data = yield Read(f"{METADATA_DIRECTORY}/{snapshot.file_name()}", 0, FILE_BYTES_MAX)
    assert isinstance(data, bytes)
    try:
        # On this thread: a large cluster's takes seconds.
        return replay_of(snapshot, data), len(data)
    except Corrupt as error:
        raise Corrupt(f"{snapshot.file_name()}: {error}; {_RESTORE}") from error


def _check_topic_id() -> Program[None]:
    try:
        found = yield from read_topic_id(METADATA_DIRECTORY)
        if found not in (None, METADATA_TOPIC_ID):
            raise Corrupt(f"topic_id {topic_id_text(found)} is not the metadata log's")
    except Corrupt as error:
        raise Corrupt(
            f"{PARTITION_METADATA}: {error}; remove the file: the next start writes a new one"
        ) from error
