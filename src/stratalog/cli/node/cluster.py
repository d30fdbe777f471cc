"""`strata cluster`: several nodes on this machine, as one cluster, in the background.

In: a directory and a number of nodes. Out: running nodes, a table of them, signals to them. It signals only processes
that it started, and never deletes data.
"""

import json as json_text
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.shared.known_words import broker_settings, words
from stratalog.cli.shared.terminal import Json, note, run, show

if TYPE_CHECKING:
    from stratalog.cli.node.cluster_directory import ClusterDirectory

cluster_app = typer.Typer(
    help="Look at a cluster; start, stop, kill and restart the nodes of one on this machine.",
    no_args_is_help=True,
)

NODES = 3
NODES_MAX = 9
Directory = Annotated[
    Path,
    typer.Option("--directory", metavar="DIR", help="The cluster's directory."),
]
DEFAULT_DIRECTORY = Path("strata-cluster")
NodeId = Annotated[int, typer.Argument(metavar="ID", help="The node's node.id.")]


@cluster_app.command()
def start(
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=NODES_MAX,
            show_default=False,
            help=f"Nodes of a new cluster; by default {NODES}.",
        ),
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write {bootstrap_servers, nodes: [{id, pid, port}]} as JSON there once all nodes serve.",
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Apply a preset of recommended settings (production).",
            autocompletion=words("production"),
        ),
    ] = "",
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            metavar="NAME=VALUE",
            help="A setting of every node.",
            autocompletion=broker_settings,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Start a cluster on free ports of 127.0.0.1, and return once all nodes serve.

    The directory keeps everything: a folder for each node, with its server.properties, data and log. A second start
    starts the same nodes on the same ports, with all their data.

    Example: strata cluster start --nodes 3
    """
    rows = run(start_cluster(directory.absolute(), nodes, ready_file, profile, override or []))
    show(rows, as_json=json)
    note(f"bootstrap servers: {bootstrap_of(rows)}")


async def start_cluster(
    directory: Path, nodes: int | None, ready_file: Path | None, profile: str, overrides: list[str]
) -> list[dict[str, Any]]:
    """Start the cluster, after creating a missing one; print a row for each node. Raises UserError, Unavailable."""
    from stratalog.cli.node.cluster_directory import ClusterDirectory
    from stratalog.errors import UserError

    settings = settings_of(overrides)
    if ready_file is not None:
        check_place(ready_file)
    with ClusterDirectory.locked(directory) as cluster:
        existing = len(cluster.processes)
        if running := [node for node in cluster.processes if cluster.is_running(node)]:
            numbers = ", ".join(map(str, running))
            raise UserError(
                f"{directory}: nodes run already ({numbers}); strata cluster restart starts another one, "
                "strata cluster stop ends all"
            )
        if existing and nodes not in {None, existing}:
            raise UserError(
                f"--nodes: {nodes} is not accepted; accepted: {existing}, which {directory} has"
            )
        cluster.profile = profile or cluster.profile
        if existing:
            cluster.change(settings)
        else:
            cluster.create(nodes or NODES, settings)
        await cluster.start(list(cluster.processes))
        rows = rows_of(cluster)
    if ready_file is not None:
        write_ready_file(ready_file, rows)
    return rows


def settings_of(overrides: list[str]) -> dict[str, str]:
    """Return the overrides as pairs. Raises UserError for an unknown name, and for one that differs between the
    nodes.
    """
    from stratalog.config.broker import BrokerConfig, parse_overrides
    from stratalog.config.local_cluster import NodePorts, node_settings
    from stratalog.errors import UserError

    settings = parse_overrides(overrides)
    own = node_settings(1, {1: NodePorts(0, 0)}, "")
    for name in settings:
        if name in own:
            raise UserError(f"--override {name}: strata cluster start sets it for each node")
    BrokerConfig.load(settings, strict=True)
    return settings


def rows_of(cluster: "ClusterDirectory") -> list[dict[str, Any]]:
    """Return a row for each node; a node that serves has pid and port."""
    rows = []
    for node, process in cluster.processes.items():
        is_running, ready = cluster.is_running(node), cluster.ready(node)
        rows.append(
            {
                "id": node,
                "state": "serving" if ready else "starting" if is_running else "stopped",
                "pid": process.pid if process is not None and is_running else None,
                "port": ready["port"] if ready else None,
                "log": str(cluster.log(node)),
            }
        )
    return rows


def bootstrap_of(rows: list[dict[str, Any]]) -> str:
    """Return the addresses of the nodes that serve, separated by commas."""
    return ",".join(f"127.0.0.1:{row['port']}" for row in rows if row["port"])


def check_place(ready_file: Path) -> None:
    """Remove the ready file of an earlier start. Raises UserError where the command cannot write one."""
    from stratalog.errors import UserError

    try:
        ready_file.unlink(missing_ok=True)
        probe = ready_file.with_name(f"{ready_file.name}.{os.getpid()}.tmp")
        probe.touch(exist_ok=False)  # a link there is not followed
        probe.unlink()
    except OSError as error:
        raise UserError(f"--ready-file {ready_file}: {error.strerror or error}") from None


def write_ready_file(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the addresses and the nodes for programs that wait for them. Raises UserError."""
    from stratalog.adapters import system

    nodes = [{name: row[name] for name in ("id", "pid", "port")} for row in rows]
    text = json_text.dumps({"bootstrap_servers": bootstrap_of(rows), "nodes": nodes})
    system.write_ready_file(str(path), text)


