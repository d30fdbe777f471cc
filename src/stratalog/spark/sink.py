"""The Spark sink `stratalog`: write rows to topics, by batch and by stream.

In: options, the rows' schema, Arrow record batches. Out: records at the brokers. Spark pickles options and a job's id
into its plan. `table/sink.py` does the writing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from stratalog.adapters.system import SystemClock, SystemEntropy
from stratalog.table.sink import Write, write_rows
from stratalog.table.sink_options import SinkOptions, check_columns


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """How many records a task wrote."""

    records: int


def checked(schema: StructType, options: SinkOptions) -> SinkOptions:
    """Return the options, if rows of `schema` can be written with them. Raises ValueError."""
    check_columns({one.name: one.dataType.simpleString() for one in schema.fields}, options)
    return options


class BatchSink(DataSourceArrowWriter):
    """One job's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = str(SystemEntropy().uuid())
        self._attempt = SystemClock().now_ms()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(
            iterator, self._options, Write(self._run, 0, self._attempt, _context().partitionId())
        )


class StreamSink(DataSourceStreamArrowWriter):
    """A query's rows, micro-batch by micro-batch. Spark makes a new one when a query is restarted."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._attempt = SystemClock().now_ms()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        run = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert run is not None, "a streaming task without its query's id"
        assert batch is not None, "a streaming task without its batch's id"
        write = Write(run, int(batch), self._attempt, context.partitionId())
        return _write(iterator, self._options, write)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a write outside of a task"
    return context


def _write(found: Iterator[pa.RecordBatch], options: SinkOptions, write: Write) -> Written:
    return Written(write_rows(found, options, write))
