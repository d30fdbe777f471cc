"""Decompress batches before they are stored: to check their records, or to compress them with another codec.

In: produced batches of one partition, in order. Out: the same batches in the topic's codec, in that order. Checks run
on threads (codecs release the interpreter), compression in processes beside the broker. The event loop does neither,
except for batches that are small once decompressed.

While the broker recompresses a batch, later batches of its partition wait. So producers' sequences and the order of
records do not change. The waiting bytes are bounded: handlers check `has_room` first. If a process dies, only its batch
fails, with a retriable code.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.config import LogConfig
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.ports import LargestTimestamp, Worker, Workers
from stratalog.wire.batch import CODEC_MASK, CRC_START, BatchHeader, parse_header, set_max_timestamp
from stratalog.wire.compression import CODEC_NAMES, CODECS, NONE
from stratalog.wire.recompression import recompress
from stratalog.wire.validation import Demands, check_batch

Then = Callable[[memoryview, BatchHeader], None]
"""Called with the batch to store, and its header."""
Failed = Callable[[BaseException], None]
AS_PRODUCED: Final = "producer"
_UNCOMPRESSED: Final = "uncompressed"
_WAITING_BYTES_MAX: Final = 64 << 20
_THREADS: Final = 2
_AT_ONCE_BYTES: Final = 16 << 10
_RESTORED_AT_ONCE_BYTES: Final = 128 << 10
"""A batch of at most this size, compressed and decompressed, is checked on the event loop: a thread would cost as
much.
"""
_COMPILED_FROM: Final = 4 << 10
"""Size of a batch from which the call of compiled code costs less than it saves."""
_LOG_APPEND_TIME: Final = "LogAppendTime"
_CODEC_AT: Final = CRC_START + 1


class _Waiting:
    """One batch in work, or one that waits behind it. Its turn comes once it is `done`."""

    __slots__ = ("done", "error", "failed", "header", "size", "then", "view")

    def __init__(self, view: memoryview, header: BatchHeader, then: Then, failed: Failed) -> None:
        self.view = view
        self.header = header
        self.size = len(view)
        self.then = then
        self.failed = failed
        self.done = False
        self.error: BaseException | None = None


class Recompression:
    """Recompression of one broker. Create and use it on the event loop; threads and processes start with the first
    need.
    """

    def __init__(self, workers: Workers, largest_timestamp: LargestTimestamp) -> None:
        self._workers = workers
        self._largest_timestamp = largest_timestamp
        self._compressing: Worker | None = None
        self._checking: Worker | None = None
        self._queues: dict[HostedPartition, deque[_Waiting]] = {}
        self._bytes = 0
        self._room: list[asyncio.Future[None]] = []
        self._log = structlog.get_logger()

    @property
    def has_room(self) -> bool:
        """False while the waiting bytes are at their limit."""
        return self._bytes < _WAITING_BYTES_MAX

    async def room(self) -> None:
        """Wait until a handler may add bytes."""
        while not self.has_room:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    def is_idle_for(self, hosted: HostedPartition) -> bool:
        """Return whether batches without compression go to this partition as they are, and now."""
        kept_as = hosted.log.config.compression_type
        return hosted not in self._queues and kept_as in (AS_PRODUCED, _UNCOMPRESSED)

    def may_want(self, hosted: HostedPartition, records: memoryview | None) -> bool:
        """Return whether a batch for this partition may have to wait here."""
        if records is not None and len(records) > _CODEC_AT and records[_CODEC_AT] & CODEC_MASK:
            return True
        return hosted.log.config.compression_type != AS_PRODUCED or hosted in self._queues

    def check(
        self, hosted: HostedPartition, view: memoryview, header: BatchHeader, wall_ms: int
    ) -> BatchHeader | None:
        """Return the header to store, if known at once; on None, `submit` the batch.

        Raises Rejected where the topic does not accept the records.
        """
        if self._queues and hosted in self._queues:
            return None
        kept_as = hosted.log.config.compression_type
        if kept_as != AS_PRODUCED and _codec(kept_as, header) != header.codec:
            return None
        demands = demands_of(hosted.log.config, wall_ms)
        if header.codec == NONE:
            found = (
                self._largest_timestamp(view, *demands) if header.size >= _COMPILED_FROM else None
            )
            largest = check_batch(view, header, demands, header.size) if found is None else found
        elif header.size > _AT_ONCE_BYTES:
            return None
        else:
            try:
                largest = check_batch(view, header, demands, _RESTORED_AT_ONCE_BYTES)
            except Rejected as error:
                if error.code is not ErrorCode.message_too_large:
                    raise
                return None
        return _with_timestamp(view, header, largest)

    def submit(
        self,
        hosted: HostedPartition,
        view: memoryview,
        header: BatchHeader,
        wall_ms: int,
        then: Then,
        failed: Failed,
    ) -> None:
        """Queue a batch: call `then` with the batch to store once its turn comes, or `failed` with `Rejected`.

        Neither is called before this returns.
        """
        one = _Waiting(view, header, then, failed)
        config = hosted.log.config
        demands = demands_of(config, wall_ms)
        codec = _codec(config.compression_type, header)
        work: asyncio.Future[bytearray] | asyncio.Future[int]
        if codec != header.codec:
            if self._compressing is None:
                self._compressing = self._workers.start_processes("recompress")
            call = partial(recompress, bytes(view), codec, _level(config, codec), demands)
            work = self._compressing.submit(call)
        else:
            if self._checking is None:
                self._checking = self._workers.start("check-records", _THREADS)
            work = self._checking.submit(partial(check_batch, view, header, demands))
        self._queues.setdefault(hosted, deque()).append(one)
        self._bytes += one.size
        work.add_done_callback(partial(self._worked, hosted, one, config.max_message_bytes))

    def _worked(
        self,
        hosted: HostedPartition,
        one: _Waiting,
        bytes_max: int,
        work: "asyncio.Future[bytearray] | asyncio.Future[int]",
    ) -> None:
        one.done = True
        one.error = work.exception()
        if one.error is not None:
            one.error.__traceback__ = (
                None  # the error holds the decompressed records until it is answered
            )
        if isinstance(one.error, Unavailable):
            self._log.warning("recompression failed", reason=str(one.error))
            one.error = Rejected(ErrorCode.not_leader_or_follower, str(one.error))
        elif one.error is None:
            made = work.result()
            if isinstance(made, int):
                one.header = _with_timestamp(one.view, one.header, made)
            else:
                one.view = memoryview(made)
                one.header = parse_header(one.view)
            if one.header.size > bytes_max:
                one.error = Rejected(
                    ErrorCode.message_too_large,
                    f"a batch of {one.header.size} bytes as {CODEC_NAMES[one.header.codec]} where "
                    f"{bytes_max} are allowed",
                )
        queue = self._queues[hosted]
        while queue and queue[0].done:
            self._take(queue.popleft())
        if not queue:
            del self._queues[hosted]
        if self._room and self.has_room:
            waiting, self._room = self._room, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def _take(self, one: _Waiting) -> None:
        self._bytes -= one.size
        if one.error is not None:
            one.failed(one.error)
            return
        try:
            one.then(one.view, one.header)
        except Rejected as error:
            one.failed(error)

    async def close(self) -> None:
        """Fail waiting batches, then end threads and processes."""
        for worker in (self._compressing, self._checking):
            if worker is not None:
                await worker.close()
        await asyncio.sleep(0)  # finished batches are appended before the logs close


def demands_of(config: LogConfig, wall_ms: int) -> Demands:
    """Return what a topic demands of each record."""
    keyed = "compact" in config.cleanup_policy
    if config.message_timestamp_type == _LOG_APPEND_TIME:
        return Demands(keyed=keyed)
    return Demands(
        wall_ms - config.message_timestamp_before_max_ms,
        wall_ms + config.message_timestamp_after_max_ms,
        keyed,
    )


def _with_timestamp(view: memoryview, header: BatchHeader, largest: int) -> BatchHeader:
    """Set the batch's largest timestamp to that of its records: retention and look-ups by time depend on it."""
    if header.max_timestamp == largest:
        return header
    return set_max_timestamp(view, 0, header, largest)


def _codec(kept_as: str, header: BatchHeader) -> int:
    """Return the codec in which the topic stores a batch."""
    if kept_as == AS_PRODUCED:
        return header.codec
    return CODECS["none" if kept_as == _UNCOMPRESSED else kept_as]


def _level(config: LogConfig, codec: int) -> int | None:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(CODEC_NAMES[codec])
