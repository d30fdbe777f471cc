"""The Spark data source `stratalog`, for batches and streams.

In: options and, for a stream, offsets from a checkpoint. Out: tasks, and the Arrow record batches that they read.
Spark pickles options and offsets into its plan: no connection, no store, no secret.

Spark's contract (`pyspark.sql.datasource`): `partitions` runs once per batch or micro-batch on the driver. `read`
runs in tasks and must give the same rows whenever it runs again. It does, because a range of offsets names its
records, wherever they lie by then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from logging import getLogger
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.adapters.memory import collect_only_what_follows, keep_freed_memory
from stratalog.adapters.system import monotonic_s
from stratalog.errors import BadOption
from stratalog.kernels.columns import HEADERS, ORIGIN
from stratalog.spark import catalog
from stratalog.spark.failures import one_line
from stratalog.spark.filters import pruning_of
from stratalog.spark.sink import BatchSink, StreamSink, checked
from stratalog.table import bounds
from stratalog.table.log import Log, Snapshot
from stratalog.table.metrics import ReadMetrics
from stratalog.table.offsets import Positions, TopicPosition, from_json, to_json
from stratalog.table.options import LATEST, Options, parse_options
from stratalog.table.places import Shared
from stratalog.table.plan import LatestTask, Task, by_partition
from stratalog.table.pruning import Pruning
from stratalog.table.query import batch_tasks, planned, shared_of, starting_offsets
from stratalog.table.sink_options import SinkOptions, parse_sink_options
from stratalog.wire.ids import TopicIdPartition

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER),
    ORIGIN: StringType(),
}


class StratalogSource(DataSource):
    """`spark.read.format("stratalog")` and `spark.readStream.format("stratalog")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(catalog.options_given(options))
        self._is_table = catalog.is_table(options)

    @classmethod
    def name(cls) -> str:
        return "stratalog"

    @one_line()
    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, unless `columns` names others."""
        columns = _columns(parse_options(self.options))
        return catalog.with_options(columns, self.options) if self._is_table else columns

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:  # noqa: FBT001 - Spark's
        if overwrite:
            raise BadOption("a log is only ever appended to: write with mode('append')")
        return BatchSink(checked(schema, self._sink_options()))

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: FBT001 - Spark's
        if overwrite:
            raise BadOption("a log is only ever appended to: use outputMode('append')")
        return StreamSink(checked(schema, self._sink_options()))

    def _sink_options(self) -> SinkOptions:
        if not self.options:
            raise BadOption(
                "no options say where to write: INSERT INTO gives a Python source none of its table's; "
                "use frame.write.format('stratalog').option('kafka.bootstrap.servers', …).option('topic', …)"
            )
        return parse_sink_options(self.options)

    def _options_for(self, schema: StructType) -> Options:
        """Parse the options of a read: those of the table, if it reads one, and the query's own.

        Raises BadOption, also for a schema from the query: the columns are fixed, as in Spark's Kafka source.
        """
        kept = catalog.options_kept(schema)
        given = {**kept, **self.options}
        if not given:
            raise BadOption(
                "no options: CREATE TABLE named columns, and then Spark gives a Python source none of its OPTIONS; "
                "create the table without columns (option 'columns' chooses some)"
            )
        options = parse_options(given)
        own = {one.name: one.dataType for one in _columns(options).fields}
        if schema.fields and {one.name: one.dataType for one in schema.fields} != own:
            if kept:
                raise BadOption(
                    f"a query cannot change a table's columns to {', '.join(own)}: CREATE TABLE takes "
                    "'columns', 'includeHeaders' and 'includeOrigin' among its OPTIONS, and so does spark.read"
                )
            raise BadOption(
                f"a topic's columns are {', '.join(own)}: name none (schema(…), CREATE … (…)), "
                "option 'columns' chooses some of them"
            )
        return options

    @one_line()
    def reader(self, schema: StructType) -> "StratalogReader":
        options = self._options_for(schema)
        # A plain session refuses every reader that could prune by filters.
        reader = PruningReader if options.pushdown else StratalogReader
        return reader(options)

    def streamReader(self, schema: StructType) -> "StratalogStreamReader | RefusedStream":
        try:
            return StratalogStreamReader(self._options_for(schema))
        except BadOption as error:
            return RefusedStream(error)


def _columns(options: Options) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in options.columns])


def _partitions(tasks: Sequence[Task | LatestTask]) -> list[InputPartition]:
    return [InputPartition(task) for task in tasks]


def _read(partition: InputPartition, options: Options) -> Iterator[pa.RecordBatch]:
    if partition.value is None:
        return iter(())  # Spark's stand-in for a plan without tasks
    return _logged(partition.value, shared_of(options))


@cache
def _prepare_worker() -> None:
    """Prepare a worker process, once, after all imports.

    In Spark's daemon, a worker collects garbage after each task. That scanned every object of pyspark, numba and
    pyarrow, for as long as reading a fifth of a segment takes.
    """
    keep_freed_memory()
    collect_only_what_follows()


def _logged(task: Task | LatestTask, shared: Shared) -> Iterator[pa.RecordBatch]:
    """Yield a task's batches, and log its metrics when it ends, early or not."""
    # Only tasks load numba: planning on the driver and Spark's look-up of data sources do not need it.
    from stratalog.table.latest import read_latest
    from stratalog.table.tasks import read_task

    _prepare_worker()
    metrics = ReadMetrics()
    wanted = task.wanted
    try:
        with one_line():
            if isinstance(task, LatestTask):
                yield from read_latest(task, shared, metrics)
            else:
                yield from read_task(task, shared, metrics)
    finally:
        where = f"{wanted.topic}-{wanted.partition} [{wanted.first}, {wanted.end})"
        getLogger("stratalog.spark").info("read %s: %s", where, metrics)


class StratalogReader(DataSourceReader):
    """A batch: everything between two bounds, as they are when Spark plans it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pruning: Pruning | None = None

    @one_line()
    def partitions(self) -> list[InputPartition]:
        if not self._options.latest_by_key:
            return _partitions(batch_tasks(self._options, self._pruning))
        # A condition on offsets or times would make an older record of a key the last one.
        pruning = None if self._pruning is None else self._pruning.of_keys
        return _partitions(by_partition(batch_tasks(self._options, pruning)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)


class PruningReader(StratalogReader):
    """A batch that reads only where the query's conditions can be true (`pushdown=true`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's name
        """Note the bounds; Spark still checks every condition."""
        self._pruning = pruning_of(filters)
        return filters


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: micro-batches between offsets that Spark keeps in its checkpoint."""

    def __init__(self, options: Options) -> None:
        if options.ending is not None:
            raise BadOption("a stream has no end: options 'ending…' are for batches")
        if options.latest_by_key:
            raise BadOption(
                "option 'latest_by_key' is for batches: a stream's rows are never replaced"
            )
        if options.pushdown:
            raise BadOption(
                "option 'pushdown' is for batches: Spark pushes no condition into a Python stream"
            )
        self._options = options
        self._log: Log | None = None
        self._target: Positions | None = None
        self._triggered_s = monotonic_s()
        self._latest: Positions | None = None
        self._behind: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the options for tasks."""
        return {"_options": self._options}

    @one_line()
    def initialOffset(self) -> dict[str, Any]:  # Spark's name
        """Return where a query without a checkpoint begins."""
        options = self._options
        snapshot = self._snapshot()
        first = starting_offsets(self._opened(), snapshot, options, LATEST)
        # An explicit offset must exist now; later the checkpoint counts.
        bounds.ranges(snapshot, first, first, fail_on_data_loss=options.fail_on_data_loss)
        return to_json(_begun(_positions(snapshot, first)))

    def getDefaultReadLimit(self) -> ReadLimit:  # Spark's name
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # Spark's name
        """Fix the end of a run that reads only the present records."""
        snapshot = self._snapshot()
        self._target = _positions(
            snapshot, {key: extent.end for key, extent in snapshot.extents.items()}
        )

    @one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes. Raises DataLoss for a topic that is not the checkpoint's."""
        snapshot = self._snapshot()
        begun = from_json(start, _ids(snapshot))
        ends = {key: extent.end for key, extent in snapshot.extents.items()}
        self._latest = _positions(snapshot, ends)
        firsts = self._firsts(begun, snapshot, ends)
        if self._target is not None:
            target = self._target
            ends = {key: at for key in ends if (at := target.of(*key)) is not None}
        elif not self._is_due(firsts, ends):
            ends = {}
        for key, end in ends.items():
            if end < firsts[key]:
                name = f"{snapshot.topics[key[0]].name}-{key[1]}"
                what = f"{name}: the log ends at {end}, before offset {firsts[key]} that was read up to"
                bounds.lose(what, fail=self._options.fail_on_data_loss)
                ends[key] = firsts[key]
        if isinstance(limit, ReadMaxRows):
            ends = bounds.limited(firsts, ends, limit.max_rows)
        self._behind = [
            max(0, extent.end - ends.get(key, firsts[key]))
            for key, extent in snapshot.extents.items()
        ]
        if not ends:
            return start
        following = _positions(snapshot, ends)
        if following.topics == begun.topics:
            return start  # unchanged, otherwise Spark would run an empty batch
        is_first = begun.begins == begun.topics
        return to_json(_begun(following, begun) if is_first else following)

    def _is_due(
        self, firsts: Mapping[TopicIdPartition, int], ends: Mapping[TopicIdPartition, int]
    ) -> bool:
        """Return whether `minOffsetsPerTrigger` offsets wait, or have waited for long enough."""
        options, now_s = self._options, monotonic_s()
        least = options.min_offsets_per_trigger
        waiting = sum(end - firsts[key] for key, end in ends.items())
        if (
            least is not None
            and waiting < least
            and now_s - self._triggered_s < options.max_trigger_delay_s
        ):
            return False
        self._triggered_s = now_s
        return True

    def reportLatestOffset(self) -> dict[str, Any] | None:  # Spark's name
        """Return the log's end as last seen and how far behind it the last batch ends, for the query's progress.

        The three numbers are offsets of one partition, named as the metrics of Spark's Kafka source.
        """
        if self._latest is None:
            return None
        behind = self._behind or [0]
        return to_json(self._latest) | {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
        }

    @one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        snapshot = self._snapshot()
        ids = _ids(snapshot)
        begun, until = from_json(start, ids), from_json(end, ids)
        if until.begins is not None:
            # A repeated first batch: the query's start now (`latest`) differs from its first start.
            begun = Positions(until.begins)
        self._refuse_strangers(until, snapshot)
        stops = {key: at for key in snapshot.extents if (at := until.of(*key)) is not None}
        firsts = self._firsts(begun, snapshot, stops)
        options = self._options
        selected = replace(snapshot, extents={key: snapshot.extents[key] for key in stops})
        wanted = bounds.ranges(selected, firsts, stops, fail_on_data_loss=options.fail_on_data_loss)
        return _partitions(planned(self._opened(), wanted, options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: only Spark's checkpoint records progress."""

    def stop(self) -> None:
        """Remove the read lease; connections end with the process."""
        if self._log is not None:
            self._log.release()

    def _opened(self) -> Log:
        if self._log is None:
            self._log = Log(self._options, shared_of(self._options))
        return self._log

    def _snapshot(self) -> Snapshot:
        return self._opened().snapshot()

    def _firsts(
        self, begun: Positions, snapshot: Snapshot, wanted: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, int]:
        """Return the next offset of each partition: behind the last read, or its beginning for a new partition."""
        self._refuse_strangers(begun, snapshot)
        firsts = {}
        for key in wanted:
            at, extent = begun.of(*key), snapshot.extents[key]
            if at is None and extent.start > 0:
                name = f"{snapshot.topics[key[0]].name}-{key[1]}"
                what = (
                    f"{name} is new to the query, and its offsets 0 to {extent.start - 1} are gone"
                )
                bounds.lose(what, fail=self._options.fail_on_data_loss)
            firsts[key] = extent.start if at is None else at
        return firsts

    def _refuse_strangers(self, kept: Positions, snapshot: Snapshot) -> None:
        """Raise DataLoss for a topic or partition of the checkpoint that was deleted, and perhaps created again."""
        names = _ids(snapshot)
        for topic_id, topic in kept.topics.items():
            gone = [
                index for index in topic.partitions if (topic_id, index) not in snapshot.extents
            ]
            if not gone:
                continue
            if topic_id in snapshot.topics:
                what = f"partition {gone[0]} of topic {topic.name} is gone"
            elif topic.name in names:
                what = f"topic {topic.name} was deleted and created again: the checkpoint is of the one before"
            else:
                what = f"topic {topic.name} is gone"
            bounds.lose(what, fail=self._options.fail_on_data_loss)


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot be read. It raises the reason at Spark's first call for offsets.

    If `streamReader` itself raised, Spark 4.2's runner would hide the reason behind an UnboundLocalError.
    """

    def __init__(self, error: BadOption) -> None:
        self._error = error

    @one_line()
    def initialOffset(self) -> dict[str, Any]:  # Spark's name
        raise self._error

    @one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002
        raise self._error

    @one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._error


def _ids(snapshot: Snapshot) -> dict[str, UUID]:
    return {topic.name: topic_id for topic_id, topic in snapshot.topics.items()}


def _begun(positions: Positions, begins: Positions | None = None) -> Positions:
    """Return the positions as the end of a query's first batch, which begins at `begins` (None: at the same place)."""
    return Positions(positions.topics, (begins or positions).topics)


def _positions(snapshot: Snapshot, offsets: Mapping[TopicIdPartition, int]) -> Positions:
    topics: dict[Any, dict[int, int]] = {}
    for (topic_id, index), offset in offsets.items():
        topics.setdefault(topic_id, {})[index] = offset
    return Positions(
        {
            topic_id: TopicPosition(snapshot.topics[topic_id].name, partitions)
            for topic_id, partitions in topics.items()
        }
    )
