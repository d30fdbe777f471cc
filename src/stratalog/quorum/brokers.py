"""Register, fence, unfence and unregister brokers: refuse, or return records.

In: requests, the image and its index, the brokers' sessions, the time. Out: decisions. Only the sessions change here,
and they are no part of the log.

A decision about a broker includes its partitions. A broker that is fenced, shuts down, registers again or is
unregistered leaves every ISR, and other replicas become leaders. An unfenced broker may lead partitions without a
leader.

Kafka: ClusterControlManager, BrokerHeartbeatManager.calculateNextBrokerState, and the `handleBroker…` methods of
ReplicationControlManager (KIP-631, 841, 858, 966, 1066).
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import (
    CORDONED_FROM,
    DIRECTORY_RESERVED_MAX,
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    Broker,
    Endpoint,
    FeatureRange,
    Image,
)
from stratalog.metadata.snapshot import broker_record
from stratalog.quorum.broker_sessions import BrokerSessions
from stratalog.quorum.electorate import Cluster, has_elr
from stratalog.quorum.features import SUPPORTED_FEATURES
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import (
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)

ELECTED_AT_ONCE: Final = 500
"""Partitions whose leaders one decision about a broker elects: deciding on all of them would be one long turn."""


class BrokerRegistration(Struct, frozen=True):
    """A broker's description of itself at its start.

    `incarnation_id` is new with every start. `previous_epoch` is the broker epoch that the last clean shutdown wrote
    down; -1 after an unclean one.
    """

    id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    directories: tuple[UUID, ...] = ()
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES
    previous_epoch: int = -1


class BrokerHeartbeat(Struct, frozen=True):
    """A broker's heartbeat; `metadata_offset` is the highest offset of the metadata log that it has applied.

    `cordoned` is None from a broker that has not read its configuration yet (KIP-1066).
    """

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shutdown: bool = False
    offline_directories: tuple[UUID, ...] = ()
    cordoned: tuple[UUID, ...] | None = None


class HeartbeatAnswer(Struct, frozen=True):
    """The broker's new state, and the partitions that `elect_leaderless` must handle.

    With `leaving`, the heartbeat has not changed the broker's state yet: `leave` must handle these partitions first.
    """

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    leaderless: Sequence[TopicIdPartition] = ()
    leaving: Sequence[TopicIdPartition] = ()


class _State(Enum):
    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()


def registered(image: Image, broker_id: int, broker_epoch: int) -> Broker:
    """Return the broker; raises Rejected(STALE_BROKER_EPOCH) for any other incarnation."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise Rejected(ErrorCode.stale_broker_epoch, f"broker {broker_id} is not registered")
    if broker.epoch != broker_epoch:
        raise Rejected(
            ErrorCode.stale_broker_epoch,
            f"broker {broker_id} is at epoch {broker.epoch}, not {broker_epoch}",
        )
    return broker


def register(
    cluster: Cluster, sessions: BrokerSessions, registration: BrokerRegistration, now_ms: int
) -> Decision[Any, int]:
    """Register a broker, fenced; answer: its epoch. A second request of one incarnation amends the registration.

    Raises Rejected: DUPLICATE_BROKER_REGISTRATION while another incarnation has a session, INVALID_REGISTRATION for
    directories or features, UNSUPPORTED_VERSION for a finalized feature that the broker does not support.
    """
    image = cluster.image
    before = image.brokers.get(registration.id)
    is_new = _check(image, sessions, registration, now_ms)
    # Any offset not used yet is above every earlier registration's epoch.
    broker = Broker(
        id=registration.id,
        epoch=image.offset + 1,
        incarnation_id=registration.incarnation_id,
        endpoints=registration.endpoints,
        rack=registration.rack,
        directories=registration.directories,
        features=registration.features,
    )
    if before is not None and not is_new:
        broker = replace(
            broker,
            epoch=before.epoch,
            fenced=before.fenced,
            in_controlled_shutdown=before.in_controlled_shutdown,
            cordoned_directories=before.cordoned_directories,
        )
        return Decision([] if broker == before else [broker_record(broker)], before.epoch)
    sessions.end(registration.id)
    records = _retired(cluster, registration, _to_retire(cluster, registration))
    return Decision([*records, broker_record(broker)], broker.epoch)


def partitions_to_retire(
    cluster: Cluster, sessions: BrokerSessions, registration: BrokerRegistration, now_ms: int
) -> Decision[Any, Sequence[TopicIdPartition]]:
    """Answer: the partitions for `retire`, where they are too many for one decision; raises as `register`."""
    is_new = _check(cluster.image, sessions, registration, now_ms)
    return Decision([], _if_many(_to_retire(cluster, registration) if is_new else []))


