"""Move replicas between brokers: the cost of a move, its request, its progress.

In: a cluster's client, new replicas by partition. Out: rows, a request, a bar on standard error until the last replica
has moved. It never chooses the places.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stratalog.cli.shared.terminal import note, show, show_json

if TYPE_CHECKING:
    from stratalog.client.admin import LogDirectory
    from stratalog.client.aio import Client
    from stratalog.client.calls import ClusterInfo, PartitionInfo
    from stratalog.client.cluster_admin import RegisteredBroker
    from stratalog.wire.ids import TopicPartition

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the moves, bytes, time and brokers; move nothing.")
]
Throttle = Annotated[
    str,
    typer.Option(
        metavar="BYTES/S",
        help="Bytes that a broker sends and receives in a second for these moves, such as 50MB/s.",
    ),
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return as soon as the moves have been accepted.")
]
_STEP_S: Final = 0.2
_TOPIC, _BROKER = 2, 4
"""Kafka: ConfigResource.Type."""
_SIDES: Final = ("leader", "follower")
_LIMITS: Final = tuple(f"{side}.replication.throttled." for side in _SIDES)
_SET: Final = (1, 2)
"""Sources of DescribeConfigs: set for the topic, set for the running broker."""
Limits = Mapping[tuple[int, str], Mapping[str, str | None]]
"""Settings of topics and brokers, by kind and name of the resource; None resets a setting."""


@dataclass(frozen=True, slots=True)
class MoveWords:
    """The options that every command of moves has."""

    dry_run: bool
    throttle: str
    no_wait: bool
    as_json: bool


async def brokers_of(client: "Client") -> "dict[int, RegisteredBroker]":
    """Return the registered brokers by id, the fenced ones too."""
    from stratalog.client.cluster_admin import describe_cluster

    return {one.node_id: one for one in await client.on_any(describe_cluster())}


def partitions_of(cluster: "ClusterInfo") -> "dict[TopicPartition, PartitionInfo]":
    """Return the partitions of every topic of an answer."""
    from stratalog.wire.ids import TopicPartition

    return {
        TopicPartition(topic.name, index): partition
        for topic in cluster.topics.values()
        for index, partition in topic.partitions.items()
    }


async def directories_on(client: "Client", node: int) -> "list[LogDirectory] | None":
    """Return a broker's log directories; None where the broker does not answer."""
    from stratalog.client.admin import log_directories
    from stratalog.errors import Unavailable

    try:
        return await client.call(log_directories(), node)
    except Unavailable:
        return None


async def cordoned(client: "Client", nodes: "Collection[int]") -> set[int]:
    """Return those of these brokers that take no new replicas: all their directories are cordoned."""
    found = {node: await directories_on(client, node) for node in nodes}
    return {node for node, directories in found.items() if directories and is_cordoned(directories)}


def is_cordoned(directories: "Sequence[LogDirectory]") -> bool:
    """Return whether no directory takes new replicas."""
    return all(one.is_cordoned for one in directories)


async def bytes_on(client: "Client", node: int) -> "dict[TopicPartition, int]":
    """Return the bytes of each replica on a broker's disks; none where the broker does not answer."""
    return bytes_in(await directories_on(client, node) or ())


def bytes_in(directories: "Sequence[LogDirectory]") -> "dict[TopicPartition, int]":
    """Return the bytes of each replica in these directories."""
    from stratalog.wire.ids import TopicPartition

    return {
        TopicPartition(replica.topic, replica.partition): replica.size
        for directory in directories
        for replica in directory.replicas
        if not replica.is_future
    }


