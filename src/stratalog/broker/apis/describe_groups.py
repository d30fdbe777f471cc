"""DescribeGroups (key 15), versions 0-6.

v3 authorized operations (KIP-430). v4 static members. v5 flexible. v6 a group that does not exist is an error
(KIP-1043).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import NOT_REQUESTED, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import DescribedMember, GroupDescription
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_NOT_FOUND_FROM: Final = 6


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    groups: Groups


async def handle(call: Call[DescribeGroupsRequest, Needs]) -> DescribeGroupsResponse:
    """Return state, protocol and members of each group once."""
    groups = call.pace.once(call.body.groups, str)
    return DescribeGroupsResponse(groups=[await _describe(call, one) async for one in groups])


async def _describe(call: Call[DescribeGroupsRequest, Needs], group_id: str) -> DescribedGroup:
    try:
        call.authorize(Operation.DESCRIBE, Resource.GROUP, group_id)
        group = await call.needs.groups.describe(group_id)
    except Rejected as rejected:
        group = GroupDescription(group_id, rejected.code, "")
    error, message = group.error, None
    if error is ErrorCode.group_id_not_found:
        if call.version < _NOT_FOUND_FROM:
            error = ErrorCode.none
        else:
            message = f"Group {group_id} not found."
    wants_operations = call.body.include_authorized_operations
    return DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[_member(member) for member in group.members],
        authorized_operations=call.authorized_operations(Resource.GROUP, group_id)
        if wants_operations and error is ErrorCode.none
        else NOT_REQUESTED,
    )


def _member(member: DescribedMember) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )
