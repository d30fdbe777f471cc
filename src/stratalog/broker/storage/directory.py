"""One log directory: perform the logs' effects in order, and read, off the event loop.

In: effects and programs of the logs in this directory. Out: completions on the event loop, in order. It never decides
anything about a log.

Every directory has threads of its own: one writes, one syncs and some read. So a stalled drive delays its own
partitions only, and no append waits for an unrelated sync. The waiting bytes are bounded: handlers check `has_room`
first and wait for `room`. The first failure (EIO, unmounted, full) takes the whole directory offline, as in Kafka: a
drive that lost one write cannot be trusted with the order of the next, so nothing is written after it.

The directory wakes the writing thread once for all jobs of one turn of the loop, and the thread takes all of them at
once. Adjacent appends to a file become one write, and a burst costs the loop one completion.

Waking the thread costs more than a small append. So a small append is written on the event loop while no job waits
for the thread and the disk does not refuse: decision 0008, `timed_disk.py`.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.log.effects import Append, Effect, Program, perform, run
from stratalog.ports import Buffer, Disk, FileRange, Worker, Workers

T = TypeVar("T")
Failure = BaseException | None
Done = Callable[[Failure], None]
"""Called on the event loop with the failure, or None."""
_IN_FLIGHT_BYTES_MAX: Final = 64 << 20
_INLINE_BYTES_MAX: Final = 16 << 10
_INLINE_TOGETHER_BYTES_MAX: Final = 128 << 10
"""Limit of a write of several requests: some 20 µs."""
_JOBS_AT_ONCE: Final = 64
_READERS: Final = 2
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_ID: Final = UUID(int=0)


class _Job:
    """One job in order: effects, or a program with a result."""

    __slots__ = ("bytes", "done", "effects", "error", "program", "result")

    def __init__(
        self, effects: Sequence[Effect], program: Program[Any] | None, size: int, done: Done
    ) -> None:
        self.effects = effects
        self.program = program
        self.bytes = size
        self.done = done
        self.result: Any = None
        self.error: Failure = None


class _Burst:
    """Jobs performed in order, with adjacent appends to a file as one write."""

    __slots__ = ("_buffers", "_disk", "_end", "_first", "_path", "_position", "jobs")

    def __init__(self, disk: Disk, jobs: list[_Job]) -> None:
        self.jobs = jobs
        self._disk = disk
        self._buffers: list[Buffer] = []  # not written yet,
        self._path = ""  # to this file
        self._position = 0  # from here
        self._end = 0  # to there;
        self._first = 0  # the first job that is not whole without them

    def run(self, broken: Failure) -> Failure:
        """Perform the jobs up to the first failure; return the failure that takes the directory offline, if any.

        Later jobs fail, too, and so do those that shared the failed write.
        """
        at = 0
        if broken is None:
            try:
                for at, job in enumerate(self.jobs):
                    if job.program is not None:
                        self._run_program(job)
                    for effect in job.effects:
                        if type(effect) is Append and effect.buffers:
                            self._append(at, effect)
                        else:
                            self._write()
                            perform(self._disk, effect)
                self._write()
            except Exception as error:  # noqa: BLE001 - carried to the jobs' callers
                broken = error
                at = self._first if self._buffers else at
        if broken is not None:
            for job in self.jobs[at:]:
                job.error = broken
        return broken

    def _append(self, at: int, effect: Append) -> None:
        if effect.path != self._path or effect.position != self._end or not self._buffers:
            self._write()
            self._path, self._position = effect.path, effect.position
            self._end = effect.position
            self._first = at
        self._buffers += effect.buffers
        for buffer in effect.buffers:
            self._end += len(buffer)

    def _write(self) -> None:
        if self._buffers:
            self._disk.append(self._path, self._position, self._buffers)
            self._buffers = []

    def _run_program(self, job: _Job) -> None:
        self._write()
        assert job.program is not None
        try:
            job.result = run(self._disk, job.program)
        except Exception as error:  # noqa: BLE001 - carried to the job's caller
            job.error = error  # the failure of this job alone, unless the drive failed
        if job.error is not None and _is_drive_failure(job.error):
            raise job.error


class LogDirectory:
    """The executor of one log directory. Create and use it on the event loop."""

    def __init__(
        self,
        path: str,
        disk: Disk | OSError,
        workers: Workers,
        *,
        directory_id: UUID = _NO_ID,
        in_flight_bytes_max: int = _IN_FLIGHT_BYTES_MAX,
        on_failed: Callable[["LogDirectory", BaseException], None] = lambda _directory, _error: (
            None
        ),
    ) -> None:
        """`disk` is the disk, or the reason why it cannot be used: then the directory is offline from the start."""
        self.path = path
        self.id = directory_id
        self.failure: Failure = disk if isinstance(disk, OSError) else None
        self.in_flight_bytes = 0
        self.free_bytes = 0
        """Free bytes of the file system at the last `space`."""
        self.is_cordoned = False
        """Whether it takes no new replicas (KIP-1066)."""
        self._disk = None if isinstance(disk, OSError) else disk
        self._in_flight_bytes_max = in_flight_bytes_max
        self._on_failed = on_failed
        self._writer: Worker = workers.start(f"write {path}")
        self._reader: Worker = workers.start(f"read {path}", _READERS)
        self._syncer: Worker = workers.start(f"sync {path}")
        self._jobs: deque[_Job] = deque()
        self._busy = False
        self._loop = asyncio.get_running_loop()
        self._broken: Failure = self.failure  # the writing thread's own view of `failure`, at once
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._log = structlog.get_logger()

    @property
    def disk(self) -> Disk:
        """The drive itself, for readers with threads of their own."""
        assert self._disk is not None, "it could be opened"
        return self._disk

    @property
    def has_room(self) -> bool:
        """False while as many bytes as allowed wait for the drive."""
        return self.in_flight_bytes < self._in_flight_bytes_max

    async def room(self) -> None:
        """Wait until the waiting bytes are below their limit."""
        while not self.has_room and self.failure is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    def perform(self, effects: Sequence[Effect], done: Done, *, at_once: int = 0) -> None:
        """Perform effects after all earlier ones, then call `done`; calls come in the order of the effects.

        With `at_once`, a number of requests, `perform` may call `done` before it returns. If the directory fails
        later, `done` gets Rejected(KAFKA_STORAGE_ERROR); if it has failed already, `perform` raises that.
        """
        if self.failure is not None:
            raise self.refusal(self.failure)
        size = 0
        for effect in effects:
            if type(effect) is Append:
                for buffer in effect[2]:
                    size += len(buffer)
        limit = min(at_once * _INLINE_BYTES_MAX, _INLINE_TOGETHER_BYTES_MAX)
        if at_once and size <= limit and not self._busy and self._append_now(effects):
            self._complete(done, None)
        else:
            self._queue(_Job(effects, None, size, done))

    def _append_now(self, effects: Sequence[Effect]) -> bool:
        """Perform a single append, or nothing, on the event loop; return False for more effects, or where the drive may
        be slow.
        """
        if not effects:
            return True
        effect = effects[0]
        if len(effects) > 1 or type(effect) is not Append:
            return False
        assert self._disk is not None, "it has not failed"
        try:
            return self._disk.try_append(*effect)
        except OSError as error:
            self._broken = error  # the next job finds the failure, as with a failure on the thread
            return False

    def write(self, effects: Sequence[Effect]) -> "asyncio.Future[None]":
        """Do as `perform`, and return a future."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.perform(effects, lambda error: resolve(answer, None, error))
        return answer

    def run(self, program: Program[T]) -> "asyncio.Future[T]":
        """Run a program that may write, after all earlier effects."""
        self.check()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _Job((), program, 0, lambda error: resolve(answer, job.result, error))
        self._queue(job)
        return answer

    def read(
        self, path: str, position: int, size: int
    ) -> "bytes | bytearray | asyncio.Future[bytes]":
        """Return bytes at once where the page cache has them, else from a reader thread."""
        found = self.try_read(path, position, size)
        if found is not None:
            return found
        return self._beside(self._reader, lambda: self.disk.read(path, position, size))

    def try_read(self, path: str, position: int, size: int) -> "bytes | bytearray | None":
        """Return bytes at once; None where the page cache has not all of them."""
        self.check()
        return self.disk.try_read(path, position, size)

    def cached(self, path: str, position: int, size: int) -> FileRange | None:
        """Return bytes without reading them, where the page cache has all of them."""
        self.check()
        return self.disk.cached(path, position, size)

    def perform_beside(
        self, effects: Sequence[Effect], *, unless: Callable[[], bool]
    ) -> "asyncio.Future[None]":
        """Perform effects beside the ordered ones, on the syncing thread: their order among the others does not matter.

        Stops where `unless` returns True when an effect's turn comes. Raises FileNotFoundError to the caller.
        """
        self.check()

        def call() -> None:
            for effect in effects:
                if unless():
                    return
                perform(self.disk, effect)

        return self._beside(self._syncer, call)

    def place(self, effects: Sequence[Effect], *, spare: int) -> "asyncio.Future[None]":
        """Perform effects on files that nothing else uses yet, in order, on the syncing thread.

        Raises Rejected(KAFKA_STORAGE_ERROR) where fewer than `spare` bytes are free, and where the drive is full. The
        directory stays online then: the caller's files alone are incomplete.
        """
        self.check()

        def call() -> None:
            free = self.disk.free_bytes()
            if free < spare:
                raise self.refusal(f"{free} bytes are free, {spare} are kept for appends")
            try:
                for effect in effects:
                    perform(self.disk, effect)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise self.refusal(error) from error

        return self._beside(self._syncer, call)

    def look(self, program: Program[T]) -> "asyncio.Future[T]":
        """Run a program on a reader thread, in any order relative to writes."""
        self.check()
        return self._beside(self._reader, lambda: run(self.disk, program))

    def compute(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a long function that reads no disk on a reader thread."""
        return self._beside(self._reader, call)

    async def space(self) -> tuple[int, int]:
        """Return the size and the free bytes of the file system, from a reader thread, because a stalled drive answers
        late.
        """
        self.check()
        total, free = await self._beside(
            self._reader, lambda: (self.disk.total_bytes(), self.disk.free_bytes())
        )
        self.free_bytes = free
        return total, free

    def close_idle(self) -> None:
        """Close files that were not used since the last call."""
        if self._disk is not None:
            self._disk.close_idle()

    def check(self) -> None:
        """Raise `Rejected(KAFKA_STORAGE_ERROR)` where the directory has failed."""
        if self.failure is not None:
            raise self.refusal(self.failure)

    def fail(self, error: BaseException) -> None:
        """Take the directory offline, once."""
        if self.failure is None:
            self.failure = self._broken = error
            self._on_failed(self, error)
            self._wake()

    async def close(self) -> None:
        """Finish all queued jobs, end the threads, release the lock."""
        while self._busy:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self.failure = self.failure or Unavailable("it is closed")
        for worker in (self._writer, self._reader, self._syncer):
            await worker.close()
        if self._disk is not None:
            self._disk.close()

    def _queue(self, job: _Job) -> None:
        self.in_flight_bytes += job.bytes
        self._jobs.append(job)
        if not self._busy:
            self._busy = True
            # Done at the end of this turn: waking the thread costs as much as deciding an append.
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._writer.submit(self._work).add_done_callback(self._worked)

    def _work(self) -> list[_Job]:
        """Run the waiting jobs on the writing thread."""
        jobs: list[_Job] = []
        while self._jobs and len(jobs) < _JOBS_AT_ONCE:
            jobs.append(self._jobs.popleft())
        self._broken = _Burst(self.disk, jobs).run(self._broken)
        return jobs

    def _worked(self, work: "asyncio.Future[list[_Job]]") -> None:
        done = work.result()
        is_on = bool(self._jobs)
        if is_on:
            self._start()  # first, so that the drive does not wait
        if self._broken is not None:
            self.fail(self._broken)
        for job in done:
            self.in_flight_bytes -= job.bytes
        if self._room and self.has_room:
            self._wake()
        for job in done:
            error = job.error
            if error is not None and (job.program is None or _is_drive_failure(error)):
                error = self.refusal(error)
            self._complete(job.done, error)
        if is_on:
            return
        if self._jobs:
            self._start()
            return
        self._busy = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _complete(self, done: Done, error: Failure) -> None:
        try:
            done(error)
        except Exception as bug:  # noqa: BLE001 - carried to the log, and to every user of the directory
            # The state after a failed completion is unknown, so the directory must not continue.
            self._log.error("completion failed", path=self.path, exc_info=bug)
            self.fail(bug)

    def _beside(self, worker: Worker, call: Callable[[], T]) -> "asyncio.Future[T]":
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def finished(work: "asyncio.Future[T]") -> None:
            error = work.exception()
            if _is_drive_failure(error):
                assert error is not None
                self.fail(error)
                error = self.refusal(error)
            resolve(answer, None if error is not None else work.result(), error)

        worker.submit(call).add_done_callback(finished)
        return answer

    def refusal(self, error: BaseException | str) -> Rejected:
        """Return the KAFKA_STORAGE_ERROR that names the directory and the reason."""
        return Rejected(ErrorCode.kafka_storage_error, f"{self.path}: {error}")

    def _wake(self) -> None:
        waiting, self._room = self._room, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _is_drive_failure(error: Failure) -> bool:
    return isinstance(error, OSError | Unavailable) and not isinstance(error, FileNotFoundError)


def awaited() -> "tuple[asyncio.Future[None], Done]":
    """Return a future with the callback that completes it."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return answer, partial(resolve, answer, None)


def resolve(answer: "asyncio.Future[Any]", result: Any, error: Failure) -> None:
    """Complete a future, unless its caller is gone."""
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
