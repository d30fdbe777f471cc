"""Goal: Prometheus' own parser reads the written values, for any name of a topic or group."""

import asyncio
import math

from prometheus_client.parser import text_string_to_metric_families

from stratalog.broker.metrics import BOUNDS_NS, Histogram
from stratalog.monitor.exposition import head, histogram, labelled, sample
from stratalog.monitor.metrics import Kind, Metric
from stratalog.monitor.pause import Pause

GAUGE = Metric("a_gauge", Kind.GAUGE, ("group", "topic"), 'What a \\ and a "\n" are.')
HISTOGRAM = Metric("a_histogram", Kind.HISTOGRAM, ("api",), "Durations.")


def read(text: str) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    return {
        family.name: [(one.name, one.labels, one.value) for one in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_any_label_comes_back() -> None:
    for name in ('a"b', "a\\b", "a\nb", "a}b", "a,b=", "ü", "\\n", ""):
        text = head(GAUGE) + sample(GAUGE, labelled(GAUGE, name, "t"), 1)
        assert read(text) == {"a_gauge": [("a_gauge", {"group": name, "topic": "t"}, 1.0)]}


def test_any_number_comes_back() -> None:
    for value in (0, 2**53 - 1, 0.1, 1e-9, math.inf):
        text = head(GAUGE) + sample(GAUGE, "", value)
        assert read(text)["a_gauge"][0][2] == value


def test_a_histogram_counts_upwards() -> None:
    durations = Histogram()
    for duration_ns in (BOUNDS_NS[0], BOUNDS_NS[1], 2 * BOUNDS_NS[-1]):
        durations.observe(duration_ns)
    samples = read(head(HISTOGRAM) + "".join(histogram(HISTOGRAM, durations, "Fetch")))
    buckets = [
        (float(labels["le"]), value)
        for name, labels, value in samples["a_histogram"]
        if name == "a_histogram_bucket"
    ]
    assert [bound for bound, _ in buckets] == [*(ns / 1e9 for ns in BOUNDS_NS), math.inf]
    assert [value for _, value in buckets] == [1, *[2] * (len(BOUNDS_NS) - 1), 3]
    rest = {name: value for name, _, value in samples["a_histogram"][len(buckets) :]}
    assert rest == {
        "a_histogram_sum": (BOUNDS_NS[0] + BOUNDS_NS[1] + 2 * BOUNDS_NS[-1]) / 1e9,
        "a_histogram_count": 3,
    }


def test_a_long_page_yields_to_other_tasks_after_its_share() -> None:
    now_ns = 0
    turns = 0

    async def story() -> None:
        nonlocal now_ns, turns

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        pause = Pause(lambda: now_ns)
        await pause()
        assert turns == 0
        for _ in range(3):
            now_ns += 5_000_000
            await pause()
        assert turns >= 3
        task.cancel()

    asyncio.run(story())
