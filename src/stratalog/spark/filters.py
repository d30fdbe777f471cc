"""Spark's filters on the columns that say where a record lies, as bounds of what is read.

In: the conditions of a query, all of which hold. Out: a `Pruning`. It never takes a condition off Spark's hands: what
cannot be turned into a bound, and what can, is checked on every row.
"""

from collections.abc import Iterable
from datetime import datetime
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


def pruning_of(filters: Iterable[Filter]) -> Pruning:
    """The bounds that conditions on topic, partition, offset and timestamp give."""
    topics: set[Any] | None = None
    partitions: set[Any] | None = None
    firsts: list[int] = []
    ends: list[int] = []
    since: list[int] = []
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
            case (
                EqualTo(("timestamp",), datetime() as value)
                | GreaterThan(("timestamp",), datetime() as value)
                | GreaterThanOrEqual(("timestamp",), datetime() as value)
            ) if value.tzinfo is not None:
                since.append(
                    int(value.timestamp() * 1000)
                )  # down to the millisecond: never too late
    return Pruning(
        None if topics is None else frozenset(topics),
        None if partitions is None else frozenset(partitions),
        max(firsts, default=None),
        min(ends, default=None),
        max(since, default=None),
    )


def _both(known: set[Any] | None, values: Iterable[Any]) -> set[Any]:
    return set(values) if known is None else known & set(values)
