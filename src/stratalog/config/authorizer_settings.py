"""The settings of clients' rights, by Kafka's names.

In: nothing. Out: `AUTHORIZER`, a part of `broker_settings.BROKER_SETTINGS`. Data only.
"""

from collections.abc import Sequence
from typing import Final

from stratalog.config.kinds import BadValue, Kind, OneOf, Setting, Shaped

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
)
