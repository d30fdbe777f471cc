"""Serve reads of history from the bucket; limit their number, their rate and their read-ahead.

In: a tiered segment and the wanted offsets. Out: batches, nothing yet, or Rejected. It serves no offset that the
local log has, and never blocks the event loop.

Names and meaning are Kafka's (KIP-405, KIP-956, KIP-1018). `remote.log.reader.threads` reads run at a time,
`remote.log.reader.max.pending.tasks` wait, and more are refused, on which clients retry. A fetch waits
`remote.fetch.max.wait.ms` for the bucket; then its answer leaves without records.
`remote.log.manager.fetch.max.bytes.per.second` bounds the rate. A read that is too late for its fetch stays in the
cache for the next one.

A reader that continues where its last read ended is a sequential consumer. For it, read-ahead threads fetch the next
ranges before it asks, twice as far ahead each time up to a limit. Separate threads do so, so that no request waits for
read-ahead.
"""

import asyncio
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from stratalog.broker.partitions.pace import RateNames, quota_of
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable
from stratalog.log.reading import Slices
from stratalog.ports import ObjectStore, Outside, Worker
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.tier.reading.fetcher import RANGE_BYTES, Fetcher
from stratalog.tier.reading.followed_lookup import FollowedLookup
from stratalog.tier.reading.lookup import SegmentLookup
from stratalog.wire.batch import scan

T = TypeVar("T")
Lookup = SegmentLookup | FollowedLookup
_AHEAD_BYTES_MAX: Final = 24 << 20
_REQUEST_BYTES: Final = 16 << 20
"""Size of a read-ahead request: each request costs the server as much as one or two megabytes of its answer."""
_AHEAD_THREADS: Final = 2
"""Read-ahead requests in flight at a time, because a bucket's answers begin late."""
_AHEAD_SHARE: Final = Fraction(3, 8)
"""The share of the cache that one reader's read-ahead may fill."""
_AHEAD_SEGMENTS_MAX: Final = 4
_READERS_MAX: Final = 16
"""Sequential readers tracked for each partition; beyond, the oldest is forgotten and reads without read-ahead."""


class _Reader:
    """The read-ahead of one consumer: bytes cached ahead of it, and the next read-ahead size."""

    __slots__ = ("ahead", "depth")

    def __init__(self) -> None:
        self.ahead = 0
        self.depth = 0


