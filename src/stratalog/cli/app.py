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
app.command("check")(check.check)
app.command("produce")(produce.produce)
app.command("consume", cls=Several)(consume.consume)
app.command("tail", cls=Several)(tail.tail)
app.command("get")(get.get)
app.command("restore")(restore.restore)
app.command("plan")(plan.plan)
app.command("console")(console.console)
app.command("demo")(demo.demo)

cluster.cluster_app.command("info")(info.info)
topic.topic_app.command("trim")(trim.trim)
for name, group_app in {
    "storage": storage.storage_app,
    "cluster": cluster.cluster_app,
    "topic": topic.topic_app,
    "partition": partition.partition_app,
    "broker": broker.broker_app,
    "quorum": quorum.quorum_app,
    "config": config.config_app,
    "group": group.group_app,
    "txn": txn.txn_app,
    "acl": acl.acl_app,
    "quota": quota.quota_app,
    "user": user.user_app,
    "token": token.token_app,
    "profile": profile.profile_app,
    "perf": perf.perf_app,
    "bench": bench.bench_app,
    "tier": tier.tier_app,
    "migrate": migrate.migrate_app,
    "pipeline": pipeline.pipeline_app,
    "log": log.log_app,
    "metrics": metrics.metrics_app,
}.items():
    app.add_typer(group_app, name=name, cls=Whole)


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
