"""Numbers of scrapes become points: sums, rates, percentiles, and gaps where a counter began again."""

import asyncio
import threading
from concurrent.futures import Future
from math import inf, isfinite
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratalog.adapters.system import outside
from stratalog.console.charts import chart
from stratalog.console.measured import EVERY_S, Measured, numbers, quantile
from stratalog.console.page import Context, PageRequest
from stratalog.console.pages.metrics import metrics
from stratalog.console.rendering import json_bytes
from stratalog.errors import Unavailable

PATIENCE_S = 20

SCRAPE = """\
# HELP process_cpu_seconds_total CPU.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total {cpu}
stratalog_connections{{listener="A"}} 2
stratalog_connections{{listener="B"}} 3
stratalog_group_lag_records{{group="a \\"b\\""}} 7
stratalog_group_lag_records{{group="c"}} 4
stratalog_request_duration_seconds_bucket{{api="Produce",le="0.001"}} {fast}
stratalog_request_duration_seconds_bucket{{api="Produce",le="0.002"}} {slow}
stratalog_request_duration_seconds_bucket{{api="Produce",le="+Inf"}} {slow}
stratalog_request_duration_seconds_bucket{{api="Fetch",le="+Inf"}} 99
stratalog_request_duration_seconds_bucket{{api="SaslHandshake",le="+Inf"}} {slow}
"""


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    steady_ms = now_ms

    def elapsed_ns(self) -> int:
        return self.ms * 1_000_000


class Inline:
    """A worker without a thread."""

    def submit(self, call: Any) -> Any:
        done: Future[Any] = Future()
        try:
            done.set_result(call())
        except (Unavailable, ValueError) as error:
            done.set_exception(error)
        return asyncio.wrap_future(done)

    async def close(self) -> None:
        pass


async def scraped(texts: list[str | Unavailable]) -> Measured:
    clock = Clock()

    def fetch(_address: str) -> str:
        text = texts.pop(0)
        clock.ms += int(EVERY_S * 1000)
        if isinstance(text, Unavailable):
            raise text
        return text

    measured = Measured(["node:1"], fetch, Inline(), clock)
    while texts:
        await measured._scrape(measured.monitors[0])
    return measured


def of(cpu: float, fast: int = 0, slow: int = 0) -> str:
    return SCRAPE.format(cpu=cpu, fast=fast, slow=slow)


def test_two_scrapes_become_sums_rates_and_percentiles() -> None:
    (one,) = asyncio.run(scraped([of(10), of(13, fast=0, slow=100)])).monitors
    values = {title: [value for _, value in points] for title, points in one.points.items()}
    assert values["CPU"] == [pytest.approx(0.2)]
    assert values["Connections"] == [5, 5]
    assert values["Largest lag of a group"] == [7, 7]
    assert values["Time of a produce, p99"] == [pytest.approx(1.99)]


def test_a_counter_that_began_again_and_a_monitor_that_was_away_leave_gaps() -> None:
    texts: list[str | Unavailable] = [of(10), of(2), of(5), Unavailable("it is away"), of(8)]
    (one,) = asyncio.run(scraped(texts)).monitors
    assert [value for _, value in one.points["CPU"]] == [pytest.approx(0.2)]
    assert one.error == ""


def test_a_page_that_is_no_scrape_is_an_error_and_no_number() -> None:
    (one,) = asyncio.run(scraped(["<html>", of(1)][:1])).monitors  # type: ignore[list-item]
    assert "Prometheus" in one.error
    assert one.points == {}
    with pytest.raises(ValueError, match="what"):
        numbers("process_cpu_seconds_total what\n")


BUCKET = "stratalog_event_loop_delay_seconds_bucket"


@pytest.mark.parametrize(
    "lines",
    [
        "stratalog_connections NaN",
        "stratalog_connections +Inf",
        'stratalog_connections{listener="A"} 1e308\nstratalog_connections{listener="B"} 1e308',
        "process_cpu_seconds_total +Inf",
        "process_cpu_seconds_total NaN",
        f'{BUCKET}{{le="1e308"}} 5\n{BUCKET}{{le="+Inf"}} 5',
        f'{BUCKET}{{le="0.1"}} NaN\n{BUCKET}{{le="+Inf"}} 5',
        f'{BUCKET}{{le="NaN"}} 5\n{BUCKET}{{le="+Inf"}} NaN',
        f'{BUCKET}{{le="0.1"}} 5',
    ],
)
def test_a_number_that_json_has_not_is_a_gap(lines: str) -> None:
    first = f'{BUCKET}{{le="+Inf"}} 0\nprocess_cpu_seconds_total 0\n'
    measured = asyncio.run(scraped([first, lines + "\n", lines + "\n"]))
    context = cast("Context", SimpleNamespace(measured=measured))
    page = asyncio.run(metrics(context, PageRequest(())))
    assert b"Infinity" not in json_bytes(page.data)
    for one in page.data["charts"]:
        assert all(isfinite(value) for line in one["lines"] for _, value in line["points"])
    assert measured.monitors[0].error == ""


def test_a_bucket_without_its_bound_is_an_error() -> None:
    (one,) = asyncio.run(scraped([f"{BUCKET} 5\n"])).monitors
    assert "Prometheus" in one.error


def test_a_silent_monitor_holds_up_no_other() -> None:
    answers, given = threading.Event(), threading.Event()

    def fetch(address: str) -> str:
        if address == "silent:1":
            answers.wait(PATIENCE_S)
            return of(1)
        given.set()
        return of(2)

    async def go() -> None:
        waiting = outside().workers.start("monitors", 2)
        measured = Measured(["silent:1", "node:2"], fetch, waiting, Clock())
        measured.open()
        try:
            for _ in range(int(PATIENCE_S / 0.01)):
                if measured.monitors[1].points:
                    break
                await asyncio.sleep(0.01)
            assert given.is_set()
            assert measured.monitors[1].points
            assert not measured.monitors[0].points
        finally:
            answers.set()
            await measured.close()

    asyncio.run(go())


def test_points_older_than_an_hour_go() -> None:
    (one,) = asyncio.run(scraped([of(1)] * 300)).monitors
    points = one.points["Connections"]
    assert points[-1][0] - points[0][0] == 3_600_000


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({0.1: 0, inf: 0}, None),
        ({0.1: 100, inf: 100}, pytest.approx(0.099)),
        ({0.1: 0, 0.2: 0, inf: 5}, 0.2),
    ],
)
def test_a_percentile_is_prometheus(counts: dict[float, float], expected: object) -> None:
    assert quantile(counts) == expected


def test_a_line_breaks_at_a_gap_and_stays_in_its_box() -> None:
    found = chart("t", "B", {"a": [(0, 0.0), (10, 4.0), (20, 2.0), (90, 1.0)], "b": []})
    assert found["max"] == 4.0
    (line,) = found["lines"]
    assert line["path"] == "M0.0 63.0h0.5L33.3 1.0L66.7 32.0M300.0 47.5h0.5"
    assert chart("t", "B", {})["lines"] == []
    assert chart("t", "B", {"a": [(5, 0.0)]})["lines"][0]["path"] == "M0.0 63.0h0.5"
