"""Turn Spark's filters on topic, partition, offset, timestamp and key into bounds.

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

_NAMED = ("topic", "partition", "key")
"""Columns of which a condition can name the allowed values."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pruning_of(filters: Iterable[Filter]) -> Pruning:
    """Return the bounds that conditions on topic, partition, offset, timestamp and key give."""
    allowed: dict[str, set[Any]] = {}
    firsts: list[int] = []
    ends: list[int] = []
    since: list[int] = []
    until: list[int] = []
    for one in filters:
        match one:
            case EqualTo((column,), value) if column in _NAMED:
                allowed[column] = _both(allowed.get(column), [value])
            case In((column,), values) if column in _NAMED:
                allowed[column] = _both(allowed.get(column), values)
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
    named = {one: frozenset(allowed[one]) if one in allowed else None for one in _NAMED}
    return Pruning(
        topics=named["topic"],
        partitions=named["partition"],
        first_offset=max(firsts, default=None),
        end_offset=min(ends, default=None),
        since_ms=max(since, default=None),
        until_ms=min(until, default=None),
        keys=named["key"],
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
    """Return the values that a further condition leaves. A null equals nothing; Spark's binary may be a bytearray."""
    given = {bytes(one) if isinstance(one, bytearray) else one for one in values if one is not None}
    return given if allowed is None else allowed & given
