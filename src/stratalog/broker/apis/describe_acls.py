"""DescribeAcls (key 29), versions 1-3.

v1 pattern types (KIP-290). v2 flexible. v3 the resource type USER.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.authorizer import Operation, no_authorizer
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl, AclFilter
from stratalog.quorum.acls import refusal_of
from stratalog.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    metadata: ClusterImage


async def handle(call: Call[DescribeAclsRequest, Needs]) -> DescribeAclsResponse:
    """Return the ACLs that the filter matches, by resource."""
    body = call.body
    wanted = AclFilter(
        body.resource_type_filter,
        body.resource_name_filter,
        body.pattern_type_filter,
        body.principal_filter,
        body.host_filter,
        body.operation,
        body.permission_type,
    )
    refusal = refusal_of(wanted)
    if not call.allows_cluster(Operation.DESCRIBE):
        refusal = Rejected(ErrorCode.cluster_authorization_failed)
    elif call.authorizer is None:
        refusal = no_authorizer()
    if refusal is not None:
        return DescribeAclsResponse(
            error_code=refusal.code, error_message=refusal.message or None, resources=[]
        )
    matched = [acl async for acl in call.pace.each(call.needs.metadata.acls.matching(wanted))]
    by_resource = groupby(matched, itemgetter(0, 1, 2))
    return DescribeAclsResponse(
        error_code=ErrorCode.none,
        error_message=None,
        resources=[_resource(list(some)) for _, some in by_resource],
    )


def _resource(acls: Sequence[Acl]) -> DescribeAclsResource:
    return DescribeAclsResource(
        resource_type=acls[0].resource_type,
        resource_name=acls[0].name,
        pattern_type=acls[0].pattern_type,
        acls=[
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ],
    )
