"""A read fetches no unneeded bytes: the tests count bytes and requests."""

from pathlib import Path

import pytest
from tests.unit.table.buckets import NOW_MS, Bucket, batch, topic_id
from tests.unit.table.test_tasks import manifest_in, shared, values

from stratalog import ReadMetrics, read
from stratalog.adapters.object_store import open_store
from stratalog.table.plan import Range, plan
from stratalog.table.tasks import read_task
from stratalog.wire.records import BatchBuilder

END = 4000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic `t`: nine segments; each batch has one record, so the index knows each batch's oldest record."""
    where = tmp_path_factory.mktemp("bucket")
    made = Bucket(open_store(where.as_uri()))
    made.create("t")
    segments = [
        [batch(at, 1, size=200) for at in range(base, base + 500)] for base in range(0, END, 500)
    ]
    # A late segment: its records are older than all others.
    late = [batch(at, 1, size=200, timestamp=NOW_MS - 2 * END + at) for at in range(END, END + 500)]
    made.archive("t", 0, [*segments, late])
    return where


def taken(place: Path, **asked: str | int) -> ReadMetrics:
    metrics = ReadMetrics()
    table = read("t", tier_url=place.as_uri(), metrics=metrics, **asked).read_all()  # type: ignore[arg-type]
    assert metrics.records == table.num_rows
    return metrics


def test_bounds_in_time_reduce_the_bytes_read(place: Path) -> None:
    whole = taken(place)
    assert whole.records == END + 500
    assert whole.bucket_requests == 2 * 9, (
        "a read makes two requests for each segment: index and data"
    )
    some = taken(place, since=NOW_MS + 1000, until=NOW_MS + 1500)
    assert some.records == 500
    assert some.bucket_bytes < whole.bucket_bytes / 6
    assert taken(place, since=NOW_MS + END + 500) == ReadMetrics()


def read_between(
    place: Path, since_ms: int | None, until_ms: int | None
) -> tuple[list[int], ReadMetrics]:
    """Read with time bounds, as a query's conditions on the timestamp set them."""
    metrics = ReadMetrics()
    wanted = Range("t", topic_id("t"), 0, 0, END + 500, since_ms=since_ms, until_ms=until_ms)
    work = plan([(wanted, list(manifest_in(place).recent()))], has_broker=False, min_tasks=None)
    found = [offset for task in work for offset in values(read_task(task, shared(place), metrics))]
    return found, metrics


def test_conditions_on_the_timestamp_skip_segments_and_entries_that_cannot_hold_a_row(
    place: Path,
) -> None:
    everything, whole = read_between(place, None, None)
    assert everything == list(range(END + 500))
    for since, until in ((1000, 1500), (1010, 1020), (None, 100), (3900, None), (-100, 10)):
        found, metrics = read_between(
            place,
            None if since is None else NOW_MS + since,
            None if until is None else NOW_MS + until,
        )
        times = {at: at if at < END else at - END - END for at in everything}
        wanted = [
            at
            for at in everything
            if (since is None or times[at] >= since) and (until is None or times[at] < until)
        ]
        assert found == wanted, "late records behind younger ones must be found"
        assert metrics.bucket_bytes < whole.bucket_bytes / 3
    assert read_between(place, NOW_MS + END, None) == ([], ReadMetrics())


def test_entries_that_may_have_older_records_are_read(tmp_path: Path) -> None:
    """A batch's header has the time of its first record only; other records may be older."""
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t")
    builder = BatchBuilder()
    for timestamp in (NOW_MS + 50, NOW_MS - 1, NOW_MS + 51):
        builder.add(None, b"", timestamp)
    made.archive("t", 0, [[batch(0, 10)], [bytes(builder.build(10, 0))]])
    metrics = ReadMetrics()
    found = read("t", tier_url=tmp_path.as_uri(), until=NOW_MS, metrics=metrics).read_all()
    assert found["offset"].to_pylist() == [11]
    assert metrics.bucket_requests == 2 * 2, "the index must exclude neither segment"


def test_fewer_columns_decode_fewer_bytes(place: Path) -> None:
    whole = read("t", tier_url=place.as_uri()).read_all()
    some = read("t", tier_url=place.as_uri(), columns=["offset"]).read_all()
    assert some.nbytes < whole.nbytes / 10
    assert taken(place, columns=["offset"]).bucket_bytes == taken(place).bucket_bytes
