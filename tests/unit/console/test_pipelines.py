"""Records of the progress topic, which any client may write: the page leaves out what is none of progress."""

from typing import Any

import pytest

from stratalog.console.pages.pipelines import _by_query, query_samples
from stratalog.console.reading import Row
from stratalog.table.progress import QUERY_METRICS, positions_after
from stratalog.wire.records import Record

GOOD = b'{"event": "idle", "query": "q"}'


def row(value: bytes, number: int) -> Row:
    return Row(0, Record(number, 1000 + number, b"q", value), "tail")


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff\xfe", b"7", b"[]", b'{"event": 7}', b"[" * 100_000, b'{"a":' * 100_000],
    ids=["empty", "no text", "a number", "a list", "no event", "nested lists", "nested objects"],
)
def test_a_record_that_is_none_of_progress_is_left_out(value: bytes) -> None:
    assert _by_query([row(value, 0), row(GOOD, 1)]) == [[(1001, {"event": "idle", "query": "q"})]]
    assert _by_query([row(value, 0)]) == []


@pytest.mark.parametrize(
    "end",
    [
        None,
        7,
        "",
        "x",
        "[]",
        "{",
        "[" * 100_000,
        {"a": 1},
        {"topics": 7},
        {"t": {"0": "x"}},
        '{"t": 7}',
    ],
)
def test_an_end_offset_that_names_no_positions_has_no_lag(end: object) -> None:
    assert positions_after({"endOffset": end}, {}) is None


@pytest.mark.parametrize("lag", [0, 7, 123_456_789, 2**64, 1234567.25, 0.000125])
def test_prometheus_reads_each_number_with_all_its_digits(lag: float) -> None:
    query: dict[str, Any] = {field: None for field, _ in QUERY_METRICS.values()}
    query |= {"id": "q", "name": "n", "state": "running", "lag": lag}
    lines = query_samples({"queries": [query]}).splitlines()
    samples = [line.rpartition(" ")[::2] for line in lines if not line.startswith("#")]
    assert [name.partition("{")[0] for name, _ in samples] == [
        "stratalog_query_running",
        "stratalog_query_lag_records",
    ]
    assert [float(value) for _, value in samples] == [1.0, float(lag)]
