"""`strata perf`: measure a broker's rates, in the units of Kafka's own tools.

In: a topic, and the records to send or read. Out: lines during the run and one at its end. It creates no topic except
those of `--sweep`, which it deletes again.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stratalog.cli.shared.completing import TopicName
from stratalog.cli.shared.terminal import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    connected,
    note,
    run,
    show_json,
)

if TYPE_CHECKING:
    from stratalog.cli.speed.load import Producing
    from stratalog.client.reader import FetchSettings

perf_app = typer.Typer(
    help="Measure a broker's rates of producing and consuming.", no_args_is_help=True
)

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATIONS = {"read_uncommitted": 0, "read_committed": 1}
DEFAULT_RECORD_BYTES = 1024

Interval = Annotated[
    int, typer.Option(min=100, metavar="MS", help="Milliseconds between two lines.")
]


ProducerProps = Annotated[
    list[str] | None,
    typer.Option(
        "--producer-props",
        "-X",
        metavar="NAME=VALUE",
        help="acks, batch.size, linger.ms, compression.type or max.in.flight.requests.per.connection; "
        "may be repeated.",
    ),
]
Throughput = Annotated[
    float,
    typer.Option(
        metavar="N",
        show_default=False,
        help="Records a second, at most; by default no limit.",
    ),
]
Sweep = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Compare codecs and batch sizes on the lines of FILE."),
]
Seconds = Annotated[
    float, typer.Option(min=0.1, metavar="S", help="With --sweep: seconds for each codec and size.")
]
Metrics = Annotated[
    str | None,
    typer.Option(metavar="URL", help="With --sweep: the broker's /metrics, for its CPU time."),
]
BrokerPid = Annotated[
    int | None,
    typer.Option(metavar="PID", help="With --sweep: the broker, where it runs on this machine."),
]


@perf_app.command()
def produce(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="None with --sweep.")] = None,
    num_records: Annotated[
        int, typer.Option(min=1, metavar="N", help="Records to send.")
    ] = 1_000_000,
    record_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="BYTES",
            help=f"Bytes of random letters; {DEFAULT_RECORD_BYTES} by default.",
        ),
    ] = None,
    payload_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Send the file's records repeatedly.")
    ] = None,
    payload_delimiter: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Text between the file's records; \\n is a line's end."),
    ] = "\\n",
    throughput: Throughput = -1,
    producer_props: ProducerProps = None,
    reporting_interval: Interval = 5000,
    sweep: Sweep = None,
    seconds: Seconds = 3,
    metrics: Metrics = None,
    broker_pid: BrokerPid = None,
    json: Annotated[bool, typer.Option("--json", help="Print the final results as JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Send records as fast as possible, or at a given rate.

    Prints the lines of kafka-producer-perf-test: MB are 2**20 bytes of values; latency runs from the append to a batch
    until the acknowledgement. Settings have the names and defaults of Kafka's producer, with two differences:
    batch.size counts bytes before compression, and the producer is not idempotent. The client is one Python process:
    check its CPU before you call the broker slow, and use larger batches.

    --sweep creates a topic for each codec and batch size, fills it for some seconds and deletes it. CPU seconds are per
    10^9 bytes of values.

    Example: strata perf produce t --num-records 1000000 -X acks=1
    """
    from stratalog.cli.speed import sweep as perf_sweep
    from stratalog.errors import UserError

    producing = producing_of(producer_props or ())
    if sweep is not None:
        if topic is not None:
            raise UserError(f"--sweep makes topics of its own: leave {topic} out")
        values = values_of(sweep, "\\n")
        cpu = perf_sweep.broker_cpu(metrics, broker_pid)
        runner = perf_sweep.sweep(bootstrap_server, values, producing, seconds, cpu)
        perf_sweep.show_sweep(run(runner), as_json=json)
        return
    if topic is None:
        raise UserError("name a TOPIC, or give --sweep FILE")
    if payload_file is not None and record_size is not None:
        raise UserError("give one of --record-size and --payload-file")
    values = (
        values_of(payload_file, payload_delimiter)
        if payload_file is not None
        else random_payload(record_size or DEFAULT_RECORD_BYTES)
    )
    cap = throughput if throughput > 0 else None
    run(
        print_produce(
            bootstrap_server, topic, values, producing, num_records, cap, reporting_interval, json
        )
    )


