"""Fetch sessions (KIP-227): a client names its partitions once, and receives only those that changed.

In: the partitions of a fetch, the state found of each, the time. Out: all partitions of the fetch, and which of their
answers to send. It never reads a log, and uses only the partitions of a request.

A session and its client stay in step by an epoch, which rises by one with each fetch. A client that is out of step
gets an error and begins a new session. The number of sessions, and of partitions in all of them, is bounded; without
room a fetch is answered without a session. A new session takes the room of those unused for `EVICTION_MS`, else of the
client that holds most, if that is more than its own client holds, else of an older one with fewer partitions.

No session begins with a partition that is refused: a client without a right would fill the room with invented names.

A follower's session also remembers which partitions changed since they were answered (`session_changes.py`): its
fetches look at these alone. A consumer's fetches look at all.

Invariants: `_sessions` is in order of last use; `_held` has the sums of their sizes.

Kafka: `FetchManager`, `FetchSession`, `FetchSessionCacheShard`.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Final, Generic, NamedTuple, NoReturn, TypeVar

from msgspec import Struct, field

from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Entropy
from stratalog.replication.session_changes import Changes
from stratalog.shares import Shares
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.messages.fetch import PartitionData

Requested = TypeVar("Requested")
PartitionKey = TopicPartition | TopicIdPartition
"""A topic, by name up to version 12 of Fetch and by id from 13 on, and a partition's index."""

NO_SESSION: Final = 0
NEW_SESSION: Final = 0
"""The epoch of a fetch that requests a session."""
LAST_FETCH: Final = -1
"""The epoch of a fetch that ends the session it names, and requests none."""
EVICTION_MS: Final = 120_000
PARTITIONS_MAX: Final = 200_000
"""Limit for all sessions together. Kafka has no such limit; here each remembered partition takes some 400 bytes."""
SESSION_PARTITIONS_MAX: Final = 20_000
"""Limit for one session, because the broker walks through a session in one turn. Larger fetches name all their
partitions each time.
"""
_UNKNOWN_OFFSET: Final = -1
_DENIED: Final = frozenset(
    {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}
)
_REFUSED: Final = _DENIED | {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.invalid_topic_exception,
}
"""Errors of partitions that begin no session. A follower's may begin with unknown ones: its leader learns of them."""


class _Remembered(Struct, Generic[Requested]):
    """The client's last request for a partition, and the last answer sent."""

    requested: Requested
    high_watermark: int = _UNKNOWN_OFFSET
    log_start_offset: int = _UNKNOWN_OFFSET

    def is_news(self, found: PartitionData) -> bool:
        """Return whether to send the answer; remember it as sent."""
        failed = found.error_code != ErrorCode.none
        news = (
            failed
            or bool(found.records)
            or found.high_watermark != self.high_watermark
            or found.log_start_offset != self.log_start_offset
            or found.preferred_read_replica >= 0
            or found.diverging_epoch.epoch >= 0
        )
        # A client must also learn that an error ended.
        self.high_watermark = _UNKNOWN_OFFSET if failed else found.high_watermark
        self.log_start_offset = found.log_start_offset
        return news


class _Session(Struct, Generic[Requested]):
    session_id: int
    by_id: bool
    holder: Hashable
    created_ms: int
    used_ms: int
    partitions: dict[PartitionKey, _Remembered[Requested]] = field(default_factory=dict)
    """In the order of reading: partitions that returned records go to the end."""
    epoch: int = 1
    """The epoch of the next fetch."""
    changes: Changes | None = None
    """Of a follower's session."""

    def wanted(self) -> tuple[tuple[PartitionKey, Requested], ...]:
        """Return the partitions to look at."""
        partitions = self.partitions
        if self.changes is None:
            return tuple([(key, one.requested) for key, one in partitions.items()])
        return tuple([(key, partitions[key].requested) for key in self.changes.marked()])


class Answered(NamedTuple):
    """The answer to a fetch: the client's session, if any, and the indexes of the partitions to send."""

    session_id: int
    places: Sequence[int]
    error: ErrorCode = ErrorCode.none


