"""Requests about ACLs, as `authorization_cases`. In: nothing. Out: bodies. It sends nothing. Kafka: `AclApis`."""

from tests.sim.authorization_case import CLUSTER, Case, case

_ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_EVERY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ACL_CASES: dict[str, list[Case]] = {
    "DescribeAcls": [case("describe_acls", 3, CLUSTER, lambda _: _EVERY_ACL)],
    "CreateAcls": [case("create_acls", 3, CLUSTER, lambda _: {"creations": [_ACL]})],
    "DeleteAcls": [case("delete_acls", 3, CLUSTER, lambda _: {"filters": [_EVERY_ACL]})],
}
