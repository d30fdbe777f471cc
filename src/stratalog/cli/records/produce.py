"""`strata produce`: lines become records.

In: lines of standard input or a file. Out: record batches to a topic, and a count. It never splits a line, and never
retries a batch that a broker may have taken.
"""

import base64
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from stratalog.cli.records.order import BATCH_BYTES, Headers, Order
from stratalog.cli.shared.completing import TopicName
from stratalog.cli.shared.known_words import words
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    connected,
    note,
    run,
    show_json,
)

if TYPE_CHECKING:
    from stratalog.cli.shared.interrupting import Interrupt
    from stratalog.client.aio import Client, Pipeline
    from stratalog.client.batching import Batches
    from stratalog.wire.ids import TopicPartition

LITTLE_BYTES = 16 * 1024
WINDOW = 5
INTERRUPTED = 128 + 2  # a shell's exit code for SIGINT
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

InputFile = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A file of lines; by default standard input.")
]
KeySeparator = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text between key and value in a line.")
]
TimestampSeparator = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Text after the timestamp (epoch milliseconds) in a line."),
]
OwnHeaders = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record."),
]
Made = Annotated[
    str | None,
    typer.Option(
        "--generate",
        metavar="access-log",
        autocompletion=words("access-log"),
        help="Generate lines of a web server's log, keyed by visitor, instead of reading a file.",
    ),
]
Compression = Annotated[
    str,
    typer.Option(
        metavar="|".join(COMPRESSIONS),
        help="Codec of the batches.",
        autocompletion=words(*COMPRESSIONS),
    ),
]
Acknowledgements = Annotated[
    str,
    typer.Option(
        metavar="all|1|0",
        help="Acknowledgements to wait for.",
        autocompletion=words("all", "1", "0"),
    ),
]
Count = Annotated[int | None, typer.Option(metavar="N", min=1, help="Lines to generate.")]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="R",
        min=0.001,
        help="Lines a second, until interrupted or --count; without it all at once.",
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="S", help="Seed of --generate: the same number gives the same lines.")
]


def produce(
    topic: TopicName,
    file: InputFile = None,
    key_separator: KeySeparator = None,
    timestamp_separator: TimestampSeparator = None,
    timestamp: Annotated[
        int | None, typer.Option(metavar="MS", help="The timestamp of every record.")
    ] = None,
    header: OwnHeaders = None,
    from_json: Annotated[
        bool,
        typer.Option("--from-json", help="Lines are objects as `strata consume --json` prints."),
    ] = False,
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Send all records to this partition.")
    ] = None,
    compression: Compression = "none",
    acks: Acknowledgements = "all",
    made: Made = None,
    count: Count = None,
    rate: Rate = None,
    seed: Seed = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the count as JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Send each line as one record.

    Lines with a key go to the partition that Java's clients choose; others fill one batch after another.

    Ctrl-C ends the input: lines read before it are sent and acknowledged, and the exit code is 130.

    Example: strata produce orders lines.txt --key-separator ,

    Example: strata produce visits --generate access-log --rate 100
    """
    from asyncio import CancelledError

    from stratalog.errors import UserError

    if compression not in COMPRESSIONS:
        accepted = ", ".join(COMPRESSIONS)
        raise UserError(f"--compression: {compression!r} is not accepted; accepted: {accepted}")
    if acks not in ACKS:
        raise UserError(f"--acks: {acks!r} is not accepted; accepted: all, 1, 0")
    order = Order(
        topic,
        partition,
        compression,
        ACKS[acks],
        encoded(key_separator),
        encoded(timestamp_separator),
        timestamp,
        "standard input" if file is None else str(file),
        headers_of(header or ()),
        from_json,
    )
    ended = True
    try:
        if made is not None or count is not None or rate is not None:
            from stratalog.cli.records.generate import generate, plan_of

            plan = plan_of(made, file, count, rate, seed)
            records = run(generate(bootstrap_server, order, plan))
        else:
            records, ended = send_file(bootstrap_server, order, file)
    except CancelledError:  # a second Ctrl-C
        raise typer.Exit(INTERRUPTED) from None
    report(order, records, as_json=json, ended=ended)


def report(order: Order, records: int, *, as_json: bool, ended: bool) -> None:
    """Print the count. Raises Exit where the input's end was not reached."""
    if as_json:
        show_json({"topic": order.topic, "records": records})
    else:
        note(f"{records} record(s) to {order.topic}")
    if not ended:
        note(f"interrupted before the end of {order.source}")
        raise typer.Exit(INTERRUPTED)


