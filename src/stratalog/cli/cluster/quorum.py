"""`strata quorum`: the nodes that keep the metadata log.

In: nothing but the cluster. Out: the leader, and the lag of each node. It never changes the voters.
"""

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
            "log end": one.log_end_offset,
            "lag": end - one.log_end_offset,
            "lag ms": None if one.last_caught_up_ms < 0 else newest_ms - one.last_caught_up_ms,
        }
        for one in found.replicas
    ]
    head = {
        "leader": found.leader_id,
        "epoch": found.leader_epoch,
        "high watermark": found.high_watermark,
    }
    if as_json:
        show_json({**head, "nodes": rows})
        return
    typer.echo("  ".join(f"{name} {value}" for name, value in head.items()))
    show(rows, as_json=False)
