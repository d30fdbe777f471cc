"""Complete names of existing topics, groups and brokers in a shell.

In: the beginning of a word. Out: names. It never prints an error: a shell has no place for one.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.client_config import named_servers, source_of
from stratalog.cli.shared.terminal import DEFAULT_BOOTSTRAP, connected, run

if TYPE_CHECKING:
    from stratalog.client.aio import Client

TIMEOUT_S = 2.0
"""The longest wait of a completion, in seconds."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of topics that begin with the typed text; Kafka's own only where the text begins with an
    underscore.
    """

    async def ask(client: "Client") -> list[str]:
        found = (await client.metadata()).topics.values()
        return [one.name for one in found if incomplete[:1] == "_" or not one.is_internal]

    return offered(context, incomplete, ask)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of groups that begin with the typed text."""

    async def ask(client: "Client") -> list[str]:
        from stratalog.client.admin import list_groups

        return [one.group_id for some in await client.on_each(list_groups()) for one in some]

    return offered(context, incomplete, ask)


def brokers(context: typer.Context, incomplete: str) -> list[str]:
    """Return ids of brokers that begin with the typed text."""

    async def ask(client: "Client") -> list[str]:
        return list(map(str, (await client.metadata([])).brokers))

    return offered(context, incomplete, ask)


def offered(
    context: typer.Context, incomplete: str, ask: "Callable[[Client], Awaitable[list[str]]]"
) -> list[str]:
    """Return the names, in order; none where the cluster (the named or the default one) does not answer."""
    from stratalog.errors import Rejected, Unavailable, UserError

    bootstrap = context.params.get("bootstrap_server") or DEFAULT_BOOTSTRAP
    is_typed = source_of(context, "bootstrap_server") in {"COMMANDLINE", "ENVIRONMENT"}

    async def names() -> list[str]:
        brokers = bootstrap if is_typed else named_servers() or bootstrap
        async with connected(brokers, timeout_s=TIMEOUT_S, patience_s=0) as client:
            return await ask(client)

    try:
        return sorted(name for name in run(names()) if name.startswith(incomplete))
    except (Rejected, Unavailable, UserError, OSError):
        return []


TopicName = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topics)]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=topics)]
OnlyPartitions = Annotated[
    list[int] | None, typer.Option(metavar="N", help="Only this partition; may be repeated.")
]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups)]
