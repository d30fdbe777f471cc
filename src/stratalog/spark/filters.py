"""Turn Spark's filters on topic, partition, offset and timestamp into bounds.

In: the conditions of a query, all of which hold. Out: a `Pruning`. Spark still checks every condition on every row,
also those that became bounds.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from stratalog.table.pruning import Pruning

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pruning_of(filters: Iterable[Filter]) -> Pruning:
    """Return the bounds that conditions on topic, partition, offset and timestamp give."""
    topics: set[Any] | None = None
    partitions: set[Any] | None = None
    firsts: list[int] = []
    ends: list[int] = []
    since: list[int] = []
    until: list[int] = []
    for one in filters:
        match one:
            case EqualTo(("topic",), value):
                topics = _both(topics, [value])
            case In(("topic",), values):
                topics = _both(topics, values)
            case EqualTo(("partition",), value):
                partitions = _both(partitions, [value])
            case In(("partition",), values):
                partitions = _both(partitions, values)
            case EqualTo(("offset",), int(value)):
                firsts.append(value)
                ends.append(value + 1)
            case GreaterThan(("offset",), int(value)):
                firsts.append(value + 1)
            case GreaterThanOrEqual(("offset",), int(value)):
                firsts.append(value)
            case LessThan(("offset",), int(value)):
                ends.append(value)
            case LessThanOrEqual(("offset",), int(value)):
                ends.append(value + 1)
            case _:
                _add_time(one, since, until)
    return Pruning(
        None if topics is None else frozenset(topics),
        None if partitions is None else frozenset(partitions),
        max(firsts, default=None),
        min(ends, default=None),
        max(since, default=None),
        min(until, default=None),
    )


def _add_time(one: Filter, since: list[int], until: list[int]) -> None:
    """Note the bounds (epoch ms) that a condition on the timestamp gives, if it is one."""
    match one:
        case EqualTo(("timestamp",), datetime() as value) if value.tzinfo is not None:
            since.append(_whole_ms(value))
            until.append(_whole_ms(value) + 1)
        case GreaterThan(("timestamp",), datetime() as value) | GreaterThanOrEqual(
            ("timestamp",), datetime() as value
        ) if value.tzinfo is not None:
            since.append(_whole_ms(value))
        case LessThan(("timestamp",), datetime() as value) | LessThanOrEqual(
            ("timestamp",), datetime() as value
        ) if value.tzinfo is not None:
            until.append(_whole_ms(value) + 1)


def _whole_ms(moment: datetime) -> int:
    """Return epoch milliseconds, rounded down. Records have whole milliseconds, so the bound is never too narrow."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _both(allowed: set[Any] | None, values: Iterable[Any]) -> set[Any]:
    return set(values) if allowed is None else allowed & set(values)
