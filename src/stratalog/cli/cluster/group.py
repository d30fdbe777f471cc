"""`strata group`: consumer groups of a running cluster.

In: a group's name. Out: its members, its lag, and its offsets reset or deleted. It never moves the offsets of a group
that has members: the broker refuses.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.shared.completing import GroupName, OnlyPartitions, topics
from stratalog.cli.shared.known_words import words
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Json,
    connected,
    note,
    run,
    show,
    show_json,
)

if TYPE_CHECKING:
    from stratalog.client.admin import DescribedGroup, Offsets
    from stratalog.client.aio import Client
    from stratalog.wire.ids import TopicPartition

group_app = typer.Typer(help="Consumer groups: members, lag, offsets.", no_args_is_help=True)


@group_app.command("list")
def list_groups(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List groups.

    Example: strata group list
    """
    run(print_groups(bootstrap_server, json))


async def print_groups(bootstrap: str, as_json: bool) -> None:
    """Print one row per group, by name."""
    from stratalog.client.admin import list_groups

    async with connected(bootstrap) as client:
        found = [one for some in await client.on_each(list_groups()) for one in some]
    rows = [
        {"group": one.group_id, "state": one.state, "type": one.protocol_type}
        for one in sorted(found, key=lambda one: one.group_id)
    ]
    show(rows, as_json=as_json, empty="no groups")


@group_app.command()
def describe(
    name: GroupName, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, json: Json = False
) -> None:
    """Show a group's state, and for each partition its offset, log end, lag and member.

    Lag is in records, and in seconds: the age of the first unread record, by its timestamp.

    Example: strata group describe billing --json
    """
    run(print_group(bootstrap_server, name, json))


async def print_group(bootstrap: str, name: str, as_json: bool) -> None:
    """Print a group as one JSON object, or as a line and a table. Raises UserError where there is no such group."""
    async with connected(bootstrap) as client:
        group = await existing_group(client, name)
        rows = await lag_rows(client, group)
    total = sum(row["lag"] or 0 for row in rows)
    ages = [row["seconds"] for row in rows if row["seconds"] is not None]
    unreadable = any(row["lag"] and row["seconds"] is None for row in rows)
    seconds = None if unreadable else max(ages, default=0)
    if as_json:
        show_json(
            {
                "group": name,
                "state": group.state,
                "protocol": group.protocol,
                "members": len(group.members),
                "lag": total,
                "lag_seconds": seconds,
                "partitions": rows,
            }
        )
        return
    age = "" if unreadable else f", {seconds} s"
    typer.echo(f"{name}  {group.state}  {len(group.members)} member(s)  lag {total}{age}")
    show(rows, as_json=False, empty="no offsets")
    if unreadable:
        note("ages are not shown: they need read on the topic")


async def existing_group(client: "Client", name: str) -> "DescribedGroup":
    """Return a group as its coordinator describes it; raises UserError where there is none."""
    from stratalog.client.admin import describe_group
    from stratalog.errors import ErrorCode, Rejected, UserError

    group = await client.on_coordinator(name, describe_group(name))
    if group.error == ErrorCode.group_id_not_found or group.state == "Dead":
        raise UserError(f"group {name} does not exist")
    if group.error != ErrorCode.none:
        raise Rejected(group.error, f"group {name}: {group.error.name}")
    return group


def without_members(group: "DescribedGroup") -> None:
    """Raise UserError where a group has members."""
    from stratalog.errors import UserError

    if group.members:
        count = len(group.members)
        raise UserError(
            f"group {group.group_id} has {count} member(s): stop them first (NON_EMPTY_GROUP)"
        )


async def lag_rows(client: "Client", group: "DescribedGroup") -> list[dict[str, Any]]:
    """Return one row per partition that the group has an offset for, or reads."""
    from stratalog.client.admin import fetch_offsets
    from stratalog.client.calls import EARLIEST, LATEST

    committed = await client.on_coordinator(group.group_id, fetch_offsets(group.group_id))
    readers = {key: member for member in group.members for key in member.assigned}
    keys = await existing_keys(client, sorted(committed.keys() | readers.keys()))
    ends = await client.list_offsets(dict.fromkeys(keys, LATEST)) if keys else {}
    starts = await client.list_offsets(dict.fromkeys(keys, EARLIEST)) if keys else {}
    rows = []
    for key in keys:
        offset, end, reader = committed.get(key), ends[key].offset, readers.get(key)
        unread = None if offset is None else max(offset, starts[key].offset)
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "offset": offset,
                "end": end,
                "lag": None if offset is None else max(0, end - offset),
                "seconds": None if unread is None else await age_s(client, key, unread, end),
                "member": None if reader is None else reader.instance_id or reader.member_id,
                "host": None if reader is None else reader.host,
            }
        )
    return rows


