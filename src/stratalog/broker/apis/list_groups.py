"""ListGroups (key 16), versions 0-5.

v3 flexible. v4 filter by state (KIP-518). v5 filter by type (KIP-848): every group here is a classic one.
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import CLUSTER_NAME, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.states import GroupState
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_CLASSIC: Final = "classic"
_STATES: Final = {state.value.lower() for state in GroupState}


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    groups: Groups


async def handle(call: Call[ListGroupsRequest, Needs]) -> ListGroupsResponse:
    """Return the groups that this broker coordinates."""
    body = call.body
    types = {name.lower() async for name in call.pace.each(body.types_filter)}
    states = {name.lower() async for name in call.pace.each(body.states_filter)}
    if states:  # if all states are unknown, the empty name matches no group
        states = states & _STATES or {""}
    error = ErrorCode.none
    groups = []
    if not types or _CLASSIC in types:
        try:
            groups = await call.needs.groups.list_groups(states)
        except Rejected as rejected:
            error = rejected.code
    sees_all = call.shows(Resource.CLUSTER, CLUSTER_NAME)
    return ListGroupsResponse(
        error_code=error,
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=_CLASSIC,
            )
            for group in groups
            if sees_all or call.shows(Resource.GROUP, group.group_id)
        ],
    )
