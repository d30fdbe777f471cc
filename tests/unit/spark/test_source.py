"""The data source as Spark calls it, without Spark's JVM: schema, batch, and a stream over a bucket that grows."""

import gc
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.unit.table.buckets import CLUSTER, NOW_MS, Bucket, batch, topic_id

from pyspark_stratalog import DefaultSource
from stratalog.adapters.object_store import open_store
from stratalog.errors import DataLoss, UserError
from stratalog.kernels.rows import arrow_schema
from stratalog.spark.source import StratalogSource, _prepare_worker
from stratalog.tier.bucket.identity import delete_topic
from stratalog.wire.ids import topic_id_text

ALL = ReadAllAvailable()
NONE = StructType()


class Grown:
    """A bucket whose topic `t` has two partitions that can grow."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bucket = Bucket(open_store(place.as_uri()))
        self.bucket.create("t", 2)
        self.ends = [0, 0]

    def grow(self, partition: int, count: int) -> None:
        first = self.ends[partition]
        self.ends[partition] = self.bucket.archive(
            "t", partition, [[batch(first, count)]], first=first
        )

    def source(self, **options: str) -> StratalogSource:
        return StratalogSource({"tier.url": self.place.as_uri(), "subscribe": "t", **options})


@pytest.fixture
def grown(tmp_path: Path) -> Grown:
    made = Grown(tmp_path / "bucket")
    made.grow(0, 30)
    made.grow(1, 10)
    return made


def rows(reader: Any, partitions: Sequence[Any]) -> list[tuple[int, int]]:
    """Return (partition, offset) of every row; pickle the tasks and the reader as Spark does."""
    reader = pickle.loads(pickle.dumps(reader))
    found = []
    for task in partitions:
        for part in reader.read(pickle.loads(pickle.dumps(task))):
            found += list(
                zip(part["partition"].to_pylist(), part["offset"].to_pylist(), strict=True)
            )
    return found


def offsets(*ends: int) -> dict[str, Any]:
    partitions = {str(index): end for index, end in enumerate(ends)}
    topics = {topic_id_text(topic_id("t")): {"name": "t", "partitions": partitions}}
    return {"version": 1, "topics": topics}


def first_offsets(*ends: int, begins: dict[str, Any]) -> dict[str, Any]:
    """Return the offsets at a query's start or its first batch's end, which also record where the query begins."""
    return offsets(*ends) | {"begins": begins["topics"]}


def begins_at(*at: int) -> dict[str, Any]:
    return first_offsets(*at, begins=offsets(*at))


def span(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def moment(offset: int) -> datetime:
    return datetime.fromtimestamp((NOW_MS + offset) / 1000, UTC)


def conditions() -> st.SearchStrategy[Filter]:
    """Return filters as Spark passes them, on columns that prune and on others."""
    numbers = st.integers(-2, 35)
    compared = st.sampled_from(
        [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    )
    return st.one_of(
        st.builds(lambda kind, at: kind(("offset",), at), compared, numbers),
        st.builds(lambda kind, at: kind(("timestamp",), moment(at)), compared, numbers),
        st.builds(lambda kind, at: kind(("partition",), at), compared, st.integers(-1, 2)),
        st.builds(
            lambda some: In(("partition",), tuple(some)), st.sets(st.integers(0, 2), min_size=1)
        ),
        st.builds(lambda name: EqualTo(("topic",), name), st.sampled_from(["t", "u"])),
        st.builds(lambda at: Not(EqualTo(("offset",), at)), numbers),
    )


def passes(row: tuple[int, int], filters: Sequence[Filter]) -> bool:
    return all(_holds(row, one) for one in filters)


def _holds(row: tuple[int, int], one: Any) -> bool:
    if isinstance(one, Not):
        return not _holds(row, one.child)
    partition, offset = row
    columns = {"offset": offset, "partition": partition, "topic": "t", "timestamp": moment(offset)}
    value: Any = columns[one.attribute[0]]
    match one:
        case EqualTo():
            return bool(value == one.value)
        case In():
            return value in one.value
        case GreaterThan():
            return bool(value > one.value)
        case GreaterThanOrEqual():
            return bool(value >= one.value)
        case LessThan():
            return bool(value < one.value)
    return bool(value <= one.value)


def test_spark_finds_it_by_name() -> None:
    assert DefaultSource is StratalogSource
    assert DefaultSource.name() == "stratalog"


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("origin", [False, True])
def test_the_schema_matches_the_rows_of_tasks(grown: Grown, headers: bool, origin: bool) -> None:
    """Spark refuses record batches whose Arrow schema differs from that of the columns."""
    options = {"includeHeaders": str(headers), "includeOrigin": str(origin)}
    source = grown.source(**options)
    columns = source.schema()
    expected = to_arrow_schema(columns, timezone="UTC")
    assert expected.equals(arrow_schema(tuple(columns.fieldNames())))
    reader = source.reader(columns)
    found = [part for task in reader.partitions() for part in reader.read(task)]
    assert all(part.schema.equals(expected) for part in found)
    assert sum(part.num_rows for part in found) == 40
    if origin:
        assert set(pa.Table.from_batches(found)["origin"].to_pylist()) == {"bucket"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, span(0, 0, 30) + span(1, 0, 10)),
        ({"assign": '{"t":[1]}'}, span(1, 0, 10)),
        ({"subscribePattern": "[s-u]"}, span(0, 0, 30) + span(1, 0, 10)),
        ({"subscribePattern": "x.*"}, []),
        (
            {"startingOffsets": '{"t":{"0":28,"1":-2}}', "endingOffsets": '{"t":{"0":-1,"1":2}}'},
            span(0, 28, 30) + span(1, 0, 2),
        ),
        (
            {"startingTimestamp": str(NOW_MS + 5), "endingTimestamp": str(NOW_MS + 8)},
            span(0, 5, 8) + span(1, 5, 8),
        ),
        (
            {
                "startingTimestamp": str(NOW_MS + 20),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            span(0, 20, 30),
        ),
        ({"endingTimestamp": str(NOW_MS + 9999)}, span(0, 0, 30) + span(1, 0, 10)),
    ],
)
def test_a_batch_reads_the_chosen_range(
    grown: Grown, options: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    chosen = {} if options.keys() & {"assign", "subscribePattern"} else {"subscribe": "t"}
    source = StratalogSource({"tier.url": grown.place.as_uri(), **chosen, **options})
    reader = source.reader(NONE)
    assert rows(reader, reader.partitions()) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "none"}, "topic none is not in the bucket"),
        ({"startingTimestamp": str(NOW_MS + 20)}, "t-1 has no record as young"),
        ({"startingOffsets": '{"t":{"0":1}}'}, "says nothing about t-1"),
        ({"startingOffsets": "latest"}, "'startingOffsets': a batch cannot begin at the end"),
        ({"startingOffsets": '{"t":{"0":1,"1":-1}}'}, "a batch cannot begin at the end"),
        (
            {"startingOffsets": '{"t":{"0":9,"1":0}}', "endingOffsets": '{"t":{"0":8,"1":-1}}'},
            "t-0: reading would begin at offset 9 and end before it, at 8",
        ),
        (
            {"startingTimestamp": str(NOW_MS + 8), "endingTimestamp": str(NOW_MS + 5)},
            "t-0: reading would begin at offset 8",
        ),
    ],
)
def test_a_wrong_range_is_an_error(grown: Grown, options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        grown.source(**options).reader(NONE).partitions()


def test_offsets_outside_the_log_are_data_loss(grown: Grown) -> None:
    source = grown.source(startingOffsets='{"t":{"0":31,"1":0}}')
    with pytest.raises(DataLoss, match="offset 31 lies behind the log's end 30"):
        source.reader(NONE).partitions()


def test_a_directory_without_a_bucket_is_an_error(tmp_path: Path) -> None:
    source = StratalogSource({"tier.url": tmp_path.as_uri(), "subscribe": "t"})
    with pytest.raises(UserError, match="holds no bucket"):
        source.reader(NONE).partitions()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(filters=st.lists(conditions(), max_size=4))
def test_pruning_by_filters_loses_no_row(grown: Grown, filters: list[Filter]) -> None:
    """The filtered rows are the same as without pruning, and Spark must not filter them again."""
    plain = grown.source().reader(NONE)
    everything = rows(plain, plain.partitions())
    reader = grown.source(pushdown="true").reader(NONE)
    assert list(reader.pushFilters(filters)) == filters
    found = rows(reader, reader.partitions())
    assert set(found) <= set(everything)
    assert [row for row in found if passes(row, filters)] == [
        row for row in everything if passes(row, filters)
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("partition",), 1)], span(1, 0, 10)),
        ([In(("topic",), ("other",))], []),
        (
            [GreaterThan(("offset",), 7), LessThanOrEqual(("offset",), 9)],
            span(0, 8, 10) + span(1, 8, 10),
        ),
        ([GreaterThanOrEqual(("timestamp",), moment(25))], span(0, 25, 30)),
        ([EqualTo(("offset",), 99)], []),
        ([In(("key",), (bytearray(b"key-12"), None)), LessThan(("offset",), 20)], [(0, 12)]),
        (
            [EqualTo(("value",), b"x"), Not(EqualTo(("partition",), 1))],
            span(0, 0, 30) + span(1, 0, 10),
        ),
    ],
)
def test_filtered_objects_are_not_read(
    grown: Grown, filters: list[Filter], expected: list[tuple[int, int]]
) -> None:
    reader = grown.source(pushdown="true").reader(NONE)
    list(reader.pushFilters(filters))
    assert rows(reader, reader.partitions()) == expected


# --- streams ----------------------------------------------------------------------------------------------------


def test_a_stream_starts_at_its_starting_offsets(grown: Grown) -> None:
    assert grown.source().streamReader(NONE).initialOffset() == begins_at(30, 10)
    earliest = grown.source(startingOffsets="earliest").streamReader(NONE)
    assert earliest.initialOffset() == begins_at(0, 0)
    given = grown.source(startingOffsets='{"t":{"0":3,"1":-1}}').streamReader(NONE)
    assert given.initialOffset() == begins_at(3, 10)
    beyond = grown.source(startingOffsets='{"t":{"0":31,"1":0}}').streamReader(NONE)
    with pytest.raises(DataLoss, match="offset 31 lies behind"):
        beyond.initialOffset()


def test_micro_batches_follow_each_other_without_loss_or_repeat(grown: Grown) -> None:
    reader = grown.source(startingOffsets="earliest").streamReader(NONE)
    at = reader.initialOffset()
    found: list[tuple[int, int]] = []
    for growth in (0, 7, 0, 5):
        if growth:
            grown.grow(0, growth)
        following = reader.latestOffset(at, ALL)
        found += rows(reader, reader.partitions(at, following))
        at = following
    assert sorted(found) == span(0, 0, 42) + span(1, 0, 10)
    assert reader.latestOffset(at, ALL) == at == offsets(42, 10)


def test_a_repeated_first_batch_has_the_same_start(grown: Grown) -> None:
    """Spark's offset log has only the end of the batch; `latest` has moved when Spark calls the source again."""
    killed = grown.source().streamReader(NONE)
    begun = killed.initialOffset()
    grown.grow(0, 5)
    ended = killed.latestOffset(begun, ALL)
    assert ended == first_offsets(35, 10, begins=offsets(30, 10))
    grown.grow(0, 5)
    again = grown.source().streamReader(NONE)
    assert rows(again, again.partitions(again.initialOffset(), ended)) == span(0, 30, 35)
    following = again.latestOffset(ended, ALL)
    assert following == offsets(40, 10)
    assert rows(again, again.partitions(ended, following)) == span(0, 35, 40)
    assert again.partitions(ended, ended) == [], "an empty range has no tasks"


