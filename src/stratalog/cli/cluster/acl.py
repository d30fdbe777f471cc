"""`strata acl`: rights of the clients of a running cluster.

In: principals, operations, resources. Out: rows of ACLs, or the verdict on one operation. It never knows the brokers'
super users.
"""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.completing import groups, topics
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    note,
    run,
    show,
    show_json,
)

if TYPE_CHECKING:
    from stratalog.metadata.acls import Acl, AclFilter
    from stratalog.metadata.rights import Operation, Resource

acl_app = typer.Typer(
    help="Rights of clients: list, add, remove and check ACLs.", no_args_is_help=True
)
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="NAME", help="A topic; may be repeated.", autocompletion=topics
    ),
]
GroupIds = Annotated[
    list[str] | None,
    typer.Option(
        "--group", metavar="NAME", help="A consumer group; may be repeated.", autocompletion=groups
    ),
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="A transactional id; may be repeated."),
]
OfTokens = Annotated[
    list[str] | None,
    typer.Option("--delegation-token", metavar="ID", help="A delegation token; may be repeated."),
]
OfUsers = Annotated[
    list[str] | None,
    typer.Option(
        "--user-principal",
        metavar="TYPE:NAME",
        help="A user as the owner of delegation tokens, as User:alice; may be repeated.",
    ),
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Principals = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE:NAME",
        help="A principal, as User:alice; User:* is every client. May be repeated.",
    ),
]


def operations(incomplete: str) -> list[str]:
    """Return the operations that begin with the typed text."""
    return [name for name in _operations() if name.startswith(incomplete)]


Operations = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OPERATION",
        autocompletion=operations,
        help="all, read, write, create, delete, alter, describe, cluster-action, describe-configs, alter-configs, "
        "idempotent-write, two-phase-commit, create-tokens or describe-tokens; may be repeated.",
    ),
]
Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A client's address; * is every one.")
]
Prefixed = Annotated[
    bool,
    typer.Option(
        "--prefixed", help="Names are prefixes: the ACL applies to all names that begin so."
    ),
]
Deny = Annotated[
    bool, typer.Option("--deny", help="The ACL denies. A denial beats every permission.")
]


