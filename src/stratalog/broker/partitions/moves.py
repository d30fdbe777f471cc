"""Move partitions from one log directory of this broker to another, while clients write and read them.

In: a partition and its new directory (AlterReplicaLogDirs, KIP-113). Out: the same log in the new directory, byte for
byte. It decides nothing about a log, and never removes a copy before metadata names another one.

A move copies to `<topic>-<partition>.<unique>-future`, Kafka's name, first the closed segments and then later appends,
until few bytes are missing. Then it holds appends for a moment, and copies and syncs the rest. *Metadata's assignment
of the partition to the new directory is the commit*. From then on the copy is the partition's log. The copy gets the
partition's name (after a crash at the next start, `copies.py`) and receives the held appends. A log's effects name
files below its directory, so any directory can perform them.

After a crash before the commit, the partition stays in the old directory, and the next start begins the move again.

The broker refuses a move without room on the target. If the room runs out during the copy, only the move fails. The
copy never takes the last `_SPARE_BYTES`, which are for the appends of the partitions that live there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import structlog

from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.pace import Pace, RateNames
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import Failure, LogDirectory
from stratalog.broker.storage.survey import FUTURE, name_aside
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.checkpoints import PARTITION_METADATA, encode_partition_metadata
from stratalog.log.effects import (
    Append,
    Effect,
    ListDirectory,
    MakeDirectory,
    Program,
    Read,
    Rename,
    Sync,
    SyncDirectory,
    Unlink,
    WriteFile,
)
from stratalog.log.segment import DELETED, LOG, SNAPSHOT, segment_path
from stratalog.ports import Entropy, FileInfo
from stratalog.wire.ids import TopicIdPartition

_CHUNK_BYTES: Final = 1 << 20
_NEAR_BYTES: Final = 1 << 20
"""Missing bytes for which appends may wait."""
_SPARE_BYTES: Final = 64 << 20

MOVES: Final = RateNames(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "alter.log.dirs.replication.quota.window.num",
    "alter.log.dirs.replication.quota.window.size.seconds",
)
Assign = Callable[[Mapping[TopicIdPartition, UUID]], Awaitable[set[TopicIdPartition]]]
"""Commit the log directory of each partition to the cluster's metadata; return those that this broker still hosts."""


class _Abandoned(Exception):
    """The move was replaced or cancelled."""