def retire(
    cluster: Cluster, registration: BrokerRegistration, keys: Iterable[TopicIdPartition]
) -> Decision[Any, None]:
    """Take an earlier incarnation out of these partitions, so that `register` finds little to do."""
    return Decision(_retired(cluster, registration, _present(cluster.image, keys)), None)


def elect_leaderless(
    cluster: Cluster,
    sessions: BrokerSessions,
    request: BrokerHeartbeat,
    keys: Iterable[TopicIdPartition],
    now_ms: int,
) -> Decision[Any, None]:
    """Elect leaders for those of these partitions that have none, where a broker may lead.

    The broker waits for the answer to its heartbeat meanwhile, so its session is extended. Raises
    Rejected(STALE_BROKER_EPOCH).
    """
    broker = registered(cluster.image, request.broker_id, request.broker_epoch)
    sessions.contact(broker, request.metadata_offset, now_ms)
    leaderless = (key for key in keys if key in cluster.index.leaderless)
    return Decision(cluster.electorate().update(leaderless), None)


def _to_retire(cluster: Cluster, registration: BrokerRegistration) -> list[TopicIdPartition]:
    """Return the partitions that the registration may change."""
    if not _lost_data(cluster, registration):
        return cluster.index.in_sync(registration.id, alone=False)
    return cluster.index.in_sync(registration.id) + cluster.index.eligible(registration.id)


def _lost_data(cluster: Cluster, registration: BrokerRegistration) -> bool:
    before = cluster.image.brokers.get(registration.id)
    return has_elr(cluster.image) and (
        before is None or before.epoch != registration.previous_epoch
    )


def _retired(
    cluster: Cluster, registration: BrokerRegistration, keys: Iterable[TopicIdPartition]
) -> list[Any]:
    lost_data = _lost_data(cluster, registration)
    electorate = cluster.electorate(
        leaving=registration.id, lost_data=registration.id if lost_data else None
    )
    return [*electorate.update(keys)]


def _present(image: Image, keys: Iterable[TopicIdPartition]) -> Iterable[TopicIdPartition]:
    """Yield the partitions that were not deleted meanwhile."""
    return (key for key in keys if image.partition(*key) is not None)


def partitions_to_leave(cluster: Cluster, broker_id: int) -> Sequence[TopicIdPartition]:
    """Return the partitions whose ISR has the broker, where they are too many for one decision."""
    return _if_many(cluster.index.in_sync(broker_id, alone=False))


def _if_many(keys: Sequence[TopicIdPartition]) -> Sequence[TopicIdPartition]:
    return keys if len(keys) > ELECTED_AT_ONCE else ()


def leave(
    cluster: Cluster, broker_id: int, keys: Iterable[TopicIdPartition]
) -> Decision[Any, None]:
    """Take a broker out of these ISRs and elect other leaders, ahead of the decision that makes this final.

    The final decision handles the rest, because the broker may join an ISR again meanwhile.
    """
    records = cluster.electorate(leaving=broker_id).update(_present(cluster.image, keys))
    return Decision(records, None)


def leave_at_heartbeat(
    cluster: Cluster,
    sessions: BrokerSessions,
    request: BrokerHeartbeat,
    keys: Iterable[TopicIdPartition],
    now_ms: int,
) -> Decision[Any, None]:
    """Do as `leave`, for the partitions that `heartbeat` names, and extend the broker's session: it waits for the
    answer. Raises Rejected(STALE_BROKER_EPOCH).
    """
    broker = registered(cluster.image, request.broker_id, request.broker_epoch)
    sessions.contact(broker, request.metadata_offset, now_ms)
    return leave(cluster, broker.id, keys)


def unregister(cluster: Cluster, sessions: BrokerSessions, broker_id: int) -> Decision[Any, None]:
    """Remove a broker and its place in every ISR; raises Rejected(BROKER_ID_NOT_REGISTERED)."""
    broker = cluster.image.brokers.get(broker_id)
    if broker is None:
        raise Rejected(ErrorCode.broker_id_not_registered, f"broker {broker_id} is not registered")
    sessions.end(broker_id)
    keys = cluster.index.in_sync(broker_id, alone=False)
    records = cluster.electorate(leaving=broker_id).update(keys)
    record = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return Decision([*records, record], None)