def send_file(bootstrap: str, order: Order, file: Path | None) -> tuple[int, bool]:
    """Send the lines of a file, or of standard input; see `send`."""
    from stratalog.errors import UserError

    try:
        with sys.stdin.buffer if file is None else file.open("rb") as lines:
            return run(send(bootstrap, order, lines))
    except OSError as error:
        if file is None or error.filename != str(file):
            raise
        raise UserError(f"{file}: {error.strerror}") from None


def headers_of(items: Sequence[str]) -> Headers:
    """Return `name=value` items as headers; raises UserError for one without `=`."""
    from stratalog.errors import UserError

    pairs: list[tuple[str, bytes | None]] = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--header {item}: expected NAME=VALUE")
        pairs.append((name, value.encode()))
    return tuple(pairs)


def encoded(separator: str | None) -> bytes | None:
    """Return a separator as the bytes to look for. Raises UserError for an empty one."""
    from stratalog.errors import UserError

    if separator == "":
        raise UserError("a separator may not be empty")
    return None if separator is None else separator.encode()


async def send(bootstrap: str, order: Order, lines: BinaryIO) -> tuple[int, bool]:
    """Send every line until the end or Ctrl-C; return (acknowledged records, whether the end was reached).

    Raises UserError for a line that is no record, after sending the lines before it. Raises Rejected or Unavailable
    where a broker does not accept records, with a note of how many it acknowledged.
    """
    from asyncio import CancelledError

    from stratalog.cli.shared.interrupting import Interrupt
    from stratalog.cli.shared.reading import chosen_partitions
    from stratalog.client.batching import Batches
    from stratalog.errors import Rejected, Unavailable, UserError
    from stratalog.wire.ids import TopicPartition

    async with connected(bootstrap) as client:
        chosen = None if order.partition is None else [order.partition]
        partitions = [
            TopicPartition(order.topic, index)
            for index in await chosen_partitions(client, order.topic, chosen)
        ]
        limits = await Limits.of(client, order.topic)
        pipeline = client.pipeline(acks=order.acks, window=WINDOW)
        batches = Batches(pipeline.send_built, order.compression, limits.batch_bytes)
        sink = Lines(order, partitions, batches, limits)
        wrong: UserError | None = None
        try:
            with Interrupt() as interrupt:
                async with pipeline:
                    try:
                        await feed(lines, sink, pipeline, interrupt)
                    except UserError as error:
                        wrong = error
                    except Rejected:
                        await pipeline.drain()  # counts the batches in flight; raises again
                    await batches.flush()
        except (CancelledError, Rejected, Unavailable):
            note(f"{batches.acknowledged()} record(s) were acknowledged before that")
            raise
        finally:
            limits.warn(order.topic)
        if wrong is not None:
            sent = (
                f"{batches.count} record(s) before it were sent"
                if batches.count
                else "nothing was sent"
            )
            raise UserError(f"{order.source}, line {batches.count + 1}: {wrong}; {sent}")
        return batches.count, not interrupt.cut_input


async def feed(
    lines: BinaryIO, sink: "Lines", pipeline: "Pipeline", interrupt: "Interrupt"
) -> None:
    """Batch every line until the end or Ctrl-C. Raises UserError for a line that is no record, Rejected,
    Unavailable.
    """
    from stratalog.adapters.system import SystemClock

    clock = SystemClock()
    async for chunk in chunks(partial(interrupt.read, lines)):
        now_ms = clock.now_ms()
        for line in chunk:
            await sink.take(line, now_ms)
        # A user that types a line wants to see it arrive.
        if sum(map(len, chunk)) < LITTLE_BYTES:
            await sink.batches.flush()
            await pipeline.drain()


async def chunks(read: Callable[[], Awaitable[bytes | None]]) -> AsyncIterator[list[bytes]]:
    """Yield whole lines without their ends, as many at a time as `read` returns.

    A last line without an end counts where `read` returns b"", not where it returns None: its writer was interrupted.
    """
    rest = b""
    while data := await read():
        *whole, rest = (rest + data).split(b"\n")
        if whole:
            yield whole
    if rest and data is not None:
        yield [rest]


