"""Shared code of the bucket commands: open a store by URL, show progress, print lines about objects.

In: a bucket's URL, problems. Out: a store, progress on standard error, lines on standard output. It decides nothing.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.terminal import show_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.ports import ObjectStore
    from stratalog.tier.checking.verify import Problem

Url = Annotated[str, typer.Argument(metavar="URL", help="As in tier.url: file:///…, s3://….")]


def opened(url: str) -> "ObjectStore":
    """Return the store at a URL. Raises UserError for an unknown URL, or for a store in memory, which only its own
    process sees.
    """
    from stratalog.adapters.object_store import open_store
    from stratalog.errors import UserError

    if url.startswith("memory://"):
        raise UserError(f"{url}: a bucket in memory is seen by its own process only")
    return open_store(url)


def report(problems: "list[Problem]", *, as_json: bool) -> None:
    """Print one line per object, its whole path first and never wrapped."""
    if as_json:
        show_json([{"path": p.path, "what": p.what, "orphan": p.orphan} for p in problems])
        return
    for problem in problems:
        typer.echo(f"{problem.path}: {problem.what}")


class progress_of:  # noqa: N801 - used as `with progress_of(...)`
    """Show a progress bar on standard error while the block runs, if that is a terminal."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.table import Column

        console = Console(stderr=True)
        # A URL may be longer than the terminal is wide: the URL is cut, and not the bar.
        what_column = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=what_column),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            console=console,
            transient=True,
            expand=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task(what.partition("?")[0], total=None)

    def __enter__(self) -> "Callable[[int, int], None]":
        self._progress.start()
        return lambda done, total: self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
