"""Run a task: read one planned range, from the bucket or from a broker, into Arrow.

In: a task of `plan.py`, and the data that all tasks of the query share. Out: Arrow record batches, bounded in rows
and bytes, or an exception. Together they hold every offset of the range exactly once, without the records that its
times rule out. Memory is bounded whatever the segments' sizes are: the chunks (`chunks.py`), one Arrow batch, and the
largest decompressed batch. Tasks run in Spark's Python workers, which keep connections and stores open for the next
task.

No offset goes missing silently. Offsets are consecutive up to the range's end (a compacted topic may have gaps), or
`Missing`, `Corrupt` or `DataLoss` names the missing ones. With `failOnDataLoss=false` the task logs a warning and
counts the offsets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from logging import getLogger

import pyarrow as pa
from pyarrow import compute

from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import EARLIEST, READ_COMMITTED
from stratalog.client.fetches import FetchSpan
from stratalog.errors import Corrupt, DataLoss, ErrorCode, Rejected, Unavailable
from stratalog.kernels.decode import Decoder
from stratalog.kernels.missing import Missing
from stratalog.kernels.rows import Layout
from stratalog.ports import ObjectStore
from stratalog.table.chunks import Chunk, chunks
from stratalog.table.leasing import kept
from stratalog.table.metrics import ReadMetrics
from stratalog.table.places import Shared, client_of, store_at
from stratalog.table.plan import BrokerTask, BucketTask, Range, Task
from stratalog.wire.ids import TopicPartition

FETCH_BYTES = 4 << 20
"""Bytes of one Fetch answer (more only for one larger batch)."""
EMPTY_ANSWERS_MAX = 40
"""Fetch answers without progress, half a second each, before a task gives up."""

BUCKET, BROKER = "bucket", "broker"


def read_task(
    task: Task, shared: Shared, metrics: ReadMetrics | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the task's range, in order, and count them in `metrics`.

    Raises Corrupt, Missing, DataLoss, Rejected, Unavailable.
    """
    metrics = metrics if metrics is not None else ReadMetrics()
    keys, columns = task.wanted.keys, shared.columns
    if keys is not None and "key" not in columns:
        shared = replace(shared, columns=(*columns, "key"))
    losses = Losses(metrics, fail=shared.fail_on_data_loss)
    if isinstance(task, BucketTask):
        assert shared.tier_url is not None, "a bucket task without a bucket"
        store = store_at(shared.tier_url)
        found = kept(_read_bucket(task, shared, store, losses), task.lease, store)
    else:
        found = _read_broker(task, shared, client_of(shared), losses)
    for batch in found if keys is None else _with_keys(found, keys, columns):
        metrics.records += batch.num_rows
        yield batch


