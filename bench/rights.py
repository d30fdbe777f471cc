"""How long the authorizer takes for one decision, among many ACLs.

    python -m bench.rights --acls 10000

In: a number of ACLs. Out: microseconds of a first decision, of a repeated one, and of a change by one ACL. The best of
several rounds counts, so that other work on the machine matters little. It starts no broker.
"""

import argparse
import sys
from collections.abc import Callable
from time import perf_counter_ns
from uuid import UUID

from msgspec.structs import replace

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.session import ListenerContext, Principal, Session
from stratalog.broker.network.standard_authorizer import StandardAuthorizer
from stratalog.metadata.acls import Acl
from stratalog.metadata.image import EMPTY, Image
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource
from stratalog.wire.internal.security_records import AccessControlEntryRecord

ROUNDS = 20
DECISIONS = 2_000
PRINCIPALS = 100


def drawn(count: int) -> list[Acl]:
    """Return ACLs of 100 principals: half on topics by name, half on prefixes of 8 to 12 characters."""
    found = []
    for number in range(count):
        is_prefix = number % 2
        name = f"team{number % 97:02}-topic{number}"
        found.append(
            Acl(
                Resource.TOPIC,
                name[: 8 + number % 5] + str(number) if is_prefix else name,
                PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
                f"User:u{number % PRINCIPALS}",
                "*",
                Operation.READ,
                Permission.ALLOW,
            )
        )
    return found


def image_of(acls: list[Acl]) -> Image:
    """Return an image with a record for each ACL."""
    records = {
        ("AccessControlEntryRecord", UUID(int=number)): AccessControlEntryRecord(
            id=UUID(int=number),
            resource_type=acl.resource_type,
            resource_name=acl.name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for number, acl in enumerate(acls)
    }
    return replace(EMPTY, foreign=records)


def best_us(work: Callable[[], int]) -> float:
    """Return the microseconds of one of the units that `work` did, in its best round."""
    found = []
    for _ in range(ROUNDS):
        began = perf_counter_ns()
        units = work()
        found.append((perf_counter_ns() - began) / units / 1000)
    return min(found)


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acls", type=int, default=10_000)
    count = parser.parse_args().acls
    acls = drawn(count + 1)
    images = [image_of(acls[:count]), image_of(acls)]
    image = images[0]
    cluster = ClusterImage("", 1, image, (), lambda _image, _delta: None)
    authorizer = StandardAuthorizer(cluster, [], default=False)
    asked = [
        (Session(ListenerContext("L"), "10.0.0.1", Principal("User", f"u{n % 100}")), acls[n].name)
        for n in range(min(count, DECISIONS))
    ]

    def decide() -> int:
        for session, name in asked:
            authorizer.allows(session, Operation.READ, Resource.TOPIC, name)
        return len(asked)

    def decide_anew() -> int:
        nonlocal authorizer
        authorizer = StandardAuthorizer(cluster, [], default=False)
        return decide()

    def follow() -> int:
        cluster.image = images[cluster.image is images[0]]
        return 1 if cluster.acls.version else 0

    decide()
    for line, work in (
        ("a new decision", decide_anew),
        ("a repeated decision", decide),
        ("one ACL more or less", follow),
    ):
        sys.stdout.write(f"{line}, us: {best_us(work):.2f}\n")


if __name__ == "__main__":
    main()
