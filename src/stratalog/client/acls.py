"""ACLs as `Call`s: list, create, delete.

In: ACLs and filters. Out: calls in the manner of `calls.py`. It never decides a right.
"""

from collections.abc import Sequence

from stratalog.client.calls import Call, asking, error_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl, AclFilter
from stratalog.wire.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from stratalog.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from stratalog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

__all__ = ["create_acls", "delete_acls", "describe_acls", "every_acl"]


def describe_acls(wanted: AclFilter) -> Call[list[Acl]]:
    """Return the ACLs that the filter matches. Raises Rejected: SECURITY_DISABLED without an authorizer."""

    def read(body: DescribeAclsResponse) -> list[Acl]:
        _check(body.error_code, body.error_message)
        return [
            Acl(
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for resource in body.resources
            for acl in resource.acls
        ]

    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    return asking(request, read)


def every_acl() -> Call[list[Acl]]:
    """Return all ACLs. Raises Rejected: SECURITY_DISABLED without an authorizer."""
    return describe_acls(AclFilter())


def create_acls(acls: Sequence[Acl]) -> Call[None]:
    """Create ACLs; those that exist stay as they are. Raises Rejected for the first one that is refused."""

    def read(body: CreateAclsResponse) -> None:
        for result in body.results:
            _check(result.error_code, result.error_message)

    creations = [
        AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    return asking(CreateAclsRequest(creations=creations), read)


def delete_acls(filters: Sequence[AclFilter]) -> Call[list[Acl]]:
    """Delete the ACLs that the filters match, and return them. Raises Rejected for the first refused filter."""

    def read(body: DeleteAclsResponse) -> list[Acl]:
        deleted = []
        for result in body.filter_results:
            _check(result.error_code, result.error_message)
            deleted += [Acl.of(one, one.pattern_type) for one in result.matching_acls]
        return deleted

    wanted = [
        DeleteAclsFilter(
            resource_type_filter=one.resource_type,
            resource_name_filter=one.name,
            pattern_type_filter=one.pattern_type,
            principal_filter=one.principal,
            host_filter=one.host,
            operation=one.operation,
            permission_type=one.permission,
        )
        for one in filters
    ]
    return asking(DeleteAclsRequest(filters=wanted), read)


def _check(code: int, message: str | None) -> None:
    error = error_of(code)
    if error is not ErrorCode.none:
        raise Rejected(error, message or "")