def test_a_first_batch_may_be_empty(grown: Grown) -> None:
    reader = grown.source().streamReader(NONE)
    begun = reader.initialOffset()
    assert reader.latestOffset(begun, ALL) == begun
    assert reader.partitions(begun, begun) == []
    grown.grow(1, 5)
    following = reader.latestOffset(begun, ALL)
    assert rows(reader, reader.partitions(begun, following)) == span(1, 10, 15)


def test_a_query_reports_how_far_it_is_behind(grown: Grown) -> None:
    reader = grown.source(maxOffsetsPerTrigger="20").streamReader(NONE)
    assert reader.reportLatestOffset() is None
    at = reader.latestOffset(offsets(0, 0), ReadMaxRows(20))
    assert at == offsets(15, 5)
    lag = {"minOffsetsBehindLatest": 5, "maxOffsetsBehindLatest": 15, "avgOffsetsBehindLatest": 10}
    assert reader.reportLatestOffset() == offsets(30, 10) | lag
    reader.latestOffset(at, ALL)
    caught_up = dict.fromkeys(lag, 0)
    assert reader.reportLatestOffset() == offsets(30, 10) | caught_up
    waits = grown.source(minOffsetsPerTrigger="50").streamReader(NONE)
    assert waits.latestOffset(at, ALL) == at
    assert waits.reportLatestOffset() == offsets(30, 10) | lag


