"""`strata partition`: list replicas of a running cluster, move them, elect leaders.

In: topics, brokers. Out: rows; moved replicas, elected leaders. It uses brokers only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.cluster.moving import DryRun, MoveWords, NoWait, Throttle
from stratalog.cli.shared.completing import topics
from stratalog.cli.shared.quantities import node_ids
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
    from stratalog.client.calls import ClusterInfo, PartitionInfo
    from stratalog.wire.ids import TopicPartition

partition_app = typer.Typer(
    help="Replicas of partitions: where they are, moves, elections.", no_args_is_help=True
)

OptionalTopic = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="By default every topic.", autocompletion=topics),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", help="One of the topic; may be repeated."),
]


@partition_app.command("list")
def list_partitions(
    topic: OptionalTopic = None,
    under_replicated: Annotated[
        bool,
        typer.Option("--under-replicated", help="Only those with a replica out of sync."),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only those without a leader.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List partitions with leader, replicas and in-sync replicas.

    Example: strata partition list --under-replicated
    """
    run(
        print_partitions(
            bootstrap_server,
            topic,
            under_replicated=under_replicated,
            unavailable=unavailable,
            as_json=json,
        )
    )


async def print_partitions(
    bootstrap: str, topic: str | None, *, under_replicated: bool, unavailable: bool, as_json: bool
) -> None:
    """Print one row for each partition. Raises UserError where there is no such topic."""
    async with connected(bootstrap) as client:
        found = chosen(await client.metadata(None if topic is None else [topic]), topic, None)
    rows = [
        {
            "topic": key.topic,
            "partition": key.partition,
            "leader": None if one.leader < 0 else one.leader,
            "epoch": one.leader_epoch,
            "replicas": list(one.replicas),
            "isr": list(one.isr),
            "state": state_of(one),
        }
        for key, one in sorted(found.items())
        if (not under_replicated or len(one.isr) < len(one.replicas))
        and (not unavailable or one.leader < 0)
    ]
    show(rows, as_json=as_json, empty="no such partitions")


def state_of(partition: "PartitionInfo") -> str:
    """Return Kafka's words for the partition's problem, or `in sync`."""
    if partition.leader < 0:
        return "offline"
    return "under-replicated" if len(partition.isr) < len(partition.replicas) else "in sync"


def chosen(
    cluster: "ClusterInfo", topic: str | None, partitions: Sequence[int] | None
) -> "dict[TopicPartition, PartitionInfo]":
    """Return the partitions that were named. Raises UserError where one does not exist."""
    from stratalog.cli.cluster.moving import partitions_of
    from stratalog.errors import ErrorCode, Rejected, UserError
    from stratalog.wire.ids import TopicPartition

    if topic is None:
        if partitions:
            raise UserError("--partition: name its topic too")
        return partitions_of(cluster)
    found = cluster.topics[topic]
    if found.error == ErrorCode.unknown_topic_or_partition:
        raise UserError(f"topic {topic} does not exist")
    if found.error != ErrorCode.none:
        raise Rejected(found.error, f"topic {topic}: {found.error.name}")
    for index in partitions or ():
        if index not in found.partitions:
            raise UserError(
                f"topic {topic} has no partition {index}; it has {len(found.partitions)}"
            )
    return {
        TopicPartition(topic, index): one
        for index, one in found.partitions.items()
        if not partitions or index in partitions
    }


@dataclass(frozen=True, slots=True)
class Places:
    """The places that a person asks for: exact replicas, or brokers and a factor to choose from."""

    replicas: tuple[int, ...]
    brokers: tuple[int, ...]
    factor: int | None


