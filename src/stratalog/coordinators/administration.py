"""Administer groups: delete a group or its offsets, and expire old ones.

In: an administrator's request, or the time. Out: tombstones and answers, through the `Turn`; replaying the tombstones
removes the state. It never touches a group with members, except for offsets of topics that no member reads.

Kafka: `GroupCoordinatorShard.deleteGroups`, `cleanupGroupMetadata`, `OffsetMetadataManager.deleteOffsets`,
`cleanupExpiredOffsets`.
"""

from typing import Any

from stratalog.coordinators.group import Group
from stratalog.coordinators.messages import (
    OK,
    CommittedPartition,
    CommittedTopic,
    DeleteGroup,
    DeleteGroupAnswer,
    OffsetDelete,
    OffsetDeleteAnswer,
)
from stratalog.coordinators.offsets import Offsets
from stratalog.coordinators.records import KeptOffset, group_tombstone, offset_tombstone
from stratalog.coordinators.states import GroupState
from stratalog.coordinators.turn import Turn
from stratalog.errors import ErrorCode

_MINUTE_MS = 60_000


def delete_group(
    turn: Turn, group: Group | None, offsets: Offsets, request: DeleteGroup, token: Any
) -> None:
    """Delete a group without members, all its offsets, also those of open transactions, and its pending ids."""
    group_id = request.group_id
    if group is None and group_id not in offsets:
        turn.answer(token, DeleteGroupAnswer(ErrorCode.group_id_not_found))
        return
    if group is not None and group.state is not GroupState.EMPTY:
        turn.answer(token, DeleteGroupAnswer(ErrorCode.non_empty_group))
        return
    for topic, partition in offsets.places(group_id):
        turn.records.append(offset_tombstone(group_id, topic, partition))
    if group is not None:
        turn.records.append(group_tombstone(group_id))
    turn.answer(token, DeleteGroupAnswer(OK))


def delete_offsets(
    turn: Turn, group: Group | None, offsets: Offsets, request: OffsetDelete, token: Any
) -> None:
    """Delete offsets of topics that the group does not read; a missing offset counts as deleted."""
    group_id = request.group_id
    if not group_id:
        turn.answer(token, OffsetDeleteAnswer(ErrorCode.invalid_group_id))
        return
    if group is None and group_id not in offsets:
        turn.answer(token, OffsetDeleteAnswer(ErrorCode.group_id_not_found))
        return
    if group is not None and group.state is not GroupState.EMPTY and not group.has_subscriptions:
        turn.answer(token, OffsetDeleteAnswer(ErrorCode.non_empty_group))
        return
    kept = set(offsets.places(group_id))
    topics = []
    for topic in request.topics:
        subscribed = group is not None and group.reads(topic.name)
        error = ErrorCode.group_subscribed_to_topic if subscribed else OK
        for index in topic.partitions:
            if error is OK and (topic.name, index) in kept:
                kept.discard((topic.name, index))
                turn.records.append(offset_tombstone(group_id, topic.name, index))
        done = tuple(CommittedPartition(index, error) for index in topic.partitions)
        topics.append(CommittedTopic(topic.name, topic.topic_id, done))
    turn.answer(token, OffsetDeleteAnswer(OK, tuple(topics)))


def expire(turn: Turn, group_id: str, group: Group | None, offsets: Offsets) -> int:
    """Expire a group's offsets whose retention is over, and an empty group without offsets (KIP-211).

    The retention runs from the commit, or from the loss of the last member if that is later. In a group with members,
    only offsets of topics that no member reads expire, and only while the group is stable. An offset that an open
    transaction may change stays, and its group. Return the number of offsets examined.
    """
    expired = 0
    kept = 0
    staged = offsets.staged(group_id)
    for topic, partition, offset in offsets.of_group(group_id):
        kept += 1
        is_free = (topic, partition) not in staged and _may_expire(group, topic)
        if is_free and _is_over(turn, group, offset):
            expired += 1
            turn.records.append(offset_tombstone(group_id, topic, partition))
    is_unused = group is not None and group.persisted and group.is_vacant
    if is_unused and expired == kept and not staged:
        turn.records.append(group_tombstone(group_id))
    return kept


def _may_expire(group: Group | None, topic: str) -> bool:
    if group is None or group.state is GroupState.EMPTY:
        return True
    return group.state is GroupState.STABLE and group.has_subscriptions and not group.reads(topic)


def _is_over(turn: Turn, group: Group | None, offset: KeptOffset) -> bool:
    if offset.expire_timestamp_ms >= 0:
        return turn.now.wall_ms >= offset.expire_timestamp_ms
    since_ms = offset.commit_timestamp_ms
    if group is not None and group.state is GroupState.EMPTY:
        since_ms = max(since_ms, group.state_timestamp_ms)
    return turn.now.wall_ms - since_ms >= turn.settings.offsets_retention_minutes * _MINUTE_MS