class Fetch(Generic[Requested]):
    """One fetch, from `FetchSessions.begin` to its answer; `requested` are the partitions to look at."""

    __slots__ = (
        "_by_id",
        "_epoch",
        "_holder",
        "_is_follower",
        "_looked_at",
        "_numbers",
        "_session",
        "_sessions",
        "_wants_session",
        "requested",
    )

    def __init__(  # noqa: PLR0913 - what a session begins with
        self,
        sessions: "FetchSessions[Requested]",
        requested: Sequence[tuple[PartitionKey, Requested]],
        *,
        wants_session: bool = False,
        by_id: bool = False,
        is_follower: bool = False,
        holder: Hashable = "",
        session: _Session[Requested] | None = None,
    ) -> None:
        self.requested = requested
        self._numbers: Sequence[int] = ()
        self._looked_at = -1
        self._is_follower = is_follower
        self._holder = holder
        self._sessions = sessions
        self._wants_session = wants_session
        self._by_id = by_id
        self._session = session
        self._epoch = 0 if session is None else session.epoch

    @property
    def changes(self) -> Changes | None:
        """What changed in a follower's session; None without a session, and in a consumer's."""
        return None if self._session is None else self._session.changes

    def look(self) -> None:
        """Take into `requested` what the fetch must look at now. Call before each look."""
        session = self._session
        if session is None or session.changes is None:
            return
        changes = session.changes
        if changes.version != self._looked_at:
            self._looked_at = changes.version
            self.requested = session.wanted()
            self._numbers = list(changes.marked().values())

    def pass_over(self) -> Answered:
        """Return an answer without partitions, in place of `answer`: the session stays as it is, and none begins."""
        session = self._session
        if session is None:
            return Answered(NO_SESSION, ())
        is_expected = session.epoch == self._epoch
        error = ErrorCode.none if is_expected else ErrorCode.invalid_fetch_session_epoch
        return Answered(session.session_id, (), error)

    def answer(
        self,
        found: Sequence[PartitionData],
        now_ms: int,
        may_pass_over: Callable[[PartitionKey, Requested, PartitionData], bool] | None = None,
    ) -> Answered:
        """Return the answer. Call once, with the state of each partition of `requested`, in that order.

        `may_pass_over` returns whether a follower's next fetch may pass over a partition that does not change.
        """
        assert len(found) == len(self.requested)
        session = self._session
        if session is None:
            session_id = NO_SESSION
            if self._wants_session:
                session_id = self._sessions.create(
                    self.requested,
                    found,
                    self._by_id,
                    now_ms,
                    is_follower=self._is_follower,
                    holder=self._holder,
                )
            return Answered(session_id, range(len(found)))
        if session.epoch != self._epoch:
            # The client sent another fetch without waiting: its state is unknown from here on.
            error = ErrorCode.invalid_fetch_session_epoch
            return Answered(session.session_id, (), error)
        places = []
        for place, ((key, _), one) in enumerate(zip(self.requested, found, strict=True)):
            remembered = session.partitions[key]
            if remembered.is_news(one):
                places.append(place)
                if one.records and session.changes is None:
                    # So that not always the same partitions miss an answer that is full.
                    session.partitions[key] = session.partitions.pop(key)
        if session.changes is not None and may_pass_over is not None:
            looked_at = zip(self.requested, self._numbers, found, strict=True)
            for (key, requested), number, one in looked_at:
                if may_pass_over(key, requested, one):
                    session.changes.unmark(key, number)
        return Answered(session.session_id, places)


