"""`strata perf produce --sweep`: compare codecs and batch sizes on the user's data.

In: record values, a producer's settings. Out: one row per codec and batch size. It leaves no topic behind, and reports
only measured values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stratalog.cli.shared.terminal import connected, note, show

if TYPE_CHECKING:
    from stratalog.cli.speed.load import Producing
    from stratalog.client.aio import Client

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_BYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
GB = 1e9
CPU_METRIC = "process_cpu_seconds_total"
METRICS_TIMEOUT_S = 10

Cpu = Callable[[], float]
"""CPU seconds that a process has spent so far."""


@dataclass(frozen=True, slots=True)
class Row:
    """One combination's results; `broker_cpu` and `client_cpu` are seconds per 10**9 bytes of values."""

    codec: str
    batch_bytes: int
    records_s: float
    mb_s: float
    ratio: float
    broker_cpu: float | None
    client_cpu: float


def broker_cpu(metrics: str | None, pid: int | None) -> Cpu | None:
    """Return a function that reads the broker's CPU time, by the user's option; None without one.

    Raises UserError where it cannot read that time.
    """
    from stratalog.adapters.machine import process_cpu_s
    from stratalog.errors import UserError

    if metrics is not None:
        if not metrics.startswith(("http://", "https://")):
            raise UserError(
                f"--metrics: {metrics!r} is not accepted; accepted: http://HOST:PORT/metrics"
            )
        return _checked(lambda: metric_of(metrics), f"--metrics {metrics}")
    if pid is not None:
        return _checked(lambda: process_cpu_s(pid), f"--broker-pid {pid}")
    return None


def _checked(cpu: Cpu, what: str) -> Cpu:
    from stratalog.errors import UserError

    def read() -> float:
        try:
            return cpu()
        except (OSError, ValueError) as error:
            raise UserError(f"{what}: the CPU time is not available: {error}") from None

    read()
    return read


def metric_of(url: str) -> float:
    """Return the process's CPU seconds from a Prometheus page. Raises OSError, ValueError."""
    from urllib.request import urlopen

    with urlopen(url, timeout=METRICS_TIMEOUT_S) as page:  # noqa: S310 - checked above to be http
        text = page.read().decode()
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == CPU_METRIC:
            return float(value)
    raise ValueError(f"it has no {CPU_METRIC}")


async def sweep(
    bootstrap: str,
    values: Sequence[bytes],
    producing: "Producing",
    seconds: float,
    cpu: Cpu | None,
) -> list[Row]:
    """Fill a topic for `seconds` with each combination. Raises Rejected, Unavailable."""
    from stratalog.adapters.system import SystemEntropy

    sizes = sizes_for(sum(map(len, values)))
    name = f"strata-perf-sweep-{SystemEntropy().uuid().hex[:8]}"
    rows = []
    async with connected(bootstrap) as client:
        for codec in CODECS:
            for batch_bytes in sizes:
                note(f"{codec}, batches of {batch_bytes} bytes, {seconds:g} s …")
                trial = replace(producing, compression=codec, batch_bytes=batch_bytes)
                rows.append(await tried(client, name, values, trial, seconds, cpu))
    return rows


def sizes_for(value_bytes: int) -> list[int]:
    """Return the batch sizes that this much data fills without repetition: repeated data compresses too well."""
    sizes = [size for size in BATCH_BYTES if size <= value_bytes] or [BATCH_BYTES[0]]
    if sizes[-1] > value_bytes:
        note(f"warning: {value_bytes} bytes fill no batch: data that repeats compresses too well")
    elif len(sizes) < len(BATCH_BYTES):
        note(f"batches above {sizes[-1]} bytes are left out: {value_bytes} bytes do not fill one")
    return sizes


async def tried(
    client: "Client",
    topic: str,
    values: Sequence[bytes],
    producing: "Producing",
    seconds: float,
    cpu: Cpu | None,
) -> Row:
    """Measure one combination, on a temporary topic."""
    from resource import RUSAGE_SELF, getrusage

    from stratalog.adapters.system import monotonic_s
    from stratalog.cli.shared.terminal import accepted
    from stratalog.cli.speed.load import Load
    from stratalog.client.calls import NewTopic

    (made,) = await client.create_topics([NewTopic(topic, 1, -1, {"compression.type": "producer"})])
    accepted(made, "topic ")
    try:
        await client.metadata([topic])
        load = Load(client, topic, [0], values, producing)
        used = getrusage(RUSAGE_SELF)
        before = cpu() if cpu is not None else 0.0
        await load.run(None, until_s=monotonic_s() + seconds)
        summary = load.total.summary(monotonic_s())
        broker = cpu() - before if cpu is not None else None
        spent = getrusage(RUSAGE_SELF)
    finally:
        await client.delete_topics([topic])
    gigabytes = load.total.value_bytes / GB
    client_s = spent.ru_utime - used.ru_utime + spent.ru_stime - used.ru_stime
    return Row(
        producing.compression,
        producing.batch_bytes,
        summary["records_s"],
        summary["mb_s"],
        round(load.total.value_bytes / load.total.batch_bytes, 2),
        None if broker is None else round(broker / gigabytes, 2),
        round(client_s / gigabytes, 2),
    )


def show_sweep(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the rows as a table, with `-` for unknown values, or as JSON."""
    from dataclasses import asdict

    if as_json:
        show([asdict(row) for row in rows], as_json=True)
        return
    table = [
        {
            "codec": row.codec,
            "batch": f"{row.batch_bytes // 1024}K",
            "records/sec": round(row.records_s),
            "MB/sec": row.mb_s,
            "ratio": row.ratio,
            "broker CPU s/GB": "-" if row.broker_cpu is None else row.broker_cpu,
            "client CPU s/GB": row.client_cpu,
        }
        for row in rows
    ]
    show(table, as_json=False)