def fence_stale(
    cluster: Cluster, sessions: BrokerSessions, now_ms: int
) -> Decision[Any, int | None]:
    """Fence the broker that has been silent for longest, if its session has timed out; answer: that broker, or None.

    It fences one broker at a time, so that the next decision sees the result.
    """
    broker_id = sessions.expired(now_ms)
    if broker_id is None:
        return Decision([], None)
    sessions.end(broker_id)
    broker = cluster.image.brokers.get(broker_id)
    return Decision([] if broker is None else _fence(cluster, broker), broker_id)


def heartbeat(
    cluster: Cluster,
    sessions: BrokerSessions,
    request: BrokerHeartbeat,
    *,
    registered_at: int,
    now_ms: int,
    at_once: bool,
) -> Decision[Any, HeartbeatAnswer]:
    """Extend a broker's session, and change its state as requested and permitted. `registered_at`: its record's offset.

    Without `at_once`, a change of too many partitions for one decision waits: the answer's `leaving` names them.
    Raises Rejected(STALE_BROKER_EPOCH).
    """
    broker = registered(cluster.image, request.broker_id, request.broker_epoch)
    is_caught_up = request.metadata_offset >= registered_at
    sessions.contact(broker, request.metadata_offset, now_ms)
    now = _state(broker, sessions)
    gone = _in_failed_directories(cluster, broker, request)
    records = _directories(cluster, broker, request, gone)
    # A decision changes either directories or the state: the next heartbeat requests the state again.
    after = now if records else _next_state(cluster, sessions, broker, request, is_caught_up)
    leaving = _if_many(gone)
    if after not in (now, _State.UNFENCED):
        leaving = partitions_to_leave(cluster, broker.id)
    if leaving and not at_once:
        waiting = HeartbeatAnswer(
            is_caught_up=is_caught_up,
            is_fenced=now is _State.FENCED,
            should_shut_down=False,
            leaving=leaving,
        )
        return Decision([], waiting)
    leaderless: Sequence[TopicIdPartition] = ()
    if after is not now:
        match after:
            case _State.FENCED | _State.SHUTDOWN_NOW:
                records = _fence(cluster, broker)
            case _State.UNFENCED:
                records = _unfence(cluster, broker)
                leaderless = list(islice(cluster.index.leaderless, ELECTED_AT_ONCE, None))
            case _State.CONTROLLED_SHUTDOWN:
                records = _shut_down(cluster, broker)
    if after is _State.SHUTDOWN_NOW:
        sessions.end(broker.id)  # its next incarnation need not wait for a time-out
    elif after is _State.FENCED:
        sessions.shutdowns.pop(broker.id, None)
    elif after is _State.CONTROLLED_SHUTDOWN:
        sessions.shutdowns.setdefault(broker.id, cluster.image.offset + len(records))
    answer = HeartbeatAnswer(
        is_caught_up=is_caught_up,
        is_fenced=after in (_State.FENCED, _State.SHUTDOWN_NOW),
        should_shut_down=after is _State.SHUTDOWN_NOW,
        leaderless=leaderless,
    )
    return Decision(records, answer)


def _state(broker: Broker, sessions: BrokerSessions) -> _State:
    if broker.fenced:
        return _State.FENCED
    return _State.CONTROLLED_SHUTDOWN if broker.id in sessions.shutdowns else _State.UNFENCED


def _next_state(
    cluster: Cluster,
    sessions: BrokerSessions,
    broker: Broker,
    request: BrokerHeartbeat,
    is_caught_up: bool,  # noqa: FBT001 - private
) -> _State:
    match _state(broker, sessions):
        case _State.FENCED:
            if request.want_shutdown:
                return _State.SHUTDOWN_NOW
            return _State.UNFENCED if is_caught_up and not request.want_fence else _State.FENCED
        case _State.UNFENCED:
            if request.want_fence:
                return _State.SHUTDOWN_NOW if request.want_shutdown else _State.FENCED
            if not request.want_shutdown:
                return _State.UNFENCED
            leads = cluster.index.leads(broker.id)
            return _State.CONTROLLED_SHUTDOWN if leads else _State.SHUTDOWN_NOW
        case _:
            if cluster.index.leads(broker.id):
                return _State.CONTROLLED_SHUTDOWN
            # Until the other brokers have seen its last leadership end, clients get the old leader from them.
            active = (
                other.id
                for other in cluster.image.brokers.values()
                if not other.fenced and other.id not in sessions.shutdowns
            )
            lowest = sessions.lowest_offset(active)
            seen = lowest is None or lowest >= sessions.shutdowns[broker.id]
            return _State.SHUTDOWN_NOW if seen else _State.CONTROLLED_SHUTDOWN