def _with_keys(
    found: Iterator[pa.RecordBatch], keys: frozenset[bytes], columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with one of `keys`, reduced to `columns`."""
    wanted = pa.array(sorted(keys), pa.binary())
    for batch in found:
        chosen = compute.is_in(batch.column("key"), value_set=wanted)
        kept_rows = batch.select(list(columns)).filter(chosen)
        if kept_rows.num_rows:
            yield kept_rows


@dataclass(frozen=True, slots=True)
class Losses:
    """Unreadable offsets: they end the task (`fail`), or are logged and counted in `metrics`."""

    metrics: ReadMetrics
    fail: bool

    def skip(self, what: str, offsets: int) -> None:
        """Log and count skipped offsets; only where the task may continue."""
        assert not self.fail, "a task that fails passes over nothing"
        self.metrics.skipped += offsets
        getLogger("stratalog.spark").warning("%s", what)

    def lose(self, what: str, offsets: int, cause: Exception) -> None:
        """Skip offsets that the log no longer has. Raises DataLoss where the task must fail."""
        if self.fail:
            raise DataLoss(f"{what}; failOnDataLoss=false reads on without them") from cause
        self.skip(what, offsets)


def _decoder(wanted: Range, shared: Shared, origin: str, losses: Losses) -> Decoder:
    layout = Layout(
        wanted.topic,
        wanted.partition,
        shared.columns,
        origin,
        since_ms=wanted.since_ms,
        until_ms=wanted.until_ms,
    )
    unreadable = None if losses.fail else losses.skip
    return Decoder(layout, wanted.first, wanted.end, unreadable=unreadable)


# --- bucket ---------------------------------------------------------------------------------------------------


def _read_bucket(
    task: BucketTask, shared: Shared, store: ObjectStore, losses: Losses
) -> Iterator[pa.RecordBatch]:
    wanted = task.wanted
    decoder = _decoder(wanted, shared, BUCKET, losses)
    committed = shared.isolation == READ_COMMITTED
    run, path = (0, 0), ""
    for chunk in chunks(task, store, losses.metrics, committed=committed, salvage=not losses.fail):
        if chunk.run != run:
            _check_end(decoder, path, wanted, losses)
            run, path = chunk.run, chunk.path
            decoder.aim(max(wanted.first, run[0]), min(wanted.end, run[1]))
        if chunk.damage is not None:
            _pass_over(decoder, chunk.damage, chunk.offsets[1], wanted, losses)
        else:
            yield from _decoded(decoder, chunk, wanted, losses)
    _check_end(decoder, path, wanted, losses)
    yield from decoder.flush()


def _decoded(
    decoder: Decoder, chunk: Chunk, wanted: Range, losses: Losses
) -> Iterator[pa.RecordBatch]:
    """Decode a chunk with correct checksums; skip unreadable batches and missing offsets in it."""
    while decoder.next_offset < decoder.end:
        try:
            yield from decoder.decode(
                chunk.data, chunk.path, gaps=wanted.gaps, checked=True, aborted=chunk.aborted
            )
            if decoder.consumed != len(chunk.data) and decoder.next_offset < decoder.end:
                raise Corrupt(f"{chunk.path}: a batch does not end with its index entry")
        except Corrupt as fault:
            if losses.fail:
                raise
            if isinstance(fault, Missing):
                _pass_over(decoder, str(fault), fault.found, wanted, losses)
                continue
            _pass_over(decoder, str(fault), chunk.offsets[1], wanted, losses)
        return


def _pass_over(decoder: Decoder, why: str, end: int, wanted: Range, losses: Losses) -> None:
    """Continue at offset `end` of the run, or at its end."""
    first, end = decoder.next_offset, min(end, decoder.end)
    if first < end:
        name = f"{wanted.topic}-{wanted.partition}"
        losses.skip(f"{why}; offsets {first} to {end - 1} of {name} are skipped", end - first)
        decoder.aim(end, decoder.end)


def _check_end(decoder: Decoder, path: str, wanted: Range, losses: Losses) -> None:
    """Raise Missing where the run in `path` ("": none yet) ended before its offsets did."""
    if path and decoder.next_offset < decoder.end and not wanted.gaps:
        missing = Missing(path, decoder.next_offset, decoder.end)
        if losses.fail:
            raise missing
        _pass_over(decoder, str(missing), decoder.end, wanted, losses)


# --- broker ---------------------------------------------------------------------------------------------------


def _read_broker(
    task: BrokerTask, shared: Shared, client: BlockingClient, losses: Losses
) -> Iterator[pa.RecordBatch]:
    wanted = task.wanted
    decoder = _decoder(wanted, shared, BROKER, losses)
    name = f"{wanted.topic}-{wanted.partition} from {shared.bootstrap}"
    empty = 0
    while decoder.next_offset < wanted.end:
        before = decoder.next_offset
        fetched = _fetch(wanted, shared, client, decoder, losses)
        if fetched is None:
            continue
        records, aborted = fetched
        losses.metrics.broker(len(records))
        try:
            yield from decoder.decode(records, name, gaps=wanted.gaps, aborted=aborted)
        except Missing as missing:
            losses.lose(str(missing), missing.found - missing.first, missing)
            # Decoded records stay; the task fetches the rest of this answer again, behind the gap.
            decoder.aim(missing.found, wanted.end)
            continue
        if decoder.next_offset == before:
            empty += 1
            if empty > EMPTY_ANSWERS_MAX:
                raise Unavailable(
                    f"{name}: no answer holds offset {before} of [{wanted.first}, {wanted.end})"
                )
        else:
            empty = 0
    yield from decoder.flush()


def _fetch(
    wanted: Range, shared: Shared, client: BlockingClient, decoder: Decoder, losses: Losses
) -> tuple[memoryview, list[tuple[int, int]]] | None:
    """Return one Fetch answer; None where the log now begins later and `failOnDataLoss=false` permits skipping."""
    span = FetchSpan(
        wanted.topic,
        wanted.topic_id,
        wanted.partition,
        decoder.next_offset,
        max_bytes=FETCH_BYTES,
        isolation=shared.isolation,
    )
    try:
        found = client.fetch(span)
    except Rejected as error:
        if error.code != ErrorCode.offset_out_of_range:
            raise
        key = TopicPartition(wanted.topic, wanted.partition)
        start = client.list_offsets({key: EARLIEST})[key].offset
        if start <= decoder.next_offset:  # behind the end: the log was truncated
            raise DataLoss(f"{span.topic}-{span.partition}: {error}") from error
        gone = min(start, wanted.end)
        what = f"{span.topic}-{span.partition}: offsets {span.offset} to {gone - 1} are gone"
        losses.lose(f"{what} (the log now starts at {start})", gone - span.offset, error)
        decoder.aim(gone, wanted.end)
        return None
    return found.records, list(found.aborted)
