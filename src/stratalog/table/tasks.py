"""What a task does: one planned range, from the bucket or from a broker, to Arrow.

In: a task of `plan.py` and what every task of the query shares. Out: Arrow record batches, bounded in rows and
bytes, which together hold every offset of the range exactly once (but for records that the query's times rule out,
where that is known); else an exception. Memory is bounded whatever the segments' sizes are: `chunks.py` says by what,
and beside it there are the Arrow batch that grows and the largest batch restored. It runs in Spark's Python workers,
and keeps connections and stores open for the worker's next task.

Nothing goes missing silently: offsets follow each other without a gap (but for a compacted topic) up to the range's
end, or `Missing`, `Corrupt` or `DataLoss` says what is not there.
"""

from collections.abc import Iterator
from logging import getLogger

import pyarrow as pa

from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import EARLIEST, READ_COMMITTED
from stratalog.client.fetches import FetchSpan
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable
from stratalog.kernels.decode import Decoder
from stratalog.kernels.missing import Missing
from stratalog.kernels.rows import Layout
from stratalog.ports import ObjectStore
from stratalog.table.chunks import chunks
from stratalog.table.figures import Figures
from stratalog.table.leasing import kept
from stratalog.table.places import DataLoss, Shared, client_of, store_at
from stratalog.table.plan import BrokerTask, BucketTask, Range, Task

FETCH_BYTES = 4 << 20
"""Of one Fetch answer (more only where one batch is larger)."""
EMPTY_ANSWERS_MAX = 40
"""Fetch answers without progress, half a second each, before a task gives up."""

BUCKET, BROKER = "bucket", "broker"


def read_task(
    task: Task, shared: Shared, figures: Figures | None = None
) -> Iterator[pa.RecordBatch]:
    """Everything in the task's range that may be wanted, in order; `figures` are added to.

    Raises Corrupt, Missing, DataLoss, Rejected, Unavailable.
    """
    figures = figures if figures is not None else Figures()
    if isinstance(task, BucketTask):
        assert shared.tier_url is not None, "a bucket task without a bucket"
        store = store_at(shared.tier_url)
        found = kept(_read_bucket(task, shared, store, figures), task.lease, store)
    else:
        found = _read_broker(task, shared, client_of(shared), figures)
    for batch in found:
        figures.records += batch.num_rows
        yield batch


def _decoder(wanted: Range, shared: Shared, origin: str) -> Decoder:
    layout = Layout(wanted.topic, wanted.partition, shared.columns, origin)
    unreadable = None if shared.fail_on_data_loss else _log_lost
    return Decoder(layout, wanted.first, wanted.end, unreadable=unreadable)


# --- bucket ---------------------------------------------------------------------------------------------------


def _read_bucket(
    task: BucketTask, shared: Shared, store: ObjectStore, figures: Figures
) -> Iterator[pa.RecordBatch]:
    wanted = task.wanted
    decoder = _decoder(wanted, shared, BUCKET)
    committed = shared.isolation == READ_COMMITTED
    run, path = (0, 0), ""
    for chunk in chunks(task, store, figures, committed=committed):
        if chunk.run != run:
            _check_end(decoder, path, wanted)
            run, path = chunk.run, chunk.path
            decoder.aim(max(wanted.first, run[0]), min(wanted.end, run[1]))
        yield from decoder.decode(
            chunk.data, path, gaps=wanted.gaps, checked=True, aborted=chunk.aborted
        )
        if decoder.consumed != len(chunk.data) and decoder.next_offset < decoder.end:
            raise Corrupt(f"{path}: a batch does not end with its index entry")
    _check_end(decoder, path, wanted)
    yield from decoder.flush()


def _check_end(decoder: Decoder, path: str, wanted: Range) -> None:
    """Raise Missing where the run in `path` ("": none yet) ended before its offsets did."""
    if path and decoder.next_offset < decoder.end and not wanted.gaps:
        raise Missing(path, decoder.next_offset, decoder.end)


# --- broker ---------------------------------------------------------------------------------------------------


def _read_broker(
    task: BrokerTask, shared: Shared, client: BlockingClient, figures: Figures
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
        figures.broker(len(records))
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
        max_bytes=FETCH_BYTES,
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
