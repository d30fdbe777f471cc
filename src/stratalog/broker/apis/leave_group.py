"""LeaveGroup (key 13), versions 0-5.

v3 several members at once, static members (KIP-345). v4 flexible. v5 reason.
"""

from stratalog.broker.api import Api, Call
from stratalog.coordinators.messages import LeaveGroup, LeaveGroupAnswer, LeavingMember
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)


async def handle(call: Call[LeaveGroupRequest]) -> LeaveGroupResponse:
    """Take members out of their group."""
    body = call.body
    if call.version >= 3:
        members = tuple(LeavingMember(m.member_id, m.group_instance_id) for m in body.members)
    else:
        members = (LeavingMember(body.member_id),)
    try:
        answer = await call.broker.groups.leave(LeaveGroup(body.group_id, members))
    except Rejected as error:
        answer = LeaveGroupAnswer(error.code)
    return _reply(call, answer)


def _reply(call: Call[LeaveGroupRequest], answer: LeaveGroupAnswer) -> LeaveGroupResponse:
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


API = Api("LeaveGroup", 13, (0, 5), handle)
