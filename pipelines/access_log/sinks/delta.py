"""The lake: a Delta table of the good lines.

In: a directory. Out: a Delta table in it; Delta's jars come from Maven, once. Delta keeps, in the table's own log, the
number of each streaming query's last batch, so a repeated batch adds no rows. delta-rs counts the rows; it shares no
code with the writer. Never here: a table that has rows already.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fetched import jars

from sinks.sink import Sink, SinkPlace
from stratalog.errors import UserError

VERSION = "4.4.0"
ARTIFACTS = (f"io.delta:delta-spark_4.2_2.13:{VERSION}", f"io.delta:delta-storage:{VERSION}")


def spark_conf() -> dict[str, str]:
    """Return the settings that add Delta to a Spark session. Raises UserError if the jars cannot be fetched."""
    found = sorted(jars(f"delta-{VERSION}", ARTIFACTS, with_dependencies=False).glob("*.jar"))
    return {
        "spark.jars": ",".join(map(str, found)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # By default fifty tasks read a table's log at every commit.
        "spark.databricks.delta.snapshotPartitions": "2",
    }


@contextmanager
def delta(place: SinkPlace) -> Iterator[Sink]:
    """Open a table, which must be empty."""
    table = place.root / "table" if place.url is None else _directory(place.url)
    if table.exists() and (not table.is_dir() or any(table.iterdir())):
        raise UserError(
            f"--sink-url {place.url}: there is something already; name an empty directory"
        )
    options = {"path": str(table), "mergeSchema": "true"}  # new code may add columns
    yield Sink("delta", options, table.as_uri(), lambda: status_counts(table), spark_conf())


def status_counts(table: Path) -> dict[int, int]:
    """Return rows by HTTP status; none where nothing was ever written."""
    from deltalake import DeltaTable  # noqa: PLC0415 - only a run with this sink waits for it

    if not DeltaTable.is_deltatable(str(table)):
        return {}
    counts: Counter[int] = Counter()
    for batch in DeltaTable(str(table)).to_pyarrow_dataset().to_batches(columns=["status"]):
        counts.update(batch["status"].to_pylist())
    return dict(counts)


def _directory(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme not in {"", "file"} or parts.netloc:
        raise UserError(f"--sink-url {url}: delta takes a directory or file:///directory")
    return Path(unquote(parts.path)).resolve()
