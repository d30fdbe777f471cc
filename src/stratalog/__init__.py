"""Stratalog: Kafka's protocol and files without a JVM, with history in object storage.

In: the arguments of `read`. Out: a topic as Arrow, or an `Error`. Importing one part of the package loads no other.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stratalog.errors import BadOption, Corrupt, DataLoss, Error, Rejected, Unavailable
from stratalog.table.metrics import ReadMetrics

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BadOption",
    "Corrupt",
    "DataLoss",
    "Error",
    "ReadMetrics",
    "Rejected",
    "Unavailable",
    "read",
]


def read(  # noqa: PLR0913 - one argument for each thing to say
    topic: str,
    *,
    bootstrap_servers: str | None = None,
    tier_url: str | None = None,
    since: datetime | timedelta | int | str | None = None,
    until: datetime | timedelta | int | str | None = None,
    offsets: Mapping[int, tuple[int | None, int | None]] | None = None,
    partitions: Sequence[int] | None = None,
    key: bytes | str | Sequence[bytes | str] | None = None,
    partitioner: str | None = None,
    columns: Sequence[str] | None = None,
    isolation: str = "read_uncommitted",
    fail_on_data_loss: bool = True,
    metrics: ReadMetrics | None = None,
    security: Mapping[str, str] | None = None,
) -> "pa.RecordBatchReader":
    """Return a reader of a topic's records, history and tail, as Arrow record batches, read while iterated.

    `bootstrap_servers` and `tier_url`, one or both, say where the log is: with both, the bucket is read past the
    brokers and only the tail comes from them. Rows come partition by partition, in the order of offsets.

    - `since` (inclusive) and `until` (exclusive) bound the records' own timestamps, whatever order they have. Each is
      a time with a zone, ISO 8601, milliseconds since 1970, or a timedelta back from now.
    - `partitions`: read only these. `offsets`: read only these partitions, each from the first offset to before the
      second; None means the end of the log.
    - `key`: only records with this key, or one of these; a text means its UTF-8. Segments whose key filter
      (`tier.key.filter`) rules the keys out stay closed. `partitioner="murmur2"` reads only the partitions that Java's
      default partitioner chooses for the keys: right where it placed them all and the topic never got more partitions.
    - `columns`: some of key, value, topic, partition, offset, timestamp, timestampType, headers.
    - `isolation="read_committed"` leaves out records of aborted transactions, and the tail ends where the oldest open
      transaction begins.
    - `fail_on_data_loss=False`: skip missing and damaged offsets, log them, and count them in `metrics.skipped`.
    - `security`: properties of Kafka's clients, such as `security.protocol` and `ssl.truststore.location`.
    - `metrics` receives the counts of requests, bytes and records.

    Every failure is a `stratalog.Error`, here or during the iteration:

    - `BadOption`, also a ValueError: an argument is wrong, or names what is not there.
    - `Unavailable`: brokers or the bucket do not answer; the plan waits five seconds for brokers, the iteration a
      minute.
    - `Rejected`: a broker refuses, for lack of a right, for example; `code` is Kafka's error code.
    - `DataLoss`: records are gone that the arguments name.
    - `Corrupt`: bytes are damaged.

    Raises ModuleNotFoundError without the extra `stratalog[arrow]`.
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
        key=key,
        partitioner=partitioner,
        columns=columns,
        isolation=isolation,
        fail_on_data_loss=fail_on_data_loss,
        metrics=metrics,
        security=security,
    )
