"""Read partitions continuously: while the caller processes one answer, the broker works on the next.

In: a client, and a start offset for each partition. Out: fetched batches with the offset they were fetched for, in
each partition's order. It never starts a task: one Fetch per leader is under way, and `poll` awaits them.

Raises Rejected for a permanent error (OFFSET_OUT_OF_RANGE, a deleted topic), Unavailable where a leader stays
unreachable.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from stratalog.client import calls
from stratalog.client.aio import Client
from stratalog.client.calls import error_of
from stratalog.client.cluster import PASSING, PAUSES_S
from stratalog.client.fetches import OTHER_TOPIC, FetchedPartition, FetchSpan, fetch_each
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.batch import scan
from stratalog.wire.ids import TopicPartition

__all__ = ["FetchSettings", "Fetched", "Reader"]


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's consumer settings of the same names: fetch.max.bytes and so on."""

    max_bytes: int = 16 << 20
    partition_max_bytes: int = 1 << 20
    max_wait_ms: int = 500
    min_bytes: int = 1
    isolation: int = calls.READ_UNCOMMITTED


class Fetched(NamedTuple):
    """Whole batches of one partition, from the one that holds `offset` on; perhaps part of one behind them.

    `aborted`: (producer id, first offset) of the aborted transactions in these batches.
    """

    topic: str
    partition: int
    offset: int
    records: memoryview
    high_watermark: int
    aborted: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class _InFlight:
    """A Fetch under way."""

    node_id: int
    offsets: dict[TopicPartition, int]
    sent_s: float


class Reader:
    """`positions` are the next offsets to fetch, ahead of the caller; change them with `assign`.

    with Reader(client, {TopicPartition("t", 0): 0}) as reader:
        for fetched in await reader.poll(1.0): …
    """

    def __init__(
        self,
        client: Client,
        positions: Mapping[TopicPartition, int],
        settings: FetchSettings | None = None,
    ) -> None:
        """`poll` needs at least one partition."""
        self.positions = dict(positions)
        self.throttled_ms = 0
        """How long client quotas made this reader wait, the sum over all brokers."""
        self._client = client
        self._settings = settings or FetchSettings()
        self._in_flight: dict[asyncio.Future[Any], _InFlight] = {}
        self._failures = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forget()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read only these partitions, from these offsets on."""
        self.positions = dict(positions)

    def drop(self, key: TopicPartition) -> None:
        """Stop reading a partition."""
        self.positions.pop(key, None)

    async def poll(self, timeout_s: float) -> list[Fetched]:
        """Return what has arrived, once something has; nothing after `timeout_s`, or where the leaders have nothing
        new.
        """
        assert self.positions, "something to read"
        try:
            await self._ask()
            done, _ = await asyncio.wait(
                self._in_flight, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            self._give_up_late()
            found: list[Fetched] = []
            for future in done:
                found += self._taken(self._in_flight.pop(future), future.result())
            # The broker works while the caller processes this answer.
            if self.positions:
                await self._ask()
        except (Unavailable, Rejected) as error:
            await self._recover(error)
            return []
        self._failures = 0
        return found

    async def _ask(self) -> None:
        """Send one Fetch to each leader without one in flight."""
        busy = {fetch.node_id for fetch in self._in_flight.values()}
        by_leader: dict[int, list[FetchSpan]] = {}
        settings = self._settings
        for (topic, partition), offset in self.positions.items():
            leader = await self._client.leader_of(topic, partition)
            if leader.node_id not in busy:
                span = FetchSpan(
                    topic,
                    leader.topic_id,
                    partition,
                    offset,
                    settings.partition_max_bytes,
                    settings.max_wait_ms,
                    settings.min_bytes,
                    settings.isolation,
                    leader.epoch,
                )
                by_leader.setdefault(leader.node_id, []).append(span)
        now_s = asyncio.get_running_loop().time()
        for node_id, spans in by_leader.items():
            link = await self._client.link_to(node_id)
            future = link.send(fetch_each(spans, settings.max_bytes, self._throttled))
            offsets = {TopicPartition(span.topic, span.partition): span.offset for span in spans}
            self._in_flight[future] = _InFlight(node_id, offsets, now_s)

    def _throttled(self, ms: int) -> None:
        self.throttled_ms += ms

    def _taken(
        self, fetch: _InFlight, answer: Mapping[TopicPartition, FetchedPartition]
    ) -> list[Fetched]:
        found = []
        for key, partition in answer.items():
            offset = fetch.offsets.get(key)
            # The partition was reassigned since the request, so this reader ignores it.
            if offset is None or self.positions.get(key) != offset:
                continue
            if partition.error_code:
                code = error_of(partition.error_code)
                raise Rejected(code, f"fetch of {key} at {offset}: {code.name}")
            following = offset
            for _, header in scan(partition.records):
                following = header.next_offset
            if following > offset:
                # Move the partition to the end: a broker serves the partitions in order until its byte limit, so a
                # partition that has just had records comes last.
                del self.positions[key]
                self.positions[key] = following
                view, end = partition.records, partition.high_watermark
                found.append(Fetched(*key, offset, view, end, partition.aborted))
        return found

    def _give_up_late(self) -> None:
        now_s = asyncio.get_running_loop().time()
        limit_s = self._client.timeout_s + self._settings.max_wait_ms / 1000
        if any(now_s - fetch.sent_s > limit_s for fetch in self._in_flight.values()):
            raise Unavailable(f"no answer to a Fetch in {limit_s:g} s")

    def _forget(self) -> None:
        """Ignore the answers to the requests in flight."""
        for future in self._in_flight:
            future.cancel()
        self._in_flight.clear()

    async def _recover(self, error: Unavailable | Rejected) -> None:
        """Ignore requests in flight, pause and look up the leaders again; raise `error` where a retry cannot help."""
        passing = isinstance(error, Unavailable) or error.code in PASSING | OTHER_TOPIC
        if not passing or self._failures >= len(PAUSES_S):
            raise error
        await asyncio.sleep(PAUSES_S[self._failures])
        self._failures += 1
        self._forget()
        topics = sorted({topic for topic, _ in self.positions})
        info = await self._client.metadata(topics)
        for topic in topics:
            if info.topics[topic].error == ErrorCode.unknown_topic_or_partition:
                raise Rejected(
                    ErrorCode.unknown_topic_or_partition, f"topic {topic} does not exist any more"
                )
