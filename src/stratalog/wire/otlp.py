"""Read metrics of the OpenTelemetry protocol (OTLP); the only use of opentelemetry-proto.

In: bytes of a `MetricsData`. Out: points of gauges and sums as plain values; the same bytes with more attributes of
their resources. It keeps nothing, and bounds how much it looks at: the bytes are a client's.

A `MetricsData` has the bytes of an `ExportMetricsServiceRequest`, which receivers of OTLP take.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from stratalog.errors import Corrupt, UserError

__all__ = ["Point", "check_available", "described", "parse_metrics", "points_of"]

_RESOURCES_MAX: Final = 5000
"""Java has one for each metric. Each of them gets the attributes that describe the client."""
_DELTA: Final = 1
"""AGGREGATION_TEMPORALITY_DELTA."""
_NO_VALUE: Final = 1
"""DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK."""


class Point(NamedTuple):
    """One value of a metric; `is_delta`: the change since the push before."""

    name: str
    attributes: list[tuple[str, str]]
    value: float
    is_delta: bool


def check_available(setting: str) -> None:
    """Raise UserError, which names the setting that needs it, where the package is missing."""
    try:
        import opentelemetry.proto.metrics.v1.metrics_pb2  # noqa: F401, PLC0415 - few brokers
    except ImportError:
        raise UserError(
            f"{setting} needs the package opentelemetry-proto; pip install 'stratalog[telemetry]'"
        ) from None


def parse_metrics(data: bytes) -> Any:
    """Return the MetricsData of a client's bytes. Raises Corrupt for any others, and for too many resources."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - as above
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData  # noqa: PLC0415 - as above

    found = MetricsData()
    try:
        found.ParseFromString(data)
    except DecodeError as error:
        raise Corrupt(f"no metrics of OTLP: {error}") from None
    if len(found.resource_metrics) > _RESOURCES_MAX:
        raise Corrupt(f"more than {_RESOURCES_MAX} resources")
    return found


def points_of(metrics: Any, points_max: int, attributes_max: int) -> tuple[list[Point], int, int]:
    """Return the first points of gauges and sums, how many more there are, and how many of other kinds.

    A point has at most `attributes_max` attributes of its own, and as many of its resource.
    """
    found: list[Point] = []
    more = others = 0
    for shared, metric in _metrics_of(metrics, attributes_max):
        kind = metric.WhichOneof("data")
        if kind is None:
            continue
        data = getattr(metric, kind)
        if kind not in {"gauge", "sum"}:
            others += len(data.data_points)
            continue
        room = points_max - len(found)
        more += max(0, len(data.data_points) - room)
        is_delta = kind == "sum" and data.aggregation_temporality == _DELTA
        for point in data.data_points[:room]:
            value = point.WhichOneof("value")
            if value is not None and not point.flags & _NO_VALUE:
                attributes = [*islice(_texts(point.attributes), attributes_max), *shared]
                found.append(Point(metric.name, attributes, float(getattr(point, value)), is_delta))
    return found, more, others


def described(metrics: Any, attributes: Mapping[str, str]) -> bytes:
    """Return the bytes of a MetricsData whose resources have these attributes too, in place of the client's own."""
    for one in metrics.resource_metrics:
        own = one.resource.attributes
        kept = [each for each in own if each.key not in attributes]
        if len(kept) < len(own):
            del own[:]
            own.extend(kept)
        for name, value in attributes.items():
            added = own.add()
            added.key, added.value.string_value = name, value
    return bytes(metrics.SerializeToString())


def _metrics_of(metrics: Any, attributes_max: int) -> Iterator[tuple[list[tuple[str, str]], Any]]:
    """Yield each metric with the attributes of its resource."""
    for resource in metrics.resource_metrics:
        shared = list(islice(_texts(resource.resource.attributes), attributes_max))
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield shared, metric


def _texts(attributes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the attributes that are texts, numbers or truth values."""
    for one in attributes:
        kind = one.value.WhichOneof("value")
        if kind == "bool_value":
            yield one.key, "true" if one.value.bool_value else "false"
        elif kind in {"string_value", "int_value", "double_value"}:
            yield one.key, str(getattr(one.value, kind))
