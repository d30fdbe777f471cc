"""Load a broker and measure it, for `strata perf produce` and `strata bench machine`.

In: a client, record values, a producer's settings. Out: records per second, bytes, latencies. It never compares or
recommends.

A record's latency runs from its append to a batch until the acknowledgement of that batch, as in Kafka's producer.
Kafka's producer queues records in buffer.memory; this one does not accept them then, so its latency at full speed is
shorter.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from stratalog.client.aio import Client, Pipeline
    from stratalog.client.calls import Produced
    from stratalog.wire.records import BatchBuilder

MB = 1024 * 1024
"""Kafka's tools count 2**20 bytes as a MB."""
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
RECORD_OVERHEAD_BYTES = 20
_STEPS_PER_MS = 100
_TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class Producing:
    """A producer's settings; names and defaults are Kafka's (its producer also is idempotent by default)."""

    acks: int = -1
    batch_bytes: int = 16_384
    linger_ms: float = 5
    compression: str = "none"
    in_flight: int = 5


class Latencies:
    """Latencies of records, counted in hundredths of a millisecond."""

    def __init__(self) -> None:
        self.count = 0
        self._total_ms = 0.0
        self._max_ms = 0.0
        self._counts: Counter[int] = Counter()

    def add(self, latency_ms: float, records: int) -> None:
        self.count += records
        self._total_ms += latency_ms * records
        self._max_ms = max(self._max_ms, latency_ms)
        self._counts[round(latency_ms * _STEPS_PER_MS)] += records

    def summary(self) -> dict[str, float]:
        """Return average, maximum and percentiles in ms; zeros without latencies."""
        found = {"avg": self._total_ms / self.count if self.count else 0.0, "max": self._max_ms}
        steps = sorted(self._counts.items())
        for name, share in PERCENTILES.items():
            wanted, passed, at = share * self.count, 0, 0
            for step, records in steps:
                passed, at = passed + records, step
                if passed >= wanted:
                    break
            found[name] = at / _STEPS_PER_MS
        return {name: round(value, 2) for name, value in found.items()}


@dataclass(slots=True)
class LoadCounts:
    """Acknowledged records of some period."""

    began_s: float
    records: int = 0
    value_bytes: int = 0
    batch_bytes: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    def summary(self, now_s: float) -> dict[str, Any]:
        """Return the measurements by the names of Kafka's tool; a MB is 2**20 bytes of values before compression."""
        seconds = max(now_s - self.began_s, 1e-9)
        return {
            "records": self.records,
            "seconds": round(seconds, 3),
            "records_s": round(self.records / seconds, 1),
            "mb_s": round(self.value_bytes / MB / seconds, 2),
            "latency_ms": self.latencies.summary(),
        }


def produced_line(summary: dict[str, Any], *, percentiles: bool) -> str:
    """Return a line in the format of kafka-producer-perf-test, which scripts can parse."""
    latency = summary["latency_ms"]
    line = (
        f"{summary['records']} records sent, {summary['records_s']:.1f} records/sec "
        f"({summary['mb_s']:.2f} MB/sec), {latency['avg']:.2f} ms avg latency, "
        f"{latency['max']:.2f} ms max latency"
    )
    if not percentiles:
        return line + "."
    names = {"p50": "50th", "p95": "95th", "p99": "99th", "p99_9": "99.9th"}
    return (
        line + "".join(f", {latency[name]:.2f} ms {shown}" for name, shown in names.items()) + "."
    )


@dataclass(slots=True)
class _Filling:
    """A batch being filled: `marks` are (when, how many records were added then)."""

    builder: "BatchBuilder"
    value_bytes: int = 0
    marks: list[tuple[float, int]] = field(default_factory=list)