def random_payload(record_bytes: int) -> list[bytes]:
    """Return random letters in values of one size."""
    from stratalog.cli.speed.load import random_values

    return random_values(record_bytes)


def values_of(file: Path, delimiter: str) -> list[bytes]:
    """Return the file's records. Raises UserError for a file that cannot be read or has none."""
    from stratalog.errors import UserError

    separator = delimiter.replace("\\n", "\n").replace("\\t", "\t").replace("\\0", "\0").encode()
    if not separator:
        raise UserError("--payload-delimiter: '' is not accepted: it would end no record")
    try:
        values = file.read_bytes().split(separator)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    if not values[-1]:
        values.pop()  # text after the last delimiter is no record
    if not any(values):
        raise UserError(f"{file}: no records in it")
    return values


def pairs_of(option: str, items: Sequence[str]) -> dict[str, str]:
    """Return `name=value` items as pairs. Raises UserError for one without `=`."""
    from stratalog.errors import UserError

    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"{option} {item}: expected NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


class Accepted(NamedTuple):
    """The values that a setting accepts: the field that they set, their parser, and their description."""

    field: str
    parse: Callable[[str], Any]
    described: str


def taken(option: str, given: dict[str, str], accepted: Mapping[str, Accepted]) -> dict[str, Any]:
    """Return field -> value of the settings given. Raises UserError with the accepted names or values."""
    from stratalog.errors import UserError

    found = {}
    for name, text in given.items():
        if name not in accepted:
            raise UserError(
                f"{option} {name}: not a setting of this client; accepted: {', '.join(accepted)}"
            )
        setting = accepted[name]
        try:
            found[setting.field] = setting.parse(text)
        except (ValueError, KeyError):
            raise UserError(
                f"{option} {name}: {text!r} is not accepted; accepted: {setting.described}"
            ) from None
    return found


def at_least(field: str, lowest: int) -> Accepted:
    """Return a setting that accepts integers from `lowest` on."""

    def parse(text: str) -> int:
        number = int(text)
        if number < lowest:
            raise ValueError(text)
        return number

    return Accepted(field, parse, f"a whole number from {lowest}")


def one_of(field: str, values: Mapping[str, Any]) -> Accepted:
    """Return a setting that accepts these words; each word stands for a value."""
    return Accepted(field, values.__getitem__, ", ".join(values))


def producing_of(items: Sequence[str]) -> "Producing":
    """Return --producer-props as settings. Raises UserError naming a wrong one."""
    from stratalog.cli.speed.load import Producing

    accepted = {
        "acks": one_of("acks", ACKS),
        "batch.size": at_least("batch_bytes", 1),
        "linger.ms": at_least("linger_ms", 0),
        "compression.type": one_of("compression", {codec: codec for codec in CODECS}),
        "max.in.flight.requests.per.connection": at_least("in_flight", 1),
    }
    given = pairs_of("--producer-props", items)
    return Producing(**taken("--producer-props", given, accepted))


async def print_produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes],
    producing: "Producing",
    records: int,
    throughput: float | None,
    interval_ms: int,
    as_json: bool,
) -> None:
    """Send, print a line now and then, and one at the end. Raises Rejected, Unavailable, UserError."""
    from stratalog.adapters.system import monotonic_s
    from stratalog.cli.shared.reading import chosen_partitions
    from stratalog.cli.speed.load import Load, LoadCounts, produced_line

    async with connected(bootstrap) as client:
        partitions = await chosen_partitions(client, topic, None)
        load = Load(client, topic, partitions, values, producing)
        load.window = LoadCounts(load.total.began_s)

        def report(now_s: float) -> None:
            if (now_s - load.window.began_s) * 1000 >= interval_ms:
                say(produced_line(load.window.summary(now_s), percentiles=False), as_json)
                load.window = LoadCounts(now_s)

        await load.run(records, throughput=throughput, each_tick=report)
        summary = load.total.summary(monotonic_s())
    if as_json:
        show_json({"topic": topic, **summary})
    else:
        print(produced_line(summary, percentiles=True), flush=True)
    note_throttling(load.throttled_ms)


