"""Rows as documents: their ids, their JSON, the index type of each column, and refused columns."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from stratalog.errors import UserError
from stratalog.sinks.documents import documents_of, mappings_of

PLACE = {
    "topic": pa.array(["access-log", "access-log"]),
    "partition": pa.array([0, 3], pa.int32()),
    "offset": pa.array([5, 1 << 40], pa.int64()),
}


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({**PLACE, **columns})


def test_a_document_has_its_records_id_and_its_rows_values() -> None:
    moment = datetime(2015, 5, 17, 10, 5, 3, 123456, UTC)
    found = list(
        documents_of(
            rows(
                status=pa.array([200, None], pa.int32()),
                time=pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")),
                day=pa.array([date(2015, 5, 17), None]),
                share=pa.array([Decimal("0.10"), None], pa.decimal128(9, 2)),
                ratio=pa.array([float("nan"), 0.5]),
                agent=pa.array([{"name": "a", "tags": ["x", "ü"]}, None]),
            )
        )
    )
    assert [one.id for one in found] == ["access-log-0-5", "access-log-3-1099511627776"]
    assert found[0].record == "topic access-log, partition 0, offset 5"
    assert json.loads(found[0].source, parse_float=Decimal) == {
        "topic": "access-log",
        "partition": 0,
        "offset": 5,
        "status": 200,
        "time": "2015-05-17T12:05:03.123456+02:00",
        "day": "2015-05-17",
        "share": Decimal("0.10"),
        "ratio": None,
        "agent": {"name": "a", "tags": ["x", "ü"]},
    }
    assert json.loads(found[1].source)["ratio"] == 0.5
    assert b"\n" not in found[0].source, "a document must be one line of the request"


def test_columns_are_indexed_by_their_type_and_text_never_as_a_date() -> None:
    found = mappings_of(
        rows(
            status=pa.array([1, 2], pa.int32()),
            time=pa.array([0, 1], pa.timestamp("us", "UTC")),
            path=pa.array(["2015-01-01", "b"]),
            agent=pa.array([{"tags": ["x"]}, None]),
        ).schema
    )["properties"]
    assert found["topic"] == {"type": "keyword"}
    assert (found["status"]["type"], found["offset"]["type"]) == ("integer", "long")
    assert found["time"] == {"type": "date"}
    assert found["path"]["type"] == "text"
    assert found["path"]["fields"]["keyword"]["type"] == "keyword"
    assert found["agent"]["properties"]["tags"]["type"] == "text"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"value": pa.array([b"", b""])}, "column 'value' is binary, which cannot be indexed"),
        ({"a": pa.array([{"b": b""}, None])}, "column 'a.b' is binary"),
        ({"m": pa.array([[], []], pa.map_(pa.string(), pa.string()))}, "to_json() it"),
        ({"topic": pa.array([1, 2])}, "column 'topic' is int64, not string"),
        ({"offset": pa.array(["1", "2"])}, "column 'offset' is string, not int or bigint"),
    ],
)
def test_columns_that_cannot_be_indexed_are_named(columns: Any, says: str) -> None:
    with pytest.raises(ValueError, match="column") as error:
        mappings_of(rows(**columns).schema)
    assert says in str(error.value)


def test_rows_need_the_columns_that_identify_their_record() -> None:
    with pytest.raises(ValueError, match="no column 'offset'"):
        mappings_of(rows().drop_columns(["offset"]).schema)
    twice = pa.schema([*rows().schema, pa.field("topic", pa.string())])
    with pytest.raises(ValueError, match="2 columns 'topic'"):
        mappings_of(twice)
    with pytest.raises(UserError, match=r"null \(access-log, None, 5\)"):
        list(documents_of(rows(partition=pa.array([None, 1], pa.int32()))))


def test_a_dead_letter_has_the_refused_document_and_the_reason() -> None:
    document = next(documents_of(rows(path=pa.array(["/a", "/b"]))))
    letter = document.letter("access", "mapper_parsing_exception", "no such thing")
    assert letter.id == document.id, "the id must be the same each time the letter is sent"
    said = json.loads(letter.source)
    assert json.loads(said.pop("document"))["path"] == "/a"
    assert said == {
        "topic": "access-log",
        "partition": 0,
        "offset": 5,
        "index": "access",
        "error": {"type": "mapper_parsing_exception", "reason": "no such thing"},
    }
