"""`strata consume`: records of a topic, printed as they come.

In: a topic and where to begin. Out: one line per record on standard output. It joins no group; with --group it reads
all partitions asked for, begins where that group's offsets are and commits what it has printed.
"""

import base64
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    connected,
    note,
    run,
    show_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.client.aio import Client
    from stratalog.wire.fetch import FetchedPartition
    from stratalog.wire.records import Record

FETCH_WAIT_MS = 500


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|end|OFFSET|@MS",
            help="Where to begin; @MS is the first record at that time (epoch milliseconds).",
        ),
    ] = "end",
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Only this partition; may be repeated.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many.")
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at what is the end when it starts.")
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print the key and this before the value.")
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Print NAME=VALUE,… and a tab before each record.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Go on where this group's offsets are (--from where it has none), and commit.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per record.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records until interrupted, or as many as asked for.

    With --group what was printed is committed, at the latest a round later: after a crash some may come again. It takes
    no part in the group's rebalances, so a group with members refuses its commits.
    """
    printer = Printer(topic, key_separator, headers=headers, as_json=json)
    wanted = Wanted(topic, start, partition, group, until_end, max_messages)
    try:
        run(follow(bootstrap_server, wanted, printer))
    except KeyboardInterrupt:
        note("")
    note(f"{printer.count} record(s)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read: from where, as whom, and until when."""

    topic: str
    start: str
    partitions: list[int] | None
    group: str | None
    until_end: bool
    max_messages: int | None


class Printer:
    """Prints records and counts them."""

    def __init__(
        self, topic: str, key_separator: str | None, *, headers: bool, as_json: bool
    ) -> None:
        self.count = 0
        self._headers = headers
        self._topic = topic
        self._separator = None if key_separator is None else key_separator.encode()
        self._as_json = as_json

    def print(self, partition: int, record: "Record") -> None:
        """One record; bytes go out as they are, unless JSON was asked for."""
        self.count += 1
        if self._as_json:
            show_json({"topic": self._topic, "partition": partition, **record_json(record)})
            return
        line = record.value or b""
        if self._separator is not None:
            line = (record.key or b"") + self._separator + line
        if self._headers:
            pairs = [name.encode() + b"=" + (value or b"") for name, value in record.headers]
            line = b",".join(pairs) + b"\t" + line
        sys.stdout.buffer.write(line + b"\n")


def record_json(record: "Record") -> dict[str, Any]:
    """A record for JSON: text where it is UTF-8, else base64 under another name."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ],
    }


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """`{name: text}`, or `{name_base64: …}` for bytes that are no text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


async def follow(bootstrap: str, wanted: Wanted, printer: Printer) -> None:
    """Fetch each partition in turn and print, waiting only where the last round brought nothing."""
    from stratalog.client.calls import LATEST

    topic = wanted.topic
    async with connected(bootstrap) as client:
        chosen = await chosen_partitions(client, topic, wanted.partitions)
        positions = await first_offsets(client, topic, chosen, wanted.start)
        if wanted.group is not None:
            positions |= await committed_offsets(client, wanted.group, topic, chosen)
        ends: dict[int, int] = {}
        if wanted.until_end:
            listed = await client.list_offsets({(topic, index): LATEST for index in chosen})
            ends = {index: offset.offset for (_, index), offset in listed.items()}
        wait_ms = 0
        while unread := [i for i in positions if i not in ends or positions[i] < ends[i]]:
            before = dict(positions)
            for index in unread:
                fetched = await client.fetch(topic, index, positions[index], max_wait_ms=wait_ms)
                for offset, record in records_from(whole(fetched), positions[index]):
                    if record is not None and record.offset >= ends.get(index, record.offset + 1):
                        positions[index] = ends[index]  # what came since is the next reader's
                        break
                    positions[index] = offset
                    if record is not None:
                        printer.print(index, record)
                    if printer.count == wanted.max_messages:
                        await keep(client, wanted, positions, before)
                        return
            await keep(client, wanted, positions, before)
            wait_ms = 0 if positions != before else max(1, FETCH_WAIT_MS // len(unread))


async def committed_offsets(
    client: "Client", group: str, topic: str, partitions: list[int]
) -> dict[int, int]:
    """Where a group goes on, for those partitions that it has an offset of."""
    from stratalog.client.admin import fetch_offsets

    found = await client.on_coordinator(group, fetch_offsets(group))
    return {index: found[topic, index] for index in partitions if (topic, index) in found}


async def keep(
    client: "Client", wanted: Wanted, positions: dict[int, int], before: dict[int, int]
) -> None:
    """What was printed leaves this process; only then is it committed."""
    from stratalog.client.admin import commit_offsets

    sys.stdout.flush()
    moved = {
        (wanted.topic, index): offset
        for index, offset in positions.items()
        if offset != before[index]
    }
    if wanted.group is not None and moved:
        await client.on_coordinator(wanted.group, commit_offsets(wanted.group, moved))


def whole(fetched: "FetchedPartition") -> memoryview:
    """A fetched partition's batches in one piece."""
    pieces = fetched.records
    if isinstance(pieces, bytes | bytearray | memoryview):
        return memoryview(pieces)
    return memoryview(b"".join(pieces))


def records_from(data: memoryview, start: int) -> "Iterator[tuple[int, Record | None]]":
    """(offset to go on from, record) for each record from `start` on; no record where only the offset moves.

    Raises Corrupt for a batch that is not what was written.
    """
    from stratalog.errors import Corrupt
    from stratalog.wire.batch import crc_holds, scan
    from stratalog.wire.records import read_records

    for position, header in scan(data):
        if not crc_holds(data, position, header):
            raise Corrupt(f"the batch at offset {header.base_offset} has a wrong CRC")
        if not header.is_control:
            for record in read_records(data[position : position + header.size]):
                if record.offset >= start:
                    yield record.offset + 1, record
        yield header.next_offset, None


async def chosen_partitions(client: "Client", topic: str, wanted: list[int] | None) -> list[int]:
    """The partitions to read; raises UserError for a topic or partition that is not there."""
    from stratalog.cli.topic import existing_topic
    from stratalog.errors import UserError

    known = sorted((await existing_topic(client, topic)).partitions)
    for index in wanted or ():
        if index not in known:
            raise UserError(f"topic {topic} has no partition {index}; it has {len(known)}")
    return sorted(set(wanted)) if wanted else known


async def first_offsets(
    client: "Client", topic: str, partitions: list[int], start: str
) -> dict[int, int]:
    """Where each partition begins, for `--from`. Raises UserError for words that are not understood."""
    from stratalog.client.calls import EARLIEST, LATEST
    from stratalog.errors import UserError

    if start.isdecimal():
        return dict.fromkeys(partitions, int(start))
    words = {"beginning": EARLIEST, "end": LATEST}
    if start in words:
        timestamp = words[start]
    elif start.startswith("@") and start[1:].isdecimal():
        timestamp = int(start[1:])
    else:
        raise UserError(
            f"--from: {start!r} is not accepted; accepted: beginning, end, an offset, @ms"
        )
    keys = [(topic, index) for index in partitions]
    listed = await client.list_offsets(dict.fromkeys(keys, timestamp))
    late = [key for key in keys if listed[key].offset < 0]
    ends = await client.list_offsets(dict.fromkeys(late, LATEST)) if late else {}
    return {key[1]: (ends[key] if key in ends else listed[key]).offset for key in keys}
