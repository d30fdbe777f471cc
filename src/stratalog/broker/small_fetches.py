"""Answer equal fetches at the tail together: one decision, and one buffer for all their connections.

In: fetches that the door read, equal ones together. Out: one answer for each group, once its records are there. A fetch
that needs more (a session, several partitions, a cold read, an error) goes back to its connection. The rules are those
of `apis/fetch.py`: a group is one of its waits.

A hundred consumers at one partition's tail ask for the same offset. So a request also joins a group of an earlier turn,
if both waits end in the same tick of the purgatory: nothing tells the two answers apart.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog
from msgspec.structs import replace

from stratalog.broker.broker import Broker
from stratalog.broker.network.answers import Answer, Later
from stratalog.broker.network.authorizer import Authorizer, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.session import Session
from stratalog.broker.network.turns import Pace, Turns
from stratalog.broker.partitions.purgatory import FetchWait
from stratalog.errors import Rejected
from stratalog.ports import Door
from stratalog.replication.fetch_sessions import LAST_FETCH, NO_SESSION
from stratalog.wire.apis import FETCH
from stratalog.wire.budget import DecodeBudget, OverBudget
from stratalog.wire.envelope import Received, decode_request, encode_response
from stratalog.wire.fetch import EncodedResponse, addressed

__all__ = ["SmallFetches"]

_TOPIC_IDS_FROM: Final = 13
_FRAME_BYTES_MAX: Final = 1 << 10
_BUDGET_BYTES: Final = 64 << 10
_CORRELATION_AT: Final = 4
_NO_CORRELATION: Final = bytes(4)
_LENGTH_BYTES: Final = 4
_AT_ONCE: Final = 256
_AT_ONCE_BYTES: Final = 4 << 20
"""Most bytes that the door sends between other work: some milliseconds."""

_log = structlog.get_logger()

Resumed = Callable[[int], Answer | Later]


class _Group:
    """Connections that wait for one answer."""

    __slots__ = ("began_ns", "loans", "received", "request", "wait")

    def __init__(self, request: bytes, received: Received, wait: FetchWait, began_ns: int) -> None:
        self.request = request
        self.received = received
        self.wait = wait
        self.began_ns = began_ns
        self.loans: dict[int, Session] = {}


class SmallFetches:
    """The fetches that wait at the door. Create it on the event loop."""

    def __init__(
        self,
        door: Door,
        broker: Broker,
        turns: Turns,
        recall: Callable[[int], None],
        delivered: Callable[[], None],
    ) -> None:
        """`recall` lets a connection go on by itself, with its request. `delivered`: the door holds less."""
        self._door = door
        self._delivered = delivered
        self._turns = turns
        self._broker = broker
        self._recall = recall
        self._served = {FETCH: broker.apis[FETCH].served}
        self._needs: Any = None
        self._groups: dict[int, _Group] = {}
        """The group of each connection that waits."""
        self._reading: dict[int, tuple[bytes, Received, int, Any]] = {}
        """The request of a connection that is recalled with a read that takes time, when it began, and the answer."""
        self._latest: dict[bytes, _Group] = {}
        """The newest group of each request: later connections may join it."""

    def suits(self, frame: memoryview) -> bool:
        """Return whether a fetch could be served here."""
        return len(frame) <= _FRAME_BYTES_MAX and self._decoded(frame) is not None

    def is_waiting(self, loan: int) -> bool:
        """Return whether a connection waits for an answer."""
        return loan in self._groups

    def answer_decided(self, loan: int) -> None:
        """Answer a connection that waits, if its answer is decided."""
        group = self._groups.get(loan)
        if group is not None and group.wait.done():
            self._done(group, group.wait)

    def left(self, loan: int) -> _Group | None:
        """Note that a connection waits here no more; return the group in which it did."""
        group = self._groups.pop(loan, None)
        if group is not None:
            del group.loans[loan]
            group.wait.times -= 1
            if not group.loans:
                self._forget(group)
                group.wait.cancel()
        return group

    def resume(self, loan: int, session: Session) -> tuple[Resumed, int] | None:
        """Let a connection go on by itself, with its wait or with its read.

        Return a function of the correlation id that gives the result, and the request's size; None where the connection
        waits here no more.
        """
        if loan in self._reading:
            request, received, began_ns, result = self._reading.pop(loan)
        else:
            group = self.left(loan)
            if group is None:
                return None
            request, received, began_ns = group.request, group.received, group.began_ns
            left_ms = max(self._broker.purgatory.left_ms(group.wait.tick), 0)
            body = replace(received.body, max_wait_ms=min(received.body.max_wait_ms, left_ms))
            result = self._handled(
                replace(received, body=body), session, 1, self._broker.authorizer
            )
        version, metrics = received.header.version, self._broker.metrics.requests

        def encode(correlation_id: int, response: EncodedResponse) -> Answer:
            taken_ns = self._broker.clock.elapsed_ns() - began_ns
            metrics.answered(FETCH, response, taken_ns)
            return encode_response(FETCH, version, correlation_id, response)

        def resumed(correlation_id: int) -> Answer | Later:
            if isinstance(result, EncodedResponse):
                return encode(correlation_id, result)
            return Later(result, partial(encode, correlation_id))

        return resumed, len(request) + _LENGTH_BYTES + len(_NO_CORRELATION)

    def begin(self, request: bytes, sessions: Mapping[int, Session]) -> None:
        """Begin equal fetches; `sessions` by connection. Clients that may not read go on by themselves."""
        received = None if self._broker.authorizer is None else self._received(request)
        denied = set() if received is None else self._denied(received, sessions)
        allowed = {loan: one for loan, one in sessions.items() if loan not in denied}
        if allowed:
            self._begin(request, allowed)
        self._recall_all(denied)

    def _denied(self, received: Received, sessions: Mapping[int, Session]) -> set[int]:
        """Return the connections whose clients may not read the topic of equal fetches."""
        authorizer = self._broker.authorizer
        if authorizer is None:
            return set()
        topic = received.body.topics[0]
        name = topic.topic
        if received.header.version >= _TOPIC_IDS_FROM:
            found = self._broker.cluster.image.topics_by_id.get(topic.topic_id)
            name = "" if found is None else found.name
        return {
            loan
            for loan, session in sessions.items()
            if not authorizer.allows(session, Operation.READ, Resource.TOPIC, name)
        }

    def _begin(self, request: bytes, sessions: Mapping[int, Session]) -> None:
        loans = list(sessions)
        group = self._latest.get(request)
        purgatory = self._broker.purgatory
        if (
            group is not None
            and not group.wait.done()
            and group.wait.tick == purgatory.tick_in(group.received.body.max_wait_ms)
        ):
            group.wait.times += len(loans)
            self._join(group, sessions)
            return
        began_ns = self._broker.clock.elapsed_ns()
        received = self._received(request)
        if received is None:
            self._recall_all(loans)
            return
        try:
            result = self._handled(received, sessions[loans[0]], len(loans))
        except Exception as error:  # noqa: BLE001 - logged; the handlers serve the connections
            _log.error("request failed", api="Fetch", exc_info=error)
            self._recall_all(loans)
            return
        if isinstance(result, EncodedResponse):
            self._answer(loans, received.header.version, result, began_ns)
        elif isinstance(result, FetchWait):
            result.times = len(loans)
            group = self._latest[request] = _Group(request, received, result, began_ns)
            self._join(group, sessions)
            result.add_done_callback(partial(self._done, group))
        else:
            # A read takes time. One connection goes on with it; the others begin by themselves.
            self._reading[loans[0]] = (request, received, began_ns, result)
            self._recall_all(loans)

    def _handled(
        self,
        received: Received,
        session: Session,
        times: int,
        authorizer: Authorizer | None = None,
    ) -> Any:
        """Call the handler. Without an authorizer it checks no right: `_denied` has checked those of a group."""
        # A node imports no handler before a request needs it.
        from stratalog.broker.apis.fetch import Needs, handle  # noqa: PLC0415

        if self._needs is None:
            self._needs = Needs(*[getattr(self._broker, name) for name in Needs._fields])
        pace = Pace(self._turns)
        call = Call(self._needs, session, received.header.version, received.body, pace, authorizer)
        return handle(call, times)

    def _received(self, request: bytes) -> Received | None:
        """Return `_decoded` of a request that lacks its correlation id."""
        frame = bytearray(request)
        frame[_CORRELATION_AT:_CORRELATION_AT] = _NO_CORRELATION
        return self._decoded(memoryview(frame))

    def _decoded(self, frame: memoryview) -> Received | None:
        """Return a consumer's fetch of one partition without a session; None for any other request."""
        try:
            received = decode_request(frame, self._served, DecodeBudget(_BUDGET_BYTES))
        except (Rejected, OverBudget):
            return None
        body = received.body
        is_alone = len(body.topics) == 1 and len(body.topics[0].partitions) == 1
        is_consumer = body.replica_id < 0 and body.replica_state.replica_id < 0
        has_session = body.session_id != NO_SESSION or body.session_epoch != LAST_FETCH
        if not is_alone or not is_consumer or has_session or body.forgotten_topics_data:
            return None
        return received

    def _join(self, group: _Group, sessions: Mapping[int, Session]) -> None:
        group.loans.update(sessions)
        for loan in sessions:
            self._groups[loan] = group

    def _forget(self, group: _Group) -> None:
        if self._latest.get(group.request) is group:
            del self._latest[group.request]

    def _done(self, group: _Group, wait: "FetchWait") -> None:
        """Answer a group whose wait is over; a client that may not read any more goes on by itself."""
        if wait.cancelled():
            return
        self._forget(group)
        sessions, group.loans = group.loans, {}
        for loan in sessions:
            del self._groups[loan]
        if wait.exception() is not None:
            self._recall_all(sessions)
            return
        denied = self._denied(group.received, sessions)
        loans = [loan for loan in sessions if loan not in denied]
        if loans:
            version = group.received.header.version
            self._answer(loans, version, wait.result(), group.began_ns)
        self._recall_all(denied)

    def _answer(
        self, loans: Sequence[int], version: int, response: EncodedResponse, began_ns: int
    ) -> None:
        if response.error_code or response.topics.errors:
            self._recall_all(loans)  # the handlers answer errors
            return
        taken_ns = self._broker.clock.elapsed_ns() - began_ns
        self._broker.metrics.requests.durations[FETCH].observe(taken_ns, len(loans))
        frame = b"".join(addressed(response, version, 0))
        self._deliver(loans, frame)

    def _deliver(self, loans: Sequence[int], frame: bytes) -> None:
        """Send an answer, to a part of the connections in each turn."""
        count = min(max(_AT_ONCE_BYTES // len(frame), 1), _AT_ONCE)
        first, rest = loans[:count], loans[count:]
        self._door.deliver(first, frame)
        self._delivered()
        if rest:
            self._broker.purgatory.loop.call_soon(self._deliver, rest, frame)

    def _recall_all(self, loans: Iterable[int]) -> None:
        for loan in loans:
            self._recall(loan)
