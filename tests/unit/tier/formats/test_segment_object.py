"""Segment objects: data is read as it was written, and each changed byte is found."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faulty_store import FaultyStore
from tests.unit.tier.segments import CountingEntropy, closed, log_bytes

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt
from stratalog.tier.formats.key_filter import PAGE_BYTES, may_hold
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.tier.formats.paths import SegmentName, segment_name, segment_path
from stratalog.tier.formats.segment_index import (
    FLAG_COMPRESSED,
    FLAG_CONTROL,
    FLAG_MINIMUM_EXACT,
    FLAG_TRANSACTIONAL,
)
from stratalog.tier.formats.segment_object import SegmentWriter, read_footer
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.reading.reader import read_entries
from stratalog.tier.writing.archiver import PartitionFolder, archive
from stratalog.wire.batch import parse_header, set_log_append_time, set_max_timestamp
from stratalog.wire.records import Record, build_batch

TOPIC_ID = CountingEntropy(7).uuid()
KEY = PartitionFolder("cluster", TOPIC_ID, 0)


def archived(segment, start=None, interval=200):
    store = MemoryStore("memory://unit")
    base = segment.base_offset if start is None else start
    name = SegmentName(base, segment.next_offset - 1, 3, CountingEntropy().uuid())
    entry = archive(store, KEY, segment, name, now_ms=5, index_interval_bytes=interval)
    return store, RemoteSegment(segment_path(KEY.prefix, name), entry)


def index_of(batches, interval=1):
    """Return the index entries of these batches, one for each batch."""
    data = b"".join(batches)
    writer = SegmentWriter(
        topic_id=TOPIC_ID,
        partition=0,
        leader_epoch=0,
        start_offset=0,
        index_interval_bytes=interval,
    )
    writer.feed(data)
    writer.finish(next_offset=100)
    return list(writer.index)


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    piece=st.integers(1, 400),
    interval=st.integers(1, 600),
    base=st.integers(0, 1 << 40),
    codec=st.sampled_from(["none", "gzip", "zstd"]),
)
def test_the_data_of_an_object_is_the_log_file_for_any_pieces(counts, piece, interval, base, codec):
    data, end = log_bytes(base, counts, codec=codec)
    store, segment = archived(closed(data, base, end, piece), interval=interval)
    assert store.get(segment.path)[: len(data)] == data
    index = load_index(store, segment)
    entries = list(index.entries)
    assert entries[0].base_offset == base
    assert entries[-1].last_offset == end - 1
    assert sum(entry.records for entry in entries) == sum(counts) == index.summary.records
    assert all(entry.length >= interval for entry in entries[:-1])
    assert read_entries(store, segment, index, 0, len(entries)) == data
    assert read_footer(store, segment.path, segment.entry.size).entries.encode() == (
        index.entries.encode()
    )
    assert segment_name(segment.path) == (base, end - 1, 3, CountingEntropy().uuid())


def test_the_tail_is_one_request_if_the_manifest_has_the_size_of_the_data():
    data, end = log_bytes(0, [3] * 50)
    store, segment = archived(closed(data, 0, end))
    watched = FaultyStore(store)
    load_index(watched, segment)
    assert watched.calls == [
        ("get_range", segment.path, len(data), segment.entry.size - len(data)),
    ]


def test_the_tail_lies_behind_the_key_filter_and_is_one_request():
    data, end = log_bytes(0, [30] * 50)
    store, segment = archived(replace(closed(data, 0, end), has_key_filter=True))
    watched, entry = FaultyStore(store), segment.entry
    index = load_index(watched, segment)
    assert [row.type for row in index.sections] == [1, 16, 2, 3, 4, 5, 6]
    assert entry.key_pages == 1
    start = len(data) + PAGE_BYTES
    assert watched.calls == [("get_range", segment.path, start, entry.size - start)]
    page = store.get_range(segment.path, len(data), PAGE_BYTES)
    assert all(may_hold(page, b"key %d" % n, 1, segment.path) for n in range(end))
    assert not may_hold(page, b"another", 1, segment.path)
    without_manifest = read_footer(store, segment.path, entry.size)
    assert without_manifest.entries.encode() == index.entries.encode()


def test_locate_returns_the_run_of_batches_with_an_offset_or_the_next_run():
    first, _ = log_bytes(10, [5])
    second, end = log_bytes(20, [5])  # 15..19 are compacted away
    store, segment = archived(closed(first + second, 10, end), interval=1)
    index = load_index(store, segment)
    assert [index.entries.entry_of(offset) for offset in (10, 14, 15, 24, 25)] == [0, 0, 1, 1, 2]
    assert list(index.entries.positions) == [0, len(first)]
    assert list(index.entries.lengths) == [len(first), len(second)]


def test_a_complete_read_finds_every_flipped_byte_of_an_object():
    data, end = log_bytes(0, [1, 2, 1])
    store, segment = archived(closed(data, 0, end))
    sound = store.get(segment.path)
    for at in range(len(sound)):
        for bit in (1, 0x80):
            damaged = bytearray(sound)
            damaged[at] ^= bit
            store.put(segment.path, [damaged])
            with pytest.raises(Corrupt, match=segment.path):  # noqa: PT012
                index = load_index(store, segment)
                read_entries(store, segment, index, 0, len(index.entries))


def test_every_truncated_object_is_found():
    data, end = log_bytes(0, [1, 2])
    store, segment = archived(closed(data, 0, end))
    sound = store.get(segment.path)
    for size in range(len(sound)):
        store.put(segment.path, [sound[:size]])
        with pytest.raises(Corrupt, match=segment.path):
            load_index(store, segment)
        with pytest.raises(Corrupt, match=segment.path):
            read_footer(store, segment.path, size)


def test_another_sound_object_under_the_same_name_is_found():
    one, end = log_bytes(0, [3], value_size=20)
    other, _ = log_bytes(0, [3], value_size=20, start_ms=1001)
    store, segment = archived(closed(one, 0, end))
    store.put(segment.path, [archived(closed(other, 0, end))[0].get(segment.path)])
    with pytest.raises(Corrupt, match="not the object that the manifest names"):
        load_index(store, segment)


def test_a_section_of_an_unknown_type_is_skipped_but_its_bytes_count(monkeypatch):
    data, end = log_bytes(0, [3])
    store, segment = archived(closed(data, 0, end))
    index = load_index(store, segment)
    kinds = [row.type for row in index.sections]
    assert kinds == [1, 2, 3, 4, 5, 6]
    # A later version would write the same object with one more section.
    from stratalog.tier.formats import segment_object

    encode_tail = segment_object._encode_tail
    monkeypatch.setattr(
        segment_object,
        "_encode_tail",
        lambda first, sections: encode_tail(first, {**sections, 99: b"from the future"}),
    )
    later, found = archived(closed(data, 0, end))
    assert load_index(later, found).entries.encode() == index.entries.encode()
    damaged = later.get(found.path).replace(b"from the future", b"from the futurE")
    later.put(found.path, [damaged])
    with pytest.raises(Corrupt, match="section 99"):
        load_index(later, found)


def test_a_local_segment_with_a_bad_batch_is_never_uploaded():
    data, end = log_bytes(0, [3, 3, 3])
    for at in (30, len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        store = MemoryStore("memory://unit")
        name = SegmentName(0, end - 1, 3, TOPIC_ID)
        with pytest.raises(Corrupt, match="the local segment 0"):
            archive(store, KEY, closed(bytes(damaged), 0, end), name, now_ms=5)
        assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: (data[:-1], 9), "ends within the batch"),
        (lambda data: (data, 8), "past its end"),
        (lambda data: (data + data, 9), "follows"),
    ],
)
def test_a_local_segment_that_is_cut_or_disordered_is_refused(make, message):
    data, _ = log_bytes(0, [3, 3, 3])
    made, next_offset = make(data)
    with pytest.raises(Corrupt, match=message):
        archived(closed(made, 0, next_offset))


def test_batches_that_another_leader_archived_are_left_out():
    data, end = log_bytes(100, [5, 5, 5, 5])
    tail, _ = log_bytes(110, [5, 5])
    store, segment = archived(closed(data, 100, end, piece=7), start=110)
    assert store.get(segment.path)[: segment.entry.data_size] == tail
    assert (segment.entry.base_offset, segment.entry.records) == (110, 10)
    with pytest.raises(Corrupt, match="follows"):  # batch edges are the same on all replicas
        archived(closed(data, 100, end), start=112)


def test_the_minimum_timestamp_is_exact_only_if_the_header_determines_it():
    younger_first = [Record(0, 2000, None, b"a"), Record(1, 1000, None, b"b")]
    (entry,) = index_of([build_batch(younger_first, base_offset=0)])
    assert (entry.min_timestamp, entry.max_timestamp) == (2000, 2000)
    assert not entry.flags & FLAG_MINIMUM_EXACT  # a record of 1000 is there

    alone = build_batch([Record(0, 1500, None, b"a")], base_offset=0)
    stamped = build_batch(younger_first, base_offset=1)
    set_log_append_time(memoryview(stamped), 0, parse_header(stamped), 1400)
    (entry,) = index_of([alone, stamped], interval=1 << 20)
    assert (entry.min_timestamp, entry.max_timestamp) == (1400, 1500)
    assert entry.flags & FLAG_MINIMUM_EXACT

    before_1970 = build_batch([Record(0, -5000, None, b"a")], base_offset=0)
    set_max_timestamp(memoryview(before_1970), 0, parse_header(before_1970), -1)  # as a broker
    (entry,) = index_of([before_1970])
    assert (entry.min_timestamp, entry.max_timestamp) == (-5000, -1)
    assert not entry.flags & FLAG_MINIMUM_EXACT


def test_an_entry_has_the_kinds_of_its_batches():
    record = [Record(0, 1, None, b"a")]
    plain = build_batch(record, base_offset=0)
    packed = build_batch(record, base_offset=1, codec="gzip")
    within = build_batch(record, base_offset=2, transactional=True, producer_id=1, producer_epoch=0)
    marker = build_batch([Record(0, 1, b"\0\0\0\1", b"\0" * 6)], base_offset=3, control=True)
    flags = [
        entry.flags & ~FLAG_MINIMUM_EXACT for entry in index_of([plain, packed, within, marker])
    ]
    assert flags == [0, FLAG_COMPRESSED, FLAG_TRANSACTIONAL, FLAG_CONTROL]


def test_an_upload_holds_one_piece_for_a_segment_of_any_size():
    writer = SegmentWriter(topic_id=TOPIC_ID, partition=0, leader_epoch=0, start_offset=0)
    data, _ = log_bytes(0, [50] * 40)
    for at in range(0, len(data), 4096):
        writer.feed(data[at : at + 4096])
        assert len(writer._rest) < 4096
