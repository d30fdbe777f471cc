"""Cassandra's statements and values for rows.

In: an Arrow schema, record batches, names. Out: CQL, rows of Python values in the columns' order, or a BadOption of
one line. It sends nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute

from stratalog.errors import BadOption
from stratalog.sinks.cassandra_options import RECORD, CassandraOptions

__all__ = ["columns_of", "create_keyspace", "create_table", "insert", "quoted", "rows_of"]

_TYPES: Final = (
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_binary, "blob"),
    (pa.types.is_large_binary, "blob"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "tinyint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_decimal, "decimal"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_date, "date"),
)


def quoted(name: str) -> str:
    """Return a name quoted for CQL, so that it may be a reserved word."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """Return the columns' CQL types.

    Raises BadOption for a column without one, or without the columns that identify a record.
    """
    columns = {}
    for field in schema:
        kind = next((cql for is_one, cql in _TYPES if is_one(field.type)), None)
        if kind is None:
            raise BadOption(
                f"column '{field.name}' is {field.type}, which has no place in Cassandra: write it with to_json()"
            )
        columns[field.name] = kind
    if missing := [name for name in RECORD if name not in columns]:
        raise BadOption(
            f"column '{missing[0]}' is needed: topic, partition and offset name a row, so that written again it is one"
        )
    return columns


def create_keyspace(options: CassandraOptions) -> str:
    """Return the statement that creates a missing keyspace; needs `replication`."""
    assert options.replication is not None, "asked for only where it was given"
    copies = ", ".join(f"'{name}': '{value}'" for name, value in options.replication.items())
    return (
        f"CREATE KEYSPACE IF NOT EXISTS {quoted(options.keyspace)} WITH replication = {{{copies}}}"
    )


def create_table(options: CassandraOptions, columns: Mapping[str, str]) -> str:
    """Return the statement that creates a missing table.

    Raises BadOption where the key has no such column.
    """
    for name in options.key.columns:
        if name not in columns:
            raise BadOption(
                f"option 'primary_key' has '{name}', which is no column: there are {', '.join(columns)}"
            )
    cells = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    partition = ", ".join(map(quoted, options.key.partition))
    key = ", ".join([f"({partition})", *map(quoted, options.key.clustering)])
    return f"CREATE TABLE IF NOT EXISTS {_table(options)} ({cells}, PRIMARY KEY ({key}))"


def insert(options: CassandraOptions, columns: Mapping[str, str]) -> str:
    """Return the statement that writes a row, for preparation."""
    names = ", ".join(map(quoted, columns))
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {_table(options)} ({names}) VALUES ({marks})"  # noqa: S608 - names are quoted


def _table(options: CassandraOptions) -> str:
    return f"{quoted(options.keyspace)}.{quoted(options.table)}"


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield each row's values. A time becomes milliseconds since 1970, Cassandra's precision."""
    yield from zip(*(_values(column) for column in batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    # Rounded down, as in Cassandra: a microsecond before 1970 belongs to the millisecond before.
    floor = compute.floor_temporal(micros.cast(pa.timestamp("us")), unit="millisecond")
    return list(floor.cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist())
