"""Move partitions to other brokers (AlterPartitionReassignments): refuse, or return records.

In: requests, the image. Out: records and one result per partition; the reassignments in progress. It never moves data
and never ends a reassignment: `elections.change_record` does, once all new replicas are in sync.

A reassignment takes two records. The first adds the new replicas and names those to add and to remove; the second
removes the old ones. If the new replicas are in sync already, one record does both. Kafka: ReplicationControlManager,
PartitionReassignmentReplicas, PartitionReassignmentRevert (KIP-455, 860).
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.delta import changed_partition
from stratalog.metadata.image import Image, Partition
from stratalog.quorum.elections import Election, Target
from stratalog.quorum.electorate import Cluster, Electorate
from stratalog.quorum.placement import Replicas
from stratalog.quorum.topics import RECORDS_PER_REQUEST_MAX, check_assignment
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.internal.metadata_records import PartitionChangeRecord


class Reassignment(Struct, frozen=True):
    """The new replicas of a partition; None cancels a reassignment in progress."""

    partition: TopicPartition
    replicas: Replicas | None


class Reassigned(Struct, frozen=True):
    """The answer for one partition."""

    partition: TopicPartition
    error: ErrorCode = ErrorCode.none
    message: str | None = None


def alter_reassignments(
    cluster: Cluster, changes: Sequence[Reassignment], *, may_change_factor: bool
) -> Decision[PartitionChangeRecord, list[Reassigned]]:
    """Begin, replace or cancel reassignments; one result per requested partition, in order."""
    if len(changes) > RECORDS_PER_REQUEST_MAX:
        raise Rejected(
            ErrorCode.policy_violation, f"more than {RECORDS_PER_REQUEST_MAX} partitions at once"
        )
    electorate = cluster.electorate()
    changed: dict[TopicIdPartition, Partition] = {}
    records = []
    results = []
    for one in changes:
        name, index = one.partition
        topic = cluster.image.topic(name)
        try:
            if topic is None or index not in topic.partitions:
                raise Rejected(
                    ErrorCode.unknown_topic_or_partition, f"there is no partition {name}-{index}"
                )
            key = TopicIdPartition(topic.id, index)
            before = changed.get(key, topic.partitions[index])
            if one.replicas is None:
                target = _cancelled(electorate, key, before)
            else:
                check_assignment(
                    cluster.image, one.replicas, set(one.replicas) - set(before.replicas)
                )
                if not may_change_factor:
                    _check_factor(before, one.replicas)
                target = _moved(before, one.replicas)
        except Rejected as refusal:
            results.append(Reassigned(one.partition, refusal.code, refusal.message))
            continue
        record = electorate.change_of(key, before, target)
        if record is not None:
            records.append(record)
            changed[key] = changed_partition(before, record)
        results.append(Reassigned(one.partition))
    return Decision(records, results)


def reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None
) -> list[tuple[TopicPartition, Partition]]:
    """Return the partitions that are being reassigned, of the requested ones or of all (None)."""
    image = cluster.image
    keys = _keys(image, partitions) if partitions is not None else cluster.index.reassigning
    found = []
    for key in keys:
        topic = image.topics_by_id[key.topic_id]
        partition = topic.partitions.get(key.partition)
        if partition is not None and _is_in_progress(partition):
            found.append((TopicPartition(topic.name, key.partition), partition))
    return found


def _keys(image: Image, partitions: Iterable[TopicPartition]) -> Iterable[TopicIdPartition]:
    for name, index in partitions:
        topic = image.topic(name)
        if topic is not None:
            yield TopicIdPartition(topic.id, index)


def _is_in_progress(partition: Partition) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)


def _moved(before: Partition, replicas: Replicas) -> Target:
    """Return the target with the replicas of both assignments, the new ones first.

    Replicas that an earlier reassignment is adding stay among the added ones, so that cancelling removes them all.
    """
    added = set(replicas) - set(before.replicas)
    removing = tuple(sorted(set(before.replicas) - set(replicas)))
    return Target(
        replicas=(*replicas, *removing),
        removing=removing,
        adding=tuple(sorted(added.union(before.adding_replicas))),
    )


def _cancelled(electorate: Electorate, key: TopicIdPartition, before: Partition) -> Target:
    """Return the target without the added replicas.

    Raises Rejected where their removal takes the ISR below `min.insync.replicas`, also where Kafka would cancel: a
    record that several replicas acknowledged would be on fewer of them, perhaps on one that has just died.
    """
    if not _is_in_progress(before):
        raise Rejected(
            ErrorCode.no_reassignment_in_progress, f"partition {key.partition} is not reassigned"
        )
    replicas = tuple(one for one in before.replicas if one not in before.adding_replicas)
    isr = tuple(one for one in before.isr if one not in before.adding_replicas)
    election = electorate.election(key.topic_id)
    least = min(electorate.min_isr(key.topic_id), len(before.isr))
    if len(isr) < least and election is not Election.UNCLEAN:
        raise Rejected(
            ErrorCode.invalid_replica_assignment,
            f"replicas {list(replicas)}: only {list(isr)} in sync without the new ones, and min.insync.replicas is "
            f"{least}; cancel once more of them are in sync",
        )
    if not isr:
        if election is not Election.UNCLEAN or not replicas:
            raise Rejected(
                ErrorCode.invalid_replica_assignment,
                f"replicas {list(replicas)}: none is in sync, and unclean elections are disabled",
            )
        isr = replicas[:1]
    return Target(replicas=replicas, isr=isr, removing=(), adding=(), election=election)


def _check_factor(before: Partition, replicas: Replicas) -> None:
    now = {*before.replicas, *before.adding_replicas} - set(before.removing_replicas)
    if len(replicas) != len(now):
        raise Rejected(
            ErrorCode.invalid_replication_factor,
            f"{len(replicas)} replicas: the replication factor is {len(now)}",
        )
