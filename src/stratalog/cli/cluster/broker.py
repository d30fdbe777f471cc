"""`strata broker`: the brokers of a running cluster.

In: node ids. Out: rows; a broker without replicas. It uses brokers only, and starts or stops no process.
"""

from typing import Annotated

import typer

from stratalog.cli.cluster.moving import DryRun, MoveWords, NoWait, Throttle
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    run,
    show,
)

broker_app = typer.Typer(help="List brokers, and empty one.", no_args_is_help=True)


@broker_app.command("list")
def list_brokers(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List brokers with the partitions that they lead, their replicas and bytes.

    Example: strata broker list
    """
    run(print_brokers(bootstrap_server, json))


async def print_brokers(bootstrap: str, as_json: bool) -> None:
    """Print one row for each broker, by id; without bytes where a broker does not answer."""
    from stratalog.cli.cluster.moving import brokers_of, bytes_on, partitions_of
    from stratalog.ops.placing import replica_counts

    async with connected(bootstrap) as client:
        registered = await brokers_of(client)
        partitions = partitions_of(await client.metadata()).values()
        held = {
            node: None if one.is_fenced else await bytes_on(client, node)
            for node, one in registered.items()
        }
    leaders = replica_counts([one.leader] for one in partitions)
    replicas = replica_counts(one.replicas for one in partitions)
    rows = []
    for node, one in sorted(registered.items()):
        sizes = held[node]
        rows.append(
            {
                "id": node,
                "host": one.host,
                "port": one.port,
                "rack": one.rack,
                "state": "fenced" if one.is_fenced else "silent" if sizes is None else "serving",
                "leaders": leaders[node],
                "replicas": replicas[node],
                "bytes": None if sizes is None else sum(sizes.values()),
            }
        )
    show(rows, as_json=as_json)


@broker_app.command()
def drain(
    node: Annotated[int, typer.Argument(metavar="ID", help="The broker's node.id.")],
    dry_run: DryRun = False,
    throttle: Throttle = "",
    no_wait: NoWait = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move every replica of a broker to the others, before it is stopped for good.

    New topics may be placed on it again: stop it once it is empty.

    Example: strata broker drain 2 --dry-run --throttle 50MB/s
    """
    run(drain_broker(bootstrap_server, node, MoveWords(dry_run, throttle, no_wait, json)))


async def drain_broker(bootstrap: str, node: int, words: MoveWords) -> None:
    """Move a broker's replicas. Raises UserError for an unknown broker, or for too few others; Rejected."""
    from stratalog.cli.cluster.moving import brokers_of, carry_out, partitions_of
    from stratalog.errors import UserError
    from stratalog.ops.placing import replica_counts, spread

    async with connected(bootstrap) as client:
        registered = await brokers_of(client)
        if node not in registered:
            existing = ", ".join(map(str, sorted(registered)))
            raise UserError(f"broker {node} is not registered; the cluster has {existing}")
        others = {
            other: one.rack
            for other, one in registered.items()
            if other != node and not one.is_fenced
        }
        cluster = await client.metadata()
        partitions = {key: one.replicas for key, one in partitions_of(cluster).items()}
        held = {key: replicas for key, replicas in partitions.items() if node in replicas}
        counts = replica_counts(partitions.values())
        await carry_out(client, cluster, spread(held, others, counts=counts), words)