@acl_app.command("list")
def list_acls(
    topic: Topics = None,
    group: GroupIds = None,
    transactional_id: TransactionalIds = None,
    delegation_token: OfTokens = None,
    user_principal: OfUsers = None,
    cluster: OfCluster = False,
    principal: Principals = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List ACLs; with a name, all that apply to it: its own, prefixes, and those of every name.

    Example: strata acl list --topic orders
    """
    resources = _resources(
        topic, group, transactional_id, delegation_token, user_principal, cluster
    )
    run(print_acls(bootstrap_server, _filters(resources, principal), json))


@acl_app.command()
def add(
    topic: Topics = None,
    group: GroupIds = None,
    transactional_id: TransactionalIds = None,
    delegation_token: OfTokens = None,
    user_principal: OfUsers = None,
    cluster: OfCluster = False,
    principal: Principals = None,
    operation: Operations = None,
    host: Host = None,
    prefixed: Prefixed = False,
    deny: Deny = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Permit operations of principals on resources, or deny them with --deny.

    Example: strata acl add --principal User:a --operation read --topic t
    """
    resources = _resources(
        topic, group, transactional_id, delegation_token, user_principal, cluster
    )
    wanted = _acls(resources, principal, operation, host, prefixed, deny)
    _check_effect(wanted)
    run(add_acls(bootstrap_server, wanted))


@acl_app.command()
def remove(
    topic: Topics = None,
    group: GroupIds = None,
    transactional_id: TransactionalIds = None,
    delegation_token: OfTokens = None,
    user_principal: OfUsers = None,
    cluster: OfCluster = False,
    principal: Principals = None,
    operation: Operations = None,
    host: Host = None,
    prefixed: Prefixed = False,
    deny: Deny = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove ACLs: the same options as for add.

    Example: strata acl remove --principal User:a --operation read --topic t
    """
    resources = _resources(
        topic, group, transactional_id, delegation_token, user_principal, cluster
    )
    wanted = _acls(resources, principal, operation, host, prefixed, deny)
    run(remove_acls(bootstrap_server, wanted))


@acl_app.command()
def check(
    principal: Annotated[str, typer.Argument(metavar="TYPE:NAME", help="As User:alice.")],
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="As read.", autocompletion=operations)
    ],
    topic: Topics = None,
    group: GroupIds = None,
    transactional_id: TransactionalIds = None,
    delegation_token: OfTokens = None,
    user_principal: OfUsers = None,
    cluster: OfCluster = False,
    host: Host = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Say whether the ACLs permit an operation, and which ACL decides. Exit code 1: one of them is denied.

    Super users have all rights without an ACL; the command does not know them.

    Example: strata acl check User:alice read --topic orders
    """
    resources = _resources(
        topic, group, transactional_id, delegation_token, user_principal, cluster
    )
    _check_named(resources)
    code = run(
        print_verdicts(
            bootstrap_server, principal, _operation(operation), resources, host or "*", json
        )
    )
    raise typer.Exit(code)


async def print_acls(bootstrap: str, filters: "Sequence[AclFilter]", as_json: bool) -> None:
    """Print one row for each ACL that a filter matches, by resource."""
    from stratalog.client.acls import describe_acls

    async with connected(bootstrap) as client:
        found = {one for wanted in filters for one in await client.on_any(describe_acls(wanted))}
    show([acl.named() for acl in sorted(found)], as_json=as_json, empty="no ACLs")


async def add_acls(bootstrap: str, acls: Sequence["Acl"]) -> None:
    """Create ACLs, and say how many. Raises Rejected."""
    from stratalog.client.acls import create_acls

    async with connected(bootstrap) as client:
        await client.on_any(create_acls(acls))
    note(f"ACLs in effect: {len(acls)}")


async def remove_acls(bootstrap: str, acls: Sequence["Acl"]) -> None:
    """Delete ACLs, and print one row for each. Raises UserError where none of them exists."""
    from stratalog.client.acls import delete_acls
    from stratalog.errors import UserError
    from stratalog.metadata.acls import AclFilter

    async with connected(bootstrap) as client:
        gone = await client.on_any(delete_acls([AclFilter(*acl) for acl in acls]))
    if not gone:
        raise UserError("no such ACL; strata acl list shows all")
    show([acl.named() for acl in gone], as_json=False)


async def print_verdicts(
    bootstrap: str,
    principal: str,
    operation: "Operation",
    resources: "Sequence[tuple[int, str]]",
    host: str,
    as_json: bool,
) -> int:
    """Print a line for each resource; return 1 if the ACLs deny the operation on one of them."""
    from stratalog.client.acls import describe_acls
    from stratalog.config.addresses import address_text
    from stratalog.metadata.acls import AclFilter, Acls
    from stratalog.metadata.rights import Resource

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_acls(AclFilter()))
    acls = Acls.of(found)
    rows = []
    for resource_type, name in resources:
        verdict = acls.decide(principal, address_text(host), operation, resource_type, name)
        by = verdict.acl.named() if verdict.acl is not None else None
        rows.append(
            {
                "resource": f"{Resource(resource_type).name}:{name}",
                "allowed": bool(verdict.is_allowed),
                "by": by if as_json or by is None else " ".join(map(str, by.values())),
            }
        )
    if as_json:
        show_json(rows)
    else:
        show([{**one, "by": one["by"] or "no ACL"} for one in rows], as_json=False)
    return 0 if all(one["allowed"] for one in rows) else 1


def _filters(
    resources: Sequence[tuple[int, str]], principals: list[str] | None
) -> "list[AclFilter]":
    from stratalog.metadata.acls import AclFilter
    from stratalog.metadata.rights import PatternType

    users: Sequence[str | None] = principals or [None]
    if not resources:
        return [AclFilter(principal=user) for user in users]
    return [
        AclFilter(kind, name, PatternType.MATCH, principal=user)
        for (kind, name), user in product(resources, users)
    ]


def _check_effect(acls: Sequence["Acl"]) -> None:
    """Raise UserError for an ACL that no request could ever match: a denial that has no effect leaves a door open."""
    from stratalog.errors import UserError
    from stratalog.metadata.rights import SUPPORTED, Operation, Resource

    for acl in acls:
        if not acl.principal.startswith("User:"):
            raise UserError(
                f"--principal: {acl.principal!r} is not accepted; accepted: User:NAME, or User:*"
            )
        supported = SUPPORTED[Resource(acl.resource_type)]
        if acl.operation not in (Operation.ALL, *supported):
            names = ", ".join(map(_shown, (Operation.ALL, *sorted(supported))))
            kind = _shown(Resource(acl.resource_type))
            raise UserError(
                f"operation {_shown(Operation(acl.operation))!r} is not one of a {kind}; accepted: {names}"
            )
        _check_host(acl.host)


def _check_host(host: str) -> None:
    """Raise UserError for a host that no client has. A link-local address has the number of the broker's interface."""
    from ipaddress import IPv6Address, ip_address

    from stratalog.errors import UserError

    try:
        address = ip_address(host) if host != "*" else None
    except ValueError:
        raise UserError(f"--host: {host!r} is not accepted; accepted: an address, or *") from None
    if isinstance(address, IPv6Address):
        scope = address.scope_id or ""
        if bool(scope) != address.is_link_local or (scope and not scope.isdecimal()):
            raise UserError(
                f"--host: {host!r} is not accepted; a link-local address, and no other, has the number of the broker's "
                "interface, as fe80::1%2"
            )


def _shown(name: "Operation | Resource") -> str:
    return name.name.lower().replace("_", "-")


def _acls(
    resources: Sequence[tuple[int, str]],
    principals: list[str] | None,
    operations: list[str] | None,
    host: str | None,
    prefixed: bool,
    deny: bool,
) -> "list[Acl]":
    """Return every combination of the options. Raises UserError where one is missing."""
    from stratalog.errors import UserError
    from stratalog.metadata.acls import Acl
    from stratalog.metadata.rights import PatternType, Permission, Resource

    if not principals or not operations:
        missing = "--principal" if not principals else "--operation"
        raise UserError(f"{missing} is missing; strata acl add --help shows an example")
    permission = Permission.DENY if deny else Permission.ALLOW
    _check_named(resources)
    return [
        Acl(
            kind,
            name,
            PatternType.PREFIXED
            if prefixed and kind != Resource.CLUSTER and name != "*"
            else PatternType.LITERAL,
            principal,
            host or "*",
            _operation(operation),
            permission,
        )
        for (kind, name), principal, operation in product(resources, principals, operations)
    ]


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    tokens: list[str] | None,
    users: list[str] | None,
    of_cluster: bool,
) -> list[tuple[int, str]]:
    """Return the named resources as (type, name)."""
    from stratalog.metadata.rights import CLUSTER_NAME, Resource

    found: list[tuple[int, str]] = [
        *((Resource.TOPIC, name) for name in topics or ()),
        *((Resource.GROUP, name) for name in groups or ()),
        *((Resource.TRANSACTIONAL_ID, name) for name in transactional_ids or ()),
        *((Resource.DELEGATION_TOKEN, name) for name in tokens or ()),
        *((Resource.USER, name) for name in users or ()),
    ]
    if of_cluster:
        found.append((Resource.CLUSTER, CLUSTER_NAME))
    return found


def _check_named(resources: Sequence[tuple[int, str]]) -> None:
    """Raise UserError where the command names no resource."""
    from stratalog.errors import UserError

    if not resources:
        raise UserError(
            "name a resource: --topic, --group, --transactional-id, --delegation-token, --user-principal or --cluster"
        )


def _operation(word: str) -> "Operation":
    """Return the operation of that name. Raises UserError with the accepted names."""
    from stratalog.errors import UserError

    names = _operations()
    found = names.get(word.lower().replace("_", "-"))
    if found is None:
        raise UserError(f"operation {word!r} is not accepted; accepted: {', '.join(names)}")
    return found


def _operations() -> "dict[str, Operation]":
    from stratalog.metadata.rights import Operation

    return {
        one.name.lower().replace("_", "-"): one for one in Operation if one is not Operation.ANY
    }
