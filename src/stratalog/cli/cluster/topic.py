"""`strata topic`: topics of a running cluster.

In: names and settings. Out: topics created, listed, described, deleted. It uses brokers only and never reads a log
directory.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.cluster.config import Sets, Unsets, alter_settings, parse_configs
from stratalog.cli.shared.completing import TopicName
from stratalog.cli.shared.known_words import topic_settings
from stratalog.cli.shared.reading import existing_topic
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    accepted,
    connected,
    note,
    run,
    show,
    show_json,
)

if TYPE_CHECKING:
    from stratalog.client.aio import Client
    from stratalog.client.calls import TopicInfo

topic_app = typer.Typer(
    help="Create, list, describe, alter, trim and delete topics.", no_args_is_help=True
)


@topic_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int,
        typer.Option(
            metavar="N", show_default=False, help="By default the broker's num.partitions."
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            metavar="N",
            show_default=False,
            help="By default the broker's default.replication.factor.",
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            help="A setting of the topic; may be repeated.",
            autocompletion=topic_settings,
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a topic.

    Example: strata topic create orders --partitions 6 -c retention.ms=-1
    """
    run(
        create_topic(
            bootstrap_server,
            name,
            partitions,
            replication_factor,
            config or (),
            if_not_exists,
            json,
        )
    )


async def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    replication_factor: int,
    config: Sequence[str],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create the topic and print the result. Raises Rejected."""
    from stratalog.client.calls import NewTopic
    from stratalog.errors import ErrorCode
    from stratalog.wire.ids import topic_id_text

    wanted = NewTopic(name, partitions, replication_factor, parse_configs(config))
    async with connected(bootstrap) as client:
        (result,) = await client.create_topics([wanted])
    if if_not_exists and result.error == ErrorCode.topic_already_exists:
        note(f"topic {name} exists already")
        return
    accepted(result, "topic ")
    row = {
        "topic": name,
        "id": topic_id_text(result.topic_id),
        "partitions": result.partitions,
        "replicas": result.replication_factor,
    }
    if as_json:
        show_json(row)
    else:
        note(f"created topic {name} with {result.partitions} partition(s)")


@topic_app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Kafka's own topics too.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List topics.

    Example: strata topic list --internal
    """
    run(print_topics(bootstrap_server, internal, json))


async def print_topics(bootstrap: str, internal: bool, as_json: bool) -> None:
    """Print one row per topic, by name."""
    from stratalog.wire.ids import topic_id_text

    async with connected(bootstrap) as client:
        cluster = await client.metadata()
    rows = [
        {
            "topic": topic.name,
            "id": topic_id_text(topic.topic_id),
            "partitions": len(topic.partitions),
            "replicas": max((len(p.replicas) for p in topic.partitions.values()), default=0),
        }
        for _, topic in sorted(cluster.topics.items())
        if internal or not topic.is_internal
    ]
    show(rows, as_json=as_json, empty="no topics")


@topic_app.command()
def describe(
    name: TopicName, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False
) -> None:
    """Show a topic's partitions, their offsets, sizes and skew, and the settings that are its own.

    Records are offsets from start to end: an estimate where a topic is compacted or has transactions. Bytes are those
    on the leader's disk. Skew is the largest partition's share over the average one's: 1 is even.

    Example: strata topic describe orders --json
    """
    run(print_topic(bootstrap_server, name, json))


async def print_topic(bootstrap: str, name: str, as_json: bool) -> None:
    """Print a topic as one JSON object, or as a line and a table."""
    from stratalog.client.calls import TOPIC
    from stratalog.config import ConfigSource
    from stratalog.wire.ids import topic_id_text

    async with connected(bootstrap) as client:
        topic = await existing_topic(client, name)
        (configs,) = await client.describe_configs([(TOPIC, name)])
        rows = await partition_rows(client, topic)
    measured = [what for what in ("records", "bytes") if rows[0][what] is not None]
    skew = {what: skew_of([row[what] for row in rows]) for what in measured}
    own = {e.name: e.value for e in configs.entries if e.source == ConfigSource.TOPIC_CONFIG}
    topic_id = topic_id_text(topic.topic_id)
    if as_json:
        show_json({"topic": name, "id": topic_id, "configs": own, "skew": skew, "partitions": rows})
        return
    settings = " ".join(f"{key}={value}" for key, value in sorted(own.items()))
    typer.echo(f"{name}  id {topic_id}  {settings}".rstrip())
    show(rows, as_json=False)
    sums = {what: sum(row[what] for row in rows) for what in measured}
    typer.echo("; ".join(f"{sums[what]} {what}, skew {skew[what]:.2f}" for what in measured))
    if "bytes" not in measured:
        note("bytes are not shown: they need describe on the cluster")
    if configs.error:
        note("settings are not shown: they need describe-configs on the topic")


def skew_of(sizes: Sequence[int]) -> float:
    """Return the largest value over the average; 1 without values."""
    total = sum(sizes)
    return round(max(sizes) * len(sizes) / total, 4) if total else 1.0


