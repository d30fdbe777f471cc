"""The settings of clients' rights, by Kafka's names.

In: nothing. Out: `AUTHORIZER`, a part of `broker_settings.BROKER_SETTINGS`. Data only.
"""

from collections.abc import Sequence
from typing import Final

from stratalog.config.kinds import BadValue, Between, Kind, OneOf, Setting, Shaped

__all__ = ["AUTHORIZER", "STANDARD_AUTHORIZER"]

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _check_users(words: Sequence[str]) -> None:
    """Raise BadValue unless each user has a type and a name."""
    users = [user for word in words for user in word.split(";") if user.strip()]
    if not all(all(user.strip().partition(":")) for user in users):
        raise BadValue


AUTHORIZER: Final = (
    Setting(
        "authorizer.class.name",
        Kind.STRING,
        "",
        f"Whether ACLs decide clients' rights: `{STANDARD_AUTHORIZER}`. Empty: every client has all rights.",
        OneOf(("", STANDARD_AUTHORIZER)),
    ),
    Setting(
        "super.users",
        Kind.STRING,
        "",
        "Principals that may do everything, separated by semicolons: `User:admin;User:ANONYMOUS`. The brokers' own "
        "principal must be among them, or have the right CLUSTER_ACTION.",
        Shaped(_check_users, "TYPE:NAME, several separated by semicolons, as in User:admin"),
        unlisted=True,
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        Kind.BOOLEAN,
        False,
        "Whether a resource without any ACL is open to every client.",
        unlisted=True,
    ),
    Setting(
        "audit.log.path",
        Kind.STRING,
        "",
        "A file for one JSON line of each denied request, failed login and change of topics, ACLs, users, quotas and "
        "settings. Empty: none. Each node needs a file of its own.",
        ours=True,
    ),
    Setting(
        "audit.log.data.requests",
        Kind.BOOLEAN,
        False,
        "Whether the audit also has a line for each Produce and Fetch of a client that was allowed, with its topics.",
        ours=True,
    ),
    Setting(
        "audit.log.max.bytes",
        Kind.INT,
        10 << 20,
        "The size at which the audit's file is renamed to `.1`, and a new one begins.",
        Between(4096),
        ours=True,
    ),
    Setting(
        "audit.log.files",
        Kind.INT,
        10,
        "How many files the audit has, the older ones included; the oldest is deleted.",
        Between(2, 1000),
        ours=True,
    ),
)
