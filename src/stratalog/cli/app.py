"""The commands of `strata`, by name.

In: nothing. Out: the application that reads a command line. It never does the work of a command.

This module imports only typer. A command imports its own modules when it runs, so that `strata --help` is fast.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from stratalog.cli import pipeline
from stratalog.cli.cluster import (
    acl,
    broker,
    check,
    config,
    group,
    info,
    log,
    partition,
    profile,
    quorum,
    quota,
    token,
    topic,
    trim,
    txn,
    user,
)
from stratalog.cli.node import cluster, console, demo, metrics, migrate, restore, server, storage
from stratalog.cli.records import consume, get, produce, tail
from stratalog.cli.shared.client_config import forget, use_client_config
from stratalog.cli.shared.known_words import profiles
from stratalog.cli.speed import bench, perf, plan
from stratalog.cli.tier import commands as tier

_SENTENCE_MAX = 1000
"""Characters; no first sentence of a command is so long."""


def kafkas_name(word: str) -> str:
    """Return an option's name as help and docs show it: `--bootstrap` is accepted as Kafka's `--bootstrap-server`."""
    return "bootstrap-server" if word == "bootstrap" else word


class Several(TyperCommand):
    """A command whose argument repeats: its help says so without Python's name of a list."""

    def get_help(self, ctx: Any) -> str:
        return super().get_help(ctx).replace("<list[str]>", "<str>...")


class Whole(TyperGroup):
    """A group whose help shows the first sentence of each command whole: typer cuts it to one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, one.get_short_help_str(_SENTENCE_MAX))
            for name, one in found
            if one is not None and not one.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = typer.Typer(
    cls=Whole,
    name="strata",
    help="Kafka's contract without a JVM fleet: a log in Python, history in object storage.",
    epilog="Begin with: strata demo. Each command's --help ends with an example.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": kafkas_name},
)
app.command("server")(server.server)
app.add_typer(storage.storage_app, name="storage", cls=Whole)
cluster.cluster_app.command("info")(info.info)
app.add_typer(cluster.cluster_app, name="cluster", cls=Whole)
app.command("check")(check.check)
topic.topic_app.command("trim")(trim.trim)
app.add_typer(topic.topic_app, name="topic", cls=Whole)
app.add_typer(partition.partition_app, name="partition", cls=Whole)
app.add_typer(broker.broker_app, name="broker", cls=Whole)
app.add_typer(quorum.quorum_app, name="quorum", cls=Whole)
app.add_typer(config.config_app, name="config", cls=Whole)
app.add_typer(group.group_app, name="group", cls=Whole)
app.add_typer(txn.txn_app, name="txn", cls=Whole)
app.add_typer(acl.acl_app, name="acl", cls=Whole)
app.add_typer(quota.quota_app, name="quota", cls=Whole)
app.add_typer(user.user_app, name="user", cls=Whole)
app.add_typer(token.token_app, name="token", cls=Whole)
app.add_typer(profile.profile_app, name="profile", cls=Whole)
app.command("produce")(produce.produce)
app.command("consume", cls=Several)(consume.consume)
app.command("tail", cls=Several)(tail.tail)
app.command("get")(get.get)
app.add_typer(perf.perf_app, name="perf", cls=Whole)
app.add_typer(bench.bench_app, name="bench", cls=Whole)
app.add_typer(tier.tier_app, name="tier", cls=Whole)
app.command("restore")(restore.restore)
app.add_typer(migrate.migrate_app, name="migrate", cls=Whole)
app.command("plan")(plan.plan)
app.add_typer(pipeline.pipeline_app, name="pipeline", cls=Whole)
app.add_typer(log.log_app, name="log", cls=Whole)
app.command("console")(console.console)
app.add_typer(metrics.metrics_app, name="metrics", cls=Whole)
app.command("demo")(demo.demo)


def print_version(wanted: bool) -> None:
    """Print the version for `--version`, and stop."""
    if wanted:
        from importlib.metadata import version

        from stratalog.cli.shared.terminal import note
        from stratalog.wire.interpreted import INTERPRETED

        typer.echo(f"strata {version('stratalog')}")
        if INTERPRETED:
            note(f"warning: {INTERPRETED}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CLIENT.PROPERTIES",
            envvar="STRATA_CLIENT_CONFIG",
            help="Settings of Kafka's clients: security.protocol, ssl.*, bootstrap.servers.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="STRATA_PROFILE",
            help="Settings of strata profile create; '' is no profile.",
            autocompletion=profiles,
        ),
    ] = None,
) -> None:
    """Read the options of every command. They end with it: a later command in this process has its own."""
    context.call_on_close(forget)
    use_client_config(context, config, profile)
