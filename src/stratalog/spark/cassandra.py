"""The Spark sink `stratalog_cassandra`: write rows to a table, by batch and by stream.

In: options, the rows' schema, Arrow record batches. Out: rows in Cassandra. Spark pickles options into its plan: no
connection, no user, no password. `sinks/cassandra.py` does the writing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from stratalog.errors import BadOption
from stratalog.sinks.cassandra_options import CassandraOptions, parse_cassandra_options
from stratalog.spark.failures import one_line


@dataclass(frozen=True, slots=True)
class Stored(WriterCommitMessage):
    """How many rows a task wrote."""

    rows: int


class CassandraSource(DataSource):
    """`frame.write.format("stratalog_cassandra")` and `frame.writeStream.format("stratalog_cassandra")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return "stratalog_cassandra"

    def writer(self, schema: StructType, overwrite: bool) -> "BatchStorer":  # noqa: FBT001 - Spark's
        return BatchStorer(_ready(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamStorer":  # noqa: FBT001 - Spark's
        return StreamStorer(_ready(self.options, schema, overwrite=overwrite))


@one_line()
def _ready(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> CassandraOptions:
    """Return the options after preparing the table for rows of `schema`, so that errors come before any task starts."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if find_spec("cassandra") is None:
        raise BadOption("Cassandra's driver is missing: pip install 'stratalog[cassandra]'")
    from stratalog.sinks.cassandra import prepare

    if overwrite:
        raise BadOption(
            "a row only ever overwrites itself: write with mode('append') or outputMode('append')"
        )
    options = parse_cassandra_options(given)
    prepare(options, to_arrow_schema(schema, timezone="UTC"))
    return options


@one_line()
def _write(found: Iterator[pa.RecordBatch], options: CassandraOptions) -> Stored:
    from stratalog.sinks.cassandra import write_rows

    return Stored(write_rows(found, options))


class BatchStorer(DataSourceArrowWriter):
    """One job's rows."""

    def __init__(self, options: CassandraOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return _write(iterator, self._options)


class StreamStorer(DataSourceStreamArrowWriter):
    """A query's rows, micro-batch by micro-batch."""

    def __init__(self, options: CassandraOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return _write(iterator, self._options)