async def partition_rows(client: "Client", topic: "TopicInfo") -> list[dict[str, Any]]:
    """Return one row per partition: its leader, its first and last offset, its size."""
    from stratalog.client.calls import EARLIEST, LATEST
    from stratalog.wire.ids import TopicPartition

    keys = [TopicPartition(topic.name, index) for index in sorted(topic.partitions)]
    starts = await client.list_offsets(dict.fromkeys(keys, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(keys, LATEST))
    sizes = await sizes_of(client, topic.name)
    return [
        {
            "partition": key.partition,
            "leader": topic.partitions[key.partition].leader,
            "epoch": topic.partitions[key.partition].leader_epoch,
            "replicas": list(topic.partitions[key.partition].replicas),
            "isr": list(topic.partitions[key.partition].isr),
            "start": starts[key].offset,
            "end": ends[key].offset,
            "records": ends[key].offset - starts[key].offset,
            "bytes": None if sizes is None else sizes.get(key.partition, 0),
        }
        for key in keys
    ]


async def sizes_of(client: "Client", topic: str) -> dict[int, int] | None:
    """Return the bytes of a topic's partitions; None where the client may not describe the cluster."""
    from stratalog.client.admin import log_directories
    from stratalog.errors import ErrorCode, Rejected

    sizes: dict[int, int] = {}
    try:
        answers = await client.on_each(log_directories(topic))
    except Rejected as error:
        if error.code is not ErrorCode.cluster_authorization_failed:
            raise
        return None
    for replica in (one for found in answers for where in found for one in where.replicas):
        if not replica.is_future:
            sizes[replica.partition] = max(sizes.get(replica.partition, 0), replica.size)
    return sizes


@topic_app.command()
def alter(
    name: TopicName,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="The new number of partitions; never fewer.")
    ] = None,
    set_values: Sets = None,
    unset: Unsets = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Give a topic more partitions, and change its settings.

    With more partitions, a key may map to another one than before.

    Example: strata topic alter orders --partitions 12 -s retention.ms=86400000
    """
    run(alter_topic(bootstrap_server, name, partitions, set_values or (), unset or ()))


async def alter_topic(
    bootstrap: str,
    name: str,
    partitions: int | None,
    values: Sequence[str],
    unset: Sequence[str],
) -> None:
    """Change settings, then partitions. Raises UserError where there is no such topic, Rejected where the broker
    refuses.
    """
    from stratalog.client.admin import create_partitions
    from stratalog.client.calls import TOPIC
    from stratalog.errors import UserError

    async with connected(bootstrap) as client:
        await existing_topic(client, name)
        if partitions is None and not values and not unset:
            raise UserError(
                "nothing to change: give --partitions N, --set NAME=VALUE or --unset NAME"
            )
        if values or unset:
            await alter_settings(client, (TOPIC, name), values, unset)
        if partitions is not None:
            accepted(await client.on_controller(create_partitions(name, partitions)))
    note(f"changed topic {name}")


@topic_app.command()
def move(
    name: TopicName,
    partition: Annotated[int, typer.Option(metavar="N", help="The partition to move.")],
    to: Annotated[str, typer.Option(metavar="DIR", help="One of the broker's log.dirs.")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Move a partition to another log directory of its broker, while clients write and read it.

    Returns at once; `strata log dirs --topic TOPIC` shows the progress. After a crash the move begins again.

    Example: strata topic move orders --partition 0 --to /mnt/disk2
    """
    run(move_partition(bootstrap_server, name, partition, to))


async def move_partition(bootstrap: str, name: str, partition: int, path: str) -> None:
    """Request the move from the leader. Raises UserError where there is no such partition, Rejected where the broker
    refuses.
    """
    from stratalog.client.admin import log_directories, move_replica
    from stratalog.errors import ErrorCode, UserError

    async with connected(bootstrap) as client:
        existing = (await existing_topic(client, name)).partitions
        if partition not in existing:
            raise UserError(f"topic {name} has no partition {partition}; it has {len(existing)}")
        leader = existing[partition].leader
        result = await client.call(move_replica(name, partition, path), leader)
        if result.error in {ErrorCode.log_dir_not_found, ErrorCode.kafka_storage_error}:
            directories = {
                one.path: one for one in await client.call(log_directories(name), leader)
            }
            if path not in directories:
                paths = ", ".join(directories)
                raise UserError(f"--to: {path!r} is none of broker {leader}'s log.dirs: {paths}")
            if not directories[path].error:
                raise UserError(
                    f"--to: {path} has too little room, {directories[path].free_bytes} bytes: free some there, or "
                    "choose another directory"
                )
        accepted(result)
    note(f"moving {name}-{partition} to {path}; strata log dirs --topic {name} shows how far")


@topic_app.command()
def delete(name: TopicName, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP) -> None:
    """Delete a topic and everything in it, its objects in the bucket too.

    Example: strata topic delete orders
    """
    run(delete_topic(bootstrap_server, name))


async def delete_topic(bootstrap: str, name: str) -> None:
    """Delete the topic. Raises UserError where there is no such topic, Rejected where the broker refuses."""
    async with connected(bootstrap) as client:
        await existing_topic(client, name)
        (result,) = await client.delete_topics([name])
    accepted(result, "topic ")
    note(f"deleted topic {name}")
