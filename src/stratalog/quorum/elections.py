"""Change one partition: its ISR, replicas and directories, and the leader that follows from them.

In: the partition, the target of a change, the brokers that may lead, the topic's rules. Out: one PartitionChangeRecord,
or None where nothing changes. It never looks at another partition and never raises.

Every change of an existing partition goes through `change_record`, so that one place decides leaders, eligible leader
replicas (KIP-966) and the end of a reassignment. A record that names a leader, also the same one, raises the leader
epoch; every record raises the partition epoch (`metadata/delta.py`). The leader epoch grows exactly where the leader
changes, or where a replica leaves the replica list. Kafka: PartitionChangeBuilder.

Eligible leader replicas (ELR): while the ISR is smaller than `min.insync.replicas`, the high watermark does not move.
So a member that leaves the ISR then has every committed record, and stays eligible until the ISR is large enough.
"""

from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct, field

from stratalog.metadata.image import DIRECTORY_MIGRATING, NO_LEADER, RECOVERING, Partition
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import PartitionChangeRecord


class Election(Enum):
    """The kinds of leaders that a change may elect (Kafka: PartitionChangeBuilder.Election)."""

    ONLINE = auto()
    """Keep the leader where it may lead, else an eligible replica."""
    PREFERRED = auto()
    """The first replica where it may lead, else as ONLINE."""
    UNCLEAN = auto()
    """As ONLINE, else any live replica: acknowledged records may be lost."""


class Target(Struct, frozen=True):
    """The target of a change of a partition; None leaves a field unchanged.

    `directories` holds new directories by broker. `lost_data` is a broker that shut down uncleanly: it is not eligible.
    """

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery_state: int | None = None
    directories: Mapping[int, UUID] = field(default_factory=dict)
    lost_data: int | None = None
    election: Election = Election.ONLINE


class Rules(Struct, frozen=True):
    """The rules for one partition.

    `min_isr`: the topic's `min.insync.replicas`, at most its replication factor. `has_elr`: the cluster's feature
    `eligible.leader.replicas.version`. `may_lead`: the broker is active and its directory of this partition is online.
    `default_directory`: the directory that a new replica of a broker gets.
    """

    min_isr: int
    has_elr: bool
    may_lead: Callable[[int], bool]
    default_directory: Callable[[int], UUID]


class _Elected(NamedTuple):
    leader: int
    unclean: bool = False


def change_record(
    key: TopicIdPartition, before: Partition, target: Target, rules: Rules
) -> PartitionChangeRecord | None:
    """Return the record that changes the partition to `target` and elects its leader; None where nothing changes."""
    replicas = _chosen(target.replicas, before.replicas)
    isr = _chosen(target.isr, before.isr)
    removing = _chosen(target.removing, before.removing_replicas)
    adding = _chosen(target.adding, before.adding_replicas)
    completed = complete_reassignment(replicas, isr, removing, adding)
    if completed is not None:
        replicas, isr = completed
        removing = adding = ()
    elr = _eligible(before, replicas, isr, target.lost_data, rules)
    elected = _elect(before, replicas, isr, elr, target.election, rules)

    changed: dict[str, Any] = {}
    if elected.leader != before.leader:
        changed["leader"] = elected.leader
        if elected.leader in elr or elected.unclean:
            isr = (elected.leader,)
            elr = () if elected.unclean else _without(elr, elected.leader)
        if elected.unclean and before.leader_recovery_state != RECOVERING:
            changed["leader_recovery_state"] = RECOVERING
    elif not set(before.replicas) <= set(replicas):
        # A replica that was removed may still believe in its leadership: the new epoch fences it.
        changed["leader"] = before.leader
    if elr != before.eligible_leader_replicas:
        changed["eligible_leader_replicas"] = elr
    if isr != before.isr and (isr or rules.has_elr):
        # Without ELR the last member stays in the ISR while it is offline: only that replica may lead next.
        changed["isr"] = isr
    changed |= _last_known(before, changed.get("leader"), rules)
    changed |= _assignment(before, replicas, removing, adding, target.directories, rules)
    if target.recovery_state not in (None, before.leader_recovery_state):
        changed["leader_recovery_state"] = target.recovery_state
    if not changed:
        return None
    return PartitionChangeRecord(partition_id=key.partition, topic_id=key.topic_id, **changed)


def complete_reassignment(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    removing: Collection[int],
    adding: Collection[int],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return replicas and ISR after the reassignment, once every replica that stays is in sync; None before.

    Kafka: PartitionReassignmentReplicas.maybeCompleteReassignment.
    """
    if not removing and not adding:
        return None
    staying = tuple(broker for broker in replicas if broker not in removing)
    in_sync = tuple(broker for broker in isr if broker not in removing)
    if not staying or not in_sync or not set(staying) <= set(in_sync):
        return None
    return staying, in_sync


def _eligible(
    before: Partition,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    lost_data: int | None,
    rules: Rules,
) -> tuple[int, ...]:
    if not rules.has_elr or len(isr) >= rules.min_isr:
        return ()
    candidates = {*before.eligible_leader_replicas, *before.isr}.intersection(replicas)
    return tuple(sorted(candidates - {*isr, lost_data}))


def _elect(
    before: Partition,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    election: Election,
    rules: Rules,
) -> _Elected:
    # The ELR counts only where no member of the ISR is left.
    eligible = isr or elr
    first = replicas[:1] if election is Election.PREFERRED else ()
    for broker in (*first, before.leader, *replicas):
        if broker in eligible and rules.may_lead(broker):
            return _Elected(broker)
    last_known = before.last_known_elr
    if rules.has_elr and not eligible and len(last_known) == 1 and rules.may_lead(last_known[0]):
        return _Elected(last_known[0], unclean=True)
    if election is Election.UNCLEAN:
        for broker in replicas:
            if rules.may_lead(broker):
                return _Elected(broker, unclean=True)
    return _Elected(NO_LEADER)


def _last_known(before: Partition, leader: int | None, rules: Rules) -> dict[str, Any]:
    """Return the last known leader: noted when a partition becomes leaderless, removed when it gets a leader."""
    if not rules.has_elr or leader is None:
        return {}
    if leader == NO_LEADER:
        # The record of a leaderless partition that loses a replica names no leader a second time.
        if before.last_known_elr or before.leader == NO_LEADER:
            return {}
        return {"last_known_elr": (before.leader,)}
    return {"last_known_elr": ()} if before.last_known_elr else {}


def _assignment(
    before: Partition,
    replicas: tuple[int, ...],
    removing: tuple[int, ...],
    adding: tuple[int, ...],
    directories: Mapping[int, UUID],
    rules: Rules,
) -> dict[str, Any]:
    current = before.directories or (DIRECTORY_MIGRATING,) * len(before.replicas)
    by_broker = {**dict(zip(before.replicas, current, strict=True)), **directories}
    changed: dict[str, Any] = {}
    placed = tuple(
        by_broker[broker] if broker in by_broker else rules.default_directory(broker)
        for broker in replicas
    )
    if placed != current:
        changed["directories"] = placed
    if replicas != before.replicas:
        changed["replicas"] = replicas
    if removing != before.removing_replicas:
        changed["removing_replicas"] = removing
    if adding != before.adding_replicas:
        changed["adding_replicas"] = adding
    return changed


def _chosen(new: tuple[int, ...] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else new


def _without(brokers: tuple[int, ...], broker: int) -> tuple[int, ...]:
    return tuple(one for one in brokers if one != broker)
