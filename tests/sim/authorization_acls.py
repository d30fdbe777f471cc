"""Requests about ACLs, logins and users, as `authorization_cases`. In: nothing. Out: bodies. Kafka: `AclApis`."""

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
_NO_SASL = 34
"""Kafka: ILLEGAL_SASL_STATE; the listener has no SASL."""
_QUOTA = {
    "entity": [{"entity_type": "user", "entity_name": "alice"}],
    "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
}
_DELETION = {"name": "alice", "mechanism": 1}
ACL_CASES: dict[str, list[Case]] = {
    "SaslHandshake": [case("sasl_handshake", 1, _NO_SASL, lambda _: {"mechanism": "PLAIN"})],
    "SaslAuthenticate": [case("sasl_authenticate", 2, _NO_SASL, lambda _: {"auth_bytes": b"x"})],
    "DescribeUserScramCredentials": [
        case("describe_user_scram_credentials", 0, CLUSTER, lambda _: {"users": None})
    ],
    "AlterUserScramCredentials": [
        case(
            "alter_user_scram_credentials",
            0,
            CLUSTER,
            lambda _: {"deletions": [_DELETION], "upsertions": []},
        )
    ],
    "DescribeClientQuotas": [
        case("describe_client_quotas", 1, CLUSTER, lambda _: {"components": [], "strict": False})
    ],
    "AlterClientQuotas": [
        case(
            "alter_client_quotas",
            1,
            CLUSTER,
            lambda _: {"entries": [_QUOTA], "validate_only": False},
        )
    ],
    "DescribeAcls": [case("describe_acls", 3, CLUSTER, lambda _: _EVERY_ACL)],
    "CreateAcls": [case("create_acls", 3, CLUSTER, lambda _: {"creations": [_ACL]})],
    "DeleteAcls": [case("delete_acls", 3, CLUSTER, lambda _: {"filters": [_EVERY_ACL]})],
}
