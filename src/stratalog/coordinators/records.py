"""Encode and decode the records of groups in `__consumer_offsets`.

In: groups and offsets, or a decoded value. Out: keys and values in Kafka's schemas, or groups and offsets. It never
decides which record counts.

Kafka: `GroupCoordinatorRecordHelpers`, `OffsetAndMetadata`.
"""

from uuid import UUID

from msgspec import Struct

from stratalog.coordinators.group import Group, Member
from stratalog.coordinators.messages import NO_EPOCH, NO_TIMESTAMP, NO_TOPIC_ID, OffsetRecord
from stratalog.coordinators.states import GroupState
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)


class KeptOffset(Struct, frozen=True, gc=False):
    """A committed offset. Timestamps in epoch ms; `expire_timestamp_ms` only where the client asked for a time.

    The garbage collector leaves them out: it took 97 ms to look at a million of them.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: UUID = NO_TOPIC_ID


def group_record(group: Group, assignments: dict[str, bytes]) -> OffsetRecord:
    """Return the group's generation with an assignment for each member."""
    name = group.protocol_name
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=tuple(
            MemberMetadata(
                member_id=one.member_id,
                group_instance_id=one.group_instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                rebalance_timeout=one.rebalance_timeout_ms,
                session_timeout=one.session_timeout_ms,
                subscription=one.protocols[name] if name is not None else b"",
                assignment=assignments.get(one.member_id, b""),
            )
            for one in group.members.values()
        ),
    )
    return encode_key(GroupMetadataKey(group=group.group_id)), encode_value(value)


def new_group_record(group_id: str, now_ms: int) -> OffsetRecord:
    """Return the first record of a group, before its first generation (Kafka: `newEmptyGroupMetadataRecord`)."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=now_ms,
        members=(),
    )
    return encode_key(GroupMetadataKey(group=group_id)), encode_value(value)


def group_of(group_id: str, value: GroupMetadataValue) -> Group:
    """Return the group of a record: Stable, or Empty without members.

    Its members support only the protocol chosen then.
    """
    state = GroupState.STABLE if value.members else GroupState.EMPTY
    group = Group(
        group_id,
        state,
        previous_state=state,
        state_timestamp_ms=value.current_state_timestamp,
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        persisted=True,
    )
    for one in value.members:
        # Records before version 1 have no rebalance timeout.
        rebalance_timeout_ms = (
            one.rebalance_timeout if one.rebalance_timeout >= 0 else one.session_timeout
        )
        member = Member(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host,
            rebalance_timeout_ms,
            one.session_timeout,
            {value.protocol or "": one.subscription},
            assignment=one.assignment,
        )
        group.add(member, value.protocol_type)
    if value.leader in group.members:
        group.leader_id = value.leader
    group.note_topics()
    return group


def group_tombstone(group_id: str) -> OffsetRecord:
    """Return the tombstone of a group; its offsets have their own."""
    return encode_key(GroupMetadataKey(group=group_id)), None


def offset_record(group_id: str, topic: str, partition: int, kept: KeptOffset) -> OffsetRecord:
    """Return the record of one committed offset."""
    value = OffsetCommitValue(
        offset=kept.offset,
        leader_epoch=kept.leader_epoch,
        metadata=kept.metadata,
        commit_timestamp=kept.commit_timestamp_ms,
        expire_timestamp=kept.expire_timestamp_ms,
        topic_id=kept.topic_id,
    )
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return encode_key(key), encode_value(value)


def offset_tombstone(group_id: str, topic: str, partition: int) -> OffsetRecord:
    """Return the tombstone of one committed offset."""
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition)), None


def kept_offset(value: OffsetCommitValue) -> KeptOffset:
    """Return the offset that a record holds."""
    return KeptOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )
