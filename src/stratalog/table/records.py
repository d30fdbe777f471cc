"""Find a topic's records by key or by offset, without Arrow: for the command line.

In: options, keys. Out: records with their partitions. It decodes only batches that contain the bytes of a key, and
opens only segments whose key filter may hold one (`key_lookup.py`).

The newest record of a key is looked up from the end of the log: first the tail, then segment by segment. So the bytes
read do not grow with the history behind it.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from stratalog.client.calls import READ_COMMITTED
from stratalog.client.fetches import FetchSpan
from stratalog.errors import Unavailable
from stratalog.table.chunks import chunks
from stratalog.table.leasing import kept, released
from stratalog.table.metrics import ReadMetrics
from stratalog.table.options import Options
from stratalog.table.places import Shared, client_of, store_at
from stratalog.table.plan import BrokerTask, BucketTask, Range, Task
from stratalog.table.pruning import Pruning
from stratalog.table.query import batch_tasks, shared_of
from stratalog.wire.batch import scan
from stratalog.wire.finding import records_in
from stratalog.wire.records import Record

__all__ = ["Found", "all_records", "newest_records"]

FETCH_BYTES: Final = 4 << 20
EMPTY_ANSWERS_MAX: Final = 40
"""Fetch answers without progress, half a second each, before the look-up gives up."""


class Found(NamedTuple):
    """A record and its partition."""

    partition: int
    record: Record


def all_records(
    options: Options, pruning: Pruning, metrics: ReadMetrics
) -> Generator[Found, None, None]:
    """Yield the records that `pruning` permits, partition by partition, in the order of offsets.

    Raises BadOption for options that the log cannot fulfil, DataLoss, Unavailable, Corrupt, Rejected.
    """
    tasks = batch_tasks(options, pruning, metrics)
    shared = shared_of(options)
    try:
        for task in tasks:
            yield from _records(task, shared, metrics)
    finally:
        _release(tasks, shared)


def newest_records(options: Options, pruning: Pruning, metrics: ReadMetrics) -> list[Found]:
    """Return the last permitted record of each partition that has one. Raises as `all_records`."""
    tasks = batch_tasks(options, pruning, metrics)
    shared = shared_of(options)
    newest: dict[int, Found] = {}
    try:
        for task in _from_the_end(tasks):
            if task.wanted.partition not in newest:
                for found in _records(task, shared, metrics):
                    newest[found.partition] = found
    finally:
        _release(tasks, shared)
    return [newest[partition] for partition in sorted(newest)]


def _from_the_end(tasks: Sequence[Task]) -> Iterator[Task]:
    """Yield the tasks from the log's end to its start, each of one segment at most."""
    for task in reversed(tasks):
        if isinstance(task, BrokerTask):
            yield task
            continue
        for piece in reversed(task.pieces):
            yield replace(task, pieces=(piece,))


def _release(tasks: Sequence[Task], shared: Shared) -> None:
    if shared.tier_url is not None:
        released(tasks, store_at(shared.tier_url))


def _records(task: Task, shared: Shared, metrics: ReadMetrics) -> Iterator[Found]:
    wanted = task.wanted
    parts = (
        _in_bucket(task, shared, metrics)
        if isinstance(task, BucketTask)
        else _at_broker(wanted, shared, metrics)
    )
    for data, aborted, checked in parts:
        found = records_in(data, wanted.first, aborted, keys=wanted.keys, checked=checked)
        for _, record in found:
            if record is not None and record.offset < wanted.end:
                metrics.records += 1
                yield Found(wanted.partition, record)


class _Part(NamedTuple):
    """Whole batches, the aborted transactions among them, and whether their bytes are checked."""

    data: memoryview
    aborted: Sequence[tuple[int, int]]
    checked: bool


def _in_bucket(task: BucketTask, shared: Shared, metrics: ReadMetrics) -> Iterator[_Part]:
    assert shared.tier_url is not None, "a bucket task without a bucket"
    store = store_at(shared.tier_url)
    committed = shared.isolation == READ_COMMITTED
    read = chunks(task, store, metrics, committed=committed)
    parts = (_Part(memoryview(chunk.data), chunk.aborted, checked=True) for chunk in read)
    yield from kept(parts, task.lease, store)


def _at_broker(wanted: Range, shared: Shared, metrics: ReadMetrics) -> Iterator[_Part]:
    client = client_of(shared)
    offset, empty = wanted.first, 0
    while offset < wanted.end:
        span = FetchSpan(
            wanted.topic,
            wanted.topic_id,
            wanted.partition,
            offset,
            max_bytes=FETCH_BYTES,
            isolation=shared.isolation,
        )
        fetched = client.fetch(span)
        metrics.broker(len(fetched.records))
        before = offset
        for _, header in scan(fetched.records):
            offset = header.next_offset
        yield _Part(fetched.records, list(fetched.aborted), checked=False)
        empty = 0 if offset > before else empty + 1
        if empty > EMPTY_ANSWERS_MAX:
            name = f"{wanted.topic}-{wanted.partition} from {shared.bootstrap}"
            raise Unavailable(f"{name}: no answer holds offset {offset}, before {wanted.end}")
