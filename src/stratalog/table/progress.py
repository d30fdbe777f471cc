"""The topic of streaming queries' progress: its name, and how far a query has read.

In: a source of Spark's progress. Out: the positions behind its last batch. It never connects to anything.

A record's key is the query's id. Its value is a JSON object: `event` (started, progress, idle, terminated), `query`,
`run_id`, `name`, `progress` (Spark's own JSON of the last batch, from the first batch on), `error` (of a query that
failed). Each record repeats what earlier ones said, so the newest of a query says everything.
"""

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from stratalog.errors import Corrupt
from stratalog.table.offsets import Positions, from_json

__all__ = ["PROGRESS_TOPIC", "QUERY_METRICS", "positions_after"]

PROGRESS_TOPIC: Final = "stratalog-progress"
QUERY_METRICS: Final = {
    "stratalog_query_running": (
        "state",
        "1 while the query reports; 0 once it stopped, failed, or has been silent for a minute.",
    ),
    "stratalog_query_lag_records": (
        "lag",
        "Records from the query's last batch to the log's end now.",
    ),
    "stratalog_query_lag_seconds": (
        "lag_seconds",
        "The age of the oldest record that the query has not read; 0 where it has read all.",
    ),
    "stratalog_query_rows_in_per_second": (
        "rows_in_per_second",
        "Rows a second that arrived for the last batch, as Spark says.",
    ),
    "stratalog_query_rows_done_per_second": (
        "rows_done_per_second",
        "Rows a second that the last batch processed, as Spark says.",
    ),
    "stratalog_query_batch_seconds": ("batch_seconds", "How long the last batch took."),
}
"""The console's metrics of each query for Prometheus, gauges: the number on the console's page, and its meaning."""


def positions_after(source: Mapping[str, Any], ids: Mapping[str, UUID]) -> Positions | None:
    """Return the offsets behind a source's last batch; None for a source that reads no topic.

    `ids` are the existing topics, for Spark's Kafka source.
    """
    end = source.get("endOffset")
    try:
        found = json.loads(end) if isinstance(end, str) else end
        return from_json(found, ids) if isinstance(found, dict) and found else None
    except (Corrupt, ValueError, RecursionError):
        return None
