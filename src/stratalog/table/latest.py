"""Read the current table of a topic: the last value of each key, without the deleted keys.

In: all tasks of one partition, and the data that all tasks of the query share. Out: the rows as Arrow record batches.
It reads the partition once, and never holds its values.

A task reads its partition from the end to the start, in steps of about `STEP_BYTES`. So the first record of a key that
it meets is the last one, and older ones are left out by the key alone. The memory: the partition's keys, some 100
bytes each beside their own, and the rows of one step.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyarrow import compute

from stratalog.table.metrics import ReadMetrics
from stratalog.table.places import Shared
from stratalog.table.plan import BrokerTask, BucketTask, LatestTask, Piece
from stratalog.table.tasks import read_task

__all__ = ["read_latest"]

STEP_BYTES: Final = 16 << 20
STEP_OFFSETS: Final = 1000
"""Offsets of the first step at a broker; the bytes of each step choose the next one."""
_GROWTH: Final = 8


def read_latest(
    task: LatestTask, shared: Shared, metrics: ReadMetrics | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the last record of each key, unless its value is null; count the bytes and these records in `metrics`.

    Records without a key are left out. Rows come from the end of the log. Raises as `read_task`.
    """
    metrics = metrics if metrics is not None else ReadMetrics()
    columns = shared.columns
    needed = tuple(name for name in ("key", "value") if name not in columns)
    wide = replace(shared, columns=(*columns, *needed))
    seen: set[bytes | None] = {None}
    for batch in _backwards(task, wide, metrics):
        newest = _newest(batch, seen)
        if newest.num_rows:
            metrics.records += newest.num_rows
            yield newest.select(list(columns))


def _newest(batch: pa.RecordBatch, seen: set[bytes | None]) -> pa.RecordBatch:
    """Return the rows whose keys were not seen behind them, without tombstones; add their keys to `seen`."""
    keys = batch.column("key").to_pylist()
    chosen = []
    for at in range(len(keys) - 1, -1, -1):
        key = keys[at]
        if key not in seen:
            seen.add(key)
            chosen.append(at)
    if len(chosen) < len(keys):
        batch = batch.take(pa.array(chosen[::-1], pa.int64()))
    values = batch.column("value")
    return batch.filter(compute.is_valid(values)) if values.null_count else batch


def _backwards(task: LatestTask, shared: Shared, metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
    """Yield all records of the partition in batches, from the last batch to the first."""
    for part in reversed(task.parts):
        steps = (
            _bucket_steps(part) if isinstance(part, BucketTask) else _broker_steps(part, metrics)
        )
        for step in steps:
            counted = metrics.records
            batches = list(read_task(step, shared, metrics))
            metrics.records = counted  # `read_latest` counts the rows that stay
            yield from reversed(batches)


def _bucket_steps(task: BucketTask) -> Iterator[BucketTask]:
    """Yield tasks for the pieces, cut by bytes, from the last to the first."""
    for piece in reversed(task.pieces):
        size = piece.to_byte - piece.from_byte
        cuts = max(1, -(-size // STEP_BYTES))
        edges = [piece.from_byte + size * number // cuts for number in range(cuts + 1)]
        for begin, end in reversed(list(pairwise(edges))):
            yield replace(task, pieces=(Piece(piece.segment, begin, end),))


def _broker_steps(task: BrokerTask, metrics: ReadMetrics) -> Iterator[BrokerTask]:
    """Yield tasks for the range, from its end to its start, each of some STEP_BYTES as far as the one before tells."""
    first, end, offsets = task.wanted.first, task.wanted.end, STEP_OFFSETS
    while end > first:
        begin = max(first, end - offsets)
        before = metrics.broker_bytes
        yield BrokerTask(replace(task.wanted, first=begin, end=end))
        read = max(1, metrics.broker_bytes - before)
        fair = (end - begin) * STEP_BYTES // read
        offsets = max(1, min(fair, offsets * _GROWTH))
        end = begin
