"""DeleteGroups (key 42), versions 0-2.

v2 flexible.
"""

from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import DeleteGroup, DeleteGroupAnswer
from stratalog.errors import Rejected
from stratalog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(call: Call[DeleteGroupsRequest]) -> DeleteGroupsResponse:
    """Delete each group that has no members."""
    results = []
    async for group_id in call.pace.once(call.body.groups_names, str):
        try:
            answer = await call.broker.groups.delete(DeleteGroup(group_id))
        except Rejected as error:
            answer = DeleteGroupAnswer(error.code)
        results.append(DeletableGroupResult(group_id=group_id, error_code=answer.error))
    return DeleteGroupsResponse(results=results)
