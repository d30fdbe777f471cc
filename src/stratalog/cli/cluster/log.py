"""`strata log`: inspect segment files without a broker, and list the brokers' log directories.

In: a `.log` file, or directories of them; a running cluster. Out: one line per batch, and per record on request;
errors; the log directories and their partitions. It never changes a file, and stops at the first byte that is no batch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.shared.completing import topics
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
    from stratalog.wire.batch import BatchHeader

log_app = typer.Typer(help="Look into log files and directories.", no_args_is_help=True)


@log_app.command()
def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE.log")],
    records: Annotated[bool, typer.Option("--records", help="Print the records too.")] = False,
    json: Json = False,
) -> None:
    """Print a segment's batches and check each one's CRC. Exit 1 if a batch is damaged.

    Example: strata log dump data/orders-0/00000000000000000000.log --records
    """
    import mmap

    from stratalog.errors import Corrupt, UserError

    try:
        with file.open("rb") as opened:
            if not file.stat().st_size:
                note(f"{file} is empty")
                return
            with (
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                end = dump_batches(view, records=records, as_json=json)
                size = len(view)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    except Corrupt as error:
        raise Corrupt(f"{file}: {error}") from None
    if end < size:
        raise Corrupt(f"{file}: {size - end} bytes at {end} are no whole batch")


@log_app.command()
def dirs(
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="Show the directories of its partitions.", autocompletion=topics
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the brokers' log directories: free space, partitions, bytes; or the directories of a topic's partitions.

    A moving partition has two rows; `behind` is the lag of the new copy in offsets.

    Example: strata log dirs --topic orders
    """
    run(print_directories(bootstrap_server, topic, json))


async def print_directories(bootstrap: str, topic: str | None, as_json: bool) -> None:
    """Print one row per directory, or per partition of `topic`. Raises UserError where there is no such topic."""
    from stratalog.cli.shared.reading import existing_topic
    from stratalog.client.admin import log_directories

    async with connected(bootstrap) as client:
        if topic is not None:
            await existing_topic(client, topic)
        brokers = sorted((await client.metadata([])).brokers)
        found = [
            (node, one)
            for node in brokers
            for one in await client.call(log_directories(topic), node)
        ]
    if topic is not None:
        replicas = [
            {
                "partition": replica.partition,
                "broker": node,
                "directory": one.path,
                "bytes": replica.size,
                "behind": replica.lag,
                "state": "moving here" if replica.is_future else "here",
            }
            for node, one in found
            for replica in one.replicas
        ]
        replicas.sort(key=lambda row: (row["partition"], row["state"]))
        show(replicas, as_json=as_json, empty=f"no directory that can be read has {topic}")
        return
    rows = [
        {
            "broker": node,
            "directory": one.path,
            "state": "ok" if not one.error else one.error.name.upper(),
            "partitions": sum(not replica.is_future for replica in one.replicas),
            "bytes": sum(replica.size for replica in one.replicas),
            "free": None if one.free_bytes < 0 else one.free_bytes,
            "total": None if one.total_bytes < 0 else one.total_bytes,
        }
        for node, one in found
    ]
    show(rows, as_json=as_json)


@log_app.command()
def verify(
    place: Annotated[Path, typer.Argument(metavar="FILE.log|DIRECTORY")],
    json: Json = False,
) -> None:
    """Check every batch of every segment below a directory: complete, CRC valid, offsets ascending. Exit 1 if not.

    While a broker runs, the last segment of a partition may end in an incomplete batch.

    Example: strata log verify data/orders-0
    """
    from stratalog.errors import UserError

    files = [place] if place.is_file() else sorted(place.rglob("*.log"))
    if not files:
        raise UserError(f"{place}: no .log file")
    rows: list[dict[str, Any]] = []
    batches = 0
    for file in files:
        count, problem = checked(file)
        batches += count
        if problem is not None:
            rows.append({"file": str(file), "problem": problem})
    show(rows, as_json=json, empty="sound")
    note(f"{batches} batch(es) in {len(files)} file(s)")
    if rows:
        raise typer.Exit(1)


def checked(file: Path) -> tuple[int, str | None]:
    """Return the number of sound batches of a segment, and the error behind them or None."""
    import mmap

    from stratalog.errors import UserError

    try:
        with file.open("rb") as opened:
            if not file.stat().st_size:
                return 0, None
            with (
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                return checked_batches(view)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None


def checked_batches(view: memoryview) -> tuple[int, str | None]:
    """Return as `checked`, for a segment's bytes."""
    from stratalog.errors import Corrupt
    from stratalog.wire.batch import crc_holds, scan

    count = end = 0
    next_offset = -1
    try:
        for position, header in scan(view):
            if not crc_holds(view, position, header):
                return count, f"wrong CRC at byte {position} (offset {header.base_offset})"
            if header.base_offset < next_offset:
                return count, f"offset {header.base_offset} at byte {position} goes back"
            count, end, next_offset = count + 1, position + header.size, header.next_offset
    except Corrupt as error:
        return count, f"no batch at byte {end}: {error}"
    return count, None if end == len(
        view
    ) else f"{len(view) - end} bytes at {end} are no whole batch"


def dump_batches(view: memoryview, *, records: bool, as_json: bool) -> int:
    """Print every whole batch; returns the position behind the last. Raises Corrupt for one whose CRC is wrong."""
    from stratalog.errors import Corrupt
    from stratalog.wire.batch import crc_holds, scan

    end = 0
    rows: list[dict[str, Any]] = []
    for position, header in scan(view):
        if not crc_holds(view, position, header):
            show(rows, as_json=as_json)
            raise Corrupt(
                f"the batch at byte {position} (offset {header.base_offset}) has a wrong CRC"
            )
        end = position + header.size
        row = batch_row(position, header)
        if records:
            with view[position:end] as batch:
                dump_records(batch, row, header, as_json=as_json)
        else:
            rows.append(row)
    if not records:
        show(rows, as_json=as_json)
    return end


def batch_row(position: int, header: "BatchHeader") -> dict[str, Any]:
    """Return one batch's header as a row."""
    from stratalog.wire.compression import CODECS

    codecs = {number: name for name, number in CODECS.items()}
    return {
        "position": position,
        "offset": header.base_offset,
        "last": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "epoch": header.leader_epoch,
        "codec": codecs.get(header.codec, str(header.codec)),
        "timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer": header.producer_id,
        "sequence": header.base_sequence,
        "kind": "control"
        if header.is_control
        else "transactional"
        if header.is_transactional
        else "data",
    }


def dump_records(
    batch: memoryview, row: dict[str, Any], header: "BatchHeader", *, as_json: bool
) -> None:
    """Print a batch and the records in it."""
    from stratalog.cli.shared.forms import record_json
    from stratalog.wire.records import read_records

    found = [record_json(record) for record in read_records(batch)]
    if as_json:
        show_json(row | {"records": found})
        return
    typer.echo(
        f"batch {header.base_offset}-{header.last_offset} at {row['position']}: {row['bytes']} bytes, "
        f"{row['codec']}, epoch {row['epoch']}, {row['kind']}"
    )
    for record in found:
        key = record.get("key", record.get("key_base64"))
        value = record.get("value", record.get("value_base64"))
        typer.echo(f"  {record['offset']}  {record['timestamp']}  {key!r}  {value!r}")
