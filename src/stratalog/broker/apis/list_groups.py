"""ListGroups (key 16), versions 0-5.

v3 flexible. v4 filter by state (KIP-518). v5 filter by type (KIP-848): every group here is a classic one.
"""

from typing import Any, Final

from stratalog.broker.api import Api, Call
from stratalog.errors import ErrorCode, Rejected

_CLASSIC: Final = "classic"


async def handle(call: Call) -> Any:
    """The groups that this broker coordinates."""
    body, reply = call.body, call.reply
    types = {name.lower() for name in getattr(body, "types_filter", ())}
    error = ErrorCode.none
    groups = []
    if not types or _CLASSIC in types:
        try:
            groups = await call.broker.groups.list_groups(getattr(body, "states_filter", ()))
        except Rejected as rejected:
            error = rejected.code
    return reply.ListGroupsResponse(
        error_code=error,
        groups=[
            reply.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=_CLASSIC,
            )
            for group in groups
        ],
    )


API = Api("ListGroups", 16, (0, 5), handle)
