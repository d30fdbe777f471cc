"""Kafka's contract without a JVM fleet: producers' batches in, the same bytes out, from disk, bucket or Spark.

In: what `read` is asked for. Out: a topic as Arrow. Importing one part of the package loads no other.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stratalog.table.metrics import ReadMetrics

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReadMetrics", "read"]


def read(  # noqa: PLR0913 - one argument for each thing to say
    topic: str,
    *,
    bootstrap_servers: str | None = None,
    tier_url: str | None = None,
    since: datetime | timedelta | int | str | None = None,
    until: datetime | timedelta | int | str | None = None,
    offsets: Mapping[int, tuple[int | None, int | None]] | None = None,
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    isolation: str = "read_uncommitted",
    fail_on_data_loss: bool = True,
    metrics: ReadMetrics | None = None,
) -> "pa.RecordBatchReader":
    """A topic's records, history and tail, as Arrow record batches that are read while they are iterated.

    `bootstrap_servers` and `tier_url`, one or both, say where the log is: with both, the bucket is read past the
    brokers and only the tail comes from them. Rows come partition by partition, in the order of offsets.

    - `since` (inclusive) and `until` (exclusive) bound the records' own timestamps, whatever order they have. Each is
      a time with a zone, ISO 8601, milliseconds since 1970, or a timedelta back from now.
    - `partitions`: only these. `offsets`: only these partitions, each from the first offset to before the second;
      None: as far as the log goes.
    - `columns`: some of key, value, topic, partition, offset, timestamp, timestampType, headers.
    - `isolation="read_committed"` leaves out records of aborted transactions, and the tail ends where the oldest open
      transaction begins.
    - `fail_on_data_loss=False`: what is gone or damaged is logged, counted in `metrics.skipped` and passed over.
    - `metrics` are added to: requests, bytes and records.

    Raises ValueError for what is asked wrongly, Unavailable, Corrupt, DataLoss; ModuleNotFoundError without the extra
    `stratalog[arrow]`.
    """
    for module in ("pyarrow", "numba"):
        if find_spec(module) is None:
            raise ModuleNotFoundError(
                f"stratalog.read needs {module}: pip install 'stratalog[arrow]'", name=module
            )
    from stratalog.table.arrow import read_topic  # noqa: PLC0415 - a broker does without Arrow

    return read_topic(
        topic,
        bootstrap_servers=bootstrap_servers,
        tier_url=tier_url,
        since=since,
        until=until,
        offsets=offsets,
        partitions=partitions,
        columns=columns,
        isolation=isolation,
        fail_on_data_loss=fail_on_data_loss,
        metrics=metrics,
    )
