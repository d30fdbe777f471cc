"""`stratalog.read(since=, until=)` returns exactly the records of that time, and reads no excluded bytes.

Hypothesis makes logs whose timestamps do not rise with offsets, in batches of the producer's and of the broker's time,
cut into random segments and index entries. The model is a list. A store counts the bytes read from the bucket.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.table.buckets import Bucket

from stratalog import ReadMetrics, read
from stratalog.adapters.object_store import open_store
from stratalog.ports import ObjectStore
from stratalog.table import log as log_module
from stratalog.table import tasks
from stratalog.table.arrow import _epoch_ms
from stratalog.tier.formats.segment_index import FLAG_MINIMUM_EXACT
from stratalog.tier.reading.reader import load_index, open_bucket
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.records import BatchBuilder

BASE = 1_700_000_000_000
"""Epoch ms of the timestamp 0 of a generated log."""


@dataclass(frozen=True)
class Made:
    """A batch: the timestamps of its records, relative to BASE."""

    timestamps: list[int]
    codec: str
    appended: bool
    """Whether the batch has the broker's time: every record then has the largest timestamp."""

    @property
    def seen(self) -> list[int]:
        """The timestamps that readers see."""
        return [max(self.timestamps)] * len(self.timestamps) if self.appended else self.timestamps

    def encode(self, base: int) -> bytes:
        builder = BatchBuilder(self.codec)
        for timestamp in self.timestamps:
            builder.add(b"key", b"value" * 8, BASE + timestamp)
        data = builder.build(base, 0)
        if self.appended:
            data[22] |= 0x08
            data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
        return bytes(data)


TIMES = st.integers(0, 40)
BATCHES = st.builds(
    Made,
    st.lists(TIMES, min_size=1, max_size=6),
    st.sampled_from(CODEC_NAMES),
    st.booleans(),
)
SEGMENTS = st.lists(st.lists(BATCHES, min_size=1, max_size=5), min_size=1, max_size=5)


@dataclass
class Counting:
    """A store that counts the bytes read of segment objects."""

    inner: ObjectStore
    taken: int = 0

    def get_range(self, path: str, start: int, size: int) -> Any:
        if path.endswith(".seg"):
            self.taken += size
        return self.inner.get_range(path, start, size)

    def __getattr__(self, name: str) -> Any:
        assert name != "get_ranges", "the store does not count this way to read"
        return getattr(self.inner, name)


@contextmanager
def counted(url: str) -> Iterator[Counting]:
    """Let planner and tasks read from a store that counts."""
    store = Counting(open_store(url))
    with pytest.MonkeyPatch.context() as patch:
        for module in (log_module, tasks):
            patch.setattr(module, "store_at", lambda _url: store)
        yield store


def archived(place: Path, segments: Sequence[Sequence[Made]], interval: int) -> list[int]:
    """Archive a log into a bucket; return its timestamps by offset."""
    made = Bucket(open_store(place.as_uri()), index_interval_bytes=interval)
    made.create("t")
    seen: list[int] = []
    encoded: list[list[bytes]] = []
    for segment in segments:
        encoded.append([])
        for one in segment:
            encoded[-1].append(one.encode(len(seen)))
            seen += one.seen
    made.archive("t", 0, encoded)
    return seen


def demanded(url: str, since: int | None, until: int | None) -> int:
    """Return the bytes of segment objects that no index excludes: each such segment's index and entries."""

    def may_hold(least: int, largest: int, *, exact: bool) -> bool:
        late = since is not None and largest < BASE + since
        return not late and (until is None or not exact or least < BASE + until)

    bucket = open_bucket(open_store(url))
    topic = bucket.topic("t")
    assert topic is not None
    manifest = bucket.manifest(topic, 0)
    assert manifest is not None
    size = 0
    for segment in bucket.live(manifest):
        entry = segment.entry
        if may_hold(entry.min_timestamp, entry.max_timestamp, exact=entry.min_timestamp_exact):
            index = load_index(bucket.store, segment)
            size += (
                entry.size
                - entry.data_size
                + sum(
                    one.length
                    for one in index.entries
                    if may_hold(
                        one.min_timestamp,
                        one.max_timestamp,
                        exact=bool(one.flags & FLAG_MINIMUM_EXACT),
                    )
                )
            )
    return size


@settings(max_examples=60, deadline=None)
@given(
    segments=SEGMENTS,
    interval=st.sampled_from([1, 300]),
    spans=st.lists(st.tuples(st.none() | TIMES, st.none() | TIMES), min_size=1, max_size=6),
)
def test_a_span_of_time_is_exact_and_reads_only_entries_that_the_index_cannot_exclude(
    segments: list[list[Made]], interval: int, spans: list[tuple[int | None, int | None]]
) -> None:
    with TemporaryDirectory() as name:
        url = Path(name).as_uri()
        seen = archived(Path(name), segments, interval)
        for one, other in spans:
            since, until = (one, other) if one is None or other is None else sorted((one, other))
            with counted(url) as store:
                metrics = ReadMetrics()
                found = read(
                    "t",
                    tier_url=url,
                    since=None if since is None else BASE + since,
                    until=None if until is None else BASE + until,
                    columns=["offset"],
                    metrics=metrics,
                ).read_all()
            assert found["offset"].to_pylist() == [
                at
                for at, timestamp in enumerate(seen)
                if (since is None or timestamp >= since) and (until is None or timestamp < until)
            ]
            assert store.taken == metrics.bucket_bytes == demanded(url, since, until)


def at_us(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@given(st.integers(-(10**16), 10**17))
def test_a_bound_divides_milliseconds_as_its_exact_time_does(microseconds: int) -> None:
    bound = _epoch_ms("since", at_us(microseconds))
    for ms in range(bound - 2, bound + 3):
        assert (ms * 1000 >= microseconds) == (ms >= bound)
    assert _epoch_ms("since", at_us(microseconds).isoformat()) == bound


def test_a_time_between_two_milliseconds_divides_the_records(tmp_path: Path) -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
    assert _epoch_ms("since", moment) == BASE + 1
    assert _epoch_ms("since", moment - timedelta(microseconds=1)) == BASE
    archived(tmp_path, [[Made([0, 1, 2], "none", appended=False)]], 1)

    def offsets(**asked: Any) -> list[int]:
        found = read("t", tier_url=tmp_path.as_uri(), **asked).read_all()
        return list(found["offset"].to_pylist())

    assert offsets(since=moment) == [1, 2]
    assert offsets(until=moment) == [0]
    assert offsets(since=moment, until=moment) == []
    assert offsets(since=datetime(1960, 1, 1, tzinfo=UTC), until=-5) == []
    assert offsets(since=timedelta(days=30_000)) == [0, 1, 2], "before 1970"