def test_a_batch_replanned_later_by_another_process_is_the_same(grown: Grown) -> None:
    first = grown.source().streamReader(NONE)
    begun, ended = offsets(4, 2), offsets(20, 9)
    before = rows(first, first.partitions(begun, ended))
    grown.grow(0, 10)
    second = grown.source().streamReader(NONE)
    assert rows(second, second.partitions(begun, ended)) == before == span(0, 4, 20) + span(1, 2, 9)


def test_a_limit_is_shared_between_partitions_and_reaches_the_end(grown: Grown) -> None:
    reader = grown.source(maxOffsetsPerTrigger="8").streamReader(NONE)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    at = offsets(0, 0)
    found: list[tuple[int, int]] = []
    steps = 0
    while (following := reader.latestOffset(at, limit)) != at:
        found += rows(reader, reader.partitions(at, following))
        at = following
        steps += 1
    assert sorted(found) == span(0, 0, 30) + span(1, 0, 10)
    assert 5 <= steps <= 7
    assert reader.latestOffset(offsets(0, 0), ALL) == offsets(30, 10)


def test_available_now_ends_at_the_log_end_at_its_start(grown: Grown) -> None:
    reader = grown.source().streamReader(NONE)
    reader.prepareForTriggerAvailableNow()
    grown.grow(0, 10)
    assert reader.latestOffset(offsets(0, 0), ALL) == offsets(30, 10)
    assert reader.latestOffset(offsets(30, 10), ALL) == offsets(30, 10)
    later = grown.source().streamReader(NONE)
    later.prepareForTriggerAvailableNow()
    assert later.latestOffset(offsets(30, 10), ALL) == offsets(40, 10)


