"""SyncGroup (key 14), versions 0-5.

v3 static members. v4 flexible. v5 protocol type and name.
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import Assignment, SyncGroup, SyncGroupAnswer
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_ASSIGNMENTS_MAX: Final = 100_000
"""Most assignments in one request: one for each member of a group."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    groups: Groups


async def handle(call: Call[SyncGroupRequest, Needs]) -> SyncGroupResponse:
    """Return the member's assignment, once the group's leader has sent it."""
    body = call.body
    if len(body.assignments) > _ASSIGNMENTS_MAX:
        return SyncGroupResponse(error_code=ErrorCode.invalid_request, assignment=b"")
    request = SyncGroup(
        group_id=body.group_id,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        protocol_type=body.protocol_type,
        protocol_name=body.protocol_name,
        assignments=tuple(
            [
                Assignment(a.member_id, bytes(a.assignment))
                async for a in call.pace.each(body.assignments)
            ]
        ),
    )
    try:
        call.authorize(Operation.READ, Resource.GROUP, body.group_id)
        answer = await call.needs.groups.sync(request)
    except Rejected as error:
        answer = SyncGroupAnswer(error.code)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
