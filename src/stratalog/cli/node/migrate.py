"""`strata migrate`: look at directories of Apache Kafka before our server starts on them.

In: a log directory. Out: lines. It changes nothing.
"""

from typing import Annotated

import typer

from stratalog.cli.shared.terminal import Json, show

migrate_app = typer.Typer(help="Move from Apache Kafka.", no_args_is_help=True)


@migrate_app.callback()
def group() -> None:
    """Keep `inspect` a command of the group."""


@migrate_app.command("inspect")
def inspect_directory(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="One of Kafka's log.dirs.")],
    json: Json = False,
) -> None:
    """Show what a log directory of Apache Kafka holds, what will differ, and what is refused. Changes nothing.

    Exit 1 if something is refused: `strata server` would not start there.

    Example: strata migrate inspect /var/lib/kafka
    """
    from stratalog.adapters.local_disk import LocalDisk
    from stratalog.cli.node.storage import check_exists
    from stratalog.ops.migration import inspect

    check_exists(directory)
    disk = LocalDisk(directory)
    try:
        found = list(inspect(disk))
    finally:
        disk.close()
    show([{"what": one.kind, "finding": one.text} for one in found], as_json=json)
    if any(one.kind == "refused" for one in found):
        raise typer.Exit(1)
