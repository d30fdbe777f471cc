"""Write Prometheus' text format, line by line.

In: metrics, labels, numbers. Out: lines of text. It collects nothing.

prometheus_client is not used for this: for 10,000 partitions its objects cost 5 µs a sample, in one piece; lines cost
0.3 µs, in pieces of any size. The metrics of the process come from that library (`collect.py`).

Format 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from stratalog.broker.metrics import BOUNDS_NS, Histogram
from stratalog.monitor.metrics import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_NOT_FINITE: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_SECOND_NS: Final = 1_000_000_000
_BOUNDS: Final = [*(f"{bound / _SECOND_NS:g}" for bound in BOUNDS_NS), "+Inf"]


def head(metric: Metric) -> str:
    """Return the two lines before a metric's samples."""
    meaning = metric.meaning.translate(_HELP_ESCAPES)
    return f"# HELP {metric.name} {meaning}\n# TYPE {metric.name} {metric.kind.value}\n"


def labelled(metric: Metric, *values: object) -> str:
    """Return the labels of a sample, in braces; "" for none."""
    if not values:
        return ""
    pairs = zip(metric.labels, values, strict=True)
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def sample(metric: Metric, labels: str, value: float) -> str:
    """Return one sample's line; `labels` as `labelled` makes them."""
    return f"{metric.name}{labels} {number(value)}\n"


def number(value: float) -> str:
    """Return a value as Prometheus reads it."""
    if isinstance(value, int):
        return str(value)
    return _NOT_FINITE.get(repr(value), repr(value))


def untyped(name: str, series: Iterable[tuple[Iterable[tuple[str, str]], float]]) -> Iterator[str]:
    """Yield the lines of a family that is not one of `METRICS`; its names must be valid."""
    yield f"# TYPE {name} untyped\n"
    for labels, value in series:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        yield f"{name}{{{pairs}}} {number(value)}\n"


def histogram(metric: Metric, histogram: Histogram, *values: object) -> Iterator[str]:
    """Yield a histogram's lines, in seconds."""
    counts = list(histogram.counts)
    below = list(accumulate(counts))
    labels = labelled(metric, *values)
    before = labels[:-1] + "," if labels else "{"
    for bound, count in zip(_BOUNDS, below, strict=True):
        yield f'{metric.name}_bucket{before}le="{bound}"}} {count}\n'
    yield f"{metric.name}_sum{labels} {number(histogram.sum_ns / _SECOND_NS)}\n"
    yield f"{metric.name}_count{labels} {below[-1]}\n"


def _escaped(value: object) -> str:
    return str(value).translate(_ESCAPES)
