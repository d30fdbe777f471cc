"""`strata bench machine`: measure this machine's limits, and a broker's share of them.

In: a directory to measure in. Out: limits and the broker's rates as shares of them, on standard output. It uses at most
`SPACE_BYTES` of disk and some twenty seconds, leaves no files, and tunes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.shared.terminal import connected, note, run, show, show_json

if TYPE_CHECKING:
    from stratalog.client.aio import Client

bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True)


@bench_app.callback()
def group() -> None:
    """Measure this machine."""


MB = 1e6
FILE_BYTES = 256 << 20
LOAD_RECORDS = 400_000
RECORD_BYTES = 1024
SPACE_BYTES = 1 << 30
LIMIT_S = 0.8
LOAD_S = 2.0
TOPIC, LITTLE_TOPIC = "bench", "bench-little"
LARGE_BATCH = 1_000_000
FETCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The machine's limits, each of one process and thread (loopback: two threads); rates are bytes a second."""

    loopback: float
    loopback_round_trip_s: float
    memory_copy: float
    crc32c: float
    page_cache_write: float
    page_cache_read: float
    write_and_sync: float
    sync_s: float
    python_calls: float


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's measurements: rates are bytes of values (read: of batches) a second, CPU is the broker process's."""

    produce: float
    produce_cpu_s_per_gb: float | None
    consume: float
    consume_cpu_s_per_gb: float | None
    requests_s: float
    request_p50_s: float
    request_cpu_s: float | None


@bench_app.command()
def machine(
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A directory on the disk to measure; by default the temporary directory.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure loopback, page cache, disk, memory, CRC32C and Python on this box, and a broker beside them.

    The command starts a broker of this version in DIR, and loads it with a client on the same machine: 1 KiB records,
    acks=1, first in batches of 1 MB, then one record per request and one request at a time. A share of 50 % of loopback
    means half of the rate that one connection can carry. It takes 15 to 20 s and less than 1 GiB of disk, and removes
    its files. MB are 10^6 bytes.

    Example: strata bench machine --directory /mnt/disk1
    """
    import shutil
    from tempfile import TemporaryDirectory

    from stratalog.errors import UserError

    try:
        with TemporaryDirectory(prefix="strata-bench-", dir=directory) as name:
            free = shutil.disk_usage(name).free
            if free < 2 * SPACE_BYTES:
                raise UserError(
                    f"{Path(name).parent}: {free >> 20} MiB are free, {SPACE_BYTES >> 19} are needed; "
                    "name another place with --directory"
                )
            note("measuring the machine …")
            limits = limits_of(name)
            note("measuring a broker …")
            broker = run(broker_of(Path(name)))
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"--directory {directory}: {error.strerror}") from None
    print_all(limits, broker, as_json=json)


def limits_of(directory: str) -> Limits:
    """Measure the machine's limits one after the other. Raises OSError."""
    from stratalog.adapters import machine

    written, read, synced = machine.file_bytes_s(directory, LIMIT_S, FILE_BYTES)
    return Limits(
        machine.loopback_bytes_s(LIMIT_S),
        machine.loopback_round_trip_s(LIMIT_S),
        machine.copied_bytes_s(LIMIT_S),
        machine.crc32c_bytes_s(LIMIT_S),
        written,
        read,
        synced,
        machine.sync_s(directory, LIMIT_S),
        machine.python_calls_s(LIMIT_S),
    )


async def broker_of(place: Path) -> Broker:
    """Start a broker; measure large batches, reading, and single small requests. Raises Unavailable, Rejected."""
    from stratalog.cli.shared.local_broker import broker
    from stratalog.cli.shared.terminal import accepted
    from stratalog.client.calls import NewTopic

    async with (
        broker(place, ["log.retention.ms=-1"]) as started,
        connected(started.address) as client,
    ):
        for made in await client.create_topics([NewTopic(TOPIC, 1), NewTopic(LITTLE_TOPIC, 1)]):
            accepted(made, "topic ")
        produce, produce_cpu = await loaded(client, started.pid)
        consume, consume_cpu = await read_back(client, started.pid)
        requests_s, p50_s, request_cpu = await measure_requests(client, started.pid)
    return Broker(produce, produce_cpu, consume, consume_cpu, requests_s, p50_s, request_cpu)


def cpu_of(pid: int) -> float | None:
    """Return CPU seconds of a process; None where this system does not report them."""
    from stratalog.adapters.machine import process_cpu_s

    try:
        return process_cpu_s(pid)
    except (OSError, ValueError):
        return None


def spent(before: float | None, after: float | None, per: float) -> float | None:
    """Return the CPU seconds between two measurements, divided by `per`."""
    return None if before is None or after is None else (after - before) / per


async def loaded(client: "Client", pid: int) -> tuple[float, float | None]:
    """Return (bytes a second, broker CPU seconds per GB) of large batches."""
    from stratalog.adapters.system import monotonic_s
    from stratalog.cli.speed.load import Load, Producing, random_values

    load = Load(client, TOPIC, [0], random_values(RECORD_BYTES), Producing(1, LARGE_BATCH))
    before = cpu_of(pid)
    began_s = monotonic_s()
    await load.run(LOAD_RECORDS, until_s=began_s + LOAD_S)
    done = load.total.value_bytes
    return done / (monotonic_s() - began_s), spent(before, cpu_of(pid), done / 1e9)


