"""JoinGroup (key 11), versions 0-9.

v1 rebalance timeout. v4 a member id is required (KIP-394). v5 static members (KIP-345). v6 flexible. v7 protocol type
in the answer. v8 reason. v9 skip assignment (KIP-814).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import JoinGroup, JoinGroupAnswer, Protocol
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

_PROTOCOLS_MAX: Final = 1000
"""Most protocols of one member: clients have a few, and the group stores all of them."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    groups: Groups


async def handle(call: Call[JoinGroupRequest, Needs]) -> JoinGroupResponse:
    """Join, and answer once the group is complete."""
    body = call.body
    if not call.allows(Operation.READ, Resource.GROUP, body.group_id):
        return _reply(call, JoinGroupAnswer(ErrorCode.group_authorization_failed, ""))
    if len(body.protocols) > _PROTOCOLS_MAX:
        return _reply(call, JoinGroupAnswer(ErrorCode.invalid_request, body.member_id))
    request = JoinGroup(
        group_id=body.group_id,
        member_id=body.member_id,
        client_id=call.session.client_id,
        client_host="/" + call.session.host,
        session_timeout_ms=body.session_timeout_ms,
        rebalance_timeout_ms=body.rebalance_timeout_ms
        if call.version >= 1
        else body.session_timeout_ms,
        protocol_type=body.protocol_type,
        protocols=tuple(Protocol(p.name, bytes(p.metadata)) for p in body.protocols),
        group_instance_id=body.group_instance_id,
        member_id_required=call.version >= 4,
        supports_skip_assignment=call.version >= 9,
        holder=call.session.holder,
    )
    try:
        answer = await call.needs.groups.join(request)
    except Rejected as error:
        answer = JoinGroupAnswer(error.code, body.member_id)
    return _reply(call, answer)


def _reply(call: Call[JoinGroupRequest, Needs], answer: JoinGroupAnswer) -> JoinGroupResponse:
    nullable_protocol = call.version >= 7
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name if nullable_protocol else answer.protocol_name or "",
        leader=answer.leader or "",
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ],
    )
