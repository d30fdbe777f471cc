"""Runs state machines on their logs: decide -> append -> commit -> replay -> answer, one decision at a time.

In: deciding functions. Out: their answers, after the records they decided are committed and replayed. It knows
nothing of what is decided.

A log that refuses (a failed drive) fails the decision and leaves the state as the log has it: nothing was replayed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from stratalog.broker.partition import HostedPartition
from stratalog.ports import Clock
from stratalog.statemachine import Decision
from stratalog.wire.batch import BatchHeader, parse_header, scan
from stratalog.wire.records import Record, read_records

R = TypeVar("R")
A = TypeVar("A")
_LOAD_BYTES = 1 << 20


class Runtime(Generic[R]):
    """One state machine on one log."""

    def __init__(
        self,
        partition: HostedPartition,
        clock: Clock,
        *,
        encode: Callable[[Sequence[R], int], bytearray],
        replay: Callable[[int, Sequence[R]], None],
        flush: bool = False,
        committed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`encode(records, now_ms)` gives one batch; `replay(base_offset, records)` applies it.

        `committed` is awaited after replay and before the answer leaves; `flush` makes each batch durable first.
        """
        self.partition = partition
        self._clock = clock
        self._encode = encode
        self._replay = replay
        self._flush = flush
        self._committed = committed
        self._one_at_a_time = asyncio.Lock()

    async def submit(self, decide: Callable[[int], Decision[R, A]]) -> A:
        """Run `decide(now_ms)` after all earlier decisions; its answer once its records are committed.

        Must not be cancelled: a caller that no longer wants the answer drops it. Raises what deciding raised, or
        `Rejected(KAFKA_STORAGE_ERROR)`.
        """
        async with self._one_at_a_time:
            return await self._handle(decide)

    async def _handle(self, decide: Callable[[int], Decision[R, A]]) -> A:
        now_ms = self._clock.now_ms()
        decision = decide(now_ms)
        if decision.records:
            batch = memoryview(self._encode(decision.records, now_ms))
            appended = await self.partition.append(
                batch, [parse_header(batch)], now_ms, origin="coordinator", flush=self._flush
            )
            self._replay(appended.base_offset, decision.records)
            if self._committed is not None:
                await self._committed()
        return decision.answer


async def load(partition: HostedPartition, replay: Callable[[BatchHeader, Record], None]) -> None:
    """Replay a whole log at start: `replay(batch header, record)` for each record."""
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = partition.read(offset, _LOAD_BYTES, end_offset=log.log_end_offset)
        slices = found if not isinstance(found, Awaitable) else await found
        for buffer in slices.buffers:
            view = memoryview(buffer)
            for position, header in scan(view):
                for record in read_records(view[position : position + header.size]):
                    replay(header, record)
        assert slices.next_offset > offset, f"{partition.identity}: no progress at {offset}"
        offset = slices.next_offset
