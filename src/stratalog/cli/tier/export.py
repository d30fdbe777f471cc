"""`strata tier export`: export a topic's history from the bucket into files, without a broker.

In: a bucket's URL and a topic. Out: files in a chosen directory, each complete or absent, with every byte checked. It
never overwrites a file.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from stratalog.cli.shared.bucket import Url, opened, progress_of
from stratalog.cli.shared.terminal import Json, note, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratalog.tier.reading.export import Chunk


class Format(StrEnum):
    """Kafka's own segment files, or one JSON object a line."""

    LOG = "log"
    JSON = "json"


def export(
    url: Url,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where files go; created if missing.")
    ],
    form: Annotated[
        Format,
        typer.Option("--format", help="log: Kafka's segment files; json: one object per record."),
    ] = Format.LOG,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", help="Only these; repeat the option."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a topic's history to DIRECTORY/TOPIC-PARTITION/, a file for each segment.

    JSON leaves out records below the log's start; segment files have all archived records.

    Example: strata tier export file:///srv/bucket orders out --format json
    """
    from stratalog.errors import UserError
    from stratalog.tier.reading.export import read_segment
    from stratalog.tier.reading.reader import open_bucket

    bucket = open_bucket(opened(url))
    found = bucket.topic(topic)
    if found is None:
        raise UserError(f"topic {topic} is not in {url}")
    manifests = bucket.manifests(found)
    for wanted in partition or ():
        if not 0 <= wanted < found.partitions:
            raise UserError(f"topic {topic} has no partition {wanted}; it has {found.partitions}")
    chosen = [m for number, m in sorted(manifests.items()) if not partition or number in partition]
    total = sum(manifest.live_bytes for manifest in chosen)
    done = 0
    rows: list[dict[str, Any]] = []
    with progress_of(f"exporting {topic}", quiet=json) as advance:

        def counted(chunks: "Iterator[Chunk]") -> "Iterator[Chunk]":
            nonlocal done
            for chunk in chunks:
                yield chunk
                done += len(chunk.data)
                advance(done, total)

        for manifest in chosen:
            place = directory / f"{topic}-{manifest.partition}"
            for segment in bucket.live(manifest):
                target = place / f"{segment.entry.base_offset:020d}.{form.value}"
                chunks = counted(read_segment(bucket.store, segment))
                records = write(target, chunks, form, max(manifest.log_start_offset, 0))
                rows.append(
                    {
                        "file": str(target),
                        "offsets": f"{segment.entry.base_offset}-{segment.entry.last_offset}",
                        "records": records,
                        "bytes": target.stat().st_size,
                    }
                )
    show(rows, as_json=json, empty=f"nothing of {topic} is in {url}")
    note(f"{sum(row['records'] for row in rows)} record(s) in {len(rows)} file(s)")


def write(target: Path, chunks: "Iterator[Chunk]", form: Format, start_offset: int) -> int:
    """Write one file, under a temporary name until it is complete; return its number of records. Raises UserError,
    Corrupt.
    """
    from stratalog.errors import UserError

    if target.exists():
        raise UserError(f"{target} is there already; nothing is overwritten")
    temporary = target.with_name(target.name + ".tmp")
    writing: Callable[[BinaryIO, Chunk, int], int]
    writing = write_log if form is Format.LOG else write_json
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            records = sum(writing(file, chunk, start_offset) for chunk in chunks)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return records


def write_log(file: BinaryIO, chunk: "Chunk", _start_offset: int) -> int:
    """Write batches unchanged; return their number of records."""
    file.write(chunk.data)
    return chunk.records


def write_json(file: BinaryIO, chunk: "Chunk", start_offset: int) -> int:
    """Write one record a line, as `strata consume --json` prints them; return their number."""
    from json import dumps

    from stratalog.cli.shared.forms import record_json
    from stratalog.cli.shared.reading import records_from

    records = 0
    for _, record in records_from(memoryview(chunk.data), start_offset):
        if record is not None:
            file.write(dumps(record_json(record), ensure_ascii=False).encode() + b"\n")
            records += 1
    return records