def _fence(cluster: Cluster, broker: Broker) -> list[Any]:
    if broker.fenced:
        return []
    keys = cluster.index.in_sync(broker.id, alone=False)
    records = cluster.electorate(leaving=broker.id).update(keys)
    return [*records, _change(broker, fenced=1)]


def _unfence(cluster: Cluster, broker: Broker) -> list[Any]:
    electorate = cluster.electorate(joining=broker.id)
    first = islice(cluster.index.leaderless, ELECTED_AT_ONCE)
    return [_change(broker, fenced=-1), *electorate.update(first)]


def _shut_down(cluster: Cluster, broker: Broker) -> list[Any]:
    keys = cluster.index.in_sync(broker.id, alone=False)
    records = cluster.electorate(leaving=broker.id).update(keys)
    if broker.in_controlled_shutdown:
        return list(records)
    return [_change(broker, in_controlled_shutdown=1), *records]


def _failed(broker: Broker, request: BrokerHeartbeat) -> set[UUID]:
    return set(broker.directories) & set(request.offline_directories)


def _in_failed_directories(
    cluster: Cluster, broker: Broker, request: BrokerHeartbeat
) -> list[TopicIdPartition]:
    """Return the partitions to change for directories that failed since the broker's last heartbeat."""
    failed = _failed(broker, request)
    if not failed:
        return []
    partition = cluster.image.partition
    return [
        key
        for key in cluster.index.in_sync(broker.id)
        if (found := partition(*key)) is not None and found.directory_of(broker.id) in failed
    ]


def _directories(
    cluster: Cluster, broker: Broker, request: BrokerHeartbeat, gone: list[TopicIdPartition]
) -> list[Any]:
    """Return records for directories that failed or were cordoned since the broker's last heartbeat."""
    records: list[Any] = []
    failed = _failed(broker, request)
    if failed:
        records += cluster.electorate(leaving=broker.id).update(gone)
        left = tuple(one for one in broker.directories if one not in failed)
        if left:  # an empty list means that nothing changed; a broker without directories stops
            records.append(_change(broker, log_dirs=left))
    level = cluster.image.features.get(METADATA_VERSION, METADATA_VERSION_LEVEL)
    cordoned = request.cordoned if level >= CORDONED_FROM else None
    if cordoned is not None and (
        broker.cordoned_directories is None or set(broker.cordoned_directories) != set(cordoned)
    ):
        records.append(_change(broker, cordoned_log_dirs=cordoned))
    return records


def _change(broker: Broker, **changed: Any) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, **changed)


def _check(
    image: Image, sessions: BrokerSessions, registration: BrokerRegistration, now_ms: int
) -> bool:
    """Return whether a new incarnation registers; raises Rejected as `register`."""
    before = image.brokers.get(registration.id)
    is_new = before is None or before.incarnation_id != registration.incarnation_id
    if before is not None and is_new and sessions.is_alive(before, now_ms):
        raise Rejected(
            ErrorCode.duplicate_broker_registration,
            f"another incarnation of broker {registration.id} is alive, or was within the session time-out",
        )
    _check_directories(image, registration)
    _check_features(image, registration)
    return is_new


def _check_directories(image: Image, registration: BrokerRegistration) -> None:
    reason = None
    if not registration.directories:
        reason = "no directories"
    elif any(directory.int <= DIRECTORY_RESERVED_MAX for directory in registration.directories):
        reason = "a reserved directory id"
    elif len(set(registration.directories)) < len(registration.directories):
        reason = "a directory id twice"
    else:
        for other in image.brokers.values():
            shared = set(other.directories) & set(registration.directories)
            if other.id != registration.id and shared:
                reason = f"directory {min(shared)} of broker {other.id}"
    if reason is not None:
        raise Rejected(
            ErrorCode.invalid_registration, f"broker {registration.id} registers with {reason}"
        )


def _check_features(image: Image, registration: BrokerRegistration) -> None:
    """Check the registration's features; a feature that the broker or the cluster does not name has level 0 there."""
    ranges = {feature.name: feature for feature in registration.features}
    for name in sorted({*ranges, *image.features}):
        level = image.features.get(name, 0)
        supported = ranges.get(name, FeatureRange(name, 0, 0))
        if name == METADATA_VERSION and name not in ranges:
            raise Rejected(
                ErrorCode.invalid_registration, f"broker {registration.id} does not name {name}"
            )
        if not supported.min_level <= level <= supported.max_level:
            raise Rejected(
                ErrorCode.unsupported_version,
                f"broker {registration.id} does not support {name} at level {level}",
            )
