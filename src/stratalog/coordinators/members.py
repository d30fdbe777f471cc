"""SyncGroup, Heartbeat and LeaveGroup of members that have joined.

In: a request for a group that exists. Out: an answer at once, or (SyncGroup) once the leader's assignment arrives. It
never admits a member (`join.py`).

Kafka: `GroupMetadataManager.classicGroupSync`, `classicGroupHeartbeat`, `classicGroupLeave`.
"""

from typing import Any

from stratalog.coordinators.group import Group
from stratalog.coordinators.messages import (
    NO_MEMBER_ID,
    OK,
    Heartbeat,
    HeartbeatAnswer,
    LeaveGroup,
    LeaveGroupAnswer,
    LeavingMember,
    LeftMember,
    SyncGroup,
    SyncGroupAnswer,
)
from stratalog.coordinators.rebalance import (
    answer_sync,
    complete_if_joined,
    drop,
    prepare_or_complete,
)
from stratalog.coordinators.states import GroupState
from stratalog.coordinators.turn import TimerKind, Turn
from stratalog.errors import ErrorCode


def sync(turn: Turn, group: Group, request: SyncGroup, token: Any) -> None:
    """Answer or park one SyncGroup; the leader's has the assignments of all members, which become records."""
    error = _check_sync(group, request)
    if error is not OK:
        turn.answer(token, SyncGroupAnswer(error))
        return
    member = group.members[request.member_id]
    group.unsynced.discard(member.member_id)
    if not group.unsynced:
        turn.cancel_timer(TimerKind.SYNC, group)
    if group.state is GroupState.STABLE:
        turn.answer(token, _assigned(group, member.assignment))
        return
    answer_sync(turn, member, SyncGroupAnswer(ErrorCode.rebalance_in_progress))
    member.sync_token = token
    if member.member_id == group.leader_id:
        _assign(turn, group, request)


def _check_sync(group: Group, request: SyncGroup) -> ErrorCode:
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not OK:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    if (request.protocol_type or group.protocol_type) != group.protocol_type or (
        request.protocol_name or group.protocol_name
    ) != group.protocol_name:
        return ErrorCode.inconsistent_group_protocol
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return OK


def _assign(turn: Turn, group: Group, request: SyncGroup) -> None:
    """Write the generation with its assignments; answer every waiting SyncGroup. Replay makes the group Stable."""
    assignments = {one.member_id: one.assignment for one in request.assignments}
    turn.persist(group, assignments)
    for member in group.members.values():
        if member.sync_token is not None:
            answer = _assigned(group, assignments.get(member.member_id, b""))
            answer_sync(turn, member, answer)
            # A deadline that passed while the member waited for the coordinator did not count.
            turn.keep_alive(group, member)


def _assigned(group: Group, assignment: bytes) -> SyncGroupAnswer:
    return SyncGroupAnswer(OK, group.protocol_type, group.protocol_name, assignment)


def heartbeat(turn: Turn, group: Group, request: Heartbeat, token: Any) -> None:
    """Extend a member's session; REBALANCE_IN_PROGRESS in the answer means: join again."""
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is OK and request.generation_id != group.generation_id:
        error = ErrorCode.illegal_generation
    if error is OK:
        turn.keep_alive(group, group.members[request.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.rebalance_in_progress
    turn.answer(token, HeartbeatAnswer(error))


def leave(turn: Turn, group: Group, request: LeaveGroup, token: Any) -> None:
    """Remove the leaving members, then rebalance once for all of them."""
    size = len(group.members)
    left = tuple(
        LeftMember(one.member_id, one.group_instance_id, _leave_one(turn, group, one))
        for one in request.members
    )
    turn.answer(token, LeaveGroupAnswer(OK, left))
    if len(group.members) < size:
        ids = [one.member_id for one in left if one.error is OK]
        prepare_or_complete(turn, group, f"{', '.join(ids)} left")
    else:
        complete_if_joined(turn, group)


def _leave_one(turn: Turn, group: Group, leaving: LeavingMember) -> ErrorCode:
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if member_id in group.pending:
        turn.end_session(group, member_id)
        group.remove(member_id)
        return OK
    if member_id == NO_MEMBER_ID and instance_id is not None:
        member_id = group.instances.get(instance_id, NO_MEMBER_ID)
    error = group.check_member(member_id, instance_id)
    if error is OK:
        drop(turn, group, group.members[member_id])
    return error
