"""`strata consume`: records of a topic, printed as they come.

In: a topic and where to begin. Out: records on standard output, in one of several forms. How they are fetched, and as
a member of which group, is `follow.py`'s.
"""

import base64
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    note,
    run,
    show_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.client.aio import Client
    from stratalog.wire.fetch import FetchedPartition
    from stratalog.wire.records import Record

FIELDS = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp",
    "k": "key",
    "K": "key length",
    "s": "value",
    "S": "value length",
    "h": "headers",
}
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


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
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Stop where nothing comes for so long.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print the key and this before the value.")
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Print NAME=VALUE,… and a tab before each record.")
    ] = False,
    layout: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="Print this for each record: %t topic, %p partition, %o offset, %T timestamp, %k key, %s value, "
            "%K and %S their lengths (-1: none), %h headers, %% a percent sign; \\n \\t \\0 as usual.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Be a member: share partitions with the others, begin where the group is (--from where it is "
            "nowhere), commit.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per record.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    r"""Print records until interrupted, or as many as asked for.

    With --group it takes part in the group's rebalances (classic protocol, range assignor), beside consumers of any
    kind. What was printed is committed, at the latest a round later: after a crash some may come again. With
    --partition as well it joins nothing, and a group with members refuses its commits.

    Example: strata consume t --from beginning --max-messages 10 --format '%p %o %k: %s\n'
    """
    from asyncio import CancelledError

    from stratalog.cli.follow import Wanted, follow

    printer = Printer(topic, key_separator, headers=headers, as_json=json, layout=layout)
    wanted = Wanted(topic, start, partition, group, until_end, max_messages, timeout)
    try:
        run(follow(bootstrap_server, wanted, printer))
    except (KeyboardInterrupt, CancelledError):  # SIGINT, SIGTERM
        note("")
    note(f"{printer.count} record(s)")


class Printer:
    """Prints records and counts them."""

    def __init__(
        self,
        topic: str,
        key_separator: str | None,
        *,
        headers: bool,
        as_json: bool,
        layout: str | None = None,
    ) -> None:
        """Raises UserError for a layout that is not understood, and for two forms at once."""
        from stratalog.errors import UserError

        if layout is not None and (as_json or headers or key_separator is not None):
            raise UserError("--format says it all: leave --json, --headers and --key-separator out")
        self.count = 0
        self._headers = headers
        self._topic = topic
        self._separator = None if key_separator is None else key_separator.encode()
        self._as_json = as_json
        self._layout = None if layout is None else pieces_of(layout)

    def print(self, partition: int, record: "Record") -> None:
        """One record; bytes go out as they are, unless JSON was asked for."""
        self.count += 1
        if self._as_json:
            show_json({"topic": self._topic, "partition": partition, **record_json(record)})
            return
        if self._layout is not None:
            sys.stdout.buffer.write(self._laid_out(self._layout, partition, record))
            return
        line = record.value or b""
        if self._separator is not None:
            line = (record.key or b"") + self._separator + line
        if self._headers:
            line = headers_text(record) + b"\t" + line
        sys.stdout.buffer.write(line + b"\n")

    def _laid_out(self, layout: "list[bytes | str]", partition: int, record: "Record") -> bytes:
        out = b""
        for piece in layout:
            match piece:
                case bytes():
                    out += piece
                case "s":
                    out += record.value or b""
                case "k":
                    out += record.key or b""
                case "h":
                    out += headers_text(record)
                case _:
                    out += str(self._fact(piece, partition, record)).encode()
        return out

    def _fact(self, field: str, partition: int, record: "Record") -> str | int:
        match field:
            case "t":
                return self._topic
            case "p":
                return partition
            case "o":
                return record.offset
            case "T":
                return record.timestamp
            case "K":
                return -1 if record.key is None else len(record.key)
            case _:
                return -1 if record.value is None else len(record.value)


def headers_text(record: "Record") -> bytes:
    """NAME=VALUE,…"""
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def pieces_of(layout: str) -> "list[bytes | str]":
    """A --format as bytes to print and letters of `FIELDS`. Raises UserError naming what is not understood."""
    from stratalog.errors import UserError

    pieces: list[bytes | str] = []
    letters = iter(layout)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, "")
            if escaped not in ESCAPES:
                raise UserError(
                    f"--format: \\{escaped} is not accepted; accepted: \\n \\t \\r \\0 \\\\"
                )
            pieces.append(ESCAPES[escaped])
        elif letter == "%":
            field = next(letters, "")
            if field == "%":
                pieces.append(b"%")
            elif field in FIELDS:
                pieces.append(field)
            else:
                accepted = ", ".join(f"%{name} ({said})" for name, said in FIELDS.items())
                raise UserError(f"--format: %{field} is not accepted; accepted: {accepted}, %%")
        else:
            pieces.append(letter.encode())
    return pieces


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
