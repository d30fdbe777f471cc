"""The time of the first record that a reader has not read: its lag as a time.

In: offsets by partition. Out: times of records. A reader is a consumer group or a query of Spark.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from stratalog.console.cluster import Cluster
from stratalog.errors import Corrupt, Rejected, Unavailable
from stratalog.wire.finding import records_in
from stratalog.wire.ids import TopicPartition

__all__ = ["age_seconds", "first_times"]

_LOOKUPS_MAX: Final = 200
"""Partitions whose first unread record is looked up; the others' lag is in records alone."""
_LOOKUPS_S: Final = 4.0
Unread = tuple[TopicPartition, int]
"""A partition and the first offset that was not read."""


async def first_times(cluster: Cluster, unread: Collection[Unread]) -> dict[Unread, int]:
    """Return the time (epoch ms) of the record at each offset, of as many as a few seconds allow."""
    times: dict[Unread, int] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOKUPS_S), cluster.own_client() as client:
            for key, offset in list(unread)[:_LOOKUPS_MAX]:
                with suppress(Rejected, Unavailable, Corrupt):
                    fetched = await client.fetch(*key, offset, max_bytes=1, max_wait_ms=0)
                    for _, record in records_in(fetched.records, offset, fetched.aborted):
                        if record is not None:
                            times[key, offset] = record.timestamp
                            break
    return times


def age_seconds(now_ms: int, time_ms: int | None) -> float | None:
    """Return a record's age; None where its time is not known."""
    return None if time_ms is None or time_ms < 0 else max(0, now_ms - time_ms) / 1000
