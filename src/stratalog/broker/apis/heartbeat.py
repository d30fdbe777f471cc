"""Heartbeat (key 12), versions 0-4.

v3 static members. v4 flexible.
"""

from typing import NamedTuple

from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import Heartbeat, HeartbeatAnswer
from stratalog.errors import Rejected
from stratalog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    groups: Groups


async def handle(call: Call[HeartbeatRequest, Needs]) -> HeartbeatResponse:
    """Extend the member's session; answer REBALANCE_IN_PROGRESS during a rebalance."""
    body = call.body
    request = Heartbeat(
        group_id=body.group_id,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
    )
    try:
        call.authorize(Operation.READ, Resource.GROUP, body.group_id)
        answer = await call.needs.groups.heartbeat(request)
    except Rejected as error:
        answer = HeartbeatAnswer(error.code)
    return HeartbeatResponse(error_code=answer.error)
