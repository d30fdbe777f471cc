"""Decide the rows of the door: Produce requests of one small batch each, of any number of connections.

In: rows of a turn, by partition. Out: their answers, all together where the log has them; requests that a handler must
serve go back to their connections. A partition's rows are one decision and one write. The rules are those of
`apis/produce.py` and of the log: what those would refuse by more than a look is left to them.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

from stratalog.broker.broker import Broker
from stratalog.broker.network.answers import Answer, Later, is_fetch
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.lending import NOT_LENT, Lent
from stratalog.broker.network.session import Session
from stratalog.broker.network.turns import Turns
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.recompression import demands_of
from stratalog.broker.small_fetches import SmallFetches
from stratalog.broker.storage.directory import Failure
from stratalog.errors import Rejected
from stratalog.log.values import Placed
from stratalog.ports import Buffer, Door, FetchRow, RowGroup
from stratalog.wire.apis import PRODUCE, ListenerKind
from stratalog.wire.batch import MAX_TIMESTAMP, SIZE, BatchHeader
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.envelope import decode_request, encode_response
from stratalog.wire.messages.produce import ProduceRequest, TopicProduceResponse

__all__ = ["SmallRequests"]

_VERSIONS: Final = {PRODUCE: (3, 13)}
_TOPIC_IDS_FROM: Final = 13
_BUDGET_BYTES: Final = 64 << 10
_HEADER_FIELDS: Final = 13
CONNECTION, VERSION, CORRELATION, ACKS, TIMEOUT, LEAST, KEYED, FRAME = range(13, 21)
"""Places of fields in a row, behind those of `BatchHeader`."""
_ALL: Final = -1
_SWEEP_FROM: Final = 1000

_Row = tuple[int, ...]
_Held = list[tuple[Answer | Later, int]]


class SmallRequests:
    """The requests that the door reads. Create it on the event loop, once the broker has its parts."""

    def __init__(self, door: Door, broker: Broker, turns: Turns) -> None:
        self._door = door
        self._broker = broker
        self._memory = broker.client_memory
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, Lent] = {}
        self._hosted: dict[int, HostedPartition] = {}
        self._handles: dict[HostedPartition, int] = {}
        self._sweep_at = _SWEEP_FROM
        self._held: dict[int, _Held] = {}
        self._bytes_held = 0
        self._began_ns = 0
        """When the latest turn began."""
        self._fetches = SmallFetches(door, broker, turns, self.recall, self._count_held)
        door.open(self._decide, self._fetch, self.recall)
        broker.metadata.on_published.append(self._look_at_quotas)

    async def close(self) -> None:
        """End the turns. Every connection has ended."""
        self._door.close()

    # Lending

    def lend(self, connection: Lent, transport: asyncio.Transport, frame: memoryview) -> int:
        """See `Lender`. Lends only where the partition of the latest request takes rows now.

        The door reads and writes the socket itself, so TLS is the handlers' alone. A session that ends at some time
        (KIP-368) is theirs, too. A controller's listener has handlers of its own.
        """
        listener, broker, sasl = connection.session.listener, self._broker, connection.session.sasl
        if listener.security.tls is not None or (sasl is not None and sasl.ends):
            return NOT_LENT
        if listener.kind is not ListenerKind.BROKER:
            return NOT_LENT
        if broker.throttling.is_on:
            return NOT_LENT
        if broker.audit is not None and broker.audit.has_data_requests:
            return NOT_LENT
        if is_fetch(frame):
            return self._lend(connection, transport) if self._fetches.suits(frame) else NOT_LENT
        if not self._door.is_row(frame):
            return NOT_LENT
        received = decode_request(frame, _VERSIONS, DecodeBudget(_BUDGET_BYTES))
        request: ProduceRequest = received.body
        topic = request.topic_data[0]
        index = topic.partition_data[0].index
        hosting = self._broker.hosting
        try:
            if received.header.version >= _TOPIC_IDS_FROM:
                hosted = hosting.get_by_id(topic.topic_id, index)
            else:
                hosted = hosting.get(topic.name, index)
        except Rejected:
            return NOT_LENT
        internal = self._broker.cluster.internal_topics
        takes_rows = self._takes_rows(hosted) and request.acks in self._acks_taken(hosted)
        if hosted.name.topic in internal or not takes_rows:
            return NOT_LENT
        if not self._may_write(connection.session, hosted):
            return NOT_LENT
        loan = self._lend(connection, transport)
        if loan != NOT_LENT:
            self._host(hosted)
        return loan

    def _lend(self, connection: Lent, transport: asyncio.Transport) -> int:
        loan = self._door.borrow(transport, connection.session.client_id)
        if loan != NOT_LENT:
            self._connections[loan] = connection
        return loan

    def is_waiting(self, loan: int) -> bool:
        """See `Lender`."""
        return self._fetches.is_waiting(loan)

    def reclaim(self, loan: int) -> list[Buffer]:
        """See `Lender`."""
        self._connections.pop(loan, None)  # None where the door met a bug in giving it back
        self._held.pop(loan, None)
        self._fetches.left(loan)
        unsent, _rest = self._door.give_back(loan)
        self._count_held()
        return unsent

    def return_all(self) -> None:
        """See `Lender`."""
        for loan in list(self._connections):
            self.recall(loan)

    def _look_at_quotas(self) -> None:
        """Take all connections back once clients have quotas: the door counts nothing for them."""
        if self._broker.throttling.is_on:
            self.return_all()

    def recall(self, loan: int) -> None:
        """See `Lender`."""
        self._fetches.answer_decided(loan)
        connection = self._connections.pop(loan, None)
        if connection is None:
            return  # the answer did not fit into its socket
        resumed = self._fetches.resume(loan, connection.session)
        unsent, rest = self._door.give_back(loan)
        self._count_held()
        results = self._held.pop(loan, [])
        if resumed is not None:
            result, size = resumed
            results.append((result(int.from_bytes(rest[8:12], "big", signed=True)), size))
            rest = rest[size:]
        connection.take_back(unsent, results, rest)

    def _host(self, hosted: HostedPartition) -> None:
        if hosted in self._handles:
            return
        if len(self._hosted) >= self._sweep_at:
            for gone in [one for one in self._handles if one.deleted]:
                handle = self._handles.pop(gone)
                del self._hosted[handle]
                self._door.drop(handle)
            self._sweep_at = 2 * len(self._hosted) + _SWEEP_FROM
        topic_id, index = hosted.key
        handle = self._door.host(hosted.name.topic, topic_id, index)
        self._handles[hosted] = handle
        self._hosted[handle] = hosted

    def _count_held(self) -> None:
        held = self._door.bytes_held
        self._memory.requests += held - self._bytes_held
        self._bytes_held = held

    def _fetch(self, rows: Sequence[FetchRow]) -> None:
        """Begin a turn's fetches, equal ones together."""
        now_s = self._loop.time()
        equal: dict[bytes, list[int]] = {}
        for loan, request in rows:
            connection = self._connections.get(loan)
            if connection is not None:
                connection.active_s = now_s
                equal.setdefault(request, []).append(loan)
        self._count_held()
        for request, loans in equal.items():
            self._fetches.begin(request, {one: self._connections[one].session for one in loans})

    # Deciding

    def _decide(self, groups: Sequence[RowGroup]) -> Collection[int]:
        """Decide a turn's rows; return the connections that have answers to come, or refused rows."""
        clock, count = self._broker.clock, 0
        self._began_ns = began_ns = clock.elapsed_ns()
        wall_ms, now_s = clock.now_ms(), self._loop.time()
        returned: set[int] = set()
        for group in groups:
            try:
                for row in group.rows:
                    self._connections[row[CONNECTION]].active_s = now_s
                count += self._decide_group(group, wall_ms, returned)
            except Exception as error:  # noqa: BLE001 - carried to the log; the connections end
                self._fail(group.rows, error, returned)
        if count:
            taken_ns = clock.elapsed_ns() - began_ns
            self._broker.metrics.requests.durations[PRODUCE].observe(taken_ns, count)
        self._count_held()
        return returned

    def _decide_group(self, group: RowGroup, wall_ms: int, returned: set[int]) -> int:
        """Decide a partition's rows; return how many are answered now."""
        hosted, rows, batches = self._hosted[group.handle], group.rows, group.batches
        places: Sequence[int] = range(group.first, group.first + len(rows))
        if not self._takes_rows(hosted):
            self._refuse(places, rows, returned)
            return 0
        late = self._unfit(hosted, rows, wall_ms) | self._denied(hosted, rows)
        if late:
            # A connection's rows go back all, in order. The others are decided.
            chosen = [at for at, row in enumerate(rows) if row[CONNECTION] in late]
            self._refuse([places[at] for at in chosen], [rows[at] for at in chosen], returned)
            places, rows, batches = _without(late, places, rows, batches)
            if not rows:
                return 0
        outcomes = [_Outcome() for _ in rows]
        view = memoryview(batches)
        headers = [BatchHeader._make(row[:_HEADER_FIELDS]) for row in rows]
        timeouts_ms = [max(row[TIMEOUT], 0) if row[ACKS] == _ALL else None for row in rows]
        try:
            placed, appended = hosted.append_rows(
                view, headers, wall_ms, outcomes, commit_timeouts_ms=timeouts_ms
            )
        except Rejected:
            self._refuse(places, rows, returned)
            return 0
        start = appended.log_start_offset
        if all(one.is_good for one in outcomes):
            answers = [(1, one[0], one[2], start) for one in placed if type(one) is tuple]
            if places[-1] - places[0] == len(rows) - 1:
                self._door.answer(places[0], answers)
            else:
                for place, answer in zip(places, answers, strict=True):
                    self._door.answer(place, (answer,))
            return len(rows)
        return self._hold(hosted, places, rows, placed, outcomes, returned)

    def _fail(self, rows: Iterable[_Row], error: BaseException, returned: set[int]) -> None:
        """Let a bug cost the connections whose rows met it, and nothing else."""
        for row in rows:
            work: asyncio.Future[Failure] = self._loop.create_future()
            work.set_result(error)
            returned.add(row[CONNECTION])
            held = self._held.setdefault(row[CONNECTION], [])
            held.append((Later(work, _raise), row[FRAME]))

    def _hold(
        self,
        hosted: HostedPartition,
        places: Sequence[int],
        rows: Sequence[_Row],
        placed: Sequence[Placed | Rejected],
        outcomes: "Sequence[_Outcome]",
        returned: set[int],
    ) -> int:
        """Answer rows of which some are refused, or not performed yet: those, and each later one of their
        connections, by the connection.
        """
        answered = 0
        start = hosted.log.log_start_offset
        for place, row, one, outcome in zip(places, rows, placed, outcomes, strict=True):
            if isinstance(one, Rejected):
                outcome(one)
            elif outcome.is_good and row[CONNECTION] not in returned:
                self._door.answer(place, [(1, one[0], one[2], start)])
                answered += 1
                continue
            returned.add(row[CONNECTION])
            place_in_log = None if isinstance(one, Rejected) else (one[0], one[2])
            session = self._connections[row[CONNECTION]].session
            encode = partial(self._encoded, hosted, row, session, place_in_log, start)
            held = self._held.setdefault(row[CONNECTION], [])
            held.append((Later(outcome.later(self._loop), encode), row[FRAME]))
        return answered

    def _encoded(
        self,
        hosted: HostedPartition,
        row: _Row,
        session: Session,
        placed: tuple[int, int] | None,
        start: int,
        error: Failure,
    ) -> Answer:
        """Return the answer of one row, as the handler would encode it. Raises an error that ends the connection."""
        if error is not None and not isinstance(error, Rejected):
            raise error
        # A node imports no handler before a request needs it.
        from stratalog.broker.apis.produce import answer_of, response  # noqa: PLC0415

        broker, version = self._broker, row[VERSION]
        partition = answer_of(hosted.name.partition, error, placed, start)
        topic = TopicProduceResponse(
            name=hosted.name.topic, topic_id=hosted.key.topic_id, partition_responses=[partition]
        )
        body = response(broker.cluster, session, version, [topic])
        broker.metrics.requests.answered(PRODUCE, body, broker.clock.elapsed_ns() - self._began_ns)
        return encode_response(PRODUCE, version, row[CORRELATION], body)

    def _takes_rows(self, hosted: HostedPartition) -> bool:
        """Return whether the partition may append rows now."""
        if hosted.deleted or not hosted.replica.leads or self._broker.throttling.is_on:
            return False
        directory, recompression = hosted.directory, self._broker.recompression
        return (
            directory.failure is None
            and directory.has_room
            and recompression.has_room
            and recompression.is_idle_for(hosted)
        )

    def _acks_taken(self, hosted: HostedPartition) -> tuple[int, ...]:
        """Return the acks of rows that the partition may answer after its own append."""
        replica = hosted.replica
        return (1,) if replica.followers or replica.is_below_min_isr else (1, _ALL)

    def _unfit(self, hosted: HostedPartition, rows: Iterable[_Row], wall_ms: int) -> set[int]:
        """Return the connections with a row that the topic's settings do not allow, or with other acks."""
        config, acks = hosted.log.config, self._acks_taken(hosted)
        earliest, latest, keyed = demands_of(config, wall_ms)
        size = config.max_message_bytes
        return {
            row[CONNECTION]
            for row in rows
            if row[ACKS] not in acks
            or row[SIZE] > size
            or row[MAX_TIMESTAMP] > latest
            or -1 < row[LEAST] < earliest
            or (keyed and not row[KEYED])
        }

    def _denied(self, hosted: HostedPartition, rows: Iterable[_Row]) -> set[int]:
        """Return the connections whose clients may not write to the topic: their handlers say so."""
        if self._broker.authorizer is None:
            return set()
        lent = self._connections
        loans = {row[CONNECTION] for row in rows}
        return {one for one in loans if not self._may_write(lent[one].session, hosted)}

    def _may_write(self, session: Session, hosted: HostedPartition) -> bool:
        authorizer = self._broker.authorizer
        return authorizer is None or authorizer.allows(
            session, Operation.WRITE, Resource.TOPIC, hosted.name.topic
        )

    def _refuse(self, places: Iterable[int], rows: Iterable[_Row], returned: set[int]) -> None:
        """Let the handlers serve rows, of which a connection's first comes first."""
        for place, row in zip(places, rows, strict=True):
            if row[CONNECTION] not in returned:
                returned.add(row[CONNECTION])
                self._door.refuse(place)


