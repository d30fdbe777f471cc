"""Follow partitions whose leaders are on one broker: make the next fetch, and turn its answer into steps.

In: partitions to follow, answers and failures of the connection, the steady time. Out: Fetch requests (one at a time),
and for each partition one step (`following.py`). It never sends, never waits, and never changes a log.

The fetches share one fetch session (KIP-227): a fetch names only partitions that are new or moved since the last one. A
partition whose step is still pending takes no part in a fetch, so the log has not changed when the answer arrives. A
failed partition waits alone; the others continue.

Invariants: `_session` equals the leader's session once the fetch in flight has arrived there. Where that is not what
the next fetch should ask for, the partition is in `_changed`.

Kafka: `AbstractFetcherThread`, `FetchSessionHandler`, `RemoteLeaderEndPoint`.
"""

from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple
from uuid import UUID

from msgspec import Struct

from stratalog.errors import ErrorCode
from stratalog.replication.fetch_sessions import NEW_SESSION, NO_SESSION
from stratalog.replication.following import Append, Log, Step, Wait, step
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

__all__ = ["FetchLimits", "Fetcher"]

_EPOCH_MAX: Final = 2**31 - 1
_HELD_UP_MS: Final = 100
"""How long a throttled partition stays out of fetches before the throttle is looked at again."""
_SESSION_ERRORS: Final = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)


class FetchLimits(NamedTuple):
    """Kafka's `replica.fetch.*` settings; bytes and milliseconds."""

    max_bytes: int = 1 << 20
    """Of one partition."""
    response_max_bytes: int = 10 << 20
    min_bytes: int = 1
    wait_max_ms: int = 500
    backoff_ms: int = 1000


class _Followed(Struct):
    """A followed partition. `ready_ms`: time of its next fetch; never, while a step is pending.

    `leader_high_watermark` is the last that the leader named: below it, the log lags.
    """

    log: Log
    leader_epoch: int
    ready_ms: float = -inf
    leader_high_watermark: float = inf


