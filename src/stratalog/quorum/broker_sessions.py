"""Remember each broker's last heartbeat and metadata offset: a controller's only memory outside the log.

In: heartbeats, with the time. Out: brokers whose session has timed out, and the metadata offset of active brokers. It
is lost with the controller's leadership; the next controller gives each broker a new full session, but for the broker
of the controller that it lost.

Kafka: BrokerHeartbeatManager, BrokerHeartbeatTracker (`broker.session.timeout.ms`).
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from stratalog.metadata.image import Broker

SESSION_TIMEOUT_MS = 9_000
"""Kafka: the default of `broker.session.timeout.ms`."""


class _Session(Struct):
    epoch: int
    contact_ms: int
    metadata_offset: int = -1


class BrokerSessions:
    """Sessions by broker, the longest silent one first.

    `shutdowns` has the brokers in controlled shutdown: the offset of the metadata log that all others must have seen
    before the broker may stop.
    """

    def __init__(self, timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        self.shutdowns: dict[int, int] = {}
        self._timeout_ms = timeout_ms
        self._sessions: dict[int, _Session] = {}

    def start(
        self, brokers: Iterable[Broker], now_ms: int, silent_since: Mapping[int, int] | None = None
    ) -> None:
        """Begin as the active controller: every unfenced broker has a session from now on, or from the steady time at
        which its node fell silent.
        """
        self.shutdowns.clear()
        begun = dict(silent_since or {})
        sessions = {
            broker.id: _Session(broker.epoch, min(begun.get(broker.id, now_ms), now_ms))
            for broker in brokers
            if not broker.fenced
        }
        self._sessions = dict(sorted(sessions.items(), key=lambda one: one[1].contact_ms))

    def contact(self, broker: Broker, metadata_offset: int, now_ms: int) -> None:
        """Note a heartbeat."""
        self._sessions.pop(broker.id, None)
        self._sessions[broker.id] = _Session(broker.epoch, now_ms, metadata_offset)

    def end(self, broker_id: int) -> None:
        """Forget the broker: it registered again, was unregistered, or its session timed out."""
        self._sessions.pop(broker_id, None)
        self.shutdowns.pop(broker_id, None)

    def is_alive(self, broker: Broker, now_ms: int) -> bool:
        """Return whether this incarnation of the broker has sent a heartbeat within the session time-out."""
        session = self._sessions.get(broker.id)
        return (
            session is not None
            and session.epoch == broker.epoch
            and not self._has_expired(session, now_ms)
        )

    def expired(self, now_ms: int) -> int | None:
        """Return the broker that has been silent for longest, once its session has timed out."""
        for broker_id, session in self._sessions.items():
            return broker_id if self._has_expired(session, now_ms) else None
        return None

    def next_end_ms(self, now_ms: int) -> int:
        """Return when the next session times out without a heartbeat; sessions that begin later end later."""
        first = next(iter(self._sessions.values()), None)
        return (now_ms if first is None else first.contact_ms) + self._timeout_ms + 1

    def lowest_offset(self, active: Iterable[int]) -> int | None:
        """Return the least metadata offset that these brokers reported; None where there are none."""
        return min(
            (
                self._sessions[id_].metadata_offset if id_ in self._sessions else -1
                for id_ in active
            ),
            default=None,
        )

    def _has_expired(self, session: _Session, now_ms: int) -> bool:
        return session.contact_ms + self._timeout_ms < now_ms
