"""Move partitions from one log directory of this broker to another, while they are written and read.

In: a partition and its new directory (AlterReplicaLogDirs, KIP-113). Out: the same log there, byte for byte. It
decides nothing about a log, and never removes a copy before metadata names another one.

A move copies to `<topic>-<partition>.<unique>-future`, Kafka's name, first the closed segments and then later
appends, until little is missing. Then appends are held for a moment while the rest is copied and synced. *Metadata's
assignment of the partition to the new directory is the commit*. From there on the copy counts. It gets the
partition's name (after a crash at the next start, `copies.py`) and takes the held appends. A log's effects name files
below its directory, so any directory can perform them.

A crash before the commit leaves the partition where it was and begins the move again at the next start.

A move without room on the target is refused, or fails alone when the room runs out during the copy. The copy never
takes the last `_SPARE_BYTES`, which are for the appends of the partitions that live there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import structlog

from stratalog.broker.partitions.hosting import Hosting
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
"""So little is missing that appends may wait for it."""
_SPARE_BYTES: Final = 64 << 20

Assign = Callable[[Mapping[TopicIdPartition, UUID]], Awaitable[set[TopicIdPartition]]]
"""Commit the log directory of each partition to the cluster's metadata; return those that are still this broker's."""


class _Abandoned(Exception):
    """The partition is not to go there any more."""


class Moves:
    """The moves under way on this broker, one for a partition."""

    def __init__(
        self,
        hosting: Hosting,
        assign: Assign,
        entropy: Entropy,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._hosting = hosting
        self._assign = assign
        self._entropy = entropy
        self._spawn = spawn
        self._moves: dict[HostedPartition, Move] = {}
        self._wanted: dict[HostedPartition, LogDirectory] = {}
        self._swaps: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()

    async def ask(self, topic: str, index: int, path: str) -> None:
        """Begin to move a partition to the log directory at `path`, in place of any earlier wish for that partition.

        Raises Rejected, checked in Kafka's order (`ReplicaManager.alterReplicaLogDirs`): INVALID_TOPIC_EXCEPTION for a
        name too long for a copy's, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR where either directory is offline,
        UNKNOWN_TOPIC_OR_PARTITION; last KAFKA_STORAGE_ERROR where the directory has no room for the partition.
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

    def to(self, target: LogDirectory) -> "Iterable[Move]":
        """Return the moves under way to a directory."""
        return [move for move in self._moves.values() if move.target is target]

    async def close(self) -> None:
        """Let those end that are being swapped: what they decided may be committed."""
        if self._swaps:
            await asyncio.wait(self._swaps)

    def _future(self, directory: str) -> str:
        return name_aside(directory, self._entropy.uuid().hex, FUTURE)

    def _next(self, hosted: HostedPartition) -> None:
        target = self._wanted.pop(hosted, None)
        if target is not None and target is not hosted.directory and not hosted.deleted:
            move = self._moves[hosted] = Move(hosted, target, self._future(hosted.log.directory))
            self._spawn(self._run(move))

    async def _run(self, move: "Move") -> None:
        """Cancelled while it copies it leaves the copy: the next start begins the move again."""
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
        if move.begun and not move.committed and target.failure is None:
            self._hosting.asides.discard(target, [move.future])
        del self._moves[hosted]
        if hosted.directory.failure is not None:
            self._hosting.stop_failed(hosted.directory)
        self._next(hosted)


class Move:
    """One partition on its way to another directory. `copy`, then `swap`."""

    def __init__(self, hosted: HostedPartition, target: LogDirectory, future: str) -> None:
        self.hosted = hosted
        self.target = target
        self.future = future
        self.abandoned = False
        self.begun = False
        """Whether the copy's directory is there."""
        self.committed = False
        """Whether metadata may say that the copy counts."""
        self._source = hosted.directory
        self._copied: dict[str, int] = {}
        self._end_offset = hosted.log.local_start_offset

    @property
    def size(self) -> int:
        """Bytes of log copied so far."""
        return sum(size for name, size in self._copied.items() if name.endswith(LOG))

    @property
    def missing(self) -> int:
        """Bytes of log that are not copied yet."""
        return max(self.hosted.log.size - self.size, 0)

    @property
    def lag(self) -> int:
        """Offsets by which the copy is behind."""
        return max(self.hosted.log.log_end_offset - self._end_offset, 0)

    def _check(self) -> None:
        self.hosted.check_hosted()
        if self.abandoned:
            raise _Abandoned

    async def copy(self) -> None:
        """Copy until little is missing. Raises _Abandoned, Rejected (a failed directory, a deleted topic)."""
        topic_id = encode_partition_metadata(self.hosted.key.topic_id)
        # An abandoned copy's rename is among the earlier writes: a start must find one copy at most.
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
                    continue  # its other files are not what they will be
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
        """Bring the copy of a file up to `size` bytes, durably; None: all of it, unless it was copied before."""
        name = _name(path)
        position = self._copied.get(name, -1)
        if position == size or (size is None and position >= 0):
            return
        position = max(position, 0)
        while size is None or position < size or position == 0:
            self._check()
            wanted = _CHUNK_BYTES if size is None else min(_CHUNK_BYTES, size - position)
            data = await self._source.look(_piece(path, position, wanted))
            if data is None:
                return  # retention took it: the last round sees what is there
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
        """Copy the rest while appends are held, commit, and let the partition live there. Raises as `copy`."""
        hosted, target = self.hosted, self.target
        key = hosted.key
        self._check()
        hosted.hold()
        try:
            await self._source.write(())  # all that was decided before is there now
            await self._mirror()
            hosted.arriving = target
            # What recovery would not find in the files: where the log begins.
            await hosting.checkpoints.write(target)
            self._check()
        # Whatever it was, a cancelled task too: nothing is committed, and the partition stays where it is.
        except BaseException:
            hosted.arriving = None
            hosted.release()
            raise
        self.committed = True
        # If this fails, it is unknown which copy counts: held appends stay held, and the node ends with its
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
        """The copy has its name, or its directory has failed: either way the partition lives there now."""
        hosted = self.hosted
        hosted.arriving = None
        hosted.directory = self.target
        hosted.copies = [self.target]
        if error is None and not hosted.deleted and self._source.failure is None:
            hosting.put_aside(self._source, [hosted])
        hosted.release()

    async def _mirror(self) -> None:
        """Make the copy what the source is. Nothing is written there meanwhile."""
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
        """Write to the copy beside the appends of the partitions that live there. Raises Rejected without room."""
        await self.target.place(effects, spare=_SPARE_BYTES)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _piece(path: str, position: int, size: int) -> Program[bytes | None]:
    """Return bytes of a file, b"" at its end; None where it is not there."""
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
