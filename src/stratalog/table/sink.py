"""Write rows into topics, in a task of Spark's.

In: options, the present columns, Arrow record batches. Out: acknowledged records, and their number. It never creates
a topic.

At least once, as Spark's Kafka sink: a failed task runs again, and its sent records stay. So every record has a header
that names its write: the job or query, its batch, the attempt, the task, and the row within the task. Two records of a
topic with the same header are the same row. Another attempt at a batch may have other tasks, because a stream's source
may read from another place by then. A reader that needs each row once keeps the newest attempt of each batch, and one
record for each header.

Exactly once: a task writes in a transaction, which stays open until the driver commits the batch (`exactly_once.py`).
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.system import SystemClock
from stratalog.client.aio import Client
from stratalog.client.batching import Batches
from stratalog.client.calls import topic_operations
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.client.security import Dialer
from stratalog.client.transactional import end
from stratalog.errors import ErrorCode, Rejected, Unavailable, UserError
from stratalog.metadata.rights import Operation
from stratalog.table.decisions import Prepared
from stratalog.table.exactly_once import BATCH_JOB, ExactlyOnce, Guarantee
from stratalog.table.places import refused_topic
from stratalog.table.secured import read_security
from stratalog.table.sink_options import SinkOptions
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import Header

WRITE_HEADER = "stratalog.write"

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

    Raises UserError for an invalid row or a missing topic, Rejected and Unavailable once its time is over.
    """
    return asyncio.run(_write(found, options, write))


async def _write(found: Iterable[pa.RecordBatch], options: SinkOptions, write: Write) -> int:
    async with (
        _client(options) as client,
        IdempotentPipeline(client, acks=options.acks, delivery_s=options.delivery_s) as pipeline,
    ):
        batches = Batches(pipeline.send, options.codec, options.batch_bytes)
        await _add_rows(client, batches, _rows(found), options, write)
    return batches.count


def prepare_rows(
    found: Iterable[pa.RecordBatch],
    options: SinkOptions,
    guarantee: Guarantee,
    write: Write,
    attempt: int,
) -> tuple[int, Prepared | None]:
    """Write every row in a transaction that stays open; return the number of rows and the transaction.

    Without rows, and where the batch is decided already, there is no transaction. Raises as `write_rows`.
    """
    return asyncio.run(_prepare(found, options, guarantee, write, attempt))


async def _prepare(
    found: Iterable[pa.RecordBatch],
    options: SinkOptions,
    guarantee: Guarantee,
    write: Write,
    attempt: int,
) -> tuple[int, Prepared | None]:
    async with _client(options) as client:
        once = ExactlyOnce(client, guarantee, write.run)
        rows = _rows(found)
        first = next(rows, None)  # may take long: the decision is looked up after it
        decision = await once.finish()
        if first is None or (decision is not None and decision.batch >= write.batch):
            return 0, None
        transaction = await once.begin(write.task, attempt, write.batch)
        try:
            async with IdempotentPipeline(
                client, transaction, delivery_s=options.delivery_s
            ) as pipeline:
                batches = Batches(pipeline.send, options.codec, options.batch_bytes)
                await _add_rows(client, batches, chain([first], rows), options, write)
        except (UserError, Rejected, Unavailable):
            with suppress(Rejected, Unavailable):
                producer = transaction.producer
                await end(client, transaction.transactional_id, producer, commit=False)
            raise
        producer_id, epoch, _ = transaction.producer
        return batches.count, Prepared(write.task, attempt, producer_id, epoch)


def commit_batch(
    options: SinkOptions, guarantee: Guarantee, run: str, batch: int, prepared: Iterable[Prepared]
) -> None:
    """Commit a batch of a query, in the driver. Raises UserError where it cannot be, Rejected, Unavailable."""

    async def commit() -> None:
        async with _client(options) as client:
            await ExactlyOnce(client, guarantee, run).commit(batch, prepared)

    asyncio.run(commit())


def commit_job(
    options: SinkOptions, guarantee: Guarantee, run: str, prepared: Iterable[Prepared]
) -> None:
    """Commit the only batch of a job, as `commit_batch`; its decision is of no use afterwards."""

    async def commit() -> None:
        async with _client(options) as client:
            once = ExactlyOnce(client, guarantee, run)
            await once.commit(BATCH_JOB, prepared)
            await once.forget()

    asyncio.run(commit())


def abort_batch(options: SinkOptions, guarantee: Guarantee, run: str) -> None:
    """Abort what is open and not decided of a query, in the driver. Raises as `commit_batch`."""

    async def abort() -> None:
        async with _client(options) as client:
            await ExactlyOnce(client, guarantee, run).abort()

    asyncio.run(abort())


def check_destination(options: SinkOptions) -> None:
    """Reach a broker, and check topic and rights, so that the driver fails and not its tasks.

    Raises BadOption for a missing topic, Rejected, Unavailable. A topic that only rows name is checked by the tasks.
    """

    async def check() -> None:
        async with _client(options) as client:
            if options.topic is None:
                await client.metadata([])
                return
            await _partitions(client, options.topic, options)
            allowed = await client.on_any(topic_operations(options.topic))
            if (
                allowed >= 0 and not allowed & 1 << Operation.WRITE
            ):  # negative: a broker older than KIP-430
                raise Rejected(
                    ErrorCode.topic_authorization_failed,
                    f"topic {options.topic} at {options.bootstrap}: this user has no right to write to it",
                )

    asyncio.run(check())


def _client(options: SinkOptions) -> Client:
    """Return a client that connects with its first call, and tries again for `kafka.max.block.ms`."""
    return Client(
        Dialer(TcpNetwork(), read_security(options.secured)),
        options.bootstrap,
        client_id=options.client_id,
        timeout_s=options.request_timeout_s,
        patience_s=options.block_s,
    )


async def _add_rows(
    client: Client, batches: Batches, rows: Iterable[Row], options: SinkOptions, write: Write
) -> None:
    """Add every row to a batch, and send all batches."""
    clock = SystemClock()
    partitions_of: dict[str, list[TopicPartition]] = {}
    for row, (topic, wanted, key, value, headers, timestamp) in enumerate(rows):
        name = options.topic or topic
        if name is None:
            raise UserError("a row's topic is null: give the option 'topic' or fill the column")
        if name not in partitions_of:
            partitions_of[name] = await _partitions(client, name, options)
        if wanted is None:
            partition = batches.choose(key, partitions_of[name])
        elif (partition := TopicPartition(name, wanted)) not in partitions_of[name]:
            partitions_of[name] = await _partitions(client, name, options)  # it may be new
            if partition not in partitions_of[name]:
                raise UserError(f"topic {name} has no partition {wanted}")
        own = [] if headers is None else [(one["key"], one["value"]) for one in headers]
        moment = clock.now_ms() if timestamp is None else timestamp
        await batches.add(partition, key, value, moment, [*own, write.header(row)])
    await batches.flush()


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


async def _partitions(client: Client, topic: str, options: SinkOptions) -> list[TopicPartition]:
    info = (await client.metadata([topic])).topics[topic]
    if info.error:
        raise refused_topic(topic, info.error, options.bootstrap)
    return [TopicPartition(topic, index) for index in sorted(info.partitions)]