def test_a_new_partition_is_read_from_its_beginning(grown: Grown) -> None:
    reader = grown.source().streamReader(NONE)
    following = reader.latestOffset(offsets(30), ALL)
    assert following == offsets(30, 10)
    assert rows(reader, reader.partitions(offsets(30), following)) == span(1, 0, 10)


def test_a_new_partition_without_its_beginning_is_data_loss(grown: Grown) -> None:
    grown.bucket.create("u")
    grown.bucket.archive("u", 0, [[batch(0, 15)]], log_start=5)
    both = {"subscribe": "t,u"}
    at = offsets(30, 10)
    with pytest.raises(DataLoss, match="u-0 is new to the query, and its offsets 0 to 4 are gone"):
        grown.source(**both).streamReader(NONE).latestOffset(at, ALL)
    going_on = grown.source(**both, failOnDataLoss="false").streamReader(NONE)
    following = going_on.latestOffset(at, ALL)
    assert rows(going_on, going_on.partitions(at, following)) == span(0, 5, 15)
    with pytest.raises(DataLoss, match="u-0 is new to the query"):
        grown.source(**both).streamReader(NONE).partitions(at, following)
    # A gap that the batch does not reach yet is no loss for it.
    assert grown.source(**both).streamReader(NONE).partitions(offsets(29, 10), at)


def test_an_empty_new_partition_is_followed_from_its_current_end(tmp_path: Path) -> None:
    """So records that arrive and expire unread are reported as lost, not skipped."""
    made = Grown(tmp_path / "bucket")
    made.grow(0, 30)
    assert made.source().streamReader(NONE).latestOffset(offsets(30), ALL) == offsets(30, 0)