class Load:
    """Send values in turn, batch by batch and partition by partition, and count acknowledged records.

    Both `total` and `window` count; the caller replaces `window` to begin a new one.
    """

    def __init__(
        self,
        client: "Client",
        topic: str,
        partitions: Sequence[int],
        values: Sequence[bytes],
        producing: Producing,
    ) -> None:
        """`values` are sent repeatedly and must not be empty."""
        from stratalog.adapters.system import SystemClock, monotonic_s

        self._client = client
        self._topic = topic
        self._partitions = partitions
        self._values = values
        self._longest = max(map(len, values)) + RECORD_OVERHEAD_BYTES
        self._producing = producing
        self._clock = SystemClock()
        self._now = monotonic_s
        self._filling: _Filling | None = None
        self._sent_batches = 0
        self.added = 0
        self.throttled_ms = 0
        """How long client quotas made this load wait."""
        self.total = LoadCounts(self._now())
        self.window = self.total

    async def run(
        self,
        records: int | None,
        *,
        until_s: float | None = None,
        throughput: float | None = None,
        each_tick: "Callable[[float], None]" = lambda _now_s: None,
    ) -> None:
        """Send this many records, or until `until_s` (of `monotonic_s`), at most `throughput` a second; wait for the
        acknowledgements. Raises Rejected, Unavailable.
        """
        from asyncio import sleep

        began_s = self._now()
        first = self.added
        producing = self._producing
        async with self._client.pipeline(
            acks=producing.acks, window=producing.in_flight
        ) as pipeline:
            while True:
                now_s = self._now()
                each_tick(now_s)
                left = (1 << 62) if records is None else first + records - self.added
                if left <= 0 or (until_s is not None and now_s >= until_s):
                    break
                due = left
                if throughput is not None:
                    due = min(left, int((now_s - began_s) * throughput) + 1 - self.added + first)
                if due > 0:
                    await self._add(due, now_s, pipeline)
                if throughput is not None:
                    await self._send_lingering(pipeline)
                    await sleep(_TICK_S)
            await self._send(pipeline)
        await sleep(0)  # the last acknowledgement is counted one turn after it is awaited

    async def _add(self, due: int, now_s: float, pipeline: "Pipeline") -> None:
        """Add up to `due` values to the open batch, as its room allows; send the batch once it is full."""
        from stratalog.wire.records import BatchBuilder

        if self._filling is None:
            self._filling = _Filling(BatchBuilder(self._producing.compression))
        filling = self._filling
        builder = filling.builder
        room = (self._producing.batch_bytes - builder.size) // self._longest
        if room < 1 and builder.count:
            await self._send(pipeline)
            return
        at = self.added % len(self._values)
        values = self._values[at : at + min(due, max(room, 1))]
        timestamp = self._clock.now_ms()
        add = builder.add
        for value in values:
            add(None, value, timestamp)
        filling.value_bytes += sum(map(len, values))
        filling.marks.append((now_s, len(values)))
        self.added += len(values)

    async def _send_lingering(self, pipeline: "Pipeline") -> None:
        filling = self._filling
        if filling and (self._now() - filling.marks[0][0]) * 1000 >= self._producing.linger_ms:
            await self._send(pipeline)

    async def _send(self, pipeline: "Pipeline") -> None:
        from asyncio import sleep

        filling, self._filling = self._filling, None
        if filling is None:
            return
        batch = filling.builder.build()
        partition = self._partitions[self._sent_batches % len(self._partitions)]
        self._sent_batches += 1
        future = await pipeline.send(self._topic, partition, batch)
        future.add_done_callback(partial(self._acknowledged, filling, len(batch)))
        await sleep(0)  # let the loop read answers, which are timed when they are read

    def _acknowledged(
        self, filling: _Filling, batch_bytes: int, future: "asyncio.Future[Produced]"
    ) -> None:
        if future.cancelled() or future.exception() is not None or future.result().error:
            return  # the pipeline raises it
        now_s = self._now()
        self.throttled_ms += future.result().throttle_ms
        for counts in {id(one): one for one in (self.total, self.window)}.values():
            counts.records += filling.builder.count
            counts.value_bytes += filling.value_bytes
            counts.batch_bytes += batch_bytes
            for added_s, records in filling.marks:
                counts.latencies.add((now_s - added_s) * 1000, records)


def random_values(record_bytes: int, pool_bytes: int = 4 * MB) -> list[bytes]:
    """Return values of capital letters, as Kafka's tool makes them: the same in every run, and enough of them that no
    batch holds one twice.
    """
    from hashlib import shake_128
    from string import ascii_uppercase

    count = max(1, pool_bytes // max(record_bytes, 1))
    letters = bytes(ascii_uppercase[byte % 26].encode()[0] for byte in range(256))
    data = shake_128(b"strata perf").digest(count * record_bytes).translate(letters)
    return [data[at : at + record_bytes] for at in range(0, len(data), record_bytes)]
