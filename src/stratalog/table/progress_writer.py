"""Write the progress of streaming queries to a topic, where the web console reads it.

In: a query's id, a JSON object. Out: one record for each, with the id as its key. A query never waits for it, and
never fails by it: while no broker answers, the newest records wait in memory and older ones are dropped.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from stratalog.adapters.loop_thread import LoopThread
from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.system import SystemClock
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable, UserError
from stratalog.table.progress import PROGRESS_TOPIC
from stratalog.table.secured import read_security
from stratalog.table.sink_options import SinkOptions
from stratalog.wire.murmur2 import partition_of_key
from stratalog.wire.records import BatchBuilder

__all__ = ["ProgressWriter"]

_WAITING_MAX: Final = 1_000
_LOG: Final = logging.getLogger("stratalog.spark")


class ProgressWriter:
    """Writes from a thread of its own, by the options of the sink. It creates the topic if the cluster has none."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        self._waiting: deque[tuple[bytes, bytes, int]] = deque(maxlen=_WAITING_MAX)
        self._thread = LoopThread("stratalog-progress", asyncio.new_event_loop)
        self._client: Client | None = None
        self._partitions = 0
        self._is_sending = False
        self._idle = asyncio.Event()
        self._trouble = ""

    def put(self, query: str, value: Mapping[str, Any]) -> None:
        """Queue a record and return."""
        record = query.encode(), json.dumps(value).encode(), self._clock.now_ms()
        self._waiting.append(record)
        self._thread.begin(self._send())

    def flush(self, timeout_s: float) -> None:
        """Wait until what is queued is written, or could not be, for at most so long."""

        async def written() -> None:
            await self._send()
            await self._idle.wait()

        with suppress(TimeoutError):
            self._thread.run(written(), timeout_s)

    async def _send(self) -> None:
        """Send everything that is queued. After a failure the next record tries again."""
        if self._is_sending:
            return
        self._is_sending = True
        self._idle.clear()
        try:
            while self._waiting:
                await self._send_oldest()
            self._trouble = ""
        except (Unavailable, Rejected, UserError) as error:
            if not self._trouble:
                _LOG.warning("the progress of queries is not written: %s", error)
            self._trouble = str(error)
            if self._client is not None:
                await self._client.close()
                self._client = None
        finally:
            self._is_sending = False
            self._idle.set()

    async def _send_oldest(self) -> None:
        if self._client is None:
            self._client = await self._connected()
            self._partitions = await self._existing(self._client)
        record = self._waiting[0]
        key, value, now_ms = record
        builder = BatchBuilder(self._options.codec)
        builder.add(key, value, now_ms)
        partition = partition_of_key(key, self._partitions)
        await self._client.produce(PROGRESS_TOPIC, partition, builder.build())
        if self._waiting and self._waiting[0] is record:  # it may have been dropped meanwhile
            self._waiting.popleft()

    async def _connected(self) -> Client:
        return await Client.connect(
            TcpNetwork(),
            self._options.bootstrap,
            client_id=self._options.client_id,
            timeout_s=self._options.request_timeout_s,
            security=read_security(self._options.secured),
        )

    async def _existing(self, client: Client) -> int:
        """Return the topic's number of partitions. Raises Rejected."""
        found = (await client.metadata([PROGRESS_TOPIC])).topics[PROGRESS_TOPIC]
        if found.error is ErrorCode.unknown_topic_or_partition:
            (made,) = await client.create_topics([NewTopic(PROGRESS_TOPIC, 1, -1)])
            if made.error and made.error is not ErrorCode.topic_already_exists:
                raise Rejected(made.error, f"topic {PROGRESS_TOPIC}: {made.error.name}")
            return 1
        if found.error:
            raise Rejected(found.error, f"topic {PROGRESS_TOPIC}: {found.error.name}")
        return len(found.partitions)