@partition_app.command()
def reassign(
    topic: OptionalTopic = None,
    partition: Partitions = None,
    replicas: Annotated[
        str,
        typer.Option(
            metavar="ID,…", help="Exactly these brokers; the first is the preferred leader."
        ),
    ] = "",
    brokers: Annotated[
        str, typer.Option(metavar="ID,…", help="Only these brokers may hold replicas.")
    ] = "",
    replication_factor: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The new number of replicas.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the moves under way.")] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait for all moves under way, then remove their limits."),
    ] = False,
    dry_run: DryRun = False,
    throttle: Throttle = "",
    no_wait: NoWait = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move replicas to other brokers, add some or drop some, and show the progress.

    Replicas that may stay where they are do not move. New ones go to other racks first, then to the brokers with the
    fewest replicas. Ctrl-C ends the progress bar, not the moves.

    --throttle sets Kafka's limits of replication for these moves, and removes them after the last one. A command that
    ends before leaves them set: --wait waits for the moves and removes them.

    Example: strata partition reassign orders --brokers 2,3,4 --dry-run --throttle 50MB/s
    """
    words = MoveWords(dry_run, throttle, no_wait, json)
    if wait:
        run(finish_moves(bootstrap_server))
    elif cancel:
        run(cancel_moves(bootstrap_server, topic, partition))
    else:
        places = Places(
            node_ids("--replicas", replicas), node_ids("--brokers", brokers), replication_factor
        )
        run(reassign_partitions(bootstrap_server, topic, partition, places, words))


async def reassign_partitions(
    bootstrap: str,
    topic: str | None,
    partitions: Sequence[int] | None,
    places: Places,
    words: MoveWords,
) -> None:
    """Choose the places, and carry the moves out. Raises UserError, Rejected."""
    from stratalog.cli.cluster.moving import brokers_of, carry_out, cordoned, partitions_of
    from stratalog.errors import UserError
    from stratalog.ops.placing import replica_counts, spread

    if not (places.replicas or places.brokers or places.factor):
        raise UserError("nothing to change: give --replicas, --brokers or --replication-factor")
    if places.replicas and (places.brokers or places.factor):
        raise UserError("--replicas says it all: leave --brokers and --replication-factor out")
    async with connected(bootstrap) as client:
        registered = await brokers_of(client)
        for node in (*places.replicas, *places.brokers):
            if node not in registered:
                existing = ", ".join(map(str, sorted(registered)))
                raise UserError(f"broker {node} is not registered; the cluster has {existing}")
        cluster = await client.metadata()
        if topic is not None and topic not in cluster.topics:
            raise UserError(f"topic {topic} does not exist, or the client may not describe it")
        found = {key: one.replicas for key, one in chosen(cluster, topic, partitions).items()}
        if places.replicas:
            changed = {key: places.replicas for key, one in found.items() if one != places.replicas}
        else:
            allowed = {
                node: one.rack
                for node, one in registered.items()
                if (node in places.brokers if places.brokers else not one.is_fenced)
            }
            counts = replica_counts(one.replicas for one in partitions_of(cluster).values())
            serving = [node for node in allowed if not registered[node].is_fenced]
            closed = await cordoned(client, serving)
            changed = spread(found, allowed, places.factor, counts, closed)
        await carry_out(client, cluster, changed, words)


async def finish_moves(bootstrap: str) -> None:
    """Wait for the moves under way, and remove the limits of replication."""
    from stratalog.cli.cluster.moving import finish

    async with connected(bootstrap) as client:
        await finish(client)


async def cancel_moves(bootstrap: str, topic: str | None, partitions: Sequence[int] | None) -> None:
    """Cancel the moves under way of the partitions that were named."""
    from stratalog.cli.cluster.moving import ask
    from stratalog.client.cluster_admin import list_reassignments

    async with connected(bootstrap) as client:
        moving = [
            one
            for one in await client.on_any(list_reassignments())
            if topic in {None, one.topic} and (not partitions or one.partition in partitions)
        ]
        if moving:
            await ask(client, dict.fromkeys(moving))
    note(f"cancelled {len(moving)} move(s)")


@partition_app.command()
def elect(
    topic: OptionalTopic = None,
    partition: Partitions = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Where no replica is in sync, take another: records it lacks are lost.",
        ),
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Elect the preferred leader of partitions: the first of their replicas. Exit 1 where one cannot be elected.

    Example: strata partition elect orders
    """
    run(elect_partitions(bootstrap_server, topic, partition, unclean=unclean, as_json=json))


async def elect_partitions(
    bootstrap: str,
    topic: str | None,
    partitions: Sequence[int] | None,
    *,
    unclean: bool,
    as_json: bool,
) -> None:
    """Elect leaders; print one row for each partition that needed an election, or that was named."""
    from stratalog.client.cluster_admin import PREFERRED, UNCLEAN, elect_leaders
    from stratalog.errors import ErrorCode

    async with connected(bootstrap) as client:
        cluster = await client.metadata(None if topic is None else [topic])
        wanted = chosen(cluster, topic, partitions)
        outcomes = await client.on_controller(
            elect_leaders(
                UNCLEAN if unclean else PREFERRED, None if topic is None else list(wanted)
            )
        )
    words = {ErrorCode.none: "elected", ErrorCode.election_not_needed: "led already"}
    rows: list[dict[str, Any]] = [
        {
            "partition": str(one.partition),
            "result": words.get(one.error, one.message or one.error.name.upper()),
        }
        for one in sorted(outcomes, key=lambda one: one.partition)
    ]
    show(rows, as_json=as_json, empty="no partition needs an election")
    if any(one.error not in words for one in outcomes):
        raise typer.Exit(1)