class RemoteReads:
    """The reads of one broker."""

    def __init__(self, config: BrokerConfig, outside: Outside, store: ObjectStore) -> None:
        self._clock = outside.clock
        self._workers = outside.workers
        cache_bytes = config.int("tier.cache.bytes")
        self._fetcher = Fetcher(store, cache_bytes, spent=self._spent)
        self._ahead_max = min(_AHEAD_BYTES_MAX, int(cache_bytes * _AHEAD_SHARE))
        self._threads = config.int("remote.log.reader.threads")
        self._worker = outside.workers.start("tier-read", self._threads, background=True)
        self._ahead_worker = outside.workers.start("tier-ahead", _AHEAD_THREADS, background=True)
        self._pending = 0
        self.configure(config)
        self._readers: dict[HostedPartition, dict[int, _Reader]] = {}
        self._log = structlog.get_logger()

    def configure(self, config: BrokerConfig) -> list[Worker]:
        """Apply the present settings; return the replaced worker to close, if the number of threads changed."""
        self._quota = quota_of(
            config,
            RateNames(
                "remote.log.manager.fetch.max.bytes.per.second",
                "remote.log.manager.fetch.quota.window.num",
                "remote.log.manager.fetch.quota.window.size.seconds",
            ),
            self._clock,
        )
        threads = config.int("remote.log.reader.threads")
        self._pending_max = threads + config.int("remote.log.reader.max.pending.tasks")
        self._wait_s = config.int("remote.fetch.max.wait.ms") / 1000
        self._search_s = config.int("remote.list.offsets.request.timeout.ms") / 1000
        if threads == self._threads:
            return []
        before, self._threads = self._worker, threads
        self._worker = self._workers.start("tier-read", threads, background=True)
        return [before]

    def _spent(self, size: int) -> None:
        if self._quota is not None:
            self._quota.spent(size)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers to close at the end."""
        return self._worker, self._ahead_worker

    def forget(self, hosted: HostedPartition) -> None:
        """Drop the readers of a deleted partition."""
        self._readers.pop(hosted, None)

    async def find(
        self,
        hosted: HostedPartition,
        look: Callable[[], RemoteSegment | None],
        *,
        search: bool = False,
    ) -> RemoteSegment | None:
        """Return the result of `look`, which may open an archive manifest.

        Raises Rejected, also where this takes longer than the limit of a fetch or of a `search` by time. A late result
        is found at once the next time.
        """
        wait_s = self._search_s if search else self._wait_s
        answer = await self._ask(hosted, str(hosted.name), lambda: (look(),), wait_s)
        if answer is None:
            raise Rejected(
                ErrorCode.request_timed_out if search else ErrorCode.kafka_storage_error,
                f"{hosted.name}: its manifest is not read within {wait_s} s",
            )
        return answer[0]

    async def batches(
        self,
        hosted: HostedPartition,
        segment: RemoteSegment,
        offset: int,
        max_bytes: int,
        *,
        minimum_one: bool,
    ) -> Slices:
        """Read as `Fetcher.read`; return no batch if the bucket or the quota takes longer than a fetch waits. Raises
        Rejected.

        Prefetched bytes are returned at once, even if they are fewer than requested.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while self._quota is not None and (wait := self._quota.wait_ms(self._clock.steady_ms())):
            rest = deadline - loop.time()
            if rest <= 0:
                return Slices([], offset, offset)
            await asyncio.sleep(min(wait / 1000, rest))
        held = self._fetcher.held(segment, offset, max_bytes, minimum_one=minimum_one)
        if held is not None:
            return held
        call = partial(self._fetcher.read, segment, offset, max_bytes, minimum_one=minimum_one)
        data = await self._ask(hosted, segment.path, call, deadline - loop.time())
        return data or Slices([], offset, offset)

    async def search(
        self, hosted: HostedPartition, segment: RemoteSegment, timestamp: int, start: int = 0
    ) -> tuple[int, int] | None:
        """Search as `Fetcher.offset_for_timestamp`; return (offset, timestamp). Raises Rejected."""
        call = partial(self._fetcher.offset_for_timestamp, segment, timestamp, start)
        return await self._by_time(hosted, segment, call)

    async def latest(
        self, hosted: HostedPartition, segment: RemoteSegment, start: int
    ) -> tuple[int, int] | None:
        """Search as `Fetcher.latest`; return (offset, timestamp). Raises Rejected."""
        return await self._by_time(hosted, segment, partial(self._fetcher.latest, segment, start))

    async def _by_time(
        self, hosted: HostedPartition, segment: RemoteSegment, call: Callable[[], Any]
    ) -> tuple[int, int] | None:
        answer = await self._ask(hosted, segment.path, lambda: (call(),), self._search_s)
        if answer is None:
            raise Rejected(
                ErrorCode.request_timed_out, f"{segment.path} is not read within {self._search_s} s"
            )
        (found,) = answer
        return None if found is None else (found.offset, found.timestamp)

    def progress(
        self, hosted: HostedPartition, lookup: Lookup, offset: int, end: int, size: int
    ) -> None:
        """Note that a consumer read `size` bytes, the records [offset, end). Prefetch for a sequential consumer."""
        readers = self._readers.setdefault(hosted, {})
        reader = readers.pop(offset, None)
        is_sequential = reader is not None
        reader = reader or _Reader()
        readers[end] = reader
        if len(readers) > _READERS_MAX:
            del readers[next(iter(readers))]
        reader.ahead -= size
        if is_sequential and reader.ahead <= reader.depth // 2 and self._ahead_max:
            reader.depth = min(max(2 * reader.depth, 2 * size, RANGE_BYTES), self._ahead_max)
            # The last prefetch may have ended inside a range.
            fetched_to = max(0, reader.ahead - RANGE_BYTES)
            reader.ahead = reader.depth
            self._prefetch(
                lookup, end, hosted.log.local_start_offset, range(fetched_to, reader.depth)
            )

    def _prefetch(self, lookup: Lookup, offset: int, stop: int, span: range) -> None:
        """Prefetch the bytes `span` after `offset`. Records from `stop` on are on the local disk too."""
        if self._quota is not None and self._quota.wait_ms(self._clock.steady_ms()):
            return  # the quota is used up: consumers' own reads come first

        def prefetch(skip: int, left: int) -> None:
            at = offset
            for _ in range(_AHEAD_SEGMENTS_MAX):
                segment = lookup.at(at)
                if segment is None or left <= 0 or at >= stop:
                    break
                covered = self._fetcher.prefetch(segment, at, left, skip)
                left -= max(0, min(left, covered - skip))
                skip = max(0, skip - covered)
                at = segment.entry.last_offset + 1

        for skip in span[::_REQUEST_BYTES]:
            left = min(_REQUEST_BYTES, span.stop - skip)
            self._ahead_worker.submit(partial(prefetch, skip, left)).add_done_callback(_consumed)

    async def _ask(
        self, hosted: HostedPartition, name: str, call: Callable[[], T], wait_s: float
    ) -> T | None:
        """Return the call's result, or None after `wait_s`. A late call still runs to its end, unused."""
        if self._pending >= self._pending_max:
            hosted.metrics.remote_errors += 1
            raise Rejected(
                ErrorCode.kafka_storage_error, f"{self._pending} reads wait for the bucket"
            )
        future = self._worker.submit(call)
        self._pending += 1
        future.add_done_callback(self._ended)
        done, _late = await asyncio.wait((future,), timeout=wait_s)
        if not done:
            return None
        try:
            return future.result()
        except Unavailable as error:
            hosted.metrics.remote_errors += 1
            raise Rejected(ErrorCode.kafka_storage_error, str(error)) from error
        except Corrupt as error:
            hosted.metrics.remote_errors += 1
            count, is_news = hosted.metrics.unreadable(name)
            if is_news:
                self._log.error(
                    "tiered segment unreadable",
                    partition=str(hosted.name),
                    object=name,
                    reason=str(error),
                    reads=count,
                )
            raise Rejected(ErrorCode.corrupt_message, str(error)) from error

    def _ended(self, future: "asyncio.Future[Any]") -> None:
        self._pending -= 1
        _consumed(future)


def _consumed(future: "asyncio.Future[Any]") -> None:
    """Consume the exception of a read whose caller has left: that is no bug."""
    if not future.cancelled():
        future.exception()


def slices_below(found: Slices, end_offset: int) -> Slices:
    """Return the batches that begin below `end_offset`."""
    buffers, next_offset = [], found.first_offset
    for buffer in found.buffers:
        cut = 0
        for position, header in scan(buffer):
            if header.base_offset >= end_offset:
                break
            cut, next_offset = position + header.size, header.next_offset
        buffers.append(buffer[:cut])
        if cut < len(buffer):
            break
    kept = [buffer for buffer in buffers if buffer]
    return Slices(kept, found.first_offset, next_offset, found.aborted)