@perf_app.command()
def consume(
    topic: TopicName,
    num_records: Annotated[
        int | None,
        typer.Option(
            "--num-records",
            "--messages",
            min=1,
            metavar="N",
            help="Records to read; by default up to the log end of the start.",
        ),
    ] = None,
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Start at the end, not at the beginning.")
    ] = False,
    timeout: Annotated[
        int,
        typer.Option(min=1, metavar="MS", help="Stop after so many milliseconds without a record."),
    ] = 10_000,
    consumer_props: Annotated[
        list[str] | None,
        typer.Option(
            "--consumer-props",
            "-X",
            metavar="NAME=VALUE",
            help="fetch.max.bytes, max.partition.fetch.bytes, fetch.min.bytes, fetch.max.wait.ms, "
            "isolation.level or check.crcs; may be repeated.",
        ),
    ] = None,
    reporting_interval: Interval = 5000,
    json: Annotated[bool, typer.Option("--json", help="Print the final results as JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Read records as fast as possible.

    Reads all partitions. Each leader gets the next Fetch while the command checks (CRC) and counts the batches of the
    last one. It counts records by the batches' headers, without decoding: a consumer that decodes records in Python
    needs one or two microseconds more for each. MB are 2**20 bytes of batches as they are sent, compressed or not.

    Example: strata perf consume t --messages 1000000
    """
    run(
        print_consume(
            bootstrap_server,
            topic,
            num_records,
            "end" if from_latest else "beginning",
            timeout,
            fetch_settings_of(consumer_props or ()),
            reporting_interval,
            json,
        )
    )


def fetch_settings_of(items: Sequence[str]) -> "tuple[FetchSettings, bool]":
    """Return --consumer-props as fetch settings, and whether to check CRCs. Raises UserError naming a wrong one."""
    from stratalog.client.reader import FetchSettings

    accepted = {
        "fetch.max.bytes": at_least("max_bytes", 1),
        "max.partition.fetch.bytes": at_least("partition_max_bytes", 1),
        "fetch.min.bytes": at_least("min_bytes", 0),
        "fetch.max.wait.ms": at_least("max_wait_ms", 0),
        "isolation.level": one_of("isolation", ISOLATIONS),
        "check.crcs": one_of("check_crcs", {"true": True, "false": False}),
    }
    found = taken("--consumer-props", pairs_of("--consumer-props", items), accepted)
    check_crcs = found.pop("check_crcs", True)
    return FetchSettings(**found), check_crcs


async def print_consume(
    bootstrap: str,
    topic: str,
    records: int | None,
    start: str,
    patience_ms: int,
    how: "tuple[FetchSettings, bool]",
    interval_ms: int,
    as_json: bool,
) -> None:
    """Read, print a line now and then, and one at the end. Raises Rejected, Unavailable, Corrupt, UserError."""
    from stratalog.adapters.system import monotonic_s
    from stratalog.cli.shared.reading import chosen_partitions, first_offsets
    from stratalog.cli.speed.read import Read, Reading, read_line

    async with connected(bootstrap) as client:
        partitions = await chosen_partitions(client, topic, None)
        positions = await first_offsets(client, topic, partitions, start)
        ends = {}
        if records is None and start != "end":
            ends = await first_offsets(client, topic, partitions, "end")
        reading = Reading(client, topic, positions, ends, how)

        def report(now_s: float) -> None:
            if (now_s - reading.window.began_s) * 1000 >= interval_ms:
                say(read_line(reading.window.summary(now_s)), as_json)
                reading.window = Read(now_s)

        in_time = await reading.run(records, patience_ms / 1000, report)
        summary = reading.total.summary(monotonic_s())
    if as_json:
        show_json({"topic": topic, **summary})
    else:
        print(read_line(summary), flush=True)
    if not in_time:
        note(f"nothing came for {patience_ms} ms: read {summary['records']} records")
    note_throttling(reading.throttled_ms)


def note_throttling(throttled_ms: int) -> None:
    """Print how long client quotas made the command wait, if they did."""
    if throttled_ms:
        wait = f"{throttled_ms / 1000:.1f} s"
        note(f"client quotas made this command wait {wait} in all; they are in: strata quota list")


def say(line: str, as_json: bool) -> None:
    """Print a line during the run; on standard error where the results are JSON."""
    note(line) if as_json else print(line, flush=True)
