"""CreateAcls (key 30), versions 1-3.

v1 pattern types (KIP-290). v2 flexible. v3 the resource type USER.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation, no_authorizer
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl
from stratalog.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[CreateAclsRequest, Needs]) -> CreateAclsResponse:
    """Create the valid ACLs, in one batch; each ACL has its own error."""
    results: list[Rejected | None]
    try:
        if not call.allows_cluster(Operation.ALTER):
            raise Rejected(ErrorCode.cluster_authorization_failed)
        if call.authorizer is None:
            # The controller answers for the cluster: without one, the answer is its absence (Kafka forwards first).
            await call.needs.local_controller.create_acls([])
            raise no_authorizer()
        results = await call.needs.local_controller.create_acls(
            [
                Acl.of(one, one.resource_pattern_type)
                async for one in call.pace.each(call.body.creations)
            ]
        )
    except Rejected as error:
        results = [error] * len(call.body.creations)
    return CreateAclsResponse(results=[_result(one) async for one in call.pace.each(results)])


def _result(refusal: Rejected | None) -> AclCreationResult:
    if refusal is None:
        return AclCreationResult(error_code=ErrorCode.none, error_message=None)
    return AclCreationResult(error_code=refusal.code, error_message=refusal.message or None)
