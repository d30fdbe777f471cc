"""Elect leaders as an administrator asks (ElectLeaders), and give leaderships back to preferred leaders.

In: partitions and the kind of election. Out: records; for an administrator one result per partition. It never chooses
the time of an election.

Codes are those of ReplicationControlManager.electLeader (KIP-460); `balance` is its maybeBalancePartitionLeaders.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum

from msgspec import Struct

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import NO_LEADER, Partition
from stratalog.quorum.elections import Election, Target
from stratalog.quorum.electorate import Cluster
from stratalog.quorum.topics import RECORDS_PER_REQUEST_MAX
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.internal.metadata_records import PartitionChangeRecord


class ElectionType(IntEnum):
    """The kinds of election, by the wire's numbers (Kafka: ElectionType)."""

    PREFERRED = 0
    UNCLEAN = 1


class Elected(Struct, frozen=True):
    """The answer for one partition."""

    partition: TopicPartition
    error: ErrorCode = ErrorCode.none
    message: str | None = None


def elect_leaders(
    cluster: Cluster, kind: int, partitions: Sequence[TopicPartition] | None
) -> Decision[PartitionChangeRecord, list[Elected]]:
    """Elect leaders of these partitions, or of all (None: those that need no election are left out).

    Raises Rejected: INVALID_REQUEST for another kind, POLICY_VIOLATION for more elections than fit one decision.
    """
    if kind not in set(ElectionType):
        raise Rejected(ErrorCode.invalid_request, f"there is no election type {kind}")
    electorate = cluster.electorate()
    election = Election.PREFERRED if kind == ElectionType.PREFERRED else Election.UNCLEAN
    records: list[PartitionChangeRecord] = []
    results = []
    done = set()
    for one in _every(cluster) if partitions is None else partitions:
        topic = cluster.image.topic(one.topic)
        before = None if topic is None else topic.partitions.get(one.partition)
        if topic is None or before is None:
            message = f"there is no partition {one.topic}-{one.partition}"
            results.append(Elected(one, ErrorCode.unknown_topic_or_partition, message))
            continue
        if one in done or is_led(before, kind):
            if partitions is not None:
                results.append(Elected(one, ErrorCode.election_not_needed))
            continue
        done.add(one)
        key = TopicIdPartition(topic.id, one.partition)
        record = electorate.change_of(key, before, Target(election=election))
        if record is None:
            error = (
                ErrorCode.preferred_leader_not_available
                if kind == ElectionType.PREFERRED
                else ErrorCode.eligible_leaders_not_available
            )
            results.append(Elected(one, error))
            continue
        records.append(record)
        results.append(Elected(one))
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise Rejected(
            ErrorCode.policy_violation, f"more than {RECORDS_PER_REQUEST_MAX} elections at once"
        )
    return Decision(records, results)


def balance(
    cluster: Cluster, keys: Iterable[TopicIdPartition]
) -> Decision[PartitionChangeRecord, None]:
    """Elect the first replica of these partitions where another one leads and the first may lead."""
    electorate = cluster.electorate()
    brokers = cluster.image.brokers
    records = []
    for key in keys:
        before = cluster.image.partition(*key)
        if before is None or key not in cluster.index.imbalanced:
            continue  # changed since the caller chose the keys
        first = brokers.get(before.replicas[0])
        if first is not None and first.is_active and first.id in before.isr:
            record = electorate.change_of(key, before, Target(election=Election.PREFERRED))
            if record is not None:
                records.append(record)
    return Decision(records, None)


def is_led(partition: Partition, kind: int) -> bool:
    """Return whether the partition needs no election of this kind: PREFERRED needs the first replica, UNCLEAN any
    leader.
    """
    if kind == ElectionType.PREFERRED:
        return partition.leader == partition.replicas[0]
    return partition.leader != NO_LEADER


def _every(cluster: Cluster) -> Iterable[TopicPartition]:
    for topic in cluster.image.topics_by_id.values():
        for index in topic.partitions:
            yield TopicPartition(topic.name, index)
