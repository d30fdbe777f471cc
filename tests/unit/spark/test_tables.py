"""A table in Spark's catalog keeps its options; a stream refuses unsupported options at its first call.

The properties are those that Spark 4.2 passes at `CREATE TABLE … USING stratalog`; a query passes the schema alone.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.unit.table.buckets import Bucket, batch

from stratalog.adapters.object_store import open_store
from stratalog.errors import Corrupt
from stratalog.spark.source import RefusedStream, StratalogSource


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    bucket = Bucket(open_store(tmp_path.as_uri()))
    bucket.create("t")
    bucket.archive("t", 0, [[batch(0, 30)]])
    return {"tier.url": tmp_path.as_uri(), "subscribe": "t", "columns": "value,offset"}


def properties(options: dict[str, str]) -> dict[str, str]:
    """A table's properties: those of Spark, of TBLPROPERTIES, and OPTIONS twice."""
    own = {"provider": "stratalog", "owner": "me", "comment": "events", "a.b": "c"}
    return own | options | {f"option.{name}": value for name, value in options.items()}


def offsets(reader: Any) -> list[int]:
    found = [part for task in reader.partitions() for part in reader.read(task)]
    return [offset for part in found for offset in part["offset"].to_pylist()]


def test_a_table_is_read_with_the_options_that_it_was_created_with(options: dict[str, str]) -> None:
    created = StratalogSource(properties(options)).schema()
    kept = StructType.fromJson(created.jsonValue())
    assert kept.fieldNames() == ["value", "offset"]
    assert offsets(StratalogSource({}).reader(kept)) == list(range(30))
    some = {"startingoffsets": '{"t":{"0":28}}'}
    assert offsets(StratalogSource(some).reader(kept)) == [28, 29], "a query's own options win"
    stream = StratalogSource({"startingoffsets": "earliest"}).streamReader(kept)
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable())["topics"]


def test_a_mistake_in_a_table_s_options_is_found_when_it_is_created(
    options: dict[str, str],
) -> None:
    with pytest.raises(ValueError, match="did you mean 'subscribe'"):
        StratalogSource(properties({**options, "subscrib": "t"})).schema()
    with pytest.raises(ValueError, match="exactly one of 'subscribe'"):
        StratalogSource(properties({"tier.url": options["tier.url"]})).schema()


def test_a_plain_read_s_columns_carry_no_options(options: dict[str, str]) -> None:
    assert all(not field.metadata for field in StratalogSource(options).schema().fields)


def test_a_table_with_own_columns_has_no_options() -> None:
    columns = StructType([StructField("value", StringType()), StructField("offset", LongType())])
    with pytest.raises(
        ValueError, match=r"no options: CREATE TABLE named columns.*without columns"
    ):
        StratalogSource({}).reader(columns)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end: options 'ending…' are for batches"),
        ({"endingTimestamp": "5"}, "a stream has no end"),
        ({"pushdown": "true"}, "option 'pushdown' is for batches"),
        ({"subscribe": "t", "assign": "{}"}, "exactly one of 'subscribe'"),
    ],
)
def test_a_stream_is_refused_at_its_first_call(
    options: dict[str, str], more: dict[str, str], says: str
) -> None:
    """`streamReader` itself must not raise: Spark 4.2 would show an UnboundLocalError of its own."""
    stream = StratalogSource(options | more).streamReader(StructType())
    assert isinstance(stream, RefusedStream)
    calls = (
        stream.initialOffset,
        lambda: stream.latestOffset({}, ReadAllAvailable()),
        lambda: stream.partitions({}, {}),
    )
    for call in calls:
        with pytest.raises(ValueError, match=says):
            call()
    stream.stop()


def test_a_stream_skips_a_missing_object_only_without_fail_on_data_loss(
    options: dict[str, str],
) -> None:
    place = Path(options["tier.url"].removeprefix("file://"))
    Bucket(open_store(options["tier.url"])).archive("t", 0, [[batch(30, 10)]], first=30)
    min(place.rglob("*.seg")).unlink()
    batched = StratalogSource(options | {"failOnDataLoss": "false"}).reader(StructType())
    assert offsets(batched) == list(range(30, 40))
    begins = options | {"startingOffsets": "earliest"}

    def streamed(**more: str) -> list[int]:
        reader = StratalogSource(begins | more).streamReader(StructType())
        at = reader.initialOffset()
        tasks = reader.partitions(at, reader.latestOffset(at, ReadAllAvailable()))
        found = [part for task in tasks for part in reader.read(task)]
        return [offset for part in found for offset in part["offset"].to_pylist()]

    with pytest.raises(Corrupt, match=r"\.seg: missing from the bucket"):
        streamed()
    assert streamed(failOnDataLoss="false") == list(range(30, 40))
