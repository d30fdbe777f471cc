"""Requests about ACLs, logins, tokens and users, as `authorization_cases`. In: nothing. Out: bodies.

Kafka: `AclApis`.
"""

from tests.sim.authorization_case import CLUSTER, NONE, Case, case

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
_NO_TOKEN, _NOT_ALLOWED = 62, 65
"""Kafka: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_AUTHORIZATION_FAILED."""
_DELETION = {"name": "alice", "mechanism": 1}
ACL_CASES: dict[str, list[Case]] = {
    "CreateDelegationToken": [
        case(
            "create_delegation_token",
            3,
            _NOT_ALLOWED,
            lambda _: {
                "owner_principal_type": "User",
                "owner_principal_name": "bob",
                "renewers": [],
                "max_lifetime_ms": -1,
            },
        )
    ],
    "RenewDelegationToken": [
        case(
            "renew_delegation_token",
            2,
            _NO_TOKEN,
            lambda _: {"hmac": b"x", "renew_period_ms": -1},
        )
    ],
    "ExpireDelegationToken": [
        case(
            "expire_delegation_token",
            2,
            _NO_TOKEN,
            lambda _: {"hmac": b"x", "expiry_time_period_ms": -1},
        )
    ],
    "DescribeDelegationToken": [
        case("describe_delegation_token", 3, NONE, lambda _: {"owners": None}, hides=True)
    ],
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
