"""Rebalance: collect members, choose a leader, wait for the leader's assignment.

In: a group, after a change of its members, or a deadline that has passed. Out: answers to parked requests and
records, through the `Turn`. It never reads a request: `join.py` and `members.py` do.

The phases (KIP-62, KIP-134; Kafka: `GroupMetadataManager`): `prepare` opens the join phase. It ends when every member
has joined, or when the longest rebalance timeout of any member is over. Members that have not joined by then are
removed, unless static. A group that was empty waits `group.initial.rebalance.delay.ms`, and again while members keep
arriving, up to the rebalance timeout. Then the members have the same time to send SyncGroup.
"""

from stratalog.coordinators.group import Group, Member
from stratalog.coordinators.messages import (
    JoinGroupAnswer,
    MemberExpired,
    Rebalanced,
    SyncGroupAnswer,
)
from stratalog.coordinators.states import GroupState
from stratalog.coordinators.turn import TimerKind, Turn
from stratalog.errors import ErrorCode

CAN_PREPARE = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
POSTPONE_MS_MIN = 1_000
"""Shortest rebalance timeout: a client may request none at all, which must not become a busy loop."""


def prepare_or_complete(turn: Turn, group: Group, reason: str) -> None:
    """Start a rebalance (`reason` is for people), or end the present one's join phase if no member is missing."""
    if group.state in CAN_PREPARE:
        prepare(turn, group, reason)
    else:
        complete_if_joined(turn, group)


def prepare(turn: Turn, group: Group, reason: str) -> None:
    """Open the join phase: all members must join again."""
    group.rebalance_reason = reason
    if group.state is GroupState.COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_token is not None:
                answer_sync(turn, member, SyncGroupAnswer(ErrorCode.rebalance_in_progress))
                turn.keep_alive(group, member)
    group.unsynced.clear()
    turn.cancel_timer(TimerKind.SYNC, group)
    was_empty = group.state is GroupState.EMPTY
    group.become(GroupState.PREPARING_REBALANCE, turn.now.wall_ms)
    if was_empty:
        delay_ms = turn.settings.initial_rebalance_delay_ms
        group.joined_meanwhile = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        turn.set_timer(TimerKind.JOIN, group, delay_ms)
    elif group.every_member_joined():
        complete_join(turn, group)
    else:
        turn.set_timer(TimerKind.JOIN, group, group.rebalance_timeout_ms())


def complete_if_joined(turn: Turn, group: Group) -> None:
    """End the join phase if no member is missing; an initial delay always runs to its end."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.previous_state is not GroupState.EMPTY
        and group.every_member_joined()
    ):
        complete_join(turn, group)


def complete_join(turn: Turn, group: Group) -> None:
    """End the join phase: form a generation of the joined members, or leave the group empty."""
    turn.cancel_timer(TimerKind.JOIN, group)
    for member in list(group.members.values()):
        if member.join_token is None and member.group_instance_id is None:
            turn.end_session(group, member.member_id)
            group.remove(member.member_id)
            why = "it did not join again in time"
            turn.news.append(MemberExpired(group.group_id, member.member_id, why))
    if not group.elect_leader() and group.members:
        # Only static members remain and none has joined: wait until their sessions end, or they return.
        delay_ms = max(group.rebalance_timeout_ms(), POSTPONE_MS_MIN)
        turn.set_timer(TimerKind.JOIN, group, delay_ms)
        return
    group.start_generation(turn.now.wall_ms)
    generation, size = group.generation_id, len(group.members)
    turn.news.append(Rebalanced(group.group_id, generation, size, group.rebalance_reason))
    if not group.members:
        turn.persist(group, {})
        return
    for member in group.members.values():
        leads = member.member_id == group.leader_id
        answer_join(turn, group, member, generation_answer(group, member, with_members=leads))
        turn.keep_alive(group, member)
        member.is_new = False
        group.unsynced.add(member.member_id)
    turn.set_timer(TimerKind.SYNC, group, group.rebalance_timeout_ms())


def generation_answer(group: Group, member: Member, *, with_members: bool) -> JoinGroupAnswer:
    """Return the JoinGroup answer of a member of the current generation; `with_members` adds all members."""
    return JoinGroupAnswer(
        ErrorCode.none,
        member.member_id,
        group.generation_id,
        group.protocol_type,
        group.protocol_name,
        group.leader_id,
        members=group.joined_members() if with_members else (),
    )


def answer_join(turn: Turn, group: Group, member: Member, answer: JoinGroupAnswer) -> None:
    """Answer a parked JoinGroup, if there is one."""
    token = group.end_join(member)
    if token is not None:
        turn.answer(token, answer)


def answer_sync(turn: Turn, member: Member, answer: SyncGroupAnswer) -> None:
    """Answer a parked SyncGroup, if there is one."""
    token, member.sync_token = member.sync_token, None
    if token is not None:
        turn.answer(token, answer)


def drop(turn: Turn, group: Group, member: Member) -> None:
    """Remove a member and answer its parked requests; the caller then handles the group's change.

    UNKNOWN_MEMBER_ID makes a client that still runs join as a new member.
    """
    unknown = ErrorCode.unknown_member_id
    answer_join(turn, group, member, JoinGroupAnswer(unknown, ""))
    answer_sync(turn, member, SyncGroupAnswer(unknown))
    turn.end_session(group, member.member_id)
    group.remove(member.member_id)


def on_join_deadline(turn: Turn, group: Group) -> None:
    """End the join phase after its time; extend an initial delay during which members came."""
    assert group.state is GroupState.PREPARING_REBALANCE, group
    starting = group.previous_state is GroupState.EMPTY
    if starting and group.joined_meanwhile and group.initial_remaining_ms > 0:
        delay_ms = min(turn.settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        group.joined_meanwhile = False
        turn.set_timer(TimerKind.JOIN, group, delay_ms)
    else:
        complete_join(turn, group)


def on_sync_deadline(turn: Turn, group: Group) -> None:
    """Remove members that never sent SyncGroup (KAFKA-12890)."""
    if group.unsynced and group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        for member_id in sorted(group.unsynced):
            drop(turn, group, group.members[member_id])
            why = "it did not ask for its assignment in time"
            turn.news.append(MemberExpired(group.group_id, member_id, why))
        prepare(turn, group, "members did not ask for their assignment in time")


def on_session_deadline(turn: Turn, group: Group, member_id: str) -> None:
    """Remove a member whose session timed out, or a pending id that never joined."""
    member = group.members.get(member_id)
    if member is None:
        group.remove(member_id)
        complete_if_joined(turn, group)
    elif not member.is_excused():
        drop(turn, group, member)
        why = f"no heartbeat for {member.session_timeout_ms} ms"
        turn.news.append(MemberExpired(group.group_id, member_id, why))
        prepare_or_complete(turn, group, f"member {member_id} expired")
