"""Read back the pipeline's views.

In: a pipeline's state directory after an update. Out: the counts and the longest lists, checked against each other.
Memory depends on the length of the lists, not on the number of paths or clients. Never here: Spark, terminals.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile
from pyarrow.types import is_timestamp

from stratalog.cli.pipeline import table_files
from stratalog.errors import Corrupt

TOP = 12
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
LAST_US = (datetime(9999, 12, 31, 23, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests, errors (status 400 and up) and bytes answered, of one hour, path or client."""

    name: Any
    requests: int
    errors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Answers:
    """The results of a run. `origins` is records by `bucket` or `broker`, `status` requests by HTTP status; `tiered` is
    the answer (HTTP status -> requests, None -> bad lines) for the records that came from the bucket; `bad_reasons` is
    bad lines by reason.
    """

    origins: dict[str, int]
    status: dict[int, int]
    bad_lines: int
    bad_reasons: dict[str, int]
    late_lines: int
    tiered: dict[int | None, int]
    hours: list[Traffic]
    paths: list[Traffic]
    path_count: int
    clients: list[Traffic]
    client_count: int

    @property
    def records_out(self) -> int:
        """Records that came out at the end: good lines and bad ones."""
        return sum(self.status.values()) + self.bad_lines

    @property
    def bytes(self) -> int:
        """Bytes that the web server answered with."""
        return sum(hour.bytes for hour in self.hours)

    @property
    def errors(self) -> int:
        """Requests with a status of 400 and up."""
        return sum(count for status, count in self.status.items() if status >= 400)

    def check(self, records_in: int) -> None:
        """Raise Corrupt with one line unless every table has as many records as went in."""
        good = sum(self.status.values())
        counts = {
            "read from the topic": (sum(self.origins.values()), records_in),
            "parsed or kept as bad": (self.records_out, records_in),
            "in the hours": (sum(hour.requests for hour in self.hours), good),
        }
        for what, (seen, wanted) in counts.items():
            if seen != wanted:
                raise Corrupt(f"{wanted:,} records went in and {seen:,} were {what}")


def read_answers(state: Path) -> Answers:
    """Return the views of a pipeline whose state is in `state`."""
    status: Counter[int] = Counter()
    tiered: Counter[int | None] = Counter()
    for row in _rows(state, "by_status"):
        status[row["status"]] += row["requests"]
        if row["origin"] == "bucket":
            tiered[row["status"]] += row["requests"]
    reasons: Counter[str] = Counter()
    for row in _rows(state, "bad_lines", ["origin", "reason"]):
        reasons[row["reason"]] += 1
        tiered[None] += row["origin"] == "bucket"
    paths, path_count = _top(state, "by_path", "path")
    clients, client_count = _top(state, "by_client", "host")
    hours: list[Traffic] = []
    late_lines = 0
    for row in _rows(state, "by_hour"):
        hours.append(_traffic(row | {"hour": _moment(row["hour"])}, "hour"))
        late_lines += row["late"]
    return Answers(
        origins={row["origin"]: row["records"] for row in _rows(state, "by_origin")},
        status=dict(sorted(status.items())),
        bad_lines=reasons.total(),
        bad_reasons=dict(reasons.most_common()),
        late_lines=late_lines,
        tiered={name: count for name, count in tiered.items() if count},
        hours=sorted(hours, key=_hour),
        paths=paths,
        path_count=path_count,
        clients=clients,
        client_count=client_count,
    )


def _hour(traffic: Traffic) -> datetime:
    assert isinstance(traffic.name, datetime)
    return traffic.name


def _moment(us: int) -> datetime:
    """Return microseconds since 1970 as a datetime; outside the years 1 to 9999 the nearest hour in them."""
    return EPOCH + timedelta(microseconds=min(max(us, FIRST_US), LAST_US))


def _traffic(row: dict[str, Any], name: str) -> Traffic:
    return Traffic(row[name], row["requests"], row["errors"], row["bytes"] or 0)


def _rows(state: Path, table: str, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, a batch in memory at a time; times are microseconds since 1970, however far they
    are.
    """
    for path in table_files(state / "warehouse" / table):
        with ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(batch_size=8192, columns=columns, use_threads=False):
                plain = [c.cast(pa.int64()) if is_timestamp(c.type) else c for c in batch.columns]
                yield from pa.RecordBatch.from_arrays(plain, batch.schema.names).to_pylist()


def _top(state: Path, table: str, name: str) -> tuple[list[Traffic], int]:
    """Return the rows with the most requests, and how many rows there are."""
    count = 0

    def counted() -> Iterator[Traffic]:
        nonlocal count
        for row in _rows(state, table):
            count += 1
            yield _traffic(row, name)

    top = nlargest(TOP, counted(), key=lambda traffic: (traffic.requests, str(traffic.name)))
    return top, count
