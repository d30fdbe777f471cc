"""`strata broker`: the brokers of a running cluster.

In: node ids. Out: rows; a broker without replicas that gets no new ones. It uses brokers only, and starts or stops no
process.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.cluster.moving import DryRun, Limits, MoveWords, NoWait, Throttle
from stratalog.cli.shared.completing import brokers
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    note,
    run,
    show,
)

if TYPE_CHECKING:
    from stratalog.client.admin import LogDirectory
    from stratalog.client.aio import Client
    from stratalog.client.cluster_admin import RegisteredBroker

BrokerId = Annotated[
    int, typer.Argument(metavar="ID", help="The broker's node.id.", autocompletion=brokers)
]
broker_app = typer.Typer(help="List brokers, empty one, and fill it again.", no_args_is_help=True)


@broker_app.command("list")
def list_brokers(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List brokers with the partitions that they lead, their replicas and bytes.

    Example: strata broker list
    """
    run(print_brokers(bootstrap_server, json))


async def print_brokers(bootstrap: str, as_json: bool) -> None:
    """Print one row for each broker, by id; without bytes where a broker does not answer."""
    from stratalog.cli.cluster.moving import (
        brokers_of,
        bytes_in,
        directories_on,
        partitions_of,
    )
    from stratalog.ops.placing import replica_counts

    async with connected(bootstrap) as client:
        registered = await brokers_of(client)
        partitions = partitions_of(await client.metadata()).values()
        held = {
            node: None if one.is_fenced else await directories_on(client, node)
            for node, one in registered.items()
        }
    leaders = replica_counts([one.leader] for one in partitions)
    replicas = replica_counts(one.replicas for one in partitions)
    rows = []
    for node, one in sorted(registered.items()):
        directories = held[node]
        rows.append(
            {
                "id": node,
                "host": one.host,
                "port": one.port,
                "rack": one.rack,
                "state": "fenced" if one.is_fenced else state_of(directories),
                "leaders": leaders[node],
                "replicas": replicas[node],
                "bytes": None if directories is None else sum(bytes_in(directories).values()),
            }
        )
    show(rows, as_json=as_json)


def state_of(directories: "Sequence[LogDirectory] | None") -> str:
    """Return a word for the state of a broker that is not fenced."""
    from stratalog.cli.cluster.moving import is_cordoned

    if directories is None:
        return "silent"
    return "cordoned" if is_cordoned(directories) else "serving"


@broker_app.command()
def drain(
    node: BrokerId,
    dry_run: DryRun = False,
    throttle: Throttle = "",
    no_wait: NoWait = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move every replica of a broker to the others, before it is stopped for good.

    The broker is cordoned first (KIP-1066): it gets no new replica until `strata broker undrain`.

    Example: strata broker drain 2 --dry-run --throttle 50MB/s
    """
    run(drain_broker(bootstrap_server, node, MoveWords(dry_run, throttle, no_wait, json)))


async def drain_broker(bootstrap: str, node: int, words: MoveWords) -> None:
    """Cordon a broker and move its replicas.

    Raises UserError for an unknown broker, or for too few others; Rejected.
    """
    from stratalog.cli.cluster.moving import carry_out, cordoned, partitions_of, set_all
    from stratalog.ops.placing import replica_counts, spread

    async with connected(bootstrap) as client:
        registered = await brokers_with(client, node)
        others = {
            other: one.rack
            for other, one in registered.items()
            if other != node and not one.is_fenced
        }
        closed = await cordoned(client, others)
        cluster = await client.metadata()
        partitions = {key: one.replicas for key, one in partitions_of(cluster).items()}
        held = {key: replicas for key, replicas in partitions.items() if node in replicas}
        counts = replica_counts(partitions.values())
        changed = spread(held, others, counts=counts, closed=closed)
        if not words.dry_run:
            await set_all(client, cordon_of(node, "*"))
        await carry_out(client, cluster, changed, words)


@broker_app.command()
def undrain(
    node: BrokerId,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Let a drained broker get new replicas again. What was moved stays where it is.

    Example: strata broker undrain 2
    """
    run(undrain_broker(bootstrap_server, node))


async def undrain_broker(bootstrap: str, node: int) -> None:
    """Reset the broker's `cordoned.log.dirs`. Raises UserError for an unknown broker, Rejected."""
    from stratalog.cli.cluster.moving import set_all

    async with connected(bootstrap) as client:
        await brokers_with(client, node)
        await set_all(client, cordon_of(node, None))
    note(f"broker {node} gets new replicas again")


async def brokers_with(client: "Client", node: int) -> "dict[int, RegisteredBroker]":
    """Return the registered brokers. Raises UserError where `node` is none of them."""
    from stratalog.cli.cluster.moving import brokers_of
    from stratalog.errors import UserError

    registered = await brokers_of(client)
    if node not in registered:
        existing = ", ".join(map(str, sorted(registered)))
        raise UserError(f"broker {node} is not registered; the cluster has {existing}")
    return registered


def cordon_of(node: int, directories: str | None) -> Limits:
    """Return the change of a broker's cordoned directories; None is the value of its properties file."""
    from stratalog.client.calls import BROKER

    return {(BROKER, str(node)): {"cordoned.log.dirs": directories}}
