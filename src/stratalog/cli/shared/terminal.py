"""Shared code of the commands: common options, results as a table or as JSON, a connection to a cluster.

In: rows and options. Out: lines on standard output; notes on standard error. It never decides what a command does.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stratalog.cli.shared.client_config import chosen_servers, client_properties
from stratalog.cli.shared.known_words import broker_settings

if TYPE_CHECKING:
    from stratalog.client.admin import Altered
    from stratalog.client.aio import Client
    from stratalog.client.calls import ResourceConfigs, TopicResult
    from stratalog.errors import Unavailable

T = TypeVar("T")
Outcome = TypeVar("Outcome", "Altered", "ResourceConfigs", "TopicResult")

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        help="A broker, or several with commas.",
        envvar="STRATA_BOOTSTRAP_SERVER",
        show_envvar=False,  # once in docs/cli.md, and not in each command
        callback=chosen_servers,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
PropertiesFile = Annotated[
    Path | None,
    typer.Argument(metavar="SERVER.PROPERTIES", help="Settings by Kafka's names."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="NAME=VALUE",
        help="A setting that beats file and environment.",
        autocompletion=broker_settings,
    ),
]
DEFAULT_BOOTSTRAP = "localhost:9092"
_PADDED_MAX = 60
"""Cells are padded to at most so many characters: one long name makes only its own row long."""


def note(text: str) -> None:
    """Print one line on standard error, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def show(rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str = "nothing") -> None:
    """Print rows with equal keys as one JSON array, or as a table with the keys as its head."""
    if as_json:
        show_json(list(rows))
        return
    if not rows:
        note(empty)
        return
    table = [list(rows[0]), *([cell(value) for value in row.values()] for row in rows)]
    numeric = [all(isinstance(row[name], int | float) for row in rows) for name in rows[0]]
    widths = [min(_PADDED_MAX, max(map(len, column))) for column in zip(*table, strict=True)]
    # Lines are never wrapped: a person cannot copy a wrapped name or path.
    head, *lines = (
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    )
    is_plain = bool(os.environ.get("NO_COLOR"))  # https://no-color.org
    typer.echo("\n".join([head if is_plain else typer.style(head, bold=True), *lines]))


def show_json(value: Any) -> None:
    """Print one JSON value on one line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def cell(value: Any) -> str:
    """Return a table cell: blank for None, yes and no for flags, no character that moves a terminal's cursor."""
    match value:
        case None:
            text = ""
        case bool():
            text = "yes" if value else "no"
        case list() | tuple():
            text = " ".join(map(str, value))
        case dict():
            text = " ".join(f"{name}={item}" for name, item in value.items())
        case _:
            text = str(value)
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


@asynccontextmanager
async def connected(
    bootstrap: str, *, timeout_s: float = 30.0, patience_s: float = 20.0
) -> "AsyncIterator[Client]":
    """Connect a client to the cluster, and close it at the end. Raises Unavailable, or UserError for a malformed
    address.

    A refused connection is tried again for `patience_s`, as Kafka's clients do: a server may be about to start.
    """
    from stratalog.adapters.network import TcpNetwork
    from stratalog.client.aio import Client
    from stratalog.client.security import security_of
    from stratalog.errors import Unavailable, UserError

    security = security_of(client_properties())
    connect = partial(
        Client.connect, TcpNetwork(), bootstrap, timeout_s=timeout_s, security=security
    )
    try:
        try:
            client = await connect()
        except Unavailable as error:
            if not patience_s or not is_refused(error):
                raise
            note(f"{error}; trying again for {patience_s:g} s")
            client = await answered(connect, patience_s)
    except ValueError as error:
        raise UserError(f"--bootstrap-server: {error}") from None
    async with client:
        yield client


async def answered(connect: Callable[[], Awaitable["Client"]], patience_s: float) -> "Client":
    """Connect as soon as the server listens. Raises the last Unavailable after `patience_s`."""
    from asyncio import get_running_loop, sleep

    from stratalog.errors import Unavailable

    clock = get_running_loop().time
    deadline = clock() + patience_s
    while True:
        await sleep(0.1)
        try:
            return await connect()
        except Unavailable as error:
            if clock() > deadline or not is_refused(error):
                raise


def is_refused(error: "Unavailable") -> bool:
    """Return whether nothing listened at an address (asyncio's own loop has no number for several refusals at once)."""
    from errno import ECONNREFUSED

    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in {ECONNREFUSED, None}


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    import asyncio

    from stratalog.adapters.network import event_loop
    from stratalog.cli.shared.denials import explained

    with explained(), asyncio.Runner(loop_factory=event_loop()) as runner:
        return runner.run(work)


def accepted(result: Outcome, kind: str = "") -> None:
    """Raise Rejected with the broker's message where `result` is an error; `kind` comes before the resource's name."""
    from stratalog.errors import ErrorCode, Rejected

    if result.error != ErrorCode.none:
        message = result.message or result.error.name
        # A message that names the resource already needs no prefix.
        about = "" if result.name in message else f"{kind}{result.name}: "
        raise Rejected(result.error, about + message)