def _raise(error: BaseException) -> Answer:
    raise error


class _Outcome:
    """The outcome of one row, called when it is performed, committed or has failed."""

    __slots__ = ("_error", "_is_there", "_later", "is_good")

    def __init__(self) -> None:
        self.is_good = False
        """Whether the row is there without an error."""
        self._is_there = False
        self._error: Failure = None
        self._later: asyncio.Future[Failure] | None = None

    def __call__(self, error: Failure) -> None:
        self.is_good, self._is_there, self._error = error is None, True, error
        if self._later is not None:
            self._later.set_result(error)

    def later(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Failure]":
        """Return a future of the outcome."""
        self._later = loop.create_future()
        if self._is_there:
            self._later.set_result(self._error)
        return self._later


def _without(
    connections: set[int], places: Sequence[int], rows: Sequence[_Row], batches: bytearray
) -> tuple[list[int], list[_Row], bytearray]:
    """Return the rows of all other connections, with their places and batches."""
    kept_places, kept_rows, kept = [], [], bytearray()
    end = 0
    for place, row in zip(places, rows, strict=True):
        start, end = end, end + row[SIZE]
        if row[CONNECTION] not in connections:
            kept_places.append(place)
            kept_rows.append(row)
            kept += batches[start:end]
    return kept_places, kept_rows, kept
