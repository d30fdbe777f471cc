"""`option("latest_by_key", "true")`: the current table, with conditions that Spark pushes, and what it refuses."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, LessThan
from pyspark.sql.types import StructType
from tests.unit.table.buckets import NOW_MS, Bucket

from stratalog.adapters.object_store import open_store
from stratalog.spark.source import StratalogReader, StratalogSource
from stratalog.wire.records import BatchBuilder

NONE = StructType([])
RECORDS = [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None), ("a", "3")]


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t", 2)
    for partition in range(2):
        segments = []
        for offset, (key, value) in enumerate(RECORDS):
            builder = BatchBuilder()
            builder.add(key.encode(), value and value.encode(), NOW_MS + offset)
            segments.append([bytes(builder.build(offset, 0))])
        made.archive("t", partition, segments, key_filters=True)
    return tmp_path.as_uri()


def reader(url: str, **options: str) -> DataSourceReader:
    given = {"tier.url": url, "subscribe": "t", "latest_by_key": "true", **options}
    return StratalogSource(given).reader(NONE)


def table(found: DataSourceReader) -> list[tuple[int, bytes, bytes]]:
    assert isinstance(found, StratalogReader)
    tasks = found.partitions()
    assert len(tasks) <= 2, "one task reads a whole partition"
    rows = [row for task in tasks for batch in found.read(task) for row in batch.to_pylist()]
    return sorted((row["partition"], row["key"], row["value"]) for row in rows)


def test_each_partition_is_a_table(url: str) -> None:
    expected = [
        (index, key, value) for index in (0, 1) for key, value in ((b"a", b"3"), (b"c", b"1"))
    ]
    assert table(reader(url)) == expected
    first_four = '{"t":{"0":4,"1":4}}'
    assert table(reader(url, endingOffsets=first_four))[:3] == [
        (0, b"a", b"2"),
        (0, b"b", b"1"),
        (0, b"c", b"1"),
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("key",), b"a")], [(0, b"a", b"3"), (1, b"a", b"3")]),
        ([EqualTo(("key",), b"b")], []),
        ([EqualTo(("partition",), 1), EqualTo(("key",), b"c")], [(1, b"c", b"1")]),
        # Spark removes these rows afterwards. Without the last records, older ones would be the last.
        ([LessThan(("offset",), 3), EqualTo(("key",), b"a")], [(0, b"a", b"3"), (1, b"a", b"3")]),
    ],
)
def test_conditions_never_uncover_an_older_record(
    url: str, filters: Sequence[Filter], expected: list[tuple[int, bytes, bytes]]
) -> None:
    found = reader(url, pushdown="true")
    list(found.pushFilters(list(filters)))
    assert table(found) == expected


@pytest.mark.parametrize("name", ["minPartitions", "maxRecordsPerPartition"])
def test_a_partition_is_not_divided(url: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' does not go with 'latest_by_key'"):
        reader(url, **{name: "3"})


def test_a_stream_refuses_it(url: str) -> None:
    given = {"tier.url": url, "subscribe": "t", "latest_by_key": "true"}
    with pytest.raises(ValueError, match="'latest_by_key' is for batches"):
        StratalogSource(given).streamReader(NONE).initialOffset()
