"""What a task does: one planned range, from the bucket or from a broker, to Arrow.

In: a task of `plan.py` and what every task of the query shares. Out: Arrow record batches, bounded in rows and
bytes, which together hold every offset of the range exactly once; else an exception. It never holds more than a few
MiB whatever the segments' sizes are. It runs in Spark's Python workers, and keeps connections and stores open for the
worker's next task.

Nothing goes missing silently: offsets follow each other without a gap (but for a compacted topic) up to the range's
end, or `Missing`, `Corrupt` or `DataLoss` says what is not there.
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from logging import getLogger

import pyarrow as pa

from stratalog.adapters.read_ahead import read_ahead
from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import EARLIEST, READ_COMMITTED
from stratalog.client.fetches import FetchSpan
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable
from stratalog.kernels.decode import Decoder
from stratalog.kernels.missing import Missing
from stratalog.kernels.rows import Layout
from stratalog.ports import ObjectStore
from stratalog.table.places import DataLoss, Shared, client_of, store_at
from stratalog.table.plan import BrokerTask, BucketTask, Piece, Range, Task
from stratalog.tier.reader import load_index, read_entries
from stratalog.tier.segment_index import FLAG_TRANSACTIONAL, IndexBlock

CHUNK_BYTES = 4 << 20
"""Bytes of one GET (more only where one index entry is larger), and of one Fetch answer."""
EMPTY_ANSWERS_MAX = 40
"""Fetch answers without progress, half a second each, before a task gives up."""

BUCKET, BROKER = "bucket", "broker"


def read_task(task: Task, shared: Shared) -> Iterator[pa.RecordBatch]:
    """Everything in the task's range, in order. Raises Corrupt, Missing, DataLoss, Rejected, Unavailable."""
    if isinstance(task, BucketTask):
        assert shared.tier_url is not None, "a bucket task without a bucket"
        return _read_bucket(task, shared, store_at(shared.tier_url))
    return _read_broker(task, shared, client_of(shared))


def _decoder(wanted: Range, shared: Shared, origin: str) -> Decoder:
    layout = Layout(wanted.topic, wanted.partition, shared.columns, origin)
    unreadable = None if shared.fail_on_data_loss else _log_lost
    return Decoder(layout, wanted.first, wanted.end, unreadable=unreadable)


# --- bucket ---------------------------------------------------------------------------------------------------


def _read_bucket(task: BucketTask, shared: Shared, store: ObjectStore) -> Iterator[pa.RecordBatch]:
    decoder = _decoder(task.wanted, shared, BUCKET)
    for piece in task.pieces:
        yield from _read_piece(
            task, piece, decoder, store, committed=shared.isolation == READ_COMMITTED
        )
    yield from decoder.flush()


def _read_piece(
    task: BucketTask, piece: Piece, decoder: Decoder, store: ObjectStore, *, committed: bool
) -> Iterator[pa.RecordBatch]:
    """The index entries of one piece, chunk by chunk, the next one fetched while this one is decoded."""
    path, entry = piece.segment.path, piece.segment.entry
    index = load_index(store, piece.segment)
    entries = index.entries
    first_entry = max(
        bisect_left(entries.positions, piece.from_byte), entries.entry_of(task.wanted.first)
    )
    stop_entry = bisect_left(entries.positions, piece.to_byte)
    while stop_entry > first_entry and entries.base_offsets[stop_entry - 1] >= task.wanted.end:
        stop_entry -= 1
    if first_entry >= stop_entry:
        return
    # Offsets this piece answers for: up to where the next entry begins, compacted ones in between included.
    low = entries.base_offsets[first_entry] if first_entry else entry.base_offset
    high = entries.base_offsets[stop_entry] if stop_entry < len(entries) else entry.last_offset + 1
    decoder.aim(max(task.wanted.first, low), min(task.wanted.end, high))
    if committed and any(
        flag & FLAG_TRANSACTIONAL for flag in entries.flags[first_entry:stop_entry]
    ):
        raise Rejected(
            ErrorCode.unsupported_version,
            f"{path} holds transactions: kafka.isolation.level=read_committed cannot read them from the bucket yet",
        )
    gets = (
        partial(read_entries, store, piece.segment, index, *chunk)
        for chunk in _chunks(entries, first_entry, stop_entry)
    )
    for data in read_ahead(gets):
        yield from decoder.decode(data, path, gaps=task.wanted.gaps, checked=True)
        if decoder.consumed != len(data) and decoder.next_offset < decoder.end:
            raise Corrupt(f"{path}: a batch does not end with its index entry")
    if decoder.next_offset < decoder.end and not task.wanted.gaps:
        raise Missing(path, decoder.next_offset, decoder.end)


def _chunks(entries: IndexBlock, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Runs of entries of about CHUNK_BYTES."""
    begin, size = first, 0
    for at in range(first, stop):
        if size and size + entries.lengths[at] > CHUNK_BYTES:
            yield begin, at
            begin, size = at, 0
        size += entries.lengths[at]
    yield begin, stop


# --- broker ---------------------------------------------------------------------------------------------------


def _read_broker(
    task: BrokerTask, shared: Shared, client: BlockingClient
) -> Iterator[pa.RecordBatch]:
    wanted = task.wanted
    decoder = _decoder(wanted, shared, BROKER)
    name = f"{wanted.topic}-{wanted.partition} from {shared.bootstrap}"
    empty = 0
    while decoder.next_offset < wanted.end:
        before = decoder.next_offset
        fetched = _fetch(wanted, shared, client, decoder)
        if fetched is None:
            continue
        records, aborted = fetched
        try:
            yield from decoder.decode(records, name, gaps=wanted.gaps, aborted=aborted)
        except Missing as missing:
            _lose(shared, str(missing), missing)
            # What was decoded stays; the rest of this answer is asked for again behind the gap.
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
    wanted: Range, shared: Shared, client: BlockingClient, decoder: Decoder
) -> tuple[memoryview, list[tuple[int, int]]] | None:
    """One Fetch; None where the log now begins later and `failOnDataLoss` lets the task go on there."""
    span = FetchSpan(
        wanted.topic,
        wanted.topic_id,
        wanted.partition,
        decoder.next_offset,
        max_bytes=CHUNK_BYTES,
        isolation=shared.isolation,
    )
    try:
        found = client.fetch(span)
    except Rejected as error:
        if error.code != ErrorCode.offset_out_of_range:
            raise
        key = (wanted.topic, wanted.partition)
        start = client.list_offsets({key: EARLIEST})[key].offset
        if start <= decoder.next_offset:  # behind the end: the log was cut back
            raise DataLoss(f"{span.topic}-{span.partition}: {error}") from error
        gone = min(start, wanted.end)
        what = f"{span.topic}-{span.partition}: offsets {span.offset} to {gone - 1} are gone"
        _lose(shared, f"{what} (the log now starts at {start})", error)
        decoder.aim(gone, wanted.end)
        return None
    records = found.records
    assert isinstance(records, memoryview | bytes | bytearray), (
        "a decoded answer has its records in one piece"
    )
    return memoryview(records), list(found.aborted or ())


def _lose(shared: Shared, what: str, cause: Exception) -> None:
    if shared.fail_on_data_loss:
        raise DataLoss(f"{what}; failOnDataLoss=false reads on without them") from cause
    _log_lost(what)


def _log_lost(what: str) -> None:
    getLogger("stratalog.spark").warning("%s", what)
