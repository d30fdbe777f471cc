"""Change ISRs as partition leaders ask (AlterPartition): refuse, or return records.

In: a leader's requests, the image. Out: records and one answer per partition. It never decides that a replica lags: its
leader does.

A request names the leader epoch and the partition epoch that its leader knows, and the broker epoch of each member that
it wants: the controller refuses a change based on an old state (KIP-497, 841, 903). Refusals, their order and their
codes are those of ReplicationControlManager.alterPartition.
"""

from collections.abc import Sequence

from msgspec import Struct

from stratalog.errors import ErrorCode
from stratalog.metadata.delta import changed_partition
from stratalog.metadata.image import RECOVERED, RECOVERING, Image, Partition
from stratalog.quorum.brokers import registered
from stratalog.quorum.elections import Target
from stratalog.quorum.electorate import Cluster
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import PartitionChangeRecord

ANY_EPOCH = -1
"""A member's broker epoch from a leader that does not know it: no check."""


class IsrChange(Struct, frozen=True):
    """The ISR that a leader wants: brokers and their broker epochs."""

    key: TopicIdPartition
    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]
    recovery_state: int = RECOVERED


class IsrAnswer(Struct, frozen=True):
    """The partition after the change, or the error."""

    key: TopicIdPartition
    error: ErrorCode = ErrorCode.none
    partition: Partition | None = None


def alter_isrs(
    cluster: Cluster, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
) -> Decision[PartitionChangeRecord, list[IsrAnswer]]:
    """Apply the valid changes; raises Rejected(STALE_BROKER_EPOCH)."""
    image = cluster.image
    registered(image, broker_id, broker_epoch)
    electorate = cluster.electorate()
    changed: dict[TopicIdPartition, Partition] = {}
    records: list[PartitionChangeRecord] = []
    answers = []
    for one in changes:
        key = one.key
        before = changed.get(key) or image.partition(*key)
        if before is None:
            topic_exists = key.topic_id in image.topics_by_id
            error = (
                ErrorCode.unknown_topic_or_partition if topic_exists else ErrorCode.unknown_topic_id
            )
            answers.append(IsrAnswer(key, error))
            continue
        error = _refusal(image, broker_id, before, one)
        if error is not ErrorCode.none:
            answers.append(IsrAnswer(key, error))
            continue
        target = Target(
            isr=tuple(member for member, _ in one.members),
            recovery_state=one.recovery_state,
            election=electorate.election(key.topic_id),
        )
        record = electorate.change_of(key, before, target)
        after = before
        if record is not None:
            records.append(record)
            after = changed[key] = changed_partition(before, record)
        if after.leader != broker_id:
            # The ISR completed a reassignment that took the leader away: it must read the metadata.
            answers.append(IsrAnswer(key, ErrorCode.new_leader_elected))
        else:
            answers.append(IsrAnswer(key, partition=after))
    return Decision(records, answers)


def _refusal(image: Image, broker_id: int, before: Partition, change: IsrChange) -> ErrorCode:
    isr = [member for member, _ in change.members]
    is_ahead = (
        change.leader_epoch > before.leader_epoch or change.partition_epoch > before.partition_epoch
    )
    if is_ahead:
        # The leader has seen more metadata than this controller: it is no longer the active one.
        return ErrorCode.not_controller
    if change.leader_epoch < before.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if broker_id != before.leader:
        return ErrorCode.invalid_request
    if change.partition_epoch < before.partition_epoch:
        return ErrorCode.invalid_update_version
    is_whole = len(set(isr)) == len(isr) and set(isr) <= set(before.replicas)
    if not is_whole or broker_id not in isr:
        return ErrorCode.invalid_request
    if change.recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.invalid_request
    if change.recovery_state == RECOVERING and (
        len(isr) > 1 or before.leader_recovery_state == RECOVERED
    ):
        return ErrorCode.invalid_request
    if not all(_is_eligible(image, member, epoch) for member, epoch in change.members):
        return ErrorCode.ineligible_replica
    return ErrorCode.none


def _is_eligible(image: Image, broker_id: int, broker_epoch: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_active and broker_epoch in (ANY_EPOCH, broker.epoch)