async def bytes_to_fetch(
    client: "Client", leaders: "Mapping[TopicPartition, int]"
) -> "dict[TopicPartition, int]":
    """Return the bytes that a new replica of each partition fetches: what its leader has and the bucket lacks.

    Of a tiered partition it is an estimate from the offsets: records of one partition are taken to be of one size.
    """
    from stratalog.client.calls import (
        EARLIEST_LOCAL,
        LATEST,
        LATEST_TIERED,
        READ_UNCOMMITTED,
        list_offsets,
    )

    found: dict[TopicPartition, int] = {}
    for leader in sorted({leader for leader in leaders.values() if leader >= 0}):
        led = [one for one, by in leaders.items() if by == leader]
        held = await bytes_on(client, leader)
        starts, tiered, ends = [
            await client.call(list_offsets(dict.fromkeys(led, moment), READ_UNCOMMITTED), leader)
            for moment in (EARLIEST_LOCAL, LATEST_TIERED, LATEST)
        ]
        for one in led:
            start, end = starts[one].offset, ends[one].offset
            local = max(end - start, 1)
            untiered = min(end - tiered[one].offset - 1, local)
            found[one] = held.get(one, 0) * untiered // local
    return found


async def carry_out(
    client: "Client",
    cluster: "ClusterInfo",
    changed: "Mapping[TopicPartition, Sequence[int]]",
    words: MoveWords,
) -> None:
    """Print the cost of the change; unless it is a dry run, request it and wait. Raises UserError, Rejected."""
    from stratalog.cli.shared.quantities import parse_bytes, quantity_text
    from stratalog.ops.placing import cost_of

    rate = parse_bytes(words.throttle, "--throttle") if words.throttle else None
    partitions = partitions_of(cluster)
    before = {one: partitions[one].replicas for one in changed}
    leaders = {one: partitions[one].leader for one in changed}
    missing = await bytes_to_fetch(client, leaders)
    cost = cost_of(changed, before, leaders, missing)
    rows = [
        {
            "partition": str(one),
            "from": list(before[one]),
            "to": list(after),
            "bytes": missing.get(one, 0) * len(set(after) - set(before[one])),
        }
        for one, after in changed.items()
    ]
    seconds = cost.seconds(rate) if rate else None
    if words.as_json:
        show_json(
            {
                "partitions": rows,
                "bytes": cost.moved_bytes,
                "seconds": seconds,
                "brokers": sorted(cost.brokers),
            }
        )
    else:
        show(rows, as_json=False, empty="nothing to move")
    if changed:
        time = "" if seconds is None else f", {quantity_text(seconds, 's')} at {words.throttle}"
        note(
            f"{len(changed)} partition(s), {quantity_text(cost.moved_bytes, 'bytes')}{time}, "
            f"brokers {', '.join(map(str, sorted(cost.brokers)))}"
        )
    if changed and not words.dry_run:
        limits = limits_of(changed, before, max(int(rate), 1)) if rate else {}
        await set_all(client, limits)
        is_over = False
        try:
            await ask(client, changed)
            if not words.no_wait:
                adding = {one: set(after) - set(before[one]) for one, after in changed.items()}
                await until_moved(client, adding, missing)
                await set_all(client, without(limits))
                is_over = True
        finally:  # Ctrl-C too
            if limits and not is_over:
                note(
                    "the limits of --throttle stay set: strata partition reassign --wait removes them"
                )


def limits_of(
    changed: "Mapping[TopicPartition, Sequence[int]]",
    before: "Mapping[TopicPartition, Sequence[int]]",
    rate: int,
) -> Limits:
    """Return the settings that limit these moves: a rate of each broker, and the replicas of each topic (KIP-73)."""
    limits: dict[tuple[int, str], dict[str, str | None]] = {}
    for one, after in changed.items():
        for node in {*after, *before[one]}:
            limits[_BROKER, str(node)] = {
                f"{side}.replication.throttled.rate": str(rate) for side in _SIDES
            }
        for side, nodes in (("leader", before[one]), ("follower", set(after) - set(before[one]))):
            replicas = [f"{one.partition}:{node}" for node in nodes]
            named = limits.setdefault((_TOPIC, one.topic), {})
            name = f"{side}.replication.throttled.replicas"
            named[name] = ",".join([*filter(None, [named.get(name)]), *replicas])
    return limits