class Moves:
    """The moves in progress on this broker, at most one for each partition."""

    def __init__(
        self,
        hosting: Hosting,
        assign: Assign,
        entropy: Entropy,
        pace: Pace,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.pace = pace
        self._hosting = hosting
        self._assign = assign
        self._entropy = entropy
        self._spawn = spawn
        self._moves: dict[HostedPartition, Move] = {}
        self._wanted: dict[HostedPartition, LogDirectory] = {}
        self._swaps: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()

    async def ask(self, topic: str, index: int, path: str) -> None:
        """Begin to move a partition to the log directory at `path`, and cancel any earlier move of that partition.

        Raises Rejected, checked in Kafka's order (`ReplicaManager.alterReplicaLogDirs`): INVALID_TOPIC_EXCEPTION for a
        name too long for a copy's, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR where either directory is offline,
        UNKNOWN_TOPIC_OR_PARTITION; then INVALID_REPLICA_ASSIGNMENT for a cordoned directory; last KAFKA_STORAGE_ERROR
        where the directory has no room for the partition.
        """
        name = f"{topic}-{index}"
        if not self._future(name).startswith(f"{name}."):
            raise Rejected(ErrorCode.invalid_topic_exception, f"the name of {name} is too long")
        target = next((one for one in self._hosting.directories if one.path == path), None)
        if target is None:
            raise Rejected(ErrorCode.log_dir_not_found, f"{path} is none of log.dirs")
        _total, free = await target.space()
        hosted = self._hosting.get(topic, index)
        hosted.check_hosted()
        if hosted.directory is not target:
            if target.is_cordoned:
                raise Rejected(ErrorCode.invalid_replica_assignment, f"{path} is cordoned")
            self._check_room(hosted, target, free)
        self._wanted[hosted] = target
        move = self._moves.get(hosted)
        if move is None:
            self._next(hosted)
        elif move.target is not target:
            move.abandoned = True

    def _check_room(self, hosted: HostedPartition, target: LogDirectory, free: int) -> None:
        """Raise Rejected(KAFKA_STORAGE_ERROR) where `free` bytes are too few for this move, other moves and appends."""
        coming = {move.hosted: move.missing for move in self.to(target)}
        needed = coming.pop(hosted, hosted.log.size)
        others = sum(coming.values())
        if free >= needed + others + _SPARE_BYTES:
            return
        reason = f"{needed} bytes are needed; {free} are free, {others} of them for other moves"
        reason += f" and {_SPARE_BYTES} for appends"
        fields = {"partition": str(hosted.name), "target": target.path}
        self._log.warning("move refused", reason=reason, **fields)
        raise Rejected(ErrorCode.kafka_storage_error, f"{target.path}: {reason}")

    def is_moving(self, hosted: HostedPartition) -> bool:
        """Return whether a move of the partition is under way."""
        return hosted in self._moves

    def to(self, target: LogDirectory) -> "Iterable[Move]":
        """Return the moves in progress to a directory."""
        return [move for move in self._moves.values() if move.target is target]

    async def close(self) -> None:
        """Wait for the moves that are swapping: their assignment may be committed already."""
        if self._swaps:
            await asyncio.wait(self._swaps)

    def _future(self, directory: str) -> str:
        return name_aside(directory, self._entropy.uuid().hex, FUTURE)

    def _next(self, hosted: HostedPartition) -> None:
        target = self._wanted.pop(hosted, None)
        if target is not None and target is not hosted.directory and not hosted.deleted:
            move = self._moves[hosted] = Move(
                hosted, target, self._future(hosted.log.directory), self.pace
            )
            self._spawn(self._run(move))

    async def _run(self, move: "Move") -> None:
        """Run one move. A move cancelled during the copy leaves the copy, and the next start begins the move again."""
        hosted = move.hosted
        fields = {"partition": str(hosted.name), "target": move.target.path}
        self._log.info("move begun", source=hosted.directory.path, **fields)
        try:
            await move.copy()
        except (_Abandoned, Rejected) as error:
            self._end(move, error)
        else:
            swap = asyncio.get_running_loop().create_task(self._swap(move))
            self._swaps.add(swap)
            swap.add_done_callback(self._swaps.discard)
            await asyncio.shield(swap)

    async def _swap(self, move: "Move") -> None:
        try:
            await move.swap(self._hosting, self._assign)
        except (_Abandoned, Rejected) as error:
            self._end(move, error)
        else:
            self._end(move, None)

    def _end(self, move: "Move", error: _Abandoned | Rejected | None) -> None:
        hosted, target = move.hosted, move.target
        fields = {"partition": str(hosted.name), "target": target.path}
        if error is None:
            self._log.info("moved", **fields)
        elif isinstance(error, Rejected):
            self._log.error("move failed", reason=error.message, **fields)
        else:
            self._log.info("move abandoned", **fields)
            if move.is_outdated:
                self._wanted.setdefault(hosted, target)
        if move.begun and not move.committed and target.failure is None:
            self._hosting.asides.discard(target, [move.future])
        del self._moves[hosted]
        if hosted.directory.failure is not None:
            self._hosting.stop_failed(hosted.directory)
        self._next(hosted)


class Move:
    """One partition's move to another directory. Call `copy`, then `swap`."""

    def __init__(
        self, hosted: HostedPartition, target: LogDirectory, future: str, pace: Pace
    ) -> None:
        self.hosted = hosted
        self.target = target
        self.future = future
        self.abandoned = False
        self.begun = False
        """Whether the copy's directory exists."""
        self.committed = False
        """Whether metadata may have assigned the partition to the copy's directory."""
        self._pace = pace
        self._source = hosted.directory
        self._rewrites = hosted.rewrites
        self._copied: dict[str, int] = {}
        self._end_offset = hosted.log.local_start_offset

    @property
    def size(self) -> int:
        """Bytes of log copied so far."""
        return sum(size for name, size in self._copied.items() if name.endswith(LOG))

    @property
    def missing(self) -> int:
        """Bytes of log still to copy."""
        return max(self.hosted.log.size - self.size, 0)

    @property
    def lag(self) -> int:
        """Offsets by which the copy is behind."""
        return max(self.hosted.log.log_end_offset - self._end_offset, 0)

    @property
    def is_outdated(self) -> bool:
        """Whether the end of the log was cut off since the copy began: the partition is to move, in another copy."""
        return self.hosted.rewrites != self._rewrites

    def _check(self) -> None:
        self.hosted.check_hosted()
        if self.abandoned or self.is_outdated:
            raise _Abandoned

    async def copy(self) -> None:
        """Copy until few bytes are missing. Raises _Abandoned, Rejected (a failed directory, a deleted topic)."""
        await self.hosted.swap_ended()
        topic_id = encode_partition_metadata(self.hosted.key.topic_id)
        # The rename of an abandoned copy is among the earlier writes, so a start finds one copy at most.
        await self.target.write(())
        await self._place(MakeDirectory(self.future))
        self.begun = True
        await self._place(
            WriteFile(f"{self.future}/{PARTITION_METADATA}", topic_id), SyncDirectory("")
        )
        self._copied[PARTITION_METADATA] = len(topic_id)
        log = self.hosted.log
        missing = _NEAR_BYTES
        while missing >= _NEAR_BYTES:
            end, segments = log.log_end_offset, list(log.segments)
            for segment in segments:
                await self._copy(segment.path, segment.readable)
                if segment is segments[-1] or segment.index is not None:
                    continue  # its other files still change
                others = [segment.index_path, segment.time_index_path]
                others.append(segment_path(log.directory, segment.next_offset, SNAPSHOT))
                for path in others:
                    await self._copy(path, None)
                self._end_offset = segment.next_offset
            self._end_offset = end
            missing = sum(
                segment.readable - self._copied.get(_name(segment.path), 0)
                for segment in log.segments
            )

    async def _copy(self, path: str, size: int | None) -> None:
        """Extend the copy of a file to `size` bytes, durably; None: copy the whole file, unless that was done
        before.
        """
        name = _name(path)
        position = self._copied.get(name, -1)
        if position == size or (size is None and position >= 0):
            return
        position = max(position, 0)
        while size is None or position < size or position == 0:
            wanted = _CHUNK_BYTES if size is None else min(_CHUNK_BYTES, size - position)
            if not self.hosted.is_holding:
                await self._pace.turn(wanted)
            self._check()
            data = await self._source.look(_piece(path, position, wanted))
            if data is None:
                return  # retention deleted the file: the last round lists the files again
            if data or not position:
                await self._place(Append(f"{self.future}/{name}", position, (data,)))
            position += len(data)
            self._copied[name] = position
            if not data:
                break
        await self._place(Sync(f"{self.future}/{name}"))

    async def swap(
        self,
        hosting: Hosting,
        assign: Assign,
    ) -> None:
        """Copy the rest while appends are held, commit the assignment, and switch the partition to the copy. Raises as
        `copy`.
        """
        hosted, target = self.hosted, self.target
        key = hosted.key
        self._check()
        hosted.hold()
        try:
            await self._source.write(())  # all earlier effects are in the files now
            await self._mirror()
            hosted.arriving = target
            # Recovery does not find the log start in the files, so the checkpoint must have it.
            await hosting.checkpoints.write(target)
            self._check()
        except BaseException:  # a cancellation too: the partition stays where it is
            hosted.arriving = None
            hosted.release()
            raise
        self.committed = True
        # If the commit fails, nothing says which copy counts: held appends stay held, and the node ends with its
        # metadata directory.
        is_ours = key in await assign({key: target.id})
        if hosted.deleted or not is_ours:
            self.committed = False
            hosted.arriving = None
            hosted.release()
            raise _Abandoned
        renamed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: Failure) -> None:
            self._arrive(hosting, error)
            renamed.set_result(None)

        hosted.copies = [self._source, target]
        try:
            name = hosted.log.directory
            effects = [*hosting.asides.free(target, name), Rename(self.future, name)]
            target.perform([*effects, SyncDirectory("")], finish)
        except Rejected as error:
            finish(error)
        await renamed
        target.check()

    def _arrive(self, hosting: Hosting, error: Failure) -> None:
        """Switch the partition to the copy, which has its final name or whose directory has failed."""
        hosted = self.hosted
        hosted.arriving = None
        hosting.relocate(hosted, self.target)
        if error is None and not hosted.deleted and self._source.failure is None:
            hosting.put_aside(self._source, [hosted])
        hosted.release()

    async def _mirror(self) -> None:
        """Make the copy equal to the source, which does not change meanwhile."""
        directory = self.hosted.log.directory
        entries = await self._source.look(_entries(directory))
        present = {entry.name for entry in entries if not entry.name.endswith(DELETED)}
        for entry in entries:
            if entry.name in present:
                is_log = entry.name.endswith(LOG)
                await self._copy(f"{directory}/{entry.name}", entry.size if is_log else None)
        gone = [name for name in self._copied if name not in present]
        await self._place(
            *(Unlink(f"{self.future}/{name}") for name in gone),
            SyncDirectory(self.future),
            SyncDirectory(""),
        )

    async def _place(self, *effects: Effect) -> None:
        """Write to the copy without delaying appends of the directory's own partitions. Raises Rejected without
        room.
        """
        await self.target.place(effects, spare=_SPARE_BYTES)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _piece(path: str, position: int, size: int) -> Program[bytes | None]:
    """Return bytes of a file, b"" at its end; None without the file."""
    try:
        data = yield Read(path, position, size)
    except FileNotFoundError:
        return None
    assert isinstance(data, bytes)
    return data


def _entries(directory: str) -> Program[list[FileInfo]]:
    entries = yield ListDirectory(directory)
    assert isinstance(entries, list)
    return entries
