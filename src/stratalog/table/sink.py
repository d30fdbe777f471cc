"""Write rows into topics, in a task of Spark's.

In: options, the present columns, Arrow record batches. Out: acknowledged records, and their number. It never creates
a topic.

At least once, as Spark's Kafka sink: a failed task runs again, and its sent records stay. So every record has a header
that names its write: the job or query, its batch, the attempt, the task, and the row within the task. Two records of a
topic with the same header are the same row. Another attempt at a batch may have other tasks, because a stream's source
may read from another place by then. A reader that needs each row once keeps the newest attempt of each batch, and one
record for each header.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.system import SystemClock
from stratalog.client.aio import Client
from stratalog.client.batching import Batches
from stratalog.errors import ErrorCode, UserError
from stratalog.table.sink_options import SinkOptions
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import Header

WRITE_HEADER = "stratalog.write"
WINDOW = 5

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """One task's part of one batch: `run` is the job's or query's id, `batch` the micro-batch (0 for a job), `attempt`
    when Spark began to write it (epoch ms).
    """

    run: str
    batch: int
    attempt: int
    task: int

    def header(self, row: int) -> Header:
        """Return the header of the record for the task's row `row`."""
        return WRITE_HEADER, f"{self.run}/{self.batch}/{self.attempt}/{self.task}/{row}".encode()


def write_rows(found: Iterable[pa.RecordBatch], options: SinkOptions, write: Write) -> int:
    """Write every row and wait for the acknowledgements; return the number of rows.

    Raises UserError for an invalid row or a missing topic, Rejected, Unavailable.
    """
    return asyncio.run(_write(found, options, write))


async def _write(found: Iterable[pa.RecordBatch], options: SinkOptions, write: Write) -> int:
    clock = SystemClock()
    client = await Client.connect(
        TcpNetwork(),
        options.bootstrap,
        client_id=options.client_id,
        timeout_s=options.request_timeout_s,
    )
    async with client, client.pipeline(acks=options.acks, window=WINDOW) as pipeline:
        batches = Batches(pipeline, options.codec, options.batch_bytes)
        partitions_of: dict[str, list[TopicPartition]] = {}
        for row, (topic, wanted, key, value, headers, timestamp) in enumerate(_rows(found)):
            name = options.topic or topic
            if name is None:
                raise UserError("a row's topic is null: give the option 'topic' or fill the column")
            if name not in partitions_of:
                partitions_of[name] = await _partitions(client, name)
            if wanted is None:
                partition = batches.choose(key, partitions_of[name])
            elif (partition := TopicPartition(name, wanted)) not in partitions_of[name]:
                raise UserError(f"topic {name} has no partition {wanted}")
            own = [] if headers is None else [(one["key"], one["value"]) for one in headers]
            moment = clock.now_ms() if timestamp is None else timestamp
            await batches.add(partition, key, value, moment, [*own, write.header(row)])
        await batches.flush()
    return batches.count


def _rows(found: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield (topic, partition, key, value, headers, timestamp in epoch ms) of each row; None without the column."""
    for batch in found:
        columns = []
        for name in ("topic", "partition", "key", "value", "headers", "timestamp"):
            if name not in batch.schema.names:
                columns.append([None] * batch.num_rows)
                continue
            column = batch.column(name)
            if name in ("key", "value") and column.type != pa.binary():
                column = column.cast(pa.binary())
            if name == "timestamp":
                column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(
                    pa.int64()
                )
            columns.append(column.to_pylist())
        yield from zip(*columns, strict=True)


async def _partitions(client: Client, topic: str) -> list[TopicPartition]:
    info = await client.metadata([topic])
    found: Mapping[str, Any] = info.topics
    if found[topic].error == ErrorCode.unknown_topic_or_partition:
        raise UserError(f"topic {topic} does not exist; create it (strata topic create {topic})")
    if found[topic].error:
        raise UserError(f"topic {topic}: {found[topic].error.name}")
    return [TopicPartition(topic, index) for index in sorted(found[topic].partitions)]