class FetchSessions(Generic[Requested]):
    """All sessions of a broker: `slots` at most (`max.incremental.fetch.session.cache.slots`)."""

    def __init__(
        self, slots: int, entropy: Entropy, *, partitions_max: int = PARTITIONS_MAX
    ) -> None:
        self._slots = slots
        self._entropy = entropy
        self._partitions_max = partitions_max
        self._sessions: dict[int, _Session[Requested]] = {}
        self._slots_held = Shares()
        self._held = Shares()
        """The partitions of each client."""
        self.evictions = 0
        """Sessions that had to give their room to others."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """How many partitions all sessions remember."""
        return self._held.total

    def begin(  # noqa: PLR0913 - what a fetch says
        self,
        session_id: int,
        epoch: int,
        requested: Sequence[tuple[PartitionKey, Requested]],
        forgotten: Iterable[PartitionKey],
        *,
        by_id: bool,
        now_ms: int,
        is_follower: bool = False,
        holder: Hashable = "",
    ) -> Fetch[Requested]:
        """Begin a fetch that names `requested`, each partition once: all partitions, or in a session the new and
        changed ones.

        `is_follower`: a session that begins remembers its changes. The caller marks them (`Fetch.changes`). `holder`:
        the client; all its sessions count together.

        Raises Rejected: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR where the
        request switched between topic names and ids.
        """
        if epoch in (NEW_SESSION, LAST_FETCH):
            self._end(session_id)
            wants_session = epoch == NEW_SESSION
            return Fetch(
                self,
                requested,
                wants_session=wants_session,
                by_id=by_id,
                is_follower=is_follower and by_id,
                holder=holder,
            )
        session = self._sessions.get(session_id)
        if session is None:
            raise Rejected(ErrorCode.fetch_session_id_not_found, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise Rejected(
                ErrorCode.invalid_fetch_session_epoch,
                f"fetch session {session_id} is at {session.epoch}, not {epoch}",
            )
        if session.by_id != by_id:
            raise Rejected(
                ErrorCode.fetch_session_topic_id_error,
                f"fetch session {session_id} was begun with topic {'names' if by_id else 'ids'}",
            )
        session.epoch = (
            1 if epoch == 2**31 - 1 else epoch + 1
        )  # first: fetches under way must see it
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.used_ms = now_ms
        self._update(session, requested, forgotten, now_ms)
        if not session.partitions:
            self._end(session_id)
            return Fetch(self, ())
        requested = session.wanted() if session.changes is None else ()
        fetch = Fetch(self, requested, session=session)
        fetch.look()
        return fetch

    def _update(
        self,
        session: _Session[Requested],
        requested: Sequence[tuple[PartitionKey, Requested]],
        forgotten: Iterable[PartitionKey],
        now_ms: int,
    ) -> None:
        before = len(session.partitions)
        leaving = list(islice(forgotten, SESSION_PARTITIONS_MAX + 1))
        if max(len(requested), len(leaving)) > SESSION_PARTITIONS_MAX:
            self._too_large(session)
        for key, one in requested:
            remembered = session.partitions.get(key)
            if remembered is None:
                session.partitions[key] = _Remembered(one)
            else:
                remembered.requested = one
            if session.changes is not None:
                session.changes.mark(key)
        for key in leaving:
            session.partitions.pop(key, None)
            if session.changes is not None:
                session.changes.drop(key)
        grown = len(session.partitions) - before
        self._held.add(session.holder, grown)
        is_too_large = len(session.partitions) > SESSION_PARTITIONS_MAX
        if is_too_large or not self._has_room(session.holder, 0, 0, now_ms):
            self._too_large(session)

    def _too_large(self, session: _Session[Requested]) -> NoReturn:
        self._end(session.session_id)
        raise Rejected(
            ErrorCode.fetch_session_id_not_found,
            f"fetch session {session.session_id} grew too large",
        )

    def create(
        self,
        requested: Sequence[tuple[PartitionKey, Requested]],
        found: Sequence[PartitionData],
        by_id: bool,  # noqa: FBT001 - `Fetch` alone calls this
        now_ms: int,
        *,
        is_follower: bool = False,
        holder: Hashable = "",
    ) -> int:
        """Begin a session that remembers the answers of its first fetch; return its id, or 0 without room."""
        size = len(requested)
        if not size or size > SESSION_PARTITIONS_MAX:
            return NO_SESSION
        refused = _DENIED if is_follower else _REFUSED
        if any(one.error_code in refused for one in found):
            return NO_SESSION
        if not self._has_room(holder, 1, size, now_ms):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._entropy.uuid().int & 0x7FFFFFFF
        session: _Session[Requested] = _Session(session_id, by_id, holder, now_ms, now_ms)
        for (key, one), answer in zip(requested, found, strict=True):
            remembered = session.partitions[key] = _Remembered(one)
            remembered.is_news(answer)
        if is_follower:
            session.changes = Changes(session.partitions)
            for key, _ in requested:
                session.changes.mark(key)
        self._sessions[session_id] = session
        self._slots_held.add(holder, 1)
        self._held.add(holder, len(session.partitions))
        return session_id

    def _has_room(self, holder: Hashable, slots: int, partitions: int, now_ms: int) -> bool:
        """Return whether a client's session may begin or grow; end others for it, where they must give way."""
        while True:
            lacks_slots = len(self._sessions) + slots > self._slots
            if not lacks_slots and self.partitions + partitions <= self._partitions_max:
                return True
            gone = next(iter(self._sessions.values()), None)
            if gone is None:
                return False
            if now_ms - gone.used_ms <= EVICTION_MS:
                shares, more = (
                    (self._slots_held, slots) if lacks_slots else (self._held, partitions)
                )
                gone = self._of_largest(shares.yields_to(holder, more))
                if gone is None and lacks_slots:
                    gone = self._smaller_and_old(holder, partitions, now_ms)
                if gone is None:
                    return False
            self.evictions += 1
            self._end(gone.session_id)

    def _of_largest(self, holder: Hashable | None) -> _Session[Requested] | None:
        """Return the session of a client that was used least recently."""
        if holder is None:
            return None
        return next(one for one in self._sessions.values() if one.holder == holder)

    def _smaller_and_old(
        self, holder: Hashable, size: int, now_ms: int
    ) -> _Session[Requested] | None:
        """Return the smallest old session, as Kafka's rule has it, but none of a client with fewer sessions."""
        least = self._slots_held.of(holder)
        old = [
            one
            for one in self._sessions.values()
            if now_ms - one.created_ms > EVICTION_MS and self._slots_held.of(one.holder) >= least
        ]
        found = min(old, key=lambda one: len(one.partitions), default=None)
        return None if found is None or len(found.partitions) > size else found

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._slots_held.add(session.holder, -1)
            self._held.add(session.holder, -len(session.partitions))
            if session.changes is not None:
                session.changes.end()
