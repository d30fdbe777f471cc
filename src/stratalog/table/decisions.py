"""The decisions of the sink's batches: records of a compacted topic.

In: a client, and decisions. Out: records keyed (query, batch), and the newest decision of a query. It never ends a
transaction.

The first writing of a batch counts: its decision names the transactions to commit, and they are committed however long
that takes. The bytes are in docs/formats.md.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from stratalog.client.aio import Client
from stratalog.client.calls import EARLIEST, LATEST, NewTopic
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.client.transactional import Producer
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.wire.batch import scan
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder, Record, read_records

__all__ = ["Decision", "Decisions", "Prepared", "decode_decision", "encode_decision"]

_FORMAT: Final = 1
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "3600000",
}
_KEPT_BATCHES: Final = 100
"""As many as a query's checkpoint keeps (spark.sql.streaming.minBatchesToRetain)."""
_SPAN: Final = 1000
"""Offsets that a look-up reads first, from the end; if they lack the query, it reads ten times as many before them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task attempt's transaction, with all of its records."""

    task: int
    attempt: int
    producer_id: int
    epoch: int

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.epoch)


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions of a query's batch that count. `is_ended`: all of them are committed."""

    query: str
    batch: int
    prefix: str
    transactions: tuple[Prepared, ...]
    is_ended: bool = False

    def id_of(self, one: Prepared) -> str:
        """Return a transaction's transactional id."""
        return f"{self.prefix}-{self.query}-{one.task}-{one.attempt}"


def encode_decision(decision: Decision) -> tuple[bytes, bytes]:
    """Return the key and the value of a decision's record."""
    rows = [[one.task, one.attempt, one.producer_id, one.epoch] for one in decision.transactions]
    value = {
        "format": _FORMAT,
        "prefix": decision.prefix,
        "ended": decision.is_ended,
        "transactions": rows,
    }
    return _key(decision.query, decision.batch), json.dumps(value, separators=(",", ":")).encode()


def decode_decision(key: bytes, value: bytes) -> Decision:
    """Return the decision of a record. Raises UserError for a record that is none."""
    try:
        query, _, batch = key.decode().rpartition("/")
        found: dict[str, Any] = json.loads(value)
        if found["format"] != _FORMAT:
            raise UserError(
                f"a decision of {query} has the format {found['format']}: a newer sink wrote it"
            )
        rows = tuple(Prepared(*map(int, row)) for row in found["transactions"])
        return Decision(query, int(batch), str(found["prefix"]), rows, bool(found["ended"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"the record with the key {key!r} is no decision: {error}") from error


def _key(query: str, batch: int) -> bytes:
    return f"{query}/{batch}".encode()


class Decisions:
    """One topic of decisions, which has one partition."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._partition = TopicPartition(topic, 0)

    async def newest(self, query: str) -> Decision | None:
        """Return a query's newest decision, or None. Raises UserError for damaged records, Rejected, Unavailable."""
        try:
            stop = await self._offset(LATEST)
        except Rejected as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                return None
            raise
        start = await self._offset(EARLIEST)
        span = _SPAN
        found: dict[bytes, bytes | None] = {}
        while stop > start:
            first = max(start, stop - span)
            found = {**await self._read(query, first, stop), **found}
            decided = [decode_decision(key, value) for key, value in found.items() if value]
            if decided:
                return max(decided, key=lambda one: one.batch)
            stop, span = first, span * 10
        return None

    async def write(self, decision: Decision) -> None:
        """Write a decision, once all in-sync replicas have it. Creates the topic. Raises Rejected, Unavailable."""
        if not decision.is_ended:
            await self._create()
        await self._send([encode_decision(decision)])

    async def write_ended(self, decision: Decision) -> None:
        """Note that all transactions of a decision are committed, and forget the query's batch of long ago."""
        records: list[tuple[bytes, bytes | None]] = [
            encode_decision(replace(decision, is_ended=True))
        ]
        if decision.batch >= _KEPT_BATCHES:
            records.append((_key(decision.query, decision.batch - _KEPT_BATCHES), None))
        await self._send(records)

    async def remove(self, decision: Decision) -> None:
        """Write the decision's tombstone."""
        await self._send([(_key(decision.query, decision.batch), None)])

    async def _send(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        now_ms = 0  # nothing is deleted by its age: the topic is compacted
        batch = BatchBuilder()
        for key, value in records:
            batch.add(key, value, now_ms)
        async with IdempotentPipeline(self._client) as pipeline:
            await pipeline.send(*self._partition, batch)

    async def _create(self) -> None:
        topic = self._partition.topic
        found = (await self._client.metadata([topic])).topics[topic]
        if not found.error:
            return
        (created,) = await self._client.create_topics([NewTopic(topic, 1, configs=_CONFIGS)])
        if created.error not in (ErrorCode.none, ErrorCode.topic_already_exists):
            reason = created.message or created.error.name
            raise Rejected(created.error, f"topic {topic} for the sink's decisions: {reason}")

    async def _offset(self, timestamp: int) -> int:
        listed = await self._client.list_offsets({self._partition: timestamp})
        return listed[self._partition].offset

    async def _read(self, query: str, first: int, stop: int) -> dict[bytes, bytes | None]:
        """Return the last value of each of the query's keys in a range of offsets."""
        found: dict[bytes, bytes | None] = {}
        prefix = f"{query}/".encode()
        offset = first
        while offset < stop:
            fetched = await self._client.fetch(*self._partition, offset)
            for position, header in scan(fetched.records):
                offset = header.next_offset
                if not header.is_control:
                    records = read_records(fetched.records[position:])
                    found.update(_of_query(records, prefix, first, stop))
        return found


def _of_query(
    records: Iterable[Record], prefix: bytes, first: int, stop: int
) -> Iterator[tuple[bytes, bytes | None]]:
    for record in records:
        if first <= record.offset < stop and record.key and record.key.startswith(prefix):
            yield record.key, record.value
