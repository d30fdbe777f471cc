"""The Spark sink `stratalog_opensearch`: write rows to an index, by batch and by stream.

In: options, the rows' schema, Arrow record batches. Out: documents in OpenSearch. Spark pickles options into its
plan: no connection, no user, no password. `sinks/opensearch.py` does the writing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from logging import getLogger

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from stratalog.errors import BadOption
from stratalog.sinks.opensearch_options import OpenSearchOptions, parse_opensearch_options
from stratalog.spark.failures import one_line


@dataclass(frozen=True, slots=True)
class Indexed(WriterCommitMessage):
    """A task's counts: documents written, and letters about refused ones."""

    documents: int
    letters: int


class OpenSearchSource(DataSource):
    """`frame.write.format("stratalog_opensearch")` and `frame.writeStream.format("stratalog_opensearch")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return "stratalog_opensearch"

    def writer(self, schema: StructType, overwrite: bool) -> "BatchIndexer":  # noqa: FBT001 - Spark's
        return BatchIndexer(_ready(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamIndexer":  # noqa: FBT001 - Spark's
        return StreamIndexer(_ready(self.options, schema, overwrite=overwrite))


@one_line()
def _ready(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> OpenSearchOptions:
    """Return the options after preparing the index for rows of `schema`, so that errors come before any task starts."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from stratalog.sinks.opensearch import prepare

    if overwrite:
        raise BadOption(
            "a document only ever overwrites itself: write with mode('append') or outputMode('append')"
        )
    options = parse_opensearch_options(given)
    prepare(options, to_arrow_schema(schema, timezone="UTC"))
    return options


@one_line()
def _write(found: Iterator[pa.RecordBatch], options: OpenSearchOptions) -> Indexed:
    from stratalog.sinks.opensearch import write_documents

    counts = write_documents(found, options)
    return Indexed(counts.documents, counts.letters)


def _report(messages: list[WriterCommitMessage | None], options: OpenSearchOptions) -> None:
    letters = sum(one.letters for one in messages if isinstance(one, Indexed))
    if letters:
        getLogger("stratalog.spark").warning(
            "index %s refused %d documents: see index %s",
            options.index,
            letters,
            options.dead_letter_index,
        )


class BatchIndexer(DataSourceArrowWriter):
    """One job's rows; once it has ended, searches see all of them."""

    def __init__(self, options: OpenSearchOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Indexed:
        return _write(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from stratalog.sinks.opensearch import refresh

        refresh(self._options)
        _report(messages, self._options)


class StreamIndexer(DataSourceStreamArrowWriter):
    """A query's rows, micro-batch by micro-batch; searches see them after the index's refresh interval."""

    def __init__(self, options: OpenSearchOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Indexed:
        return _write(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        _report(messages, self._options)