class Fetcher:
    """The fetches of broker `node_id` from one other broker."""

    def __init__(self, node_id: int, broker_epoch: int, limits: FetchLimits) -> None:
        self.broker_epoch = broker_epoch
        """This incarnation's registration (KIP-903), as of the next fetch."""
        self._node_id = node_id
        self._limits = limits
        self._followed: dict[TopicIdPartition, _Followed] = {}
        self._session: dict[TopicIdPartition, FetchPartition] = {}
        self._changed: dict[TopicIdPartition, None] = {}
        self._session_id = NO_SESSION
        self._session_epoch = NEW_SESSION
        self._in_flight = False

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, key: TopicIdPartition, log: Log, leader_epoch: int) -> None:
        """Fetch the partition from now on, in `leader_epoch`. The log must have performed every append."""
        self._followed[key] = _Followed(log, leader_epoch)
        self._changed[key] = None

    def unfollow(self, key: TopicIdPartition) -> None:
        """Stop fetching the partition: it has another leader, or was deleted. Ignore an answer that is under way."""
        self._followed.pop(key, None)
        self._changed[key] = None

    def resume(self, key: TopicIdPartition, leader_epoch: int, at_ms: float = -inf) -> None:
        """Fetch the partition again, after its step; not before `at_ms`.

        A step of another leader epoch changes nothing: the broker no longer follows the partition, or does so in a new
        epoch.
        """
        followed = self._followed.get(key)
        if followed is not None and followed.leader_epoch == leader_epoch:
            followed.ready_ms = at_ms
            self._changed[key] = None

    @property
    def due_ms(self) -> float:
        """When the next fetch can be made; `inf` while one is in flight, or nothing can be fetched."""
        if self._in_flight:
            return inf
        return min((one.ready_ms for one in self._followed.values()), default=inf)

    def request(self, now_ms: float) -> FetchRequest | None:
        """Return the next fetch to send, or None while no partition is ready or another fetch is in flight.

        It costs what has changed since the last one, however many partitions are followed.
        """
        if self._in_flight:
            return None
        if self._session_epoch == NEW_SESSION:
            self._session = {}
            self._changed = dict.fromkeys(self._followed)
        named: dict[TopicIdPartition, FetchPartition] = {}
        later: dict[TopicIdPartition, None] = {}
        forgotten: list[TopicIdPartition] = []
        added = 0
        session = self._session
        for key in self._changed:
            followed, before = self._followed.get(key), session.get(key)
            if followed is not None and followed.ready_ms <= now_ms:
                wanted = self._to_fetch(key, followed)
                if wanted != before:
                    named[key] = wanted
                    added += before is None
                continue
            if before is not None:
                forgotten.append(key)
            if followed is not None and followed.ready_ms < inf:
                later[key] = None
        if len(session) + added == len(forgotten):
            return None
        self._changed = later
        for key in forgotten:
            del session[key]
        session.update(named)
        self._in_flight = True
        limits = self._limits
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=self.broker_epoch),
            max_wait_ms=limits.wait_max_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=_by_topic(named),
            forgotten_topics_data=_forgotten(forgotten),
        )

    def hold_up(self, now_ms: float, is_throttled: Callable[[TopicIdPartition], bool]) -> None:
        """Keep throttled partitions that lag out of the next fetch (KIP-73): the throttle's rate is spent."""
        for key, one in self._followed.items():
            lags = one.log.log_end_offset < one.leader_high_watermark
            if lags and one.ready_ms <= now_ms and is_throttled(key):
                one.ready_ms = now_ms + _HELD_UP_MS
                self._changed[key] = None

    def _to_fetch(self, key: TopicIdPartition, followed: _Followed) -> FetchPartition:
        log = followed.log
        return FetchPartition(
            partition=key.partition,
            current_leader_epoch=followed.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.epochs.latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=self._limits.max_bytes,
        )

    def on_response(
        self, response: FetchResponse, now_ms: float
    ) -> list[tuple[TopicIdPartition, int, Step]]:
        """Return (partition, leader epoch, step) for each partition that is answered.

        The caller carries each step out and calls `resume`. `Wait` needs neither.
        """
        assert self._in_flight, "one answer for each fetch"
        if response.error_code in _SESSION_ERRORS:
            self._in_flight = False
            self._begin_session()
            return []
        if response.error_code != ErrorCode.none:
            self.on_failure(now_ms)
            return []
        self._in_flight = False
        self._session_id = response.session_id
        self._session_epoch = (
            NEW_SESSION if response.session_id == NO_SESSION else _next_epoch(self._session_epoch)
        )
        steps: list[tuple[TopicIdPartition, int, Step]] = []
        for topic in response.responses:
            for answer in topic.partitions:
                key = TopicIdPartition(topic.topic_id, answer.partition_index)
                requested = self._session.get(key)
                followed = self._followed.get(key)
                if (
                    requested is None
                    or followed is None
                    or followed.ready_ms == inf
                    or requested.current_leader_epoch != followed.leader_epoch
                    or requested.fetch_offset != followed.log.log_end_offset
                ):
                    continue  # no longer followed, in a new epoch since the fetch was sent, or answered twice
                taken = step(followed.log, answer)
                followed.ready_ms = inf
                self._changed[key] = None
                if isinstance(taken, Append):
                    followed.leader_high_watermark = taken.high_watermark
                if isinstance(taken, Wait):
                    followed.ready_ms = now_ms + self._limits.backoff_ms
                if not isinstance(taken, Wait):
                    steps.append((key, followed.leader_epoch, taken))
        return steps

    def on_failure(self, now_ms: float) -> None:
        """Note that the fetch in flight failed with its connection: every partition waits, in a new session."""
        self._in_flight = False
        self._begin_session()
        again_ms = now_ms + self._limits.backoff_ms
        for followed in self._followed.values():
            followed.ready_ms = max(followed.ready_ms, again_ms)

    def _begin_session(self) -> None:
        """Name every partition in the next fetch; the request's session id names the replaced session."""
        self._session_epoch = NEW_SESSION


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == _EPOCH_MAX else epoch + 1


def _by_topic(named: dict[TopicIdPartition, FetchPartition]) -> list[FetchTopic]:
    topics: dict[UUID, list[FetchPartition]] = {}
    for key, one in named.items():
        topics.setdefault(key.topic_id, []).append(one)
    return [FetchTopic(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()]


def _forgotten(keys: list[TopicIdPartition]) -> list[ForgottenTopic]:
    topics: dict[UUID, list[int]] = {}
    for key in keys:
        topics.setdefault(key.topic_id, []).append(key.partition)
    return [ForgottenTopic(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()]
