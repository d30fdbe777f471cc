"""Numbers of the brokers' monitors over the last hour.

In: monitors, and how to fetch the text of their `/metrics`. Out: points by chart and monitor. It asks each monitor four
times a minute, as Prometheus would, keeps only what the charts show, and writes nothing down.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from stratalog.console.charts import Point
from stratalog.errors import Unavailable
from stratalog.ports import Clock, Worker

__all__ = ["CHARTS", "Measured", "Shown", "Watched"]

EVERY_S: Final = 15.0
_KEPT_MS: Final = 3_600_000
_QUANTILE: Final = 0.99


@dataclass(frozen=True, slots=True)
class Shown:
    """A chart: the sum of a metric's series, their largest, their rate, or the 99th percentile of a histogram.

    `scale` multiplies the values: 1,000 turns seconds into ms.
    """

    title: str
    unit: str
    metric: str
    kind: str
    where: tuple[tuple[str, str], ...] = ()
    scale: float = 1.0


CHARTS: Final = (
    Shown("Records written", "records/s", "stratalog_topic_messages_in_total", "rate"),
    Shown("Bytes written", "B/s", "stratalog_topic_bytes_in_total", "rate"),
    Shown("Bytes read", "B/s", "stratalog_topic_bytes_out_total", "rate"),
    Shown("Requests", "requests/s", "stratalog_request_duration_seconds_count", "rate"),
    Shown(
        "Time of a produce, p99",
        "ms",
        "stratalog_request_duration_seconds_bucket",
        "quantile",
        (("api", "Produce"),),
        1000,
    ),
    Shown("CPU", "cores", "process_cpu_seconds_total", "rate"),
    Shown("Memory", "B", "process_resident_memory_bytes", "sum"),
    Shown("Connections", "", "stratalog_connections", "sum"),
    Shown(
        "Event loop delay, p99",
        "ms",
        "stratalog_event_loop_delay_seconds_bucket",
        "quantile",
        scale=1000,
    ),
    Shown("Partitions out of sync", "", "stratalog_partitions_under_replicated", "sum"),
    Shown("Largest lag of a group", "records", "stratalog_group_lag_records", "max"),
    Shown("Waiting for the bucket", "B", "stratalog_remote_copy_lag_bytes", "sum"),
)
_NAMES: Final = tuple({one.metric for one in CHARTS})

Raw = dict[float, float]
"""A number of one scrape, by upper bound for a histogram; by infinity alone for another metric."""


@dataclass(slots=True)
class Watched:
    """One monitor: its points by chart, and why its last scrape failed."""

    address: str
    error: str = ""
    scraped_ms: int = -1
    points: dict[str, deque[Point]] = field(default_factory=dict)
    before: dict[str, Raw] = field(default_factory=dict)


class Measured:
    """Scrapes monitors until `close`; `fetch` returns the text of one's metrics, or raises Unavailable.

    `waiting` has a thread for each monitor.
    """

    def __init__(
        self, addresses: Sequence[str], fetch: Callable[[str], str], waiting: Worker, clock: Clock
    ) -> None:
        self.monitors = [Watched(one) for one in addresses]
        self._fetch = fetch
        self._waiting = waiting
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Begin to scrape each monitor on its own: a silent one holds up no other."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch(one)) for one in self.monitors]

    async def close(self) -> None:
        """Stop, and let the threads go."""
        for task in self._tasks:
            task.cancel()
        await self._waiting.close()

    async def _watch(self, one: Watched) -> None:
        while True:
            await self._scrape(one)
            await asyncio.sleep(EVERY_S)

    async def _scrape(self, one: Watched) -> None:
        try:
            found = await self._waiting.submit(lambda: numbers(self._fetch(one.address)))
        except Unavailable as error:
            one.error = str(error)
            one.before = {}
            return
        except ValueError:
            one.error = "it answers, but not with metrics of Prometheus' text format"
            return
        now_ms = self._clock.now_ms()
        for shown in CHARTS:
            value = _value(
                shown, found.get(shown.title), one.before.get(shown.title), now_ms - one.scraped_ms
            )
            if value is not None and isfinite(value * shown.scale):  # JSON has no infinity
                points = one.points.setdefault(shown.title, deque())
                points.append((now_ms, value * shown.scale))
                while points[0][0] < now_ms - _KEPT_MS:
                    points.popleft()
        one.before, one.scraped_ms, one.error = found, now_ms, ""


def numbers(text: str) -> dict[str, Raw]:
    """Return the numbers that charts need of a scrape, by chart. Raises ValueError for a text that is no scrape."""
    lines = [line for line in text.split("\n") if line.startswith(_NAMES)]
    found: dict[str, Raw] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            for shown in CHARTS:
                if sample.name != shown.metric or not set(shown.where) <= sample.labels.items():
                    continue
                raw = found.setdefault(shown.title, {})
                bound = float(sample.labels.get("le", "")) if shown.kind == "quantile" else inf
                before = raw.get(bound, 0.0)
                raw[bound] = (
                    max(before, sample.value) if shown.kind == "max" else before + sample.value
                )
    if not found:
        raise ValueError("none of the wanted metrics")
    return found


def _value(shown: Shown, raw: Raw | None, before: Raw | None, ms: int) -> float | None:
    """Return a chart's next value; None where there is none, or where a counter began again."""
    if raw is None or inf not in raw:
        return None
    if shown.kind in {"sum", "max"}:
        return raw[inf]
    if before is None or ms <= 0 or raw[inf] < before.get(inf, 0.0):
        return None
    if shown.kind == "rate":
        return (raw[inf] - before.get(inf, 0.0)) * 1000 / ms
    return quantile({bound: count - before.get(bound, 0.0) for bound, count in raw.items()})


def quantile(counts: Mapping[float, float]) -> float | None:
    """Return the 99th percentile of cumulative counts by upper bound, as Prometheus estimates it; None without any."""
    bounds = sorted(counts)
    total = counts[bounds[-1]]
    if total <= 0:
        return None
    rank, low, below = total * _QUANTILE, 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if bound == inf:
                return low
            share = (rank - below) / (counts[bound] - below) if counts[bound] > below else 1.0
            return low + (bound - low) * share
        low, below = bound, counts[bound]
    return low
