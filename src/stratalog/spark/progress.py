"""A listener that writes the progress of streaming queries to a topic, for the web console's page `/pipelines`.

In: Spark's events of queries. Out: a JSON record for each (`table/progress.py` says what it holds). Spark calls
it after a batch, so a batch never waits for it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from stratalog.table.progress_writer import ProgressWriter
from stratalog.table.sink_options import parse_sink_options

__all__ = ["ProgressListener"]

_LAST_S: Final = 5.0
"""How long the end of a query waits until its record is written: the driver may end right after it."""


class ProgressListener(StreamingQueryListener):
    """`spark.streams.addListener(ProgressListener({"kafka.bootstrap.servers": …}))`.

    The options are the sink's, for connections. Raises BadOption for others.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse_sink_options(options)
        self._writer: ProgressWriter | None = None
        self._last: dict[str, dict[str, Any]] = {}
        """By query: its last record, for events that say less."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._put(str(event.id), "started", run_id=str(event.runId), name=event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        found = event.progress
        names = {"run_id": str(found.runId), "name": found.name}
        self._put(str(found.id), "progress", **names, progress=json.loads(found.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._put(str(event.id), "idle", run_id=str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        query = str(event.id)
        self._put(query, "terminated", run_id=str(event.runId), error=event.exception)
        del self._last[query]
        if self._writer is not None:
            self._writer.flush(_LAST_S)

    def _put(self, query: str, event: str, **facts: Any) -> None:
        """Write a record: the event, and what earlier events said of the query."""
        record = {**self._last.get(query, {}), "event": event, "query": query, **facts}
        self._last[query] = record
        if self._writer is None:
            self._writer = ProgressWriter(self._options)
        self._writer.put(query, record)
