"""The metadata log on this node's disk, and what lies beside it: the saved state of the quorum, and a snapshot.

In: batches of the active controller, what a leader sent, truncations, snapshots. Out: offsets and epochs for the quorum
(`quorum.member.LogView`), records, and a call for each offset up to which the log is durable. It decides nothing: the
quorum does.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from stratalog.broker.partitions.acknowledgements import Acknowledgements
from stratalog.broker.partitions.placed_log import PlacedLog
from stratalog.broker.storage.directory import Done, Failure, LogDirectory
from stratalog.broker.storage.survey import METADATA_DIRECTORY
from stratalog.config import LogConfig
from stratalog.errors import Corrupt, ErrorCode, Rejected, UserError
from stratalog.log.checkpoints import LEADER_EPOCHS, encode_epochs
from stratalog.log.creating import create
from stratalog.log.effects import (
    Append,
    Effect,
    ListDirectory,
    Program,
    Read,
    Rename,
    Sync,
    SyncDirectory,
    Unlink,
    WriteFile,
)
from stratalog.log.partition_log import PartitionLog
from stratalog.log.values import Appended
from stratalog.metadata.replay import Replay
from stratalog.metadata.snapshot import SnapshotId, check_snapshot, decode_snapshot, image_of
from stratalog.ports import Buffer, Clock
from stratalog.quorum.metadata_batches import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    encode_control_batch,
)
from stratalog.quorum.saved_state import QUORUM_STATE_FILE, QuorumState, encode_quorum_state
from stratalog.wire.batch import BatchHeader, crc_holds, parse_header, scan
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.internal.control import ControlRecord
from stratalog.wire.internal.control_records import VotersRecord

__all__ = ["FILE_BYTES_MAX", "LOG_CONFIG", "PART", "STATE_PATH", "MetadataLog", "replay_of"]

FILE_BYTES_MAX: Final = 1 << 30
LOG_CONFIG: Final = LogConfig(retention_ms=-1, segment_bytes=1 << 30)
PART: Final = ".part"
"""Ends the name of a snapshot that is not whole yet. Kafka: Snapshots.PARTIAL_SUFFIX."""
STATE_PATH: Final = f"{METADATA_DIRECTORY}/{QUORUM_STATE_FILE}"
_log = structlog.get_logger()


class MetadataLog(PlacedLog):
    """One node's copy. `snapshot` is the latest: the log begins at its end."""

    def __init__(
        self,
        log: PartitionLog,
        directory: LogDirectory,
        clock: Clock,
        snapshot: SnapshotId | None,
        snapshot_bytes: int,
    ) -> None:
        super().__init__(
            TopicIdPartition(METADATA_TOPIC_ID, 0),
            TopicPartition(METADATA_TOPIC, 0),
            log,
            directory,
        )
        self.snapshot = snapshot
        self.on_durable: Callable[[int], None] = lambda _end: None
        """Called with the offset below which the log is durable, after each append."""
        self._snapshot_bytes = snapshot_bytes
        self._leader_epoch: int | None = None
        self._high_watermark = 0
        self._uncommitted = Acknowledgements()
        self._clock = clock

    # As the quorum reads it

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def start_epoch(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.epoch

    @property
    def end_offset(self) -> int:
        return self.log.next_offset

    @property
    def last_epoch(self) -> int:
        return max(self.log.epochs.latest, self.start_epoch)

    def end_of(self, epoch: int) -> tuple[int, int]:
        return self.log.epochs.end_of(epoch, self.log.next_offset)

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        return self._snapshot_bytes if snapshot == self.snapshot else None

    # Writing

    def save_state(self, state: QuorumState) -> "asyncio.Future[None]":
        """Write `quorum-state` durably."""
        return self.directory.write([WriteFile(STATE_PATH, encode_quorum_state(state))])

    def lead(self, epoch: int, records: Sequence[ControlRecord]) -> None:
        """Append as the leader of `epoch` from now on; first the control batch that opens it."""
        self._leader_epoch = epoch
        wall_ms = self._clock.now_ms()
        batch = memoryview(encode_control_batch(records, wall_ms))
        self.append(batch, parse_header(batch), wall_ms, _ignore)

    def resign(self) -> None:
        """Append as a leader no more: every append that is not committed gets NOT_CONTROLLER."""
        if self._leader_epoch is not None:
            self._leader_epoch = None
            self._uncommitted.fail(_not_leader())

    def append(
        self,
        view: memoryview,
        header: BatchHeader,
        wall_ms: int,
        then: Done,
        *,
        origin: str = "coordinator",
        flush: bool = True,  # noqa: ARG002 - as a runtime's log has it; here each batch is made durable
    ) -> Appended:
        """Append a batch of the active controller; `then` is called with None once the quorum has committed it.

        Raises Rejected where this node does not lead.
        """
        self.check_hosted()
        epoch = self._leader_epoch
        if epoch is None:
            raise _not_leader()
        appended = self.log.append_as_leader(
            view,
            header,
            leader_epoch=epoch,
            now_ms=self._clock.steady_ms(),
            wall_ms=wall_ms,
            origin=origin,
        )

        def durable(error: Failure) -> None:
            if error is not None:
                then(error)
            elif self._leader_epoch != epoch:
                then(_not_leader())
            else:
                self._uncommitted.add(appended.last_offset, then, math.inf)
                self._uncommitted.commit(self._high_watermark)

        self._write(appended, durable)
        return appended

    def append_fetched(self, records: Buffer) -> None:
        """Append whole batches from the leader. Raises Corrupt where they are not sound."""
        appended = self.log.append_as_follower(memoryview(records), self._clock.steady_ms())
        self._write(appended, _ignore)

    def _write(self, appended: Appended, then: Done) -> None:
        def performed(error: Failure) -> None:
            if error is None:
                self.log.performed(appended)
            then(error)
            if error is None:
                self.on_durable(self.log.log_end_offset)

        self._perform((*appended.effects, *self.log.flush()), performed)

    def commit(self, high_watermark: int) -> None:
        """Note that all below is committed, and answer the appends below it."""
        self._high_watermark = high_watermark
        self._uncommitted.commit(high_watermark)

    async def truncate(self, offset: int) -> None:
        """Cut off all from `offset` on, durably."""
        await self.write(())  # the appends before it
        await self._rewrite(self.log.truncate_to(offset, self._clock.steady_ms()))

    async def close(self) -> None:
        """Close the log cleanly."""
        if self.directory.failure is None:
            try:
                await self.perform(self.log.close())
            except Rejected as error:
                _log.error("metadata log not closed cleanly", reason=error.message)

    # Snapshots

    def take_snapshot(self, snapshot: SnapshotId, size: int) -> bool:
        """Begin the log at the end of a snapshot that is durable; False for one that is older than the latest."""
        if self.snapshot is not None and snapshot.end_offset <= self.snapshot.end_offset:
            return False
        self.snapshot, self._snapshot_bytes = snapshot, size
        self.log.raise_log_start(snapshot.end_offset)
        return True

    def store_snapshot(
        self, snapshot: SnapshotId, position: int, data: Buffer
    ) -> "asyncio.Future[None]":
        """Write bytes of a snapshot that is being fetched."""
        path = _part(snapshot)
        first: list[Effect] = [Unlink(path)] if position == 0 else []
        return self.directory.write([*first, Append(path, position, (bytes(data),))])

    async def begin_with(self, snapshot: SnapshotId) -> Replay:
        """Put a fetched snapshot in the place of the whole log; return what it says.

        Raises Corrupt for a damaged one, which leaves the log as it is. Raises UserError for sound bytes that this
        release cannot read.
        """
        path = f"{METADATA_DIRECTORY}/{snapshot.file_name()}"
        part = _part(snapshot)
        await self.write(())  # its last bytes
        data = await self.directory.look(_read(part, 0, FILE_BYTES_MAX))
        await self.directory.compute(lambda: check_snapshot(data))
        try:
            replay = await self.directory.compute(lambda: replay_of(snapshot, data))
        except Corrupt as error:
            raise UserError(f"{self.directory.path}/{path}: {error}") from error
        await self.write([Sync(part), Rename(part, path), SyncDirectory(METADATA_DIRECTORY)])
        end = snapshot.end_offset
        log, effects = create(
            METADATA_DIRECTORY,
            METADATA_TOPIC_ID,
            LOG_CONFIG,
            now_ms=self._clock.steady_ms(),
            start_offset=end,
        )
        await self.directory.run(_begin_anew(effects, end))
        self.log = log
        self.snapshot, self._snapshot_bytes = snapshot, len(data)
        return replay

    def check_read(self, records: bytes) -> None:
        """Raise Rejected(CORRUPT_MESSAGE) where batches that were read are not those that were written."""
        for position, header in scan(records):
            if not crc_holds(records, position, header):
                offset = header.base_offset
                raise self._unreadable(
                    Corrupt(
                        f"{self.path_of(offset)}: the CRC of the batch at offset {offset} fails"
                    )
                )

    async def check_snapshot(self, snapshot: SnapshotId) -> None:
        """Raise Rejected(CORRUPT_MESSAGE) where a snapshot's file is damaged, FileNotFoundError where it is gone."""
        data = await self.read_snapshot(snapshot, 0, FILE_BYTES_MAX)
        try:
            await self.directory.compute(lambda: check_snapshot(data))
        except Corrupt as error:
            raise self._unreadable(Corrupt(f"{snapshot.file_name()}: {error}")) from error

    def read_snapshot(self, snapshot: SnapshotId, position: int, size: int) -> Awaitable[bytes]:
        """Return bytes of a snapshot; raises FileNotFoundError where a newer one has replaced it."""
        return self.directory.look(
            _read(f"{METADATA_DIRECTORY}/{snapshot.file_name()}", position, size)
        )


def replay_of(identity: SnapshotId, data: bytes) -> Replay:
    """Return the replay that begins with a snapshot. Raises Corrupt."""
    snapshot = decode_snapshot(data)
    voters = next((one for one in snapshot.control if isinstance(one, VotersRecord)), None)
    return Replay(image_of(snapshot, identity), voters)


def _ignore(_error: Failure) -> None:
    """A failure is the directory's, which stops the node."""


def _part(snapshot: SnapshotId) -> str:
    return f"{METADATA_DIRECTORY}/{snapshot.file_name()}{PART}"


def _read(path: str, position: int, size: int) -> Program[bytes]:
    data = yield Read(path, position, size)
    assert isinstance(data, bytes)
    return data


def _begin_anew(effects: Sequence[Effect], end_offset: int) -> Program[None]:
    """Replace every segment by an empty one at `end_offset`. A crash leaves a log that ends there, or before it."""
    entries = yield ListDirectory(METADATA_DIRECTORY)
    assert isinstance(entries, list)
    bases = {entry.name: entry.name.partition(".")[0] for entry in entries}
    files = {name: int(base) for name, base in bases.items() if base.isdecimal()}
    for name, base in files.items():
        if base >= end_offset:  # what no leader has
            yield Unlink(f"{METADATA_DIRECTORY}/{name}")
    yield from effects
    yield WriteFile(f"{METADATA_DIRECTORY}/{LEADER_EPOCHS}", encode_epochs(()))
    for name, base in files.items():
        if base < end_offset:
            yield Unlink(f"{METADATA_DIRECTORY}/{name}")
    yield SyncDirectory(METADATA_DIRECTORY)


def _not_leader() -> Rejected:
    return Rejected(ErrorCode.not_controller, "this node is not the active controller any more")