def record_of(line: bytes, order: Order, now_ms: int) -> tuple[bytes | None, bytes, int]:
    """Return (key, value, timestamp) of a line. Raises UserError for a malformed timestamp."""
    from stratalog.errors import UserError

    timestamp = now_ms if order.timestamp is None else order.timestamp
    if order.timestamp_separator is not None:
        text, found, line = line.partition(order.timestamp_separator)
        if not found or not text.strip().isdigit():
            raise UserError(f"no timestamp in front: {text[:60].decode(errors='replace')!r}")
        timestamp = int(text)
    key = None
    if order.key_separator is not None:
        before, found, after = line.partition(order.key_separator)
        key, line = (before, after) if found else (None, line)
    return key, line, timestamp


def record_of_json(line: bytes, order: Order, now_ms: int) -> tuple[Any, ...]:
    """Return (key, value, timestamp, headers) of an object. Raises UserError for a line that is no JSON object."""
    from stratalog.errors import UserError

    try:
        found = json.loads(line)
        headers = tuple((one["name"], text_of("value", one)) for one in found.get("headers", ()))
        timestamp = now_ms if order.timestamp is None else order.timestamp
        if order.timestamp is None and "timestamp" in found:
            timestamp = int(found["timestamp"])
        return text_of("key", found), text_of("value", found), timestamp, headers
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"no record ({type(error).__name__}): {line[:60].decode(errors='replace')!r}"
        ) from None


def text_of(name: str, found: dict[str, Any]) -> bytes | None:
    """Return `name`, or `name_base64` for bytes that are no text; None where there is neither."""
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    text = found.get(name)
    return None if text is None else str(text).encode()


@dataclass(frozen=True, slots=True)
class Lines:
    """Convert lines to records, and add them to batches."""

    order: Order
    partitions: "list[TopicPartition]"
    batches: "Batches"
    limits: "Limits"

    async def take(self, line: bytes, now_ms: int) -> None:
        """Convert one line and add the record; raises UserError for a line that is no record."""
        from stratalog.errors import UserError

        order, headers = self.order, self.order.headers
        value: bytes | None
        if order.json:
            key, value, timestamp, own = record_of_json(line, order, now_ms)
            headers += own
        else:
            key, value, timestamp = record_of(line, order, now_ms)
        if not -1 <= timestamp < 1 << 63:
            raise UserError(f"{timestamp} is no timestamp")
        self.limits.look(timestamp, now_ms)
        partition = self.batches.choose(key, self.partitions)
        await self.batches.add(partition, key, value, timestamp, headers)


@dataclass(slots=True)
class Limits:
    """The topic's limits for batches and timestamps, and the number of records beyond them."""

    batch_bytes: int

    retention_ms: int
    before_max_ms: int
    after_max_ms: int
    expired: int = 0
    refused: int = 0

    @classmethod
    async def of(cls, client: "Client", topic: str) -> "Limits":
        """Read the topic's settings from the cluster; without the right to read them, return the defaults.

        It does not try without the right: each try would be a denial in the broker's audit.
        """
        from stratalog.client.calls import TOPIC, topic_operations
        from stratalog.metadata.rights import Operation

        values: dict[str, str | None] = {}
        if await client.on_any(topic_operations(topic)) & 1 << Operation.DESCRIBE_CONFIGS:
            (configs,) = await client.describe_configs([(TOPIC, topic)])
            values = {entry.name: entry.value for entry in configs.entries}
        unlimited = 2**63 - 1
        return cls(
            min(BATCH_BYTES, int(values.get("max.message.bytes") or BATCH_BYTES)),
            int(values.get("retention.ms") or -1),
            int(values.get("message.timestamp.before.max.ms") or unlimited),
            int(values.get("message.timestamp.after.max.ms") or unlimited),
        )

    def look(self, timestamp: int, now_ms: int) -> None:
        """Count a record whose timestamp is outside the limits."""
        age_ms = now_ms - timestamp
        if age_ms > self.before_max_ms or -age_ms > self.after_max_ms:
            self.refused += 1
        elif 0 <= self.retention_ms < age_ms:
            self.expired += 1

    def warn(self, topic: str) -> None:
        """Print one warning about the counted records."""
        if self.expired:
            note(
                f"warning: {self.expired} record(s) are older than {topic}'s retention.ms={self.retention_ms} and will "
                "be deleted soon (strata topic create -c retention.ms=-1 keeps them)"
            )
        if self.refused:
            note(
                f"warning: {self.refused} record(s) have timestamps that {topic} refuses "
                f"(message.timestamp.before.max.ms={self.before_max_ms}, "
                f"message.timestamp.after.max.ms={self.after_max_ms})"
            )
