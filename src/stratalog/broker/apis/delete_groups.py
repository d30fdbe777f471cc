"""DeleteGroups (key 42), versions 0-2.

v2 flexible.
"""

from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.coordinators.messages import DeleteGroup, DeleteGroupAnswer
from stratalog.errors import Rejected


async def handle(call: Call) -> Any:
    """Delete each group that has no members."""
    reply = call.reply
    results = []
    for group_id in dict.fromkeys(call.body.groups_names):
        try:
            answer = await call.broker.groups.delete(DeleteGroup(group_id))
        except Rejected as error:
            answer = DeleteGroupAnswer(error.code)
        results.append(reply.DeletableGroupResult(group_id=group_id, error_code=answer.error))
    return reply.DeleteGroupsResponse(results=results)


API = Api("DeleteGroups", 42, (0, 2), handle)