async def age_s(client: "Client", key: "TopicPartition", offset: int, end: int) -> float | None:
    """Return seconds since the record at `offset` was written, by its timestamp; 0 for a record that does not exist
    yet, None where the client may not read it.
    """
    from stratalog.adapters.system import SystemClock
    from stratalog.cli.shared.reading import records_from
    from stratalog.errors import ErrorCode, Rejected

    if offset >= end:
        return 0.0
    try:
        fetched = await client.fetch(*key, offset, max_bytes=1, max_wait_ms=0)
    except Rejected as error:
        if error.code is not ErrorCode.topic_authorization_failed:
            raise
        return None
    for _next_offset, record in records_from(fetched.records, offset):
        if record is not None:
            return max(0, SystemClock().now_ms() - record.timestamp) / 1000
    return 0.0


async def existing_keys(client: "Client", keys: "list[TopicPartition]") -> "list[TopicPartition]":
    """Return the keys whose topic exists: offsets outlive their topic for a while."""
    topics = (await client.metadata(sorted({key.topic for key in keys}))).topics if keys else {}
    return [key for key in keys if key.partition in topics[key.topic].partitions]


@group_app.command("reset-offsets")
def reset_offsets(
    name: GroupName,
    topic: Annotated[
        str,
        typer.Option(
            metavar="TOPIC", help="The topic whose offsets to reset.", autocompletion=topics
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="beginning|end|OFFSET|TIME",
            autocompletion=words("beginning", "end"),
            help="The new position; TIME: @MS, 2026-11-24T10:00Z or '2 hours ago'.",
        ),
    ],
    partition: OnlyPartitions = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the new offsets, and change nothing.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Reset the offsets of an inactive group. Creates a missing group.

    Example: strata group reset-offsets billing --topic orders --to beginning
    """
    run(move(bootstrap_server, name, topic, to, partition, dry_run, json))


async def move(
    bootstrap: str,
    name: str,
    topic: str,
    to: str,
    partitions: list[int] | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compute the offsets, commit them unless `dry_run`, and show them. Raises UserError while the group has
    members.
    """
    from stratalog.cli.shared.reading import chosen_partitions, first_offsets
    from stratalog.client.admin import commit_offsets, describe_group, fetch_offsets
    from stratalog.wire.ids import TopicPartition

    async with connected(bootstrap) as client:
        chosen = await chosen_partitions(client, topic, partitions)
        positions = await first_offsets(client, topic, chosen, to, option="--to")
        wanted = await within(
            client, {TopicPartition(topic, index): positions[index] for index in chosen}
        )
        without_members(await client.on_coordinator(name, describe_group(name)))
        before = await client.on_coordinator(name, fetch_offsets(name))
        if not dry_run:
            await client.on_coordinator(name, commit_offsets(name, wanted))
    rows = [
        {"topic": key[0], "partition": key[1], "before": before.get(key), "offset": offset}
        for key, offset in wanted.items()
    ]
    show(rows, as_json=as_json)
    if dry_run:
        note("nothing was changed (--dry-run)")


async def within(client: "Client", wanted: "Offsets") -> "Offsets":
    """Return the offsets, moved into the partitions' ranges with a warning."""
    from stratalog.cli.shared.reading import ranges_of

    chosen = {}
    for key, (start, end) in (await ranges_of(client, wanted)).items():
        chosen[key] = min(max(wanted[key], start), end)
        if chosen[key] != wanted[key]:
            has = f"{key[0]}-{key[1]} has offsets {start} to {end}"
            note(f"warning: {has}: {wanted[key]} becomes {chosen[key]}")
    return chosen


@group_app.command()
def delete(name: GroupName, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP) -> None:
    """Delete a group without members, and its offsets.

    Example: strata group delete billing
    """
    run(delete_group(bootstrap_server, name))


async def delete_group(bootstrap: str, name: str) -> None:
    """Delete the group. Raises UserError where it does not exist or has members, and Rejected."""
    from stratalog.cli.shared.terminal import accepted
    from stratalog.client.admin import delete_group as deletion

    async with connected(bootstrap) as client:
        without_members(await existing_group(client, name))
        accepted(await client.on_coordinator(name, deletion(name)))
    note(f"deleted group {name}")
