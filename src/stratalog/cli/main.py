"""`strata`: the command and the one place where its failures become a line.

In: a command line. Out: an exit code: 0, 1 where something looked at is not sound, 2 where a person must act. It
never does the work of a command, and never prints a traceback for anything but a bug.

Only typer is imported here: what a command needs is imported when it runs, so that `strata --help` is quick.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from stratalog.cli import (
    bench,
    config,
    consume,
    demo,
    group,
    log,
    perf,
    pipeline,
    plan,
    produce,
    server,
    storage,
    tier,
    topic,
)

app = typer.Typer(
    name="strata",
    help="Kafka's contract without a JVM fleet: a log in Python, history in object storage.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("server")(server.server)
app.add_typer(storage.storage_app, name="storage")
app.add_typer(topic.topic_app, name="topic")
app.add_typer(config.config_app, name="config")
app.add_typer(group.group_app, name="group")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(perf.perf_app, name="perf")
app.add_typer(bench.bench_app, name="bench")
app.add_typer(tier.tier_app, name="tier")
app.command("plan")(plan.plan)
app.add_typer(pipeline.pipeline_app, name="pipeline")
app.add_typer(log.log_app, name="log")
app.command("demo")(demo.demo)


def print_version(wanted: bool) -> None:
    """For `--version`: print it and stop."""
    if wanted:
        typer.echo(f"strata {version('stratalog')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """What holds for every command."""


def main() -> None:
    """Run the command line; exits."""
    try:
        app()
    except BrokenPipeError:
        # Whoever read the output has enough. Python would complain once more when it flushes at the end.
        sys.stderr.close()
        sys.exit(0)
    except failures() as error:
        explained = explanation(error)
        if explained is None:
            raise
        line, code = explained
        print(f"strata: {line}", file=sys.stderr)
        sys.exit(code)


def failures() -> tuple[type[BaseException], ...]:
    """What a person can act on, alone or in a task group; imported when something has failed."""
    from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable, UserError

    return Corrupt, Fenced, Rejected, Unavailable, UserError, OSError, BaseExceptionGroup


def explanation(error: BaseException) -> tuple[str, int] | None:
    """A failure as (one line, exit code); None for a bug, which deserves its traceback."""
    from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable, UserError

    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    match error:
        case Rejected(code=code, message=message):
            name = code.name.upper()
            text = message.replace(code.name, name)
            text = text if name in text else f"{text} ({name})" if text else name
        case UserError() | Unavailable() | Fenced() | Corrupt():
            text = str(error)
        case OSError():
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        case _:
            return None
    return " ".join(text.split()), 1 if isinstance(error, Corrupt) else 2


if __name__ == "__main__":
    main()
