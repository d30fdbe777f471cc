"""JoinGroup: check the request, and apply it to the group.

In: a JoinGroup for a group that exists. Out: an answer at once, or the request parked in its member until the join
phase ends. It never forms a generation (`rebalance.py`).

Kafka: `GroupMetadataManager.classicGroupJoin`; KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED), KIP-814
(static leaders that come back).
"""

from typing import Any, Final

from msgspec.structs import replace

from stratalog.coordinators.group import Group, Member, metadata_bytes
from stratalog.coordinators.messages import (
    NO_MEMBER_ID,
    OK,
    JoinGroup,
    JoinGroupAnswer,
    SyncGroupAnswer,
)
from stratalog.coordinators.rebalance import (
    answer_join,
    answer_sync,
    complete_if_joined,
    generation_answer,
    prepare,
    prepare_or_complete,
)
from stratalog.coordinators.states import GroupState
from stratalog.coordinators.turn import Turn
from stratalog.errors import ErrorCode

_NAME_MAX: Final = 255
"""Most characters that a group keeps of a client id: clients choose it, up to 32 KB long."""
METADATA_BYTES_MAX: Final = 32 << 20
"""Most bytes of all protocols of a group's members. Kafka refuses a generation of 1 MB, whose record is too large."""


def join(turn: Turn, group: Group, request: JoinGroup, token: Any) -> None:
    """Answer or park one JoinGroup."""
    member_id = request.member_id
    size = metadata_bytes(one.metadata for one in request.protocols)
    if group.metadata_bytes_with(member_id, size) > METADATA_BYTES_MAX:
        turn.answer(token, JoinGroupAnswer(ErrorCode.group_max_size_reached, NO_MEMBER_ID))
    elif not group.accepts(member_id, turn.settings.size_max):
        turn.end_session(group, member_id)
        group.remove(member_id)
        turn.answer(token, JoinGroupAnswer(ErrorCode.group_max_size_reached, NO_MEMBER_ID))
        complete_if_joined(turn, group)
    elif not group.supports(request.protocol_type, (one.name for one in request.protocols)):
        turn.answer(token, JoinGroupAnswer(ErrorCode.inconsistent_group_protocol, member_id))
    elif member_id == NO_MEMBER_ID:
        _join_unknown(turn, group, request, token)
    elif member_id in group.pending and request.group_instance_id is None:
        _add(turn, group, request, member_id, token)
    elif (error := group.check_member(member_id, request.group_instance_id)) is not OK:
        turn.answer(token, JoinGroupAnswer(error, member_id))
    else:
        _join_again(turn, group, group.members[member_id], request, token)


def _join_unknown(turn: Turn, group: Group, request: JoinGroup, token: Any) -> None:
    instance_id = request.group_instance_id
    member_id = f"{(instance_id or request.client_id)[:_NAME_MAX]}-{turn.entropy.uuid()}"
    if instance_id is not None and instance_id in group.instances:
        _replace(turn, group, request, member_id, token)
    elif instance_id is None and request.member_id_required:
        group.pending[member_id] = None
        turn.keep_waiting(group, member_id, request.session_timeout_ms)
        turn.answer(token, JoinGroupAnswer(ErrorCode.member_id_required, member_id))
    else:
        _add(turn, group, request, member_id, token)


def take_back(turn: Turn, group: Group, member_id: str) -> None:
    """Forget an id that was sent and has not joined: its client asks for another one."""
    turn.end_session(group, member_id)
    group.remove(member_id)
    complete_if_joined(turn, group)


def _add(turn: Turn, group: Group, request: JoinGroup, member_id: str, token: Any) -> None:
    member = Member(
        member_id,
        request.group_instance_id,
        request.client_id[:_NAME_MAX],
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        {one.name: one.metadata for one in request.protocols},
        is_new=True,
        join_token=token,
        supports_skip_assignment=request.supports_skip_assignment,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.joined_meanwhile = True
    group.add(member, request.protocol_type)
    # A member cannot send heartbeats before it knows its id. A client that gave up and tried again leaves a member
    # behind: so a new one is kept only this long, and asks again if it still runs.
    turn.keep_waiting(group, member_id, turn.settings.new_member_join_timeout_ms)
    prepare_or_complete(turn, group, f"member {member_id} joined")


def _join_again(turn: Turn, group: Group, member: Member, request: JoinGroup, token: Any) -> None:
    same = member.prefers(request.protocols)
    leads = member.member_id == group.leader_id
    match group.state:
        case GroupState.COMPLETING_REBALANCE if same:
            # It may have missed the first answer.
            turn.answer(token, generation_answer(group, member, with_members=leads))
        case GroupState.STABLE if same and not leads:
            turn.answer(token, generation_answer(group, member, with_members=False))
        case GroupState.EMPTY | GroupState.DEAD:
            raise AssertionError(f"{group.group_id}: {member.member_id} in {group.state}")
        case _:
            # A leader that joins again starts a rebalance even without a change: topics may have changed.
            _update(turn, group, member, request, token)
            what = "leader" if leads else "member"
            prepare_or_complete(turn, group, f"{what} {member.member_id} joined again")


def _update(turn: Turn, group: Group, member: Member, request: JoinGroup, token: Any) -> None:
    """Park a JoinGroup of a member; answer its earlier one as outdated."""
    overtaken = JoinGroupAnswer(ErrorCode.rebalance_in_progress, member.member_id)
    answer_join(turn, group, member, overtaken)
    group.update(
        member,
        request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
    )
    group.await_join(member, token, supports_skip_assignment=request.supports_skip_assignment)


def _replace(turn: Turn, group: Group, request: JoinGroup, member_id: str, token: Any) -> None:
    """Give a returning static member without an id a new id, and fence users of the old one.

    In a stable group that keeps its protocol, the member takes over its old assignment, without a rebalance.
    """
    instance_id = request.group_instance_id
    assert instance_id is not None
    old_leader = group.leader_id
    old = group.members[group.instances[instance_id]]
    fenced = ErrorCode.fenced_instance_id
    answer_join(turn, group, old, JoinGroupAnswer(fenced, old.member_id))
    answer_sync(turn, old, SyncGroupAnswer(fenced))
    turn.end_session(group, old.member_id)
    member = group.replace_static(instance_id, member_id)
    _update(turn, group, member, request, token)
    turn.keep_alive(group, member)
    match group.state:
        case GroupState.STABLE if group.elect_protocol() == group.protocol_name:
            group.end_join(member)
            turn.persist(group, {one.member_id: one.assignment for one in group.members.values()})
            turn.answer(token, _returned_answer(group, member, old_leader))
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
            # In CompletingRebalance the leader may have received the old id already, and would assign to it.
            prepare(turn, group, f"static member {instance_id} came back as {member_id}")
        case _:
            complete_if_joined(turn, group)


def _returned_answer(group: Group, member: Member, old_leader: str | None) -> JoinGroupAnswer:
    """Ask a returned leader to skip the assignment; without that flag in its version, answer that it does not lead."""
    leads = member.member_id == group.leader_id
    if member.supports_skip_assignment:
        answer = generation_answer(group, member, with_members=leads)
        return replace(answer, skip_assignment=leads)
    return replace(generation_answer(group, member, with_members=False), leader=old_leader)
