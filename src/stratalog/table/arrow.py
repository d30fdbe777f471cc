"""A topic as Arrow record batches, without Spark: for pandas, DuckDB, Polars and whatever else takes a reader.

In: a topic's name, where its log is, and a span of time. Out: a `pyarrow.RecordBatchReader` that reads as it is
iterated, a few MiB at a time. It never holds the topic, and never commits an offset.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from stratalog.adapters.system import SystemClock
from stratalog.kernels.rows import arrow_schema
from stratalog.table.figures import Figures
from stratalog.table.leasing import released
from stratalog.table.options import Options, parse_options
from stratalog.table.places import store_at
from stratalog.table.plan import Task
from stratalog.table.query import batch_tasks, shared_of
from stratalog.table.tasks import read_task

Moment = datetime | timedelta | int | str
"""A time zone's time, how long ago, milliseconds since 1970, or ISO 8601."""


def read_topic(  # noqa: PLR0913 - as `stratalog.read`
    topic: str,
    *,
    bootstrap_servers: str | None,
    tier_url: str | None,
    since: Moment | None,
    until: Moment | None,
    columns: Sequence[str] | None,
    isolation: str,
    fail_on_data_loss: bool,
    figures: Figures | None,
) -> pa.RecordBatchReader:
    """What `stratalog.read` says."""
    given = {
        "subscribe": topic,
        "startingOffsetsByTimestampStrategy": "latest",
        "kafka.isolation.level": isolation,
        "failOnDataLoss": str(fail_on_data_loss),
    }
    if bootstrap_servers is not None:
        given["kafka.bootstrap.servers"] = bootstrap_servers
    if tier_url is not None:
        given["tier.url"] = tier_url
    for option, moment in (("startingTimestamp", since), ("endingTimestamp", until)):
        if moment is not None:
            given[option] = str(_epoch_ms(moment))
    if columns is not None:
        given["columns"] = ",".join(columns)
    options = parse_options(given)
    tasks = batch_tasks(options)
    return pa.RecordBatchReader.from_batches(
        arrow_schema(options.columns), _batches(tasks, options, figures)
    )


def _batches(
    tasks: Sequence[Task], options: Options, figures: Figures | None
) -> Iterator[pa.RecordBatch]:
    shared = shared_of(options)
    try:
        for task in tasks:
            yield from read_task(task, shared, figures)
    finally:
        if shared.tier_url is not None:
            released(tasks, store_at(shared.tier_url))


def _epoch_ms(moment: Moment) -> int:
    if isinstance(moment, bool):
        raise ValueError(f"{moment!r} is no time")  # noqa: TRY004 - every wrong argument fails alike
    if isinstance(moment, int):
        return moment
    if isinstance(moment, timedelta):
        return SystemClock().now_ms() - moment // timedelta(milliseconds=1)
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ValueError(
                f"{moment!r} is no time: write ISO 8601, such as 2026-01-31T12:00:00+00:00"
            ) from None
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: add one, such as +00:00")
    return int(moment.astimezone(UTC).timestamp() * 1000)
