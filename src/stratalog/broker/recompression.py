"""Batches that a topic wants in another codec than they came in.

In: produced batches of one partition, in order. Out: the same batches as the topic keeps them, in that order. The work
is done in processes beside the broker: the event loop never compresses.

While a partition has a batch in work, whatever is produced to it waits behind, so that a producer's sequence and every
reader's order stay what they were. What waits is bounded in bytes: producers ask `has_room` first. A process that dies
fails the batch it had with a code that clients retry on, and nothing else.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from stratalog.broker.partition import HostedPartition
from stratalog.config import LogConfig
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.ports import Worker, Workers
from stratalog.wire.batch import BatchHeader, parse_header
from stratalog.wire.compression import CODEC_NAMES, CODECS
from stratalog.wire.recompression import recompress

Then = Callable[[memoryview, BatchHeader], None]
"""Called with a batch as the topic keeps it, and its header."""
Failed = Callable[[BaseException], None]
AS_PRODUCED: Final = "producer"
_UNCOMPRESSED: Final = "uncompressed"
_WAITING_BYTES_MAX: Final = 64 << 20


class _Waiting:
    """One batch in work or behind one that is. Its turn comes once `done`."""

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
    """One broker's. Made and used on the event loop; its processes start with the first batch that needs them."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._worker: Worker | None = None
        self._queues: dict[tuple[UUID, int], deque[_Waiting]] = {}
        self._bytes = 0
        self._room: list[asyncio.Future[None]] = []
        self._log = structlog.get_logger()

    @property
    def has_room(self) -> bool:
        """False while as many bytes as allowed wait."""
        return self._bytes < _WAITING_BYTES_MAX

    async def room(self) -> None:
        """Wait until bytes may be added."""
        while not self.has_room:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    def may_want(self, hosted: HostedPartition) -> bool:
        """Whether a batch for this partition may have to wait here."""
        return hosted.log.config.compression_type != AS_PRODUCED or _key(hosted) in self._queues

    def is_wanted(self, hosted: HostedPartition, header: BatchHeader) -> bool:
        """Whether a batch must go through `submit`: it is in the wrong codec, or others are before it."""
        if self._queues and _key(hosted) in self._queues:
            return True
        kept_as = hosted.log.config.compression_type
        return kept_as != AS_PRODUCED and _codec(kept_as, header) != header.codec

    def submit(
        self,
        hosted: HostedPartition,
        view: memoryview,
        header: BatchHeader,
        then: Then,
        failed: Failed,
    ) -> None:
        """Have `then` called with the batch in the topic's codec once it is its turn, or `failed` with `Rejected`.

        Neither is called before this returns.
        """
        one = _Waiting(view, header, then, failed)
        key = _key(hosted)
        self._queues.setdefault(key, deque()).append(one)
        self._bytes += one.size
        config = hosted.log.config
        codec = _codec(config.compression_type, header)
        if codec == header.codec:
            assert len(self._queues[key]) > 1, "only what waits behind another needs no work"
            one.done = True
            return
        if self._worker is None:
            self._worker = self._workers.start_processes("recompress")
        call = partial(recompress, bytes(view), codec, _level(config, codec))
        work: asyncio.Future[bytearray] = self._worker.submit(call)
        work.add_done_callback(partial(self._worked, key, one, config.max_message_bytes))

    def _worked(
        self,
        key: tuple[UUID, int],
        one: _Waiting,
        bytes_max: int,
        work: "asyncio.Future[bytearray]",
    ) -> None:
        one.done = True
        one.error = work.exception()
        if isinstance(one.error, Unavailable):
            self._log.warning("recompression failed", reason=str(one.error))
            one.error = Rejected(ErrorCode.not_leader_or_follower, str(one.error))
        elif one.error is None:
            one.view = memoryview(work.result())
            one.header = parse_header(one.view)
            if one.header.size > bytes_max:
                one.error = Rejected(
                    ErrorCode.message_too_large,
                    f"a batch of {one.header.size} bytes as {CODEC_NAMES[one.header.codec]} where "
                    f"{bytes_max} are allowed",
                )
        queue = self._queues[key]
        while queue and queue[0].done:
            self._take(queue.popleft())
        if not queue:
            del self._queues[key]
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
        """End the processes; what waits for them is told first."""
        if self._worker is not None:
            await self._worker.close()
            await asyncio.sleep(0)  # what was done last is appended before the logs close


def _key(hosted: HostedPartition) -> tuple[UUID, int]:
    return hosted.identity.topic_id, hosted.identity.index


def _codec(kept_as: str, header: BatchHeader) -> int:
    """The codec that a batch is kept in."""
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
