"""The pipeline's views are read back, and their counts agree."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from answers import TOP, read_answers
from pyarrow.parquet import write_table

from stratalog.errors import Corrupt

HOUR = datetime(2020, 1, 1, 3, tzinfo=UTC)


def put(state, table, rows):
    directory = state / "warehouse" / table
    directory.mkdir(parents=True)
    write_table(pa.Table.from_pylist(rows), directory / "part-0.parquet")
    (directory / "_SUCCESS").touch()


def traffic(name, value, requests, errors=0, size=None):
    return {name: value, "requests": requests, "errors": errors, "bytes": size}


@pytest.fixture
def state(tmp_path):
    put(
        tmp_path,
        "by_origin",
        [{"origin": "bucket", "records": 8}, {"origin": "broker", "records": 3}],
    )
    put(
        tmp_path,
        "by_status",
        [
            {**traffic("status", 200, 5), "origin": "bucket"},
            {**traffic("status", 200, 2), "origin": "broker"},
            {**traffic("status", 404, 2), "origin": "bucket"},
        ],
    )
    put(
        tmp_path,
        "bad_lines",
        [{"origin": "bucket", "reason": "no time"}, {"origin": "broker", "reason": "empty"}],
    )
    put(
        tmp_path,
        "by_hour",
        [
            {**traffic("hour", HOUR.replace(hour=4), 3, 2, 30), "late": 1},
            {**traffic("hour", HOUR, 6, 0, 4), "late": 0},
        ],
    )
    put(tmp_path, "by_path", [traffic("path", f"/{n}", n, 0, n) for n in range(500)])
    put(tmp_path, "by_client", [traffic("host", "::1", 9, 2)])
    return tmp_path


def test_the_counts_of_the_views_agree(state):
    answers = read_answers(state)
    assert answers.status == {200: 7, 404: 2}
    assert answers.bad_lines == 2
    assert answers.bad_reasons == {"no time": 1, "empty": 1}
    assert answers.late_lines == 1
    assert answers.tiered == {200: 5, 404: 2, None: 1}
    assert answers.records_out == 11
    assert answers.errors == 2
    assert answers.bytes == 34
    assert [hour.name for hour in answers.hours] == [HOUR, HOUR.replace(hour=4)]
    assert [path.name for path in answers.paths] == [f"/{499 - n}" for n in range(TOP)]
    assert answers.path_count == 500
    answers.check(11)


def test_a_missing_record_at_the_end_is_reported(state):
    with pytest.raises(Corrupt, match="12 records went in and 11 were"):
        read_answers(state).check(12)


def test_a_line_neither_parsed_nor_kept_is_reported(state):
    (state / "warehouse" / "bad_lines" / "part-0.parquet").unlink()
    write_table(
        pa.Table.from_pylist([{"origin": "bucket", "reason": "empty"}]),
        state / "warehouse" / "bad_lines" / "part-0.parquet",
    )
    with pytest.raises(Corrupt, match="10 were parsed or kept as bad"):
        read_answers(state).check(11)


@pytest.mark.parametrize("int96", [False, True])
def test_hours_outside_a_datetime_are_the_nearest_in_it(state, int96):
    hours = [-63_000_000_000_000_000, 0, 253_402_315_200_000_000]  # in the years -27, 1970, 10000
    rows = pa.table(
        {
            "hour": pa.array(hours, pa.timestamp("us")),
            **{name: pa.array([1] * 3) for name in ("requests", "errors", "bytes", "late")},
        }
    )
    path = state / "warehouse" / "by_hour" / "part-0.parquet"
    write_table(rows, path, use_deprecated_int96_timestamps=int96)
    names = [hour.name for hour in read_answers(state).hours]
    wanted = [(1, 1, 1, 0), (1970, 1, 1, 0), (9999, 12, 31, 23)]
    assert names == [datetime(*one, tzinfo=UTC) for one in wanted]
