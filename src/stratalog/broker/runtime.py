"""Runs state machines on their logs: decide -> append -> commit -> replay -> answer, one decision at a time.

In: deciding functions. Out: their answers, after the records they decided are committed and replayed. It knows
nothing of what is decided.

A log that refuses (a failed drive) fails the decision and leaves the state as the log has it: nothing was replayed.
Whoever asked may stop waiting at any time; what was decided runs to its end all the same.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import structlog

from stratalog.broker.directory import Failure
from stratalog.broker.partition import HostedPartition
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Clock
from stratalog.statemachine import Decision
from stratalog.wire.batch import BatchHeader, parse_header, scan
from stratalog.wire.records import Record, read_records

R = TypeVar("R")
A = TypeVar("A")
Decide = Callable[[int], Decision[R, Any]]
Then = Callable[[Any, Failure], None]
_LOAD_BYTES = 1 << 20


class Runtime(Generic[R]):
    """One state machine on one log."""

    def __init__(
        self,
        partition: HostedPartition,
        clock: Clock,
        *,
        encode: Callable[[Sequence[R], int], bytearray],
        replay: Callable[[int, Sequence[R]], "asyncio.Future[None] | None"],
        flush: bool = False,
    ) -> None:
        """`encode(records, now_ms)` gives one batch; `replay(base_offset, records)` applies it.

        Where `replay` returns a future the answer waits for it, but the next decision does not. `flush` makes each
        batch durable first.
        """
        self.partition = partition
        self._clock = clock
        self._encode = encode
        self._replay = replay
        self._flush = flush
        self._waiting: deque[tuple[Decide[R], Then]] = deque()
        self._running = False
        self._stopped = False
        self._log = structlog.get_logger()

    def submit(self, decide: Callable[[int], Decision[R, A]]) -> "asyncio.Future[A]":
        """Run `decide(now_ms)` after all earlier decisions; its answer once its records are committed.

        Fails with what deciding raised, or `Rejected` (KAFKA_STORAGE_ERROR, deleted topic).
        """
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()

        def then(result: A, error: Failure) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self.run(decide, then)
        return answer

    def run(self, decide: Decide[R], then: Then) -> None:
        """As `submit`, but calls `then(answer, None)` or `then(None, error)`, before the next decision is taken."""
        self._waiting.append((decide, then))
        if not self._running:
            self._next()

    def _next(self) -> None:
        """Decide until a decision has records, which must be committed before the next."""
        self._running = True
        while self._waiting:
            decide, then = self._waiting.popleft()
            try:
                if self._stopped:
                    raise Rejected(
                        ErrorCode.unknown_server_error, "its state is not known any more"
                    )
                now_ms = self._clock.now_ms()
                decision = decide(now_ms)
                if decision.records:
                    self._append(decision, then, now_ms)
                    return
            except BaseException as error:  # noqa: BLE001 - carried to whoever asked
                self._tell(then, None, error)
            else:
                self._tell(then, decision.answer, None)
        self._running = False

    def _append(self, decision: Decision[R, Any], then: Then, now_ms: int) -> None:
        batch = memoryview(self._encode(decision.records, now_ms))
        appended = self.partition.append(
            batch,
            [parse_header(batch)],
            now_ms,
            lambda error: self._committed(appended.base_offset, decision, then, error),
            origin="coordinator",
            flush=self._flush,
        )

    def _committed(
        self, base_offset: int, decision: Decision[R, Any], then: Then, error: Failure
    ) -> None:
        done: asyncio.Future[None] | None = None
        if error is None:
            try:
                done = self._replay(base_offset, decision.records)
            except BaseException as bug:  # noqa: BLE001 - carried to whoever asked
                # The log has what the state has not: it must not be decided on again (`statemachine.py`).
                self._stopped = True
                identity = str(self.partition.identity)
                self._log.error("replay failed", partition=identity, exc_info=bug)
                error = bug
        if error is not None:
            self._tell(then, None, error)
        elif done is None:
            self._tell(then, decision.answer, None)
        else:
            done.add_done_callback(lambda done: self._tell_after(done, then, decision.answer))
        self._next()

    def _tell_after(self, done: "asyncio.Future[None]", then: Then, answer: Any) -> None:
        if not done.cancelled():  # else the node ends, and nobody waits
            self._tell(then, answer, done.exception())

    def _tell(self, then: Then, answer: Any, error: Failure) -> None:
        try:
            then(answer, error)
        except BaseException as bug:  # noqa: BLE001 - carried to the log: the next decision must not wait for it
            identity = str(self.partition.identity)
            self._log.error("answer failed", partition=identity, exc_info=bug)


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
