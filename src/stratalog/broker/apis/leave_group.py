"""LeaveGroup (key 13), versions 0-5.

v3 several members at once, static members (KIP-345). v4 flexible. v5 reason.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import (
    LeaveGroup,
    LeaveGroupAnswer,
    LeavingMember,
    LeftMember,
)
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    groups: Groups


async def handle(call: Call[LeaveGroupRequest, Needs]) -> LeaveGroupResponse:
    """Remove members from their group."""
    body = call.body
    if not call.allows(Operation.READ, Resource.GROUP, body.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.group_authorization_failed)
    members: Sequence[MemberIdentity] = body.members
    if call.version < 3:
        members = (MemberIdentity(member_id=body.member_id),)
    error = ErrorCode.none
    left: list[LeftMember] = []
    async for part in call.pace.parts(members):
        leaving = tuple(LeavingMember(m.member_id, m.group_instance_id) for m in part)
        try:
            answer = await call.needs.groups.leave(LeaveGroup(body.group_id, leaving))
        except Rejected as refusal:
            answer = LeaveGroupAnswer(refusal.code)
        error = answer.error
        left += answer.members
    return _reply(call, LeaveGroupAnswer(error, tuple(left)))


def _reply(call: Call[LeaveGroupRequest, Needs], answer: LeaveGroupAnswer) -> LeaveGroupResponse:
    if call.version < 3:
        failed = [member.error for member in answer.members if member.error is not ErrorCode.none]
        error = answer.error if answer.error is not ErrorCode.none or not failed else failed[0]
        return LeaveGroupResponse(error_code=error)
    return LeaveGroupResponse(
        error_code=answer.error,
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=member.error,
            )
            for member in answer.members
        ],
    )
