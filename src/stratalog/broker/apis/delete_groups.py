"""DeleteGroups (key 42), versions 0-2.

v2 flexible.
"""

from typing import NamedTuple

from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import DeleteGroup, DeleteGroupAnswer
from stratalog.errors import Rejected
from stratalog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    groups: Groups


async def handle(call: Call[DeleteGroupsRequest, Needs]) -> DeleteGroupsResponse:
    """Delete each group that has no members."""
    results = []
    async for group_id in call.pace.once(call.body.groups_names, str):
        try:
            call.authorize(Operation.DELETE, Resource.GROUP, group_id)
            answer = await call.needs.groups.delete(DeleteGroup(group_id))
        except Rejected as error:
            answer = DeleteGroupAnswer(error.code)
        results.append(DeletableGroupResult(group_id=group_id, error_code=answer.error))
    return DeleteGroupsResponse(results=results)
