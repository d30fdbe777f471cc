"""Reads by key: exactly the records of a list with that key, and few bytes of the segments that do not hold it.

Hypothesis makes logs of few keys, in segments with a key filter and without; a store counts the bytes read.
"""

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.table.buckets import NOW_MS, Bucket

from stratalog import ReadMetrics, read
from stratalog.adapters.object_store import open_store
from stratalog.ports import ObjectStore
from stratalog.table import log as log_module
from stratalog.table import query, records, tasks
from stratalog.table.key_lookup import without_keys
from stratalog.table.options import parse_options
from stratalog.table.pruning import Pruning
from stratalog.table.records import all_records, newest_records
from stratalog.tier.formats.key_filter import PAGE_BYTES
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.murmur2 import partition_of_key
from stratalog.wire.records import BatchBuilder

KEYS = st.sampled_from([b"", b"\x00", b"a", b"key", b"key-1", b"\xff\xfe", None])
BATCHES = st.tuples(st.lists(KEYS, min_size=1, max_size=5), st.sampled_from(CODEC_NAMES))
SEGMENTS = st.lists(
    st.tuples(st.lists(BATCHES, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=5
)


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
def counted(store: ObjectStore) -> Iterator[Counting]:
    """Let planner and tasks read from a store that counts."""
    counting = Counting(store)
    with pytest.MonkeyPatch.context() as patch:
        for module in (log_module, query, records, tasks):
            patch.setattr(module, "store_at", lambda _url: counting)
        yield counting


def encoded(base: int, keys: list[bytes | None], codec: str = "none", size: int = 10) -> bytes:
    builder = BatchBuilder(codec)
    for at, key in enumerate(keys):
        builder.add(key, b"value-%d" % (base + at) + b"." * size, NOW_MS + base + at)
    return bytes(builder.build(base, 0))


@settings(max_examples=25, deadline=None)
@given(segments=SEGMENTS, asked=st.lists(KEYS.filter(lambda key: key is not None), max_size=3))
def test_reads_by_key_are_a_lists(
    segments: list[tuple[list[tuple[list[bytes | None], str]], bool]], asked: list[bytes]
) -> None:
    log: list[bytes | None] = []
    made = Bucket(open_store(f"memory://{uuid4()}"), index_interval_bytes=100)
    made.create("t")
    for batches, has_filter in segments:
        first = len(log)
        data = []
        for keys, codec in batches:
            data.append(encoded(len(log), keys, codec))
            log += keys
        made.archive("t", 0, [data], first=first, key_filters=has_filter)
    url = "file:///elsewhere"
    expected = [at for at, key in enumerate(log) if key in asked]
    with counted(made.store) as store:
        metrics = ReadMetrics()
        table = read("t", tier_url=url, key=asked, columns=["offset"], metrics=metrics)
        assert table.read_all()["offset"].to_pylist() == expected
        assert store.taken == metrics.bucket_bytes
        options = parse_options({"tier.url": url, "subscribe": "t"})
        pruning = Pruning(keys=frozenset(asked))
        found = list(all_records(options, pruning, ReadMetrics()))
        assert [one.record.offset for one in found] == expected
        assert [one.record.key for one in found] == [log[at] for at in expected]
        newest = newest_records(options, pruning, ReadMetrics())
        assert [one.record.offset for one in newest] == expected[-1:]


@pytest.fixture(scope="module")
def thousand() -> Bucket:
    """Topic `t`: 1,000 segments of 256 KiB with 16 keys each."""
    made = Bucket(open_store("memory://keys"), index_interval_bytes=1 << 16)
    made.create("t")
    segments = []
    for base in range(0, 16_000, 16):
        keys: list[bytes | None] = [b"key-%d" % at for at in range(base, base + 16)]
        segments.append([encoded(base, keys, size=16 << 10)])
    made.archive("t", 0, segments, key_filters=True)
    return made


def test_one_of_a_thousand_segments_costs_two_percent_of_the_bytes(thousand: Bucket) -> None:
    url = "file:///elsewhere"
    with counted(thousand.store) as store:
        read("t", tier_url=url, columns=["offset"]).read_all()
        whole, store.taken = store.taken, 0
        rows = read("t", tier_url=url, key="key-7777", columns=["offset", "value"]).read_all()
        assert rows["offset"].to_pylist() == [7777]
        assert store.taken <= whole * 0.02
        store.taken = 0
        options = parse_options({"tier.url": url, "subscribe": "t"})
        pruning = Pruning(keys=frozenset([b"key-7777"]))
        (found,) = newest_records(options, pruning, ReadMetrics())
        assert found.record.offset == 7777
        assert store.taken <= whole * 0.02
        store.taken = 0
        absent = read("t", tier_url=url, key=b"absent").read_all()
        assert absent.num_rows == 0
        assert store.taken <= whole * 0.02


class Closed:
    """A store that nothing may read."""

    def get_range(self, path: str, *_: int) -> bytes:
        raise AssertionError(path)


def test_look_ups_that_would_read_more_than_they_save_are_left_out(thousand: Bucket) -> None:
    bucket = open_bucket(thousand.store)
    topic = bucket.topic("t")
    assert topic is not None
    manifest = bucket.manifest(topic, 0)
    assert manifest is not None
    segments = [
        RemoteSegment(one.path, replace(one.entry, key_pages=100)) for one in bucket.live(manifest)
    ]
    keys = [b"key-%d" % at for at in range(20)]
    store: Any = Closed()
    assert without_keys(segments, keys, store, ReadMetrics()) == frozenset()


def damaged_page(page: bytes, how: str) -> bytes:
    if how == "changed byte":
        return page[:100] + bytes([page[100] ^ 1]) + page[101:]
    content = bytes([int(how)]) + page[5:]  # another version, with a sound checksum
    return struct.pack(">I", crc32c(content)) + content


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("changed byte", "a page of its key filter fails its checksum; its segment is read"),
        ("1", "its key filter has version 1, not 2; its segment is read"),
        ("3", "its key filter has version 3, not 2; its segment is read"),
    ],
)
def test_an_unusable_filter_costs_a_warning_and_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, says: str
) -> None:
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t")
    made.archive("t", 0, [[encoded(0, [b"a", b"b"])], [encoded(2, [b"c"])]], key_filters=True)
    bucket = open_bucket(made.store)
    topic = bucket.topic("t")
    assert topic is not None
    manifest = bucket.manifest(topic, 0)
    assert manifest is not None
    for segment in bucket.live(manifest):
        file = tmp_path / segment.path
        data = file.read_bytes()
        at = segment.entry.data_size
        page = damaged_page(data[at : at + PAGE_BYTES], how)
        file.write_bytes(data[:at] + page + data[at + PAGE_BYTES :])
    with caplog.at_level(logging.WARNING, "stratalog.spark"):
        rows = read("t", tier_url=tmp_path.as_uri(), key=b"c").read_all()
    assert rows["offset"].to_pylist() == [2]
    assert [line for line in caplog.messages if says in line] == caplog.messages
    assert len(caplog.messages) == 2


def test_the_default_partitioner_chooses_the_partitions(tmp_path: Path) -> None:
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t", 5)
    for index in range(5):
        made.archive("t", index, [[encoded(0, [b"a", b"b", b"c"])]], key_filters=True)
    url = tmp_path.as_uri()

    def partitions(**asked: Any) -> list[int]:
        return list(read("t", tier_url=url, **asked).read_all()["partition"].to_pylist())

    assert partitions(key="a") == [0, 1, 2, 3, 4]
    for key in (b"a", b"b", b"c"):
        assert partitions(key=key, partitioner="murmur2") == [partition_of_key(key, 5)]
    chosen = partition_of_key(b"a", 5)
    others = [index for index in range(5) if index != chosen]
    assert partitions(key="a", partitioner="murmur2", partitions=others) == []
    assert partitions(key=[]) == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"key": 5}, "key is 5: bytes, a text, or a list of them is needed"),
        ({"key": [5]}, "key has 5: bytes or a text is needed"),
        ({"partitioner": "murmur2"}, "no key is named"),
        ({"key": "a", "partitioner": "crc32"}, "partitioner is 'crc32': murmur2 is known"),
    ],
)
def test_a_mistake_is_one_line(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read("t", tier_url="file:///elsewhere", **asked)
