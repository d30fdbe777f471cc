"""`strata topic trim`: delete the records of a topic below an offset or a time.

In: a topic, a place. Out: partitions that begin later, or a preview of them. It never deletes a record at or behind
that place.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.completing import OnlyPartitions, TopicName
from stratalog.cli.shared.known_words import words
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
    from stratalog.client.aio import Client
    from stratalog.wire.ids import TopicPartition


def trim(
    topic: TopicName,
    before: Annotated[
        str,
        typer.Option(
            metavar="end|OFFSET|TIME",
            autocompletion=words("end"),
            help="Delete the records below it; TIME: @MS, 2026-11-24T10:00Z or '2 hours ago'.",
        ),
    ],
    partition: OnlyPartitions = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and change nothing.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete the records of a topic below an offset or a time, in the bucket too. They do not come back.

    A time stands for the first record that is not older. Where all records are older, all are deleted.

    Example: strata topic trim orders --before '7 days ago' --dry-run
    """
    rows = run(trimmed(bootstrap_server, topic, before, partition, dry_run))
    show(rows, as_json=json)
    if dry_run:
        note("nothing was deleted (--dry-run)")


async def trimmed(
    bootstrap: str, topic: str, before: str, chosen: list[int] | None, dry_run: bool
) -> list[dict[str, object]]:
    """Delete the records unless `dry_run`; return a row for each partition. Raises UserError, Rejected, Unavailable."""
    from stratalog.cli.shared.reading import chosen_partitions, offsets_at, ranges_of
    from stratalog.wire.ids import TopicPartition

    async with connected(bootstrap) as client:
        keys = [
            TopicPartition(topic, index) for index in await chosen_partitions(client, topic, chosen)
        ]
        wanted = await offsets_at(client, keys, before, option="--before")
        ranges = await ranges_of(client, keys)
        target = {key: min(max(wanted[key], ranges[key][0]), ranges[key][1]) for key in keys}
        if not dry_run:
            moved = {key: offset for key, offset in target.items() if offset > ranges[key][0]}
            await delete_below(client, moved)
    return [
        {
            "topic": topic,
            "partition": key.partition,
            "start": ranges[key][0],
            "new_start": offset,
            "deleted": offset - ranges[key][0],
        }
        for key, offset in target.items()
    ]


async def delete_below(client: "Client", offsets: "dict[TopicPartition, int]") -> None:
    """Delete the records below the offsets, on each leader. Raises Rejected, Unavailable."""
    from stratalog.client.admin import delete_records
    from stratalog.errors import ErrorCode, Rejected

    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for key, offset in offsets.items():
        leader = await client.leader_of(*key)
        by_leader.setdefault(leader.node_id, {})[key] = offset
    for node_id, of_leader in by_leader.items():
        for key, code in (await client.call(delete_records(of_leader), node_id)).items():
            if code is ErrorCode.policy_violation:
                raise Rejected(code, f"{key} is compacted and not deleted: its records stay")
            if code:
                raise Rejected(code, f"{key}: {code.name}")
