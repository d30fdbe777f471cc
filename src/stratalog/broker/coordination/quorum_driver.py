"""Drive this node's member of the quorum: pass inputs one at a time, and perform the outputs in order.

In: requests of other nodes, responses, what became durable, the time. Out: writes to the metadata log, requests to
other nodes, answers. It decides nothing: `quorum.raft` does (`quorum/messages.py` has a driver's duties).

Each output is performed to its end before the next one, and all outputs of an input before the next input. What needs
no disk is performed at once, so that a node alone commits in the turn in which its disk is done.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from stratalog.broker.coordination.damaged_answers import DamagedAnswers
from stratalog.broker.coordination.metadata_log import MetadataLog
from stratalog.broker.coordination.quorum_wire import FETCH_BYTES_MAX, api_key_of
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.reading import Slices
from stratalog.metadata.snapshot import SnapshotId
from stratalog.ports import Clock
from stratalog.quorum.messages import (
    Answer,
    AppendControl,
    AppendFetched,
    Committed,
    Discarded,
    FetchResponse,
    FetchSnapshotResponse,
    LoadSnapshot,
    Output,
    Persist,
    Request,
    Response,
    Send,
    StoreSnapshot,
    Truncate,
)
from stratalog.quorum.raft import Raft
from stratalog.quorum.voters import VoterSet

__all__ = ["QuorumDriver"]

Step = Callable[[int], list[Output]]
"""An input of the member, as a function of the time."""


class QuorumDriver:
    """One member's. `start` it once."""

    def __init__(  # noqa: PLR0913 - the parts of a node's quorum
        self,
        raft: Raft,
        log: MetadataLog,
        clock: Clock,
        *,
        send: Callable[[Send], None],
        load: Callable[[SnapshotId], Awaitable[VoterSet | None]],
        on_step: Callable[[], None],
        on_idle: Callable[[], None],
        on_damaged: Callable[[], None],
        on_failed: Callable[[BaseException], None],
        answers: DamagedAnswers,
    ) -> None:
        """`send` sends a request; `load` puts a fetched snapshot in the log's place, and returns its voters. It raises
        Corrupt for a damaged one, and has changed nothing then.

        `on_step` is called after each input, before its outputs are performed: leadership may have changed. `on_idle`
        once nothing is left to do. `on_damaged` where bytes of this node's own log or snapshot are damaged. `on_failed`
        receives, once, why the member works no more.
        """
        self._raft = raft
        self._log = log
        self._clock = clock
        self._send = send
        self._load = load
        self._on_step = on_step
        self._on_idle = on_idle
        self._on_damaged = on_damaged
        self._answers = answers
        self._on_failed = on_failed
        self._steps: deque[Step] = deque()
        self._outputs: deque[Output] = deque()
        self._is_working = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._unread: list[Answer] = []
        """Answers with records that are decided and not written yet."""
        self._reading: set[asyncio.Future[Any]] = set()
        log.on_durable = self._durable

    def start(self) -> None:
        """Take part in the quorum."""
        self.take(self._raft.start)

    def close(self) -> None:
        """Take no more inputs."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def request(self, request: Request) -> "asyncio.Future[Response]":
        """Pass a request of another node; the future has the answer."""
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.take(lambda now_ms: self._raft.on_request(answer, request, now_ms))
        return answer

    def take(self, step: Step) -> None:
        """Pass an input, once all earlier ones are dealt with."""
        if self._is_closed:
            return
        self._steps.append(step)
        if not self._is_working:
            self._work()

    def _work(self) -> None:
        self._is_working = True
        try:
            while not self._is_closed:
                if self._outputs:
                    waits = self._perform(self._outputs.popleft())
                    if waits is not None:
                        waits.add_done_callback(self._go_on)
                        return
                elif self._steps:
                    step = self._steps.popleft()
                    self._outputs.extend(step(self._clock.steady_ms()))
                    self._on_step()
                    if self._unread and not self._raft.is_leader:
                        self._refuse_unread()
                else:
                    break
        except Exception as error:  # noqa: BLE001 - carried to the node
            self._fail(error)
            return
        self._is_working = False
        if not self._is_closed:
            self._set_timer()
            self._on_idle()

    def _go_on(self, waited: "asyncio.Future[Any]") -> None:
        error = asyncio.CancelledError() if waited.cancelled() else waited.exception()
        if error is not None:
            self._fail(error)
        else:
            self._work()

    def _fail(self, error: BaseException) -> None:
        if not self._is_closed:
            self.close()
            self._on_failed(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = self._clock.steady_ms()
        next_ms = self._raft.next_ms(now_ms)
        if next_ms is not None:
            loop, wait_s = asyncio.get_running_loop(), (next_ms - now_ms) / 1000
            self._timer = loop.call_later(wait_s, self.take, self._raft.tick)

    def _durable(self, end_offset: int) -> None:
        # A truncation may have come between.
        self.take(
            lambda now_ms: self._raft.on_durable(min(end_offset, self._log.end_offset), now_ms)
        )
        unread, self._unread = self._unread, []
        for answer in unread:
            self._answer(answer)

    def _perform(self, output: Output) -> "asyncio.Future[Any] | None":
        """Perform an output; return a future where that takes time."""
        log = self._log
        match output:
            case Persist(state):
                return log.save_state(state)
            case Send():
                self._send(output)
            case Answer():
                self._answer(output)
            case AppendControl(epoch, records):
                log.lead(epoch, records)
            case AppendFetched(records):
                log.append_fetched(bytes(records))
            case Truncate(offset):
                return asyncio.create_task(self._truncate(offset))
            case StoreSnapshot(snapshot, position, data):
                return log.store_snapshot(snapshot, position, data)
            case LoadSnapshot(snapshot):
                return asyncio.create_task(self._load_snapshot(snapshot))
            case Committed(high_watermark):
                log.commit(high_watermark)
            case Discarded(node_id, request, reason):
                self._answers.note(str(node_id), api_key_of(request), reason)
        return None

    async def _truncate(self, offset: int) -> None:
        await self._log.truncate(offset)
        self._durable(self._log.end_offset)

    async def _load_snapshot(self, snapshot: SnapshotId) -> None:
        try:
            voters = await self._load(snapshot)
        except Corrupt as damage:
            reason = str(damage)
            self.take(lambda now_ms: self._raft.on_snapshot_damaged(reason, now_ms))
            return
        self.take(lambda now_ms: self._raft.on_snapshot_loaded(voters, now_ms))

    # Answers

    def _answer(self, answer: Answer) -> None:
        token, response = answer.token, answer.response
        if answer.read_from is not None and answer.read_from >= self._log.log.log_end_offset:
            self._unread.append(answer)
        elif answer.read_from is not None or answer.snapshot is not None:
            reading = asyncio.create_task(self._read(answer))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)
        else:
            _resolve(token, response)

    def _refuse_unread(self) -> None:
        unread, self._unread = self._unread, []
        for one in unread:
            _resolve(one.token, replace(one.response, error=ErrorCode.not_leader_or_follower))

    async def _read(self, answer: Answer) -> None:
        """Answer with the records or bytes that belong to a response; refuse where they are gone meanwhile, or damaged.

        A leader whose own log is damaged resigns: a voter with the same records leads then.
        """
        response = answer.response
        try:
            if isinstance(response, FetchResponse) and answer.read_from is not None:
                records = await self._records(answer.read_from)
                if not self._raft.is_leader or self._raft.epoch != response.leader_epoch:
                    raise Rejected(ErrorCode.not_leader_or_follower, "another node leads")
                _resolve(answer.token, replace(response, records=records))
            elif isinstance(response, FetchSnapshotResponse) and answer.snapshot is not None:
                if not response.position:
                    await self._log.check_snapshot(answer.snapshot)
                data = await self._log.read_snapshot(
                    answer.snapshot, response.position, FETCH_BYTES_MAX
                )
                _resolve(answer.token, replace(response, data=data))
        except FileNotFoundError:
            _resolve(answer.token, replace(response, error=ErrorCode.snapshot_not_found))
        except Rejected as error:
            if error.code is ErrorCode.corrupt_message:
                self.take(self._raft.on_damaged_log)
                self._on_damaged()
            _resolve(answer.token, replace(response, error=error.code))

    async def _records(self, offset: int) -> bytes:
        """Return batches from the one at `offset`. Raises Rejected: CORRUPT_MESSAGE for damaged ones."""
        found = self._log.read(offset, FETCH_BYTES_MAX, end_offset=self._log.log.log_end_offset)
        slices = found if isinstance(found, Slices) else await found
        records = b"".join(slices.buffers)
        self._log.check_read(records)
        return records


def _resolve(token: "asyncio.Future[Response]", response: Response) -> None:
    if not token.done():  # else the other node has gone away
        token.set_result(response)
