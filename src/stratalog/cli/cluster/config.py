"""`strata config`: settings of topics and brokers in a running cluster.

In: a topic's name or a broker's id, and settings. Out: effective values and their sources; changes that take effect at
once. It never touches a properties file.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.completing import brokers, topics
from stratalog.cli.shared.known_words import setting_names, settings
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    accepted,
    connected,
    note,
    run,
    show,
)

if TYPE_CHECKING:
    from stratalog.client.admin import Altered
    from stratalog.client.aio import Client
    from stratalog.client.calls import Call

config_app = typer.Typer(help="Show and change settings.", no_args_is_help=True)
SOURCES = {1: "topic", 2: "broker, dynamic", 3: "cluster, dynamic", 4: "broker", 5: "default"}

Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="A topic's settings.", autocompletion=topics),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="ID",
        help="A broker's settings; \"\" means every broker's.",
        autocompletion=brokers,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="A new value; may be repeated.",
        autocompletion=settings,
    ),
]
Unsets = Annotated[
    list[str] | None,
    typer.Option(
        "--unset",
        "-u",
        metavar="NAME",
        help="Reset to the default; may be repeated.",
        autocompletion=setting_names,
    ),
]


def resource(topic: str | None, broker: str | None) -> tuple[int, str]:
    """Return (Kafka's resource type, name) of the resource that the options name. Raises UserError unless they name
    exactly one.
    """
    from stratalog.client.calls import BROKER, TOPIC
    from stratalog.errors import UserError

    if (topic is None) == (broker is None):
        raise UserError("name one of --topic TOPIC and --broker ID")
    return (TOPIC, topic) if topic is not None else (BROKER, broker or "")


@config_app.command()
def describe(
    topic: Topic = None,
    broker: Broker = None,
    all_settings: Annotated[
        bool, typer.Option("--all", "-a", help="Also show settings at their defaults.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show settings, their values and the sources of the values.

    Example: strata config describe --topic orders --all
    """
    run(print_configs(bootstrap_server, resource(topic, broker), all_settings, json))


async def print_configs(
    bootstrap: str, wanted: tuple[int, str], all_settings: bool, as_json: bool
) -> None:
    """Print one row per setting. Raises Rejected where there is no such topic, UserError where no such broker."""
    from stratalog.client.calls import BROKER, describe_configs
    from stratalog.config import ConfigSource
    from stratalog.errors import UserError

    kind, name = wanted
    async with connected(bootstrap) as client:
        request = describe_configs([wanted])
        if kind == BROKER and name:  # each broker knows its own settings alone
            nodes = {str(one): one for one in (await client.metadata([])).brokers}
            if name not in nodes:
                raise UserError(f"--broker: {name!r} is not accepted; accepted: {', '.join(nodes)}")
            (found,) = await client.call(request, nodes[name])
        else:
            (found,) = await client.on_any(request)
    accepted(found)
    rows = [
        {
            "name": entry.name,
            "from": SOURCES.get(entry.source, str(entry.source)),
            "read_only": entry.read_only,
            # Last: a long value moves no other column.
            "value": "(secret)" if entry.sensitive else entry.value,
        }
        for entry in sorted(found.entries, key=lambda entry: entry.name)
        if all_settings or entry.source != ConfigSource.DEFAULT_CONFIG
    ]
    show(rows, as_json=as_json, empty="everything is at its default; --all shows it")


@config_app.command()
def alter(
    topic: Topic = None,
    broker: Broker = None,
    set_values: Sets = None,
    unset: Unsets = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Change settings of a topic or broker; the other settings stay as they are.

    Example: strata config alter --broker "" -s log.retention.ms=86400000
    """
    run(change(bootstrap_server, resource(topic, broker), set_values or (), unset or ()))


async def change(
    bootstrap: str, wanted: tuple[int, str], values: Sequence[str], unset: Sequence[str]
) -> None:
    """Connect and change settings. Raises Rejected with the broker's message, UserError without any change."""
    from stratalog.client.calls import BROKER

    async with connected(bootstrap) as client:
        await alter_settings(client, wanted, values, unset)
    kind = "broker" if wanted[0] == BROKER else "topic"
    note(f"changed {kind} {wanted[1]}" if wanted[1] else "changed every broker")


async def alter_settings(
    client: "Client", wanted: tuple[int, str], values: Sequence[str], unset: Sequence[str]
) -> None:
    """Set `name=value`s, unset names."""
    from stratalog.client.admin import alter_configs
    from stratalog.errors import UserError

    changes: dict[str, str | None] = {**parse_configs(values), **dict.fromkeys(unset)}
    if not changes:
        raise UserError("nothing to change: give --set NAME=VALUE or --unset NAME")
    accepted(await ask_named(client, *wanted, alter_configs(*wanted, changes)))


async def ask_named(client: "Client", kind: int, name: str, call: "Call[Altered]") -> "Altered":
    """Change settings by the broker that they are of: it alone knows its directories. Another one changes those of a
    broker that is down.
    """
    from stratalog.client.calls import BROKER
    from stratalog.errors import Unavailable

    if kind == BROKER and name.isdecimal():
        await client.metadata([])  # has the broker's address
        try:
            return await client.call(call, int(name))
        except Unavailable:
            pass
    return await client.on_any(call)


def parse_configs(items: Sequence[str]) -> dict[str, str]:
    """Return `name=value` items as pairs; raises UserError for one without `=`."""
    from stratalog.config import our_topic_setting
    from stratalog.config.shown import name_in
    from stratalog.errors import UserError

    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"setting {name_in(item)}: expected NAME=VALUE")
        name, value = name.strip(), value.strip()
        ours, meant = our_topic_setting(name, value)
        if ours != name:
            note(f"{name} stands for {ours}={meant}")
        pairs[ours] = meant
    return pairs