@cluster_app.command()
def stop(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Stop all nodes, as SIGTERM does: logs are closed cleanly. The active controller goes last.

    Example: strata cluster stop
    """
    from stratalog.cli.node.cluster_directory import ClusterDirectory

    with ClusterDirectory.existing(directory.absolute()) as cluster:
        stopped = run(cluster.stop())
    note(f"stopped {stopped} node(s)")


@cluster_app.command()
def status(directory: Directory = DEFAULT_DIRECTORY, json: Json = False) -> None:
    """Show the nodes, their processes and ports.

    Example: strata cluster status --json
    """
    from stratalog.cli.node.cluster_directory import ClusterDirectory

    with ClusterDirectory.existing(directory.absolute()) as cluster:
        show(rows_of(cluster), as_json=json)


@cluster_app.command()
def bootstrap(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Print the addresses of the nodes that serve, for -b of other commands.

    Example: strata cluster bootstrap
    """
    from stratalog.cli.node.cluster_directory import ClusterDirectory
    from stratalog.errors import UserError

    with ClusterDirectory.existing(directory.absolute()) as cluster:
        addresses = bootstrap_of(rows_of(cluster))
    if not addresses:
        raise UserError(f"{directory}: no node serves; strata cluster start starts them")
    typer.echo(addresses)


@cluster_app.command()
def kill(node: NodeId, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """End one node at once, as kill -9 does.

    Example: strata cluster kill 2
    """
    from signal import SIGKILL

    from stratalog.cli.node.cluster_directory import ClusterDirectory
    from stratalog.errors import UserError

    with ClusterDirectory.existing(directory.absolute()) as cluster:
        if not cluster.is_running(node):
            raise UserError(f"node {node} does not run; strata cluster restart {node} starts it")
        run(cluster.end([node], SIGKILL))
    note(f"killed node {node}")


@cluster_app.command()
def restart(node: NodeId, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Stop one node unless it has stopped already, and start it again with all its data.

    Example: strata cluster restart 2
    """
    from stratalog.cli.node.cluster_directory import ClusterDirectory

    with ClusterDirectory.existing(directory.absolute()) as cluster:
        run(restart_node(cluster, node))
        (row,) = (row for row in rows_of(cluster) if row["id"] == node)
    note(f"node {node} serves on port {row['port']}")


async def restart_node(cluster: "ClusterDirectory", node: int) -> None:
    """Stop and start one node. Raises UserError for an unknown node, Unavailable where it does not stop or start."""
    from signal import SIGTERM

    if cluster.is_running(node):
        await cluster.end([node], SIGTERM)
    await cluster.start([node])