def test_a_recreated_topic_does_not_match_the_checkpoint(grown: Grown) -> None:
    kept = {
        "version": 1,
        "topics": {
            topic_id_text(topic_id("the one before")): {"name": "t", "partitions": {"0": 5}},
        },
    }
    says = "topic t was deleted and created again"
    with pytest.raises(DataLoss, match=says):
        grown.source().streamReader(NONE).latestOffset(kept, ALL)
    with pytest.raises(DataLoss, match=says):
        grown.source().streamReader(NONE).partitions(kept, offsets(30, 10))
    going_on = grown.source(failOnDataLoss="false").streamReader(NONE)
    assert going_on.latestOffset(kept, ALL) == offsets(30, 10)
    assert len(rows(going_on, going_on.partitions(kept, offsets(30, 10)))) == 40


def test_a_log_that_ends_before_the_checkpoint_has_lost_data(grown: Grown) -> None:
    with pytest.raises(DataLoss, match="t-0: the log ends at 30, before offset 35"):
        grown.source().streamReader(NONE).latestOffset(offsets(35, 0), ALL)
    going_on = grown.source(failOnDataLoss="false").streamReader(NONE)
    assert going_on.latestOffset(offsets(35, 0), ALL) == offsets(35, 10)


def test_a_foreign_checkpoint_is_refused(grown: Grown) -> None:
    with pytest.raises(ValueError, match="version None"):
        grown.source().streamReader(NONE).latestOffset({"t": 1}, ALL)


def test_a_checkpoint_of_sparks_kafka_source_is_continued(grown: Grown) -> None:
    reader = grown.source().streamReader(NONE)
    kept = {"t": {"0": 28, "1": 9}}
    assert reader.latestOffset(kept, ALL) == offsets(30, 10)
    found = rows(reader, reader.partitions(kept, offsets(30, 10)))
    assert found == span(0, 28, 30) + span(1, 9, 10)
    with pytest.raises(DataLoss, match="topic other is gone"):
        reader.latestOffset({**kept, "other": {"0": 1}}, ALL)


def test_a_trigger_waits_for_its_minimum_of_records_up_to_its_delay(grown: Grown) -> None:
    waits = grown.source(minOffsetsPerTrigger="50", maxTriggerDelay="1h").streamReader(NONE)
    assert waits.latestOffset(offsets(0, 0), ALL) == offsets(0, 0)
    grown.grow(1, 10)
    assert waits.latestOffset(offsets(0, 0), ALL) == offsets(30, 20)
    assert waits.latestOffset(offsets(30, 10), ALL) == offsets(30, 10)
    late = grown.source(minOffsetsPerTrigger="51", maxTriggerDelay="0ms").streamReader(NONE)
    assert late.latestOffset(offsets(0, 0), ALL) == offsets(30, 20)
    now = grown.source(minOffsetsPerTrigger="51", maxTriggerDelay="1h").streamReader(NONE)
    now.prepareForTriggerAvailableNow()
    assert now.latestOffset(offsets(0, 0), ALL) == offsets(30, 20)


@pytest.mark.parametrize("columns", ["value", "offset,partition", "headers,key,origin"])
def test_unselected_columns_are_not_decoded(grown: Grown, columns: str) -> None:
    source = grown.source(columns=columns)
    expected = to_arrow_schema(source.schema(), timezone="UTC")
    assert expected.names == columns.split(",")
    reader = source.reader(NONE)
    found = [part for task in reader.partitions() for part in reader.read(task)]
    assert all(part.schema.equals(expected) for part in found)
    assert sum(part.num_rows for part in found) == 40


def test_a_workers_garbage_collector_skips_imported_objects(grown: Grown) -> None:
    """Spark's daemon makes a worker collect garbage after every task, which would scan all imported objects."""
    _prepare_worker.cache_clear()
    gc.unfreeze()
    reader = grown.source().reader(NONE)
    tasks = reader.partitions()
    try:
        assert len(list(reader.read(tasks[0]))) == 1
        frozen = gc.get_freeze_count()
        assert frozen > 10 * len(gc.get_objects())
        for task in tasks:
            list(reader.read(task))
        assert gc.get_freeze_count() <= frozen, (
            "the worker must freeze once, so that later garbage is collected"
        )
    finally:
        gc.unfreeze()


def test_a_deleted_topic_is_an_error(grown: Grown) -> None:
    delete_topic(grown.bucket.store, CLUSTER, topic_id("t"), NOW_MS)
    with pytest.raises(ValueError, match="topic t is not in the bucket"):
        grown.source().streamReader(NONE).latestOffset(offsets(30, 10), ALL)
