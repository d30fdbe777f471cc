"""DeleteAcls (key 31), versions 1-3.

v1 pattern types (KIP-290). v2 flexible. v3 the resource type USER.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation, no_authorizer
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl, AclFilter
from stratalog.quorum.acls import Matched
from stratalog.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[DeleteAclsRequest, Needs]) -> DeleteAclsResponse:
    """Delete the ACLs that the filters match; each filter has its own error."""
    results: list[Matched] = []
    try:
        if not call.allows_cluster(Operation.ALTER):
            raise Rejected(ErrorCode.cluster_authorization_failed)
        if call.authorizer is None:
            # The controller answers for the cluster: without one, the answer is its absence (Kafka forwards first).
            await call.needs.local_controller.delete_acls([])
            raise no_authorizer()
        filters = [
            AclFilter(
                one.resource_type_filter,
                one.resource_name_filter,
                one.pattern_type_filter,
                one.principal_filter,
                one.host_filter,
                one.operation,
                one.permission_type,
            )
            async for one in call.pace.each(call.body.filters)
        ]
        async for wanted in call.pace.each(filters):  # each filter looks at every ACL
            results += await call.needs.local_controller.delete_acls([wanted])
    except Rejected as error:
        results += [error] * (len(call.body.filters) - len(results))
    return DeleteAclsResponse(
        filter_results=[_result(one) async for one in call.pace.each(results)]
    )


def _result(matched: Matched) -> DeleteAclsFilterResult:
    if isinstance(matched, Rejected):
        return DeleteAclsFilterResult(
            error_code=matched.code, error_message=matched.message or None, matching_acls=[]
        )
    return DeleteAclsFilterResult(
        error_code=ErrorCode.none, error_message=None, matching_acls=[_deleted(a) for a in matched]
    )


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
