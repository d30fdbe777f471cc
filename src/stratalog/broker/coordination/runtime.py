"""Run state machines on their logs: decide -> apply -> append -> commit -> publish -> answer.

In: deciding functions. Out: their answers, once every record that a decision saw is committed. It knows nothing of
the decisions' content, and never waits for a commit before the next decision (`statemachine.py` has the contract).

The decisions of one turn of the event loop become one batch. A caller may stop waiting at any time; its decision runs
to its end all the same. A caller with a limit stops by itself (Kafka: `offsets.commit.timeout.ms`).

Kafka: `CoordinatorRuntime`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.placed_log import PlacedLog
from stratalog.broker.storage.directory import Done, Failure, resolve
from stratalog.errors import Corrupt, ErrorCode, Fenced, Rejected, Unavailable, again
from stratalog.log.partition_log import PartitionLog
from stratalog.log.values import Appended
from stratalog.ports import Clock
from stratalog.statemachine import Ahead, Decision, Now, Waiter
from stratalog.wire.batch import BatchHeader, crc_holds, parse_header, scan
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import Record, read_records

R = TypeVar("R")
D = TypeVar("D", contravariant=True)
A = TypeVar("A")
Decide = Callable[[Now], Decision[R, Any]]
Then = Callable[[Any, Failure], None]
Late = Callable[[Rejected], None]
ReplayBatch = Callable[[BatchHeader, memoryview], bool]
ReplayPlain = Callable[[bytes, int, int], int]
_LOAD_BYTES: Final = 1 << 20
_STEPS_A_TURN: Final = 500
_PLAIN_BYTES: Final = 1 << 16
_BYTES_A_STEP: Final = 512
"""`ReplayPlain` takes about as long for so many bytes as any other step takes."""
_BATCH_BYTES: Final = 1 << 20
"""Size at which a batch is appended before the turn ends."""


class Machine(Protocol[D]):
    """A state machine as its runtime sees it."""

    lost: ErrorCode
    """The error of callers whose decisions fall: NOT_COORDINATOR, NOT_CONTROLLER."""
    flush: bool
    """Whether each batch is made durable before it counts as committed."""

    def apply(self, base_offset: int, records: Sequence[D]) -> Any:
        """Apply decided records to the state; return the change for `publish`."""

    def publish(self, change: Any) -> "asyncio.Future[None] | None":
        """Act on a committed change; the answer waits for the future, if there is one."""

    def encode(self, records: Sequence[D], wall_ms: int) -> bytearray:
        """Return the records as one batch."""

    def bytes_of(self, records: Sequence[D]) -> int:
        """Return the largest size that records can have in a batch; 0 where no batch is ever too large."""


class Journal(Protocol):
    """The log of a state machine that this broker leads."""

    @property
    def name(self) -> TopicPartition: ...

    @property
    def log(self) -> PartitionLog: ...

    def append(
        self,
        view: memoryview,
        header: BatchHeader,
        wall_ms: int,
        then: Done,
        *,
        origin: str,
        flush: bool,
    ) -> Appended:
        """Append a batch; `then` is called once it is committed, or with a failure; perhaps before this returns."""


class Runtime(Generic[R]):
    """One state machine on one log, while this broker leads it."""

    def __init__(
        self,
        partition: Journal,
        clock: Clock,
        machine: Machine[R],
        *,
        limit_ms: int | None = None,
        fell: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`limit_ms`: how long a caller waits for a commit; None: without a limit.

        `fell` is called once the state is of no use any more, but for `resign`. Without it, callers get the reason.
        """
        self.partition = partition
        self._clock = clock
        self._machine = machine
        self._ahead: Ahead[R] = Ahead()
        self._open_bytes = 0
        self._appending = False
        self._landed: list[Failure] = []
        """Outcomes of batches that came during a call of `append`."""
        self._fallen: BaseException | None = None
        self._fell = fell
        self._limit_ms = limit_ms
        self._added = self._answered = 0
        """Decisions that waited, and those of them whose wait is over: they end in their order."""
        self._limited: deque[tuple[int, int, Late]] = deque()
        """Of each decision with a limit: its number, its deadline in steady ms, what to call then."""
        self._timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger()

    @property
    def is_idle(self) -> bool:
        """Whether every decision is committed."""
        return self._ahead.is_empty

    @property
    def is_committed(self) -> bool:
        """Whether the state is that of committed decisions: an answer that it gives may leave at once."""
        return self._fallen is None and self._ahead.is_empty

    def submit(
        self, decide: Callable[[Now], Decision[R, A]], *, limited: bool = True
    ) -> "asyncio.Future[A]":
        """Run `decide` now; the future gets its answer once every record that `decide` saw is committed.

        The future fails with the error that `decide` raised, or with `Rejected`: `lost`, or COORDINATOR_NOT_AVAILABLE
        where the commit takes longer than the limit.
        """
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        late = partial(resolve, answer, None) if limited else None
        self.run(decide, partial(resolve, answer), late)
        return answer

    def run(self, decide: Decide[R], then: Then, late: Late | None = None) -> None:
        """Do as `submit`, but call `then(answer, None)` or `then(None, error)`.

        Where the commit takes longer than the limit, call `late(error)` before.
        """
        if self._fallen is not None:
            self._deliver(then, None, self._reason(self._fallen))
            return
        now = Now(self._clock.steady_ms(), self._clock.now_ms())
        try:
            decision = decide(now)
        except Exception as error:  # noqa: BLE001 - carried to the caller
            # A refusal too may rest on records that are not committed.
            self._add((), partial(self._refuse, then, error), late, now)
            return
        change = None
        if decision.records:
            self._make_room(decision.records)
            offset = self.partition.log.next_offset + self._ahead.open_records
            try:
                change = self._machine.apply(offset, decision.records)
            except Exception as bug:  # noqa: BLE001 - carried to the callers
                # The state may have half of these records: no decision may follow.
                self._log.error("replay failed", partition=self._name, exc_info=bug)
                self._fall(bug)
                self._deliver(then, None, bug)
                return
        self._add(decision.records, partial(self._release, decision, change, then), late, now)

    def _make_room(self, records: Sequence[R]) -> None:
        """Append the open batch where these records would make it too large."""
        size = self._machine.bytes_of(records)
        if self._open_bytes and self._open_bytes + size > _BATCH_BYTES:
            self.append_open()
        self._open_bytes += size

    def append_open(self) -> None:
        """Append the records that are in no batch yet. The runtime calls this at the end of each turn; a caller may do
        so earlier. Answers never leave before this returns: they may begin the next decisions.
        """
        self._append_taken()
        if self._landed:
            asyncio.get_running_loop().call_soon(self._deliver_landed)

    def _end_turn(self) -> None:
        self._append_taken()
        self._deliver_landed()

    def _append_taken(self) -> None:
        if self._fallen is not None:
            return
        records = self._ahead.take()
        self._open_bytes = 0
        if not records:
            return
        wall_ms = self._clock.now_ms()
        expected = self.partition.log.next_offset
        self._appending = True
        try:
            batch = memoryview(self._machine.encode(records, wall_ms))
            appended = self.partition.append(
                batch,
                parse_header(batch),
                wall_ms,
                self._committed,
                origin="coordinator",
                flush=self._machine.flush,
            )
        except Exception as error:  # noqa: BLE001 - carried to the callers
            self._fall(error)
            return
        finally:
            self._appending = False
        assert appended.base_offset == expected, "another writer on a state machine's log"

    def _deliver_landed(self) -> None:
        landed, self._landed = self._landed, []
        for error in landed:
            self._committed(error)

    def resign(self) -> None:
        """Fail every decision ahead of the commit: another broker leads, or the partition was deleted."""
        self._fell = None
        self._fall(Rejected(self._machine.lost, f"{self._name} is led elsewhere"))

    @property
    def _name(self) -> str:
        return str(self.partition.name)

    def _add(self, records: Sequence[R], waiter: Waiter, late: Late | None, now: Now) -> None:
        opens = bool(records) and not self._ahead.open_records
        if self._ahead.add(records, waiter):
            waiter(None)
            return
        self._added += 1
        if late is not None and self._limit_ms is not None:
            self._limited.append((self._added, now.steady_ms + self._limit_ms, late))
            if self._timer is None:
                self._set_timer(self._limit_ms)
        if opens:
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _set_timer(self, delay_ms: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        """End the waits that take too long; their decisions go on."""
        self._timer = None
        now_ms = self._clock.steady_ms()
        while self._limited and self._limited[0][1] <= now_ms:
            _, _, late = self._limited.popleft()
            message = f"{self._name} has not committed within {self._limit_ms} ms"
            late(Rejected(ErrorCode.coordinator_not_available, message))
        if self._limited:
            self._set_timer(max(self._limited[0][1] - now_ms, 1))

    def _committed(self, error: Failure) -> None:
        """Answer the decisions of the oldest batch, which is committed or has failed."""
        if self._appending:
            self._landed.append(error)
            return
        if self._fallen is not None:
            return
        if error is not None:
            self._fall(error)
            return
        waiters = self._ahead.committed()
        self._answered += len(waiters)
        while self._limited and self._limited[0][0] <= self._answered:
            self._limited.popleft()
        for waiter in waiters:
            waiter(None)

    def _release(
        self, decision: Decision[R, Any], change: Any, then: Then, lost: BaseException | None
    ) -> None:
        if lost is not None:
            self._deliver(then, None, lost)
            return
        done = None
        if decision.records:
            try:
                done = self._machine.publish(change)
            except Exception as bug:  # noqa: BLE001 - carried to the caller
                self._log.error("publishing failed", partition=self._name, exc_info=bug)
                self._fall(bug)
                self._deliver(then, None, bug)
                return
        if done is None:
            self._deliver(then, decision.answer, None)
        else:
            done.add_done_callback(partial(self._deliver_after, then, decision.answer))

    def _refuse(self, then: Then, error: BaseException, lost: BaseException | None) -> None:
        self._deliver(then, None, lost or error)

    def _fall(self, error: BaseException) -> None:
        """Fail every decision that is ahead of the commit, and all later ones."""
        if self._fallen is not None:
            return
        self._fallen = error
        self._limited.clear()
        for waiter in self._ahead.fall():
            waiter(self._reason(error))
        if self._fell is not None:
            self._fell(error)

    def _reason(self, error: BaseException) -> BaseException:
        """Return one caller's error for a decision that fell, or comes after the fall."""
        if isinstance(error, Rejected):
            return Rejected(self._machine.lost, error.message)
        if self._fell is not None:
            return Rejected(self._machine.lost, f"{self._name} is loaded again")
        if isinstance(error, Unavailable | Fenced | Corrupt):
            return again(error)
        bug = RuntimeError(f"{self._name} has failed: {error!r}")
        bug.__cause__ = error
        return bug

    def _deliver_after(self, then: Then, answer: Any, done: "asyncio.Future[None]") -> None:
        if not done.cancelled():  # else the node ends
            self._deliver(then, answer, done.exception())

    def _deliver(self, then: Then, answer: Any, error: Failure) -> None:
        try:
            then(answer, error)
        except Exception as bug:  # noqa: BLE001 - carried to the log: the next answer must not wait for it
            self._log.error("answer failed", partition=self._name, exc_info=bug)


def check_available(partition: HostedPartition) -> None:
    """Refuse a change that could not be committed now: too few replicas are in sync.

    Raises Rejected(COORDINATOR_NOT_AVAILABLE), after which clients ask again. A request that waited instead would hold
    up the next ones of its connection: heartbeats, and other brokers' questions. Kafka:
    `TransactionStateManager.appendTransactionToLog`, `CoordinatorOperationExceptionHelper`.
    """
    if partition.replica.is_below_min_isr:
        raise Rejected(
            ErrorCode.coordinator_not_available, f"{partition.name} has too few replicas in sync"
        )


async def in_turns(steps: Iterable[object]) -> None:
    """Run an iterator to its end; the event loop does other work after every few hundred steps."""
    for count, _ in enumerate(steps, 1):
        if count % _STEPS_A_TURN == 0:
            await asyncio.sleep(0)


async def load(
    partition: PlacedLog,
    replay: Callable[[BatchHeader, Record], None],
    *,
    start: int | None = None,
    end: int | None = None,
    replay_batch: ReplayBatch | None = None,
    replay_plain: ReplayPlain | None = None,
) -> None:
    """Replay a log or a part of it in turns: call `replay(batch header, record)` for each record.

    `replay_batch` may take a whole batch before that, and says whether it did. Before that, `replay_plain(data,
    position, stop)` may take the batches that begin below `stop`; it checks their CRCs, and returns the position of the
    first batch that it did not take.
    Raises Corrupt where bytes are not what was written, with the file's path, and Rejected as `PlacedLog.read`.
    """
    log = partition.log
    offset = log.log_start_offset if start is None else start
    last = log.log_end_offset if end is None else end
    while offset < last:
        found = partition.read(offset, _LOAD_BYTES, end_offset=last)
        slices = found if not isinstance(found, Awaitable) else await found
        if not slices.buffers:
            return  # the last offsets have no batch: a crash lost them
        for buffer in slices.buffers:
            data = bytes(buffer)
            await in_turns(_replayed(partition, data, replay, replay_batch, replay_plain))
        await asyncio.sleep(0)
        assert slices.next_offset > offset, f"{partition.name}: no progress at {offset}"
        offset = slices.next_offset


def _replayed(
    partition: PlacedLog,
    data: bytes,
    replay: Callable[[BatchHeader, Record], None],
    replay_batch: ReplayBatch | None,
    replay_plain: ReplayPlain | None,
) -> Iterator[None]:
    view = memoryview(data)
    position = 0
    while True:
        if replay_plain is not None:
            taken = replay_plain(data, position, position + _PLAIN_BYTES) - position
            position += taken
            yield from repeat(None, taken // _BYTES_A_STEP)
            if taken:
                continue
        _, header = next(scan(view, position), (0, None))
        if header is None:
            return
        if not crc_holds(view, position, header):
            path = partition.path_of(header.base_offset)
            raise Corrupt(f"{path}: the batch of offset {header.base_offset} has a wrong CRC")
        batch = view[position : position + header.size]
        position += header.size
        if replay_batch is not None and replay_batch(header, batch):
            yield
            continue
        for record in read_records(batch):
            replay(header, record)
            yield