async def read_back(client: "Client", pid: int) -> tuple[float, float | None]:
    """Return (bytes a second, broker CPU seconds per GB) of reading the loaded records, repeatedly if one pass is too
    short to measure.
    """
    from stratalog.adapters.system import monotonic_s
    from stratalog.cli.shared.reading import first_offsets
    from stratalog.cli.speed.read import Reading
    from stratalog.client.reader import FetchSettings

    ends = await first_offsets(client, TOPIC, [0], "end")
    before = cpu_of(pid)
    began_s = monotonic_s()
    done = 0
    while not done or monotonic_s() - began_s < LOAD_S / 2:
        # The fetches do not wait: a waiting fetch at the end of one round would delay the next round.
        settings = FetchSettings(partition_max_bytes=FETCH_BYTES, max_wait_ms=0)
        reading = Reading(client, TOPIC, {0: 0}, ends, (settings, True))
        await reading.run(None, LOAD_S)
        done += reading.total.batch_bytes
    return done / (monotonic_s() - began_s), spent(before, cpu_of(pid), done / 1e9)


async def measure_requests(client: "Client", pid: int) -> tuple[float, float, float | None]:
    """Return (requests a second, their median seconds, broker CPU seconds each): one record each, one at a time."""
    from statistics import median

    from stratalog.adapters.system import SystemClock, monotonic_s
    from stratalog.wire.records import BatchBuilder

    builder = BatchBuilder()
    builder.add(None, b"x" * RECORD_BYTES, SystemClock().now_ms())
    batch = builder.build()
    before = cpu_of(pid)
    began_s = now_s = monotonic_s()
    times: list[float] = []
    while now_s - began_s < LOAD_S:
        await client.produce(LITTLE_TOPIC, 0, batch, acks=1)
        later_s = monotonic_s()
        times.append(later_s - now_s)
        now_s = later_s
    count = len(times)
    return count / (now_s - began_s), median(times), spent(before, cpu_of(pid), count)


def shares_of(limits: Limits, broker: Broker) -> dict[str, dict[str, float]]:
    """Return each measurement of the broker as a share (rates) or a multiple (times) of its limit."""
    shares = {
        "produce": {
            "loopback": broker.produce / limits.loopback,
            "page_cache_write": broker.produce / limits.page_cache_write,
            "write_and_sync": broker.produce / limits.write_and_sync,
            "crc32c": broker.produce / limits.crc32c,
        },
        "consume": {
            "loopback": broker.consume / limits.loopback,
            "page_cache_read": broker.consume / limits.page_cache_read,
        },
        "request_p50_s": {
            "loopback_round_trip_s": broker.request_p50_s / limits.loopback_round_trip_s
        },
    }
    if broker.request_cpu_s is not None:
        shares["request_cpu_s"] = {"python_calls": broker.request_cpu_s * limits.python_calls}
    return {
        name: {of: round(share, 4) for of, share in some.items()} for name, some in shares.items()
    }


def print_all(limits: Limits, broker: Broker, *, as_json: bool) -> None:
    """Print two tables, or one JSON object in bytes and seconds."""
    from dataclasses import asdict

    shares = shares_of(limits, broker)
    if as_json:
        show_json({"machine": asdict(limits), "broker": asdict(broker), "shares": shares})
        return
    show(machine_rows(limits), as_json=False)
    print()
    show(broker_rows(broker, shares), as_json=False)


def machine_rows(limits: Limits) -> list[dict[str, Any]]:
    """Return the machine's limits for a person."""
    rates = ("loopback", "memory_copy", "crc32c", "page_cache_write", "page_cache_read")
    found = {name: f"{getattr(limits, name) / MB:,.0f} MB/s" for name in (*rates, "write_and_sync")}
    found["loopback round trip"] = f"{limits.loopback_round_trip_s * 1e6:,.1f} µs"
    found["4 KiB write and sync"] = f"{limits.sync_s * 1e6:,.1f} µs"
    found["Python calls"] = f"{limits.python_calls / 1e6:,.1f} million/s"
    return [{"machine": name.replace("_", " "), "measured": text} for name, text in found.items()]


def broker_rows(broker: Broker, shares: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the broker's measurements for a person, each with its shares."""

    def cpu(seconds: float | None, scale: float, unit: str) -> str:
        return "-" if seconds is None else f"{seconds * scale:,.2f} {unit}"

    def of(name: str) -> str:
        return ", ".join(
            f"{share:.1%} of {limit.replace('_', ' ')}" for limit, share in shares[name].items()
        )

    round_trips = shares["request_p50_s"]["loopback_round_trip_s"]
    calls = shares.get("request_cpu_s", {}).get("python_calls")
    rows = {
        "produce": (f"{broker.produce / MB:,.0f} MB/s", of("produce")),
        "its CPU per GB": (cpu(broker.produce_cpu_s_per_gb, 1, "s"), ""),
        "consume": (f"{broker.consume / MB:,.0f} MB/s", of("consume")),
        "consume's CPU per GB": (cpu(broker.consume_cpu_s_per_gb, 1, "s"), ""),
        "requests, one at a time": (f"{broker.requests_s:,.0f} /s", ""),
        "one, median": (
            f"{broker.request_p50_s * 1e6:,.0f} µs",
            f"{round_trips:,.1f} loopback round trips",
        ),
        "one's CPU": (
            cpu(broker.request_cpu_s, 1e6, "µs"),
            "" if calls is None else f"as long as {calls:,.0f} Python calls",
        ),
    }
    return [
        {"broker": name, "measured": measured, "of the machine": share}
        for name, (measured, share) in rows.items()
    ]
