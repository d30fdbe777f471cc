"""`strata quota`: limits of the clients of a running cluster.

In: users, client ids, addresses, and quotas by Kafka's names. Out: rows of quotas. It never measures a client.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.known_words import words
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    note,
    run,
    show,
)

if TYPE_CHECKING:
    from stratalog.metadata.client_quotas import Entity

quota_app = typer.Typer(
    help="Quotas of users, client ids and addresses: list, set and remove them.",
    no_args_is_help=True,
)
QUOTAS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
User = Annotated[str | None, typer.Option(metavar="NAME", help="A user, as alice.")]
ClientId = Annotated[str | None, typer.Option(metavar="ID", help="A client id.")]
Ip = Annotated[str | None, typer.Option(metavar="ADDRESS", help="An IPv4 or IPv6 address.")]
Bytes = Annotated[str | None, typer.Option(metavar="BYTES", help="Bytes a second: 10MB, 500000.")]
UserDefaults = Annotated[
    bool, typer.Option("--user-defaults", help="Each user without a quota of its own.")
]
ClientDefaults = Annotated[
    bool, typer.Option("--client-defaults", help="Each client id without a quota of its own.")
]
IpDefaults = Annotated[
    bool, typer.Option("--ip-defaults", help="Each address without a quota of its own.")
]


@quota_app.command("list")
def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    user_defaults: UserDefaults = False,
    client_defaults: ClientDefaults = False,
    ip_defaults: IpDefaults = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List quotas; with names, those that have all of these names.

    Example: strata quota list --user alice
    """
    entity = _entity(user, client_id, ip, user_defaults, client_defaults, ip_defaults)
    run(print_quotas(bootstrap_server, entity, json))


@quota_app.command("set")
def set_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    user_defaults: UserDefaults = False,
    client_defaults: ClientDefaults = False,
    ip_defaults: IpDefaults = False,
    producer_byte_rate: Bytes = None,
    consumer_byte_rate: Bytes = None,
    request_percentage: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="Of the time of a broker's event loop: 50."),
    ] = None,
    controller_mutation_rate: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Partitions created or deleted a second."),
    ] = None,
    connection_creation_rate: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Connections a second of an address.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Limit a user, a client id, a user's client id, or an address. Each broker counts for itself.

    Example: strata quota set --user alice --producer-byte-rate 10MB
    """
    entity = _entity(user, client_id, ip, user_defaults, client_defaults, ip_defaults)
    quotas = {
        "producer_byte_rate": _bytes("--producer-byte-rate", producer_byte_rate),
        "consumer_byte_rate": _bytes("--consumer-byte-rate", consumer_byte_rate),
        "request_percentage": request_percentage,
        "controller_mutation_rate": controller_mutation_rate,
        "connection_creation_rate": connection_creation_rate,
    }
    run(set_named(bootstrap_server, entity, quotas))


@quota_app.command()
def remove(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    user_defaults: UserDefaults = False,
    client_defaults: ClientDefaults = False,
    ip_defaults: IpDefaults = False,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="As producer_byte_rate; may be repeated. By default all quotas.",
            autocompletion=words(*QUOTAS),
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove quotas of a user, a client id, a user's client id, or an address.

    Example: strata quota remove --user alice
    """
    entity = _entity(user, client_id, ip, user_defaults, client_defaults, ip_defaults)
    run(remove_quotas(bootstrap_server, _needed(entity), quota))


async def print_quotas(bootstrap: str, wanted: "Entity", as_json: bool) -> None:
    """Print one row for each quota of the entities that have these names."""
    from stratalog.client.quotas import describe_quotas

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_quotas(wanted))
    rows = [
        {**_names(entity, as_json=as_json), "quota": key, "value": _value(key, value, as_json)}
        for entity in sorted(found, key=str)
        for key, value in sorted(found[entity].items())
    ]
    show(rows, as_json=as_json, empty="no quotas")


async def set_named(bootstrap: str, entity: "Entity", quotas: dict[str, float | None]) -> None:
    """Set the quotas that have a value. Raises UserError for none."""
    from stratalog.errors import UserError

    changes: dict[str, float | None] = {
        name: value for name, value in quotas.items() if value is not None
    }
    if not changes:
        raise UserError("name a quota: strata quota set --help shows an example")
    await alter(bootstrap, _needed(entity), changes)


async def alter(bootstrap: str, entity: "Entity", changes: dict[str, float | None]) -> None:
    """Set or remove quotas, and say how many. Raises Rejected."""
    from stratalog.client.quotas import alter_quotas

    async with connected(bootstrap) as client:
        await client.on_any(alter_quotas(entity, changes))
    note(f"quotas changed: {len(changes)}")


async def remove_quotas(bootstrap: str, entity: "Entity", names: list[str] | None) -> None:
    """Remove these quotas of the entity, or all. Raises UserError where it has none of them."""
    from stratalog.client.quotas import describe_quotas
    from stratalog.errors import UserError
    from stratalog.metadata.client_quotas import by_value

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_quotas(entity))
    present = next((found[one] for one in found if by_value(one) == by_value(entity)), {})
    gone = [name for name in names or present if name in present]
    if not gone:
        raise UserError("no such quota; strata quota list shows all")
    await alter(bootstrap, entity, dict.fromkeys(gone))


def _entity(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    user_defaults: bool,
    client_defaults: bool,
    ip_defaults: bool,
) -> "Entity":
    """Return the entity that the options name. Raises UserError where two options contradict each other."""
    from stratalog.errors import UserError
    from stratalog.metadata.client_quotas import CLIENT_ID, IP, USER, entity_of

    pairs: list[tuple[str, str | None]] = []
    for kind, name, is_default, option in (
        (USER, user, user_defaults, "--user-defaults"),
        (CLIENT_ID, client_id, client_defaults, "--client-defaults"),
        (IP, ip, ip_defaults, "--ip-defaults"),
    ):
        if name is not None and is_default:
            raise UserError(f"name one of --{kind} and {option}")
        if name is not None or is_default:
            pairs.append((kind, name))
    return entity_of(pairs)


def _needed(entity: "Entity") -> "Entity":
    from stratalog.errors import UserError

    if not entity:
        raise UserError(
            "name a client: --user, --client-id or --ip, or --user-defaults, --client-defaults or --ip-defaults"
        )
    return entity


def _bytes(option: str, text: str | None) -> float | None:
    """Return whole bytes a second. Raises UserError for text that is no quantity."""
    from stratalog.cli.shared.quantities import parse_bytes

    return None if text is None else float(round(parse_bytes(text, option)))


def _names(entity: "Entity", *, as_json: bool) -> dict[str, str | None]:
    from stratalog.metadata.client_quotas import CLIENT_ID, IP, USER

    names = dict(entity)
    default = "<default>"
    return {
        kind.replace("-", "_"): (names[kind] or default)
        if kind in names
        else (None if as_json else "")
        for kind in (USER, CLIENT_ID, IP)
    }


def _value(key: str, value: float, as_json: bool) -> float | str:
    from stratalog.cli.shared.quantities import quantity_text

    if as_json:
        return value
    return quantity_text(value, "bytes/s") if key.endswith("_byte_rate") else f"{value:.15g}"
