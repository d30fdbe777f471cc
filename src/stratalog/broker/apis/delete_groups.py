"""DeleteGroups (key 42), versions 0-2.

v2 flexible.
"""

from stratalog.broker.api import Api, Call
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
    answered: set[str] = set()
    async for group_id in call.pace.each(call.body.groups_names):
        if group_id in answered:
            continue
        answered.add(group_id)
        try:
            answer = await call.broker.groups.delete(DeleteGroup(group_id))
        except Rejected as error:
            answer = DeleteGroupAnswer(error.code)
        results.append(DeletableGroupResult(group_id=group_id, error_code=answer.error))
    return DeleteGroupsResponse(results=results)


API = Api("DeleteGroups", 42, (0, 2), handle)
