"""The Spark sink `stratalog`: write rows to topics, by batch and by stream.

In: options, the rows' schema, Arrow record batches. Out: records at the brokers, in transactions where each row is to
be written once. Spark pickles options and a job's id into its plan. `table/sink.py` does the writing.
"""

from collections.abc import Iterator, Sequence
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
from stratalog.spark.failures import one_line
from stratalog.table.decisions import Prepared
from stratalog.table.exactly_once import BATCH_JOB
from stratalog.table.sink import (
    Write,
    abort_batch,
    check_destination,
    commit_batch,
    commit_job,
    prepare_rows,
    write_rows,
)
from stratalog.table.sink_options import SinkOptions, check_columns


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """How many records a task wrote, for which job or query; `prepared`: its open transaction, if it has one."""

    records: int
    run: str
    prepared: Prepared | None = None


def checked(schema: StructType, options: SinkOptions) -> SinkOptions:
    """Return the options, if rows of `schema` can be written with them.

    Raises BadOption, and as `check_destination`: here it fails in the driver, before any task starts.
    """
    check_columns({one.name: one.dataType.simpleString() for one in schema.fields}, options)
    check_destination(options)
    return options


class BatchSink(DataSourceArrowWriter):
    """One job's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = str(SystemEntropy().uuid())
        self._attempt = SystemClock().now_ms()

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        write = Write(self._run, BATCH_JOB, self._attempt, context.partitionId())
        return _write(iterator, self._options, write, context.attemptNumber())

    @one_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        guarantee = self._options.exactly_once
        if guarantee is not None:
            commit_job(self._options, guarantee, self._run, _prepared(messages))

    @one_line()
    def abort(self, _messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once is not None:
            abort_batch(self._options, self._options.exactly_once, self._run)


class StreamSink(DataSourceStreamArrowWriter):
    """A query's rows, micro-batch by micro-batch. Spark makes a new one when a query is restarted.

    Only tasks know the query's id: their messages bring it to the driver. Spark runs a task even for an empty batch.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._attempt = SystemClock().now_ms()

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        run = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert run is not None, "a streaming task without its query's id"
        assert batch is not None, "a streaming task without its batch's id"
        write = Write(run, int(batch), self._attempt, context.partitionId())
        return _write(iterator, self._options, write, context.attemptNumber())

    @one_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        guarantee, run = self._options.exactly_once, _run_of(messages)
        if guarantee is not None:
            assert run is not None, "a batch without a task"
            commit_batch(self._options, guarantee, run, batchId, _prepared(messages))

    @one_line()
    def abort(self, messages: Sequence[WriterCommitMessage | None], _batch: int) -> None:
        """Abort the batch, if a task has ended and named the query; else the batch's next run does."""
        guarantee, run = self._options.exactly_once, _run_of(messages)
        if guarantee is not None and run is not None:
            abort_batch(self._options, guarantee, run)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a write outside of a task"
    return context


def _write(
    found: Iterator[pa.RecordBatch], options: SinkOptions, write: Write, attempt: int
) -> Written:
    if options.exactly_once is None:
        return Written(write_rows(found, options, write), write.run)
    records, prepared = prepare_rows(found, options, options.exactly_once, write, attempt)
    return Written(records, write.run, prepared)


def _run_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((one.run for one in messages if isinstance(one, Written)), None)


def _prepared(messages: Sequence[WriterCommitMessage | None]) -> list[Prepared]:
    return [one.prepared for one in messages if isinstance(one, Written) and one.prepared]
