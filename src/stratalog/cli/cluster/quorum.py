"""`strata quorum`: the nodes that keep the metadata log.

In: the cluster. Out: the leader, the lag of each node, another set of voters. It never starts or stops a node.
"""

from typing import Annotated

import typer

from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    run,
    show,
    show_json,
)

_TIMEOUT_MS = 30_000
quorum_app = typer.Typer(help="The quorum of controllers.", no_args_is_help=True)


@quorum_app.callback()
def quorum() -> None:
    """The quorum of controllers."""


@quorum_app.command()
def describe(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the leader of the metadata log, its epoch, and each node's lag in offsets and milliseconds.

    Example: strata quorum describe
    """
    run(print_quorum(bootstrap_server, json))


@quorum_app.command()
def add(
    node: Annotated[
        int, typer.Argument(metavar="ID", help="The node.id of a controller that runs and follows.")
    ],
    listener: Annotated[
        str,
        typer.Argument(metavar="LISTENER", help="Its controller listener: NAME://host:port."),
    ],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Make a controller a voter, once it has caught up with the metadata log.

    Example: strata quorum add 4 CONTROLLER://four:9093
    """
    run(add_controller(node, listener, bootstrap_server))


async def add_controller(node_id: int, listener: str, bootstrap: str) -> None:
    """Add the observer of that id. Raises UserError for an unknown one, Rejected."""
    from stratalog.client.cluster_admin import add_voter, describe_quorum
    from stratalog.config.kinds import BadValue
    from stratalog.config.listeners import parse_listener
    from stratalog.errors import UserError

    try:
        found = parse_listener(listener)
    except BadValue:
        raise UserError(
            f"LISTENER: {listener!r} is not accepted; accepted: CONTROLLER://host:9093"
        ) from None
    async with connected(bootstrap) as client:
        replicas = (await client.on_any(describe_quorum())).replicas
        copies = [one for one in replicas if one.node_id == node_id]
        if not copies:
            ids = ", ".join(str(one.node_id) for one in replicas if not one.is_voter) or "none"
            raise UserError(
                f"node {node_id} does not fetch the metadata log; nodes that may be added: {ids}"
            )
        newest = max(copies, key=lambda one: one.last_fetch_ms)
        if newest.is_voter:
            raise UserError(
                f"node {node_id} is a voter already; strata quorum describe shows all nodes"
            )
        at = (found.name, found.host, found.port)
        await client.on_any(add_voter(node_id, newest.directory_id, at, _TIMEOUT_MS))
    typer.echo(f"node {node_id} votes")


@quorum_app.command()
def remove(
    node: Annotated[int, typer.Argument(metavar="ID", help="The node.id of a voter.")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Take a controller out of the voters, whether it runs or not.

    Example: strata quorum remove 3
    """
    run(remove_controller(node, bootstrap_server))


async def remove_controller(node_id: int, bootstrap: str) -> None:
    """Remove the voter of that id, in whatever directory it votes. Raises UserError for an unknown one, Rejected."""
    from stratalog.client.cluster_admin import describe_quorum, remove_voter
    from stratalog.errors import UserError

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_quorum())
        voter = found.voter(node_id)
        if voter is None:
            ids = ", ".join(str(one.node_id) for one in found.replicas if one.is_voter)
            raise UserError(f"node {node_id} is no voter; accepted: {ids}")
        if not voter.directory_id.int:
            raise UserError(
                "kraft.version is 0: controller.quorum.voters names the voters, which never change"
            )
        await client.on_any(remove_voter(node_id, voter.directory_id))
    typer.echo(f"node {node_id} votes no more")


async def print_quorum(bootstrap: str, as_json: bool) -> None:
    """Print the quorum as one JSON object, or as a line and a table."""
    from stratalog.client.cluster_admin import describe_quorum

    async with connected(bootstrap) as client:
        found = await client.on_any(describe_quorum())
    end = max((one.log_end_offset for one in found.replicas), default=0)
    newest_ms = max((one.last_caught_up_ms for one in found.replicas), default=-1)
    rows = [
        {
            "id": one.node_id,
            "role": "leader"
            if one.node_id == found.leader_id
            else "voter"
            if one.is_voter
            else "observer",
            "log_end": one.log_end_offset,
            "lag": end - one.log_end_offset,
            "lag_ms": None if one.last_caught_up_ms < 0 else newest_ms - one.last_caught_up_ms,
        }
        for one in found.replicas
    ]
    head = {
        "leader": found.leader_id,
        "epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
    }
    if as_json:
        show_json({**head, "nodes": rows})
        return
    typer.echo("  ".join(f"{name} {value}" for name, value in head.items()))
    show(rows, as_json=False)
