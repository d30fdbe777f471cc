"""The current table of a topic is a dictionary's: the last value of each key, and no key whose last value is null.

Hypothesis makes logs of few keys with tombstones, read from a bucket, from a scripted broker, and from both.
"""

from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.table.buckets import NOW_MS, Bucket, topic_id

from stratalog.adapters.object_store import open_store
from stratalog.client.fetches import FetchedPartition, FetchSpan
from stratalog.kernels.rows import Layout
from stratalog.table import latest, tasks
from stratalog.table.latest import read_latest
from stratalog.table.metrics import ReadMetrics
from stratalog.table.places import Shared
from stratalog.table.plan import Range, by_partition, plan
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.records import BatchBuilder

Row = tuple[bytes | None, bytes | None]
ROWS = st.tuples(
    st.sampled_from([b"", b"a", b"b", b"c", b"d", None]), st.sampled_from([b"", b"x", b"y", None])
)
BATCHES = st.tuples(st.lists(ROWS, min_size=1, max_size=6), st.sampled_from(CODEC_NAMES))
SEGMENTS = st.lists(st.lists(BATCHES, min_size=1, max_size=4), min_size=1, max_size=4)


@dataclass
class Broker:
    """A client of a broker that has batches of a partition; it answers one batch at a time."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(first offset, end, bytes) of each."""

    def fetch(self, span: FetchSpan) -> FetchedPartition:
        found = [data for _, end, data in self.batches if end > span.offset]
        return FetchedPartition(0, self.batches[-1][1], memoryview(found[0]))


def encoded(base: int, rows: list[Row], codec: str) -> bytes:
    builder = BatchBuilder(codec)
    for at, (key, value) in enumerate(rows):
        builder.add(key, value, NOW_MS + base + at)
    return bytes(builder.build(base, 0))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    segments=SEGMENTS,
    archived=st.integers(0, 4),
    begin=st.integers(0, 8),
    step=st.sampled_from([40, 10_000]),
)
def test_the_current_table_is_a_dictionarys(
    monkeypatch: pytest.MonkeyPatch,
    segments: list[list[tuple[list[Row], str]]],
    archived: int,
    begin: int,
    step: int,
) -> None:
    log: list[Row] = []
    made, broker = Bucket(open_store(f"memory://{uuid4()}"), index_interval_bytes=1), Broker()
    made.create("t")
    for number, batches in enumerate(segments):
        first, closed = len(log), []
        for rows, codec in batches:
            closed.append(encoded(len(log), rows, codec))
            broker.batches.append((len(log), len(log) + len(rows), closed[-1]))
            log += rows
        if number < archived:
            made.archive("t", 0, [closed], first=first)
    expected: dict[bytes | None, tuple[int, bytes | None]] = {}
    for offset, (key, value) in enumerate(log):
        if offset >= begin:
            expected[key] = offset, value
    expected.pop(None, None)

    for module in (tasks, latest):
        monkeypatch.setattr(module, "store_at", lambda _url: made.store, raising=False)
    monkeypatch.setattr(tasks, "client_of", lambda _shared: broker)
    monkeypatch.setattr(tasks, "Layout", partial(Layout, max_rows=3))
    monkeypatch.setattr(latest, "STEP_BYTES", step)
    monkeypatch.setattr(latest, "STEP_OFFSETS", step // 20)
    bucket = open_bucket(made.store)
    topic = bucket.topic("t")
    assert topic is not None
    manifest = bucket.manifest(topic, 0)
    live = list(bucket.live(manifest)) if manifest is not None else []
    wanted = Range("t", topic_id("t"), 0, min(begin, len(log)), len(log))
    planned = by_partition(
        plan([(wanted, live)] if begin < len(log) else [], has_broker=True, min_tasks=None)
    )
    shared = Shared(
        "broker:1", "file:///elsewhere", ("offset", "value"), 0, True, "tester", 1.0, 1.0
    )
    metrics = ReadMetrics()
    found = [
        row
        for task in planned
        for batch in read_latest(task, shared, metrics)
        for row in batch.to_pylist()
    ]
    assert sorted((row["offset"], row["value"]) for row in found) == sorted(
        (offset, value) for offset, value in expected.values() if value is not None
    )
    assert all(list(row) == ["offset", "value"] for row in found)
    assert metrics.records == len(found)