def without(limits: Limits) -> Limits:
    """Return the change that resets these settings."""
    return {where: dict.fromkeys(values) for where, values in limits.items()}


async def limits_set(client: "Client") -> Limits:
    """Return the limits of replication that topics and serving brokers have."""
    from stratalog.client.calls import describe_configs

    found: dict[tuple[int, str], dict[str, str | None]] = {}
    names = [(_TOPIC, name) for name in (await client.metadata()).topics]
    described = list(await client.describe_configs(names)) if names else []
    for node, one in (await brokers_of(client)).items():
        if not one.is_fenced:
            of_broker = await client.call(describe_configs([(_BROKER, str(node))]), node)
            described.extend(of_broker)
    for resource in described:
        values: dict[str, str | None] = {
            entry.name: entry.value
            for entry in resource.entries
            if entry.source in _SET and entry.name.startswith(_LIMITS)
        }
        if values:
            found[resource.resource_type, resource.name] = values
    return found


async def finish(client: "Client") -> None:
    """Wait for every move under way, then remove the limits of replication."""
    from stratalog.client.cluster_admin import list_reassignments

    moving = await client.on_any(list_reassignments())
    partitions = partitions_of(await client.metadata())
    leaders = {one: partitions[one].leader for one in moving}
    wanted = await bytes_to_fetch(client, leaders)
    await until_moved(client, {one: move.adding for one, move in moving.items()}, wanted)
    await set_all(client, without(await limits_set(client)))


async def set_all(client: "Client", limits: Limits) -> None:
    """Set these settings, or reset those whose value is None. Raises Rejected for the first that is refused."""
    from stratalog.cli.cluster.config import ask_named
    from stratalog.client.admin import alter_configs
    from stratalog.errors import ErrorCode, Rejected

    for (kind, name), values in limits.items():
        altered = await ask_named(client, kind, name, alter_configs(kind, name, values))
        if altered.error != ErrorCode.none:
            raise Rejected(altered.error, f"{name}: {altered.message or altered.error.name}")


async def ask(client: "Client", changed: "Mapping[TopicPartition, Sequence[int] | None]") -> None:
    """Request the reassignment. Raises Rejected for the first refused partition."""
    from stratalog.client.cluster_admin import alter_reassignments
    from stratalog.errors import ErrorCode, Rejected

    for outcome in await client.on_controller(alter_reassignments(changed)):
        if outcome.error != ErrorCode.none:
            reason = outcome.message or outcome.error.name
            raise Rejected(outcome.error, f"{outcome.partition}: {reason}")


async def until_moved(
    client: "Client",
    adding: "Mapping[TopicPartition, Collection[int]]",
    wanted: "Mapping[TopicPartition, int]",
) -> None:
    """Wait until none of these partitions is being reassigned; a bar in bytes. Ctrl-C ends only the wait.

    `adding` has the new replicas of each, `wanted` the bytes that each of them fetches.
    """
    from asyncio import sleep

    from stratalog.cli.shared.bucket import progress_of
    from stratalog.client.cluster_admin import list_reassignments

    total = sum(wanted.get(one, 0) * len(nodes) for one, nodes in adding.items())
    with progress_of(f"{len(adding)} partition(s)", quiet=False) as progress:
        while moving := (await client.on_any(list_reassignments())).keys() & adding.keys():
            missing = 0
            for node in {node for one in moving for node in adding[one]}:
                held = await bytes_on(client, node)
                missing += sum(
                    max(wanted.get(one, 0) - held.get(one, 0), 0)
                    for one in moving
                    if node in adding[one]
                )
            progress(total - missing, total)
            await sleep(_STEP_S)
        progress(total, total)
    note(f"moved {len(adding)} partition(s)")
