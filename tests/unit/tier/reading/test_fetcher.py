"""Reads from segment objects: the right batches, in few requests, and never a wrong byte."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.faulty_store import FaultyStore
from tests.unit.tier.formats.test_segment_object import archived
from tests.unit.tier.segments import closed, log_bytes

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt, Unavailable
from stratalog.log.reading import Slices
from stratalog.tier.reading.cache import ByteCache
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.wire.batch import scan


def expected(data, offset, max_bytes, minimum_one=True):
    """Return the result of a read of the log file itself."""
    taken = []
    size = 0
    for position, header in scan(data):
        if header.last_offset < offset:
            continue
        if size + header.size > max_bytes and not (minimum_one and not taken):
            break
        taken.append(data[position : position + header.size])
        size += header.size
        if size >= max_bytes:
            break
    return b"".join(taken)


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    interval=st.integers(1, 800),
    range_bytes=st.integers(1, 3000),
    cache_bytes=st.sampled_from([0, 2000, 1 << 20]),
    reads=st.lists(st.tuples(st.integers(0, 130), st.integers(0, 4000), st.booleans()), max_size=8),
)
@example([1, 1, 1, 1, 2, 1, 2, 3, 1, 1], 187, 1, 0, [(17, 188, False)])
def test_any_read_equals_that_of_the_log_file(counts, interval, range_bytes, cache_bytes, reads):
    data, end = log_bytes(5, counts)
    store, segment = archived(closed(data, 5, end), interval=interval)
    fetcher = Fetcher(store, cache_bytes, range_bytes=range_bytes)
    for offset, max_bytes, minimum_one in reads:
        read = fetcher.read(segment, offset, max_bytes, minimum_one=minimum_one)
        wanted = expected(data, offset, max_bytes, minimum_one)
        assert b"".join(read.buffers) == wanted
        ends = [header.next_offset for _, header in scan(wanted)]
        assert (read.first_offset, read.next_offset) == (offset, max(ends, default=offset))


def test_a_sequential_reader_needs_one_request_for_each_range():
    data, end = log_bytes(0, [10] * 400)
    store, segment = archived(closed(data, 0, end, piece=1 << 16), interval=1000)
    watched = FaultyStore(store)
    fetcher = Fetcher(watched, range_bytes=10_000)
    offset = 0
    while offset < end:
        got = fetcher.read(segment, offset, 3000)
        assert got.next_offset > offset
        offset = got.next_offset
    ranges = -(-len(data) // 10_000)
    assert len(watched.calls) - 1 <= ranges
    # A large read is one request.
    watched.calls.clear()
    fresh = Fetcher(watched, range_bytes=10_000)
    assert b"".join(fresh.read(segment, 0, 1 << 20).buffers) == data
    assert len(watched.calls) == 2


def test_the_cache_is_bounded_and_evicts_the_oldest_first():
    cache = ByteCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert (cache.get("b"), cache.get("a"), cache.get("c"), cache.size) == (None, 1, 3, 8)
    cache.put("d", 4, 50)  # the newest entry stays, whatever its size
    assert (len(cache), cache.get("d")) == (1, 4)
    cache.put("d", 5, 1)
    assert (cache.size, cache.get("d")) == (1, 5)


def test_every_read_of_an_altered_byte_is_an_error_that_names_the_object():
    data, end = log_bytes(0, [3] * 20)
    store, segment = archived(closed(data, 0, end), interval=300)
    sound = store.get(segment.path)
    for at in range(0, len(data), 17):
        damaged = bytearray(sound)
        damaged[at] ^= 0x10
        store.put(segment.path, [damaged])
        _, header = next((p, h) for p, h in scan(data) if p <= at < p + h.size)
        with pytest.raises(Corrupt, match=segment.path):
            Fetcher(store, range_bytes=500).read(segment, header.base_offset, 1)
    store.delete([segment.path])
    with pytest.raises(Corrupt, match=f"{segment.path}: missing"):
        Fetcher(store).read(segment, 0, 1)


def test_a_damaged_range_is_not_cached():
    data, end = log_bytes(0, [3])
    store, segment = archived(closed(data, 0, end))
    sound = store.get(segment.path)
    store.put(segment.path, [b"X" + sound[1:]])
    fetcher = Fetcher(store)
    with pytest.raises(Corrupt):
        fetcher.read(segment, 0, 100)
    store.put(segment.path, [sound])
    assert b"".join(fetcher.read(segment, 0, 1000).buffers) == data


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    timestamp=st.integers(990, 1060),
    start=st.integers(0, 40),
    codec=st.sampled_from(["none", "lz4"]),
)
def test_the_first_record_at_a_time_or_later_is_found(counts, timestamp, start, codec):
    data, end = log_bytes(0, counts, codec=codec)
    store, segment = archived(closed(data, 0, end), interval=150)
    found = Fetcher(store).offset_for_timestamp(segment, timestamp, start)
    offset = max(timestamp - 1000, start)  # one record each millisecond, from 1000 on
    assert found == ((offset, 1000 + offset, 3) if offset < end else None)


def test_a_lookup_in_an_empty_store_finds_no_segment():
    with pytest.raises(FileNotFoundError):
        MemoryStore().get("x")


def test_a_range_is_requested_once_for_many_readers_and_a_failure_stays_with_its_reader():
    """Eight threads read the same uncached range while the first request is blocked; then while it fails."""
    data, end = log_bytes(0, [10] * 20)
    store, segment = archived(closed(data, 0, end))
    entered, release = threading.Semaphore(0), threading.Event()
    outcomes = []

    def held(operation, path):
        if operation != "get_range":
            return None
        entered.release()
        assert release.wait(30)
        return outcomes.pop(0) if outcomes else None

    watched = FaultyStore(store, held)

    def read_by_many():
        fetcher = Fetcher(watched)
        watched.calls.clear()
        release.clear()
        with ThreadPoolExecutor(8) as pool:
            reads = [pool.submit(fetcher.read, segment, 0, 1 << 20) for _ in range(8)]
            assert entered.acquire(timeout=30)
            release.set()
            return [
                (read.exception(30), None if read.exception() else b"".join(read.result().buffers))
                for read in reads
            ]

    assert read_by_many() == [(None, data)] * 8
    assert len(watched.requests("get_range")) == 2, "one request for the tail and one for the range"
    outcomes[:] = ["before"]
    results = read_by_many()
    failed = [error for error, _ in results if error is not None]
    assert [type(error) for error in failed] == [Unavailable]
    assert [found for error, found in results if error is None] == [data] * 7
    assert len(watched.requests("get_range")) == 3


class BreaksOff(FaultyStore):
    """A store that answers the first multi-range request with only its first two ranges."""

    broken = False

    def get_ranges(self, path, start, sizes):
        for number, piece in enumerate(super().get_ranges(path, start, sizes)):
            if number == 2 and not self.broken:
                self.broken = True
                raise Unavailable("connection reset")
            yield piece


def test_the_received_ranges_of_an_interrupted_answer_are_kept():
    data, end = log_bytes(0, [10] * 400)
    store, segment = archived(closed(data, 0, end), interval=500)
    watched = BreaksOff(store)
    fetcher = Fetcher(watched, range_bytes=1000)
    with pytest.raises(Unavailable, match="connection reset"):
        fetcher.prefetch(segment, 0, 8000)
    first = fetcher.held(segment, 0, 1 << 20)
    assert 2000 <= first.size < 3500
    assert b"".join(first.buffers) == data[: first.size]
    got = fetcher.read(segment, 0, 8000)
    assert b"".join(got.buffers) == expected(data, 0, 8000, minimum_one=True)
    (_, _, start, _), (_, _, again, size) = watched.requests("get_range")[-2:]
    assert (start, again >= first.size, again + size > 7500) == (0, True, True), (
        "a retry must request only the missing ranges"
    )


def test_prefetched_ranges_are_not_requested_again():
    data, end = log_bytes(0, [10] * 40)
    store, segment = archived(closed(data, 0, end), interval=500)
    watched = FaultyStore(store)
    fetcher = Fetcher(watched, range_bytes=1000)
    size = fetcher.prefetch(segment, 100, 3000)
    assert size == len(data) - next(at for at, header in scan(data) if header.last_offset >= 100)
    brought = watched.requests("get_range")
    assert len(brought) == 2, "one request for the tail, one for all neighbouring ranges"
    fetcher.read(segment, 100, 2000)
    assert watched.requests("get_range") == brought
    fetcher.prefetch(segment, 100, 1 << 30)
    assert len(watched.requests("get_range")) == 3, (
        "a prefetch must request only missing ranges, to the segment's end"
    )
    assert fetcher.prefetch(segment, end, 1000) == 0


def test_parallel_prefetches_request_each_range_once():
    """Four parts of 3,000 bytes from an offset inside a range: a range in two parts belongs to the first of them."""
    data, end = log_bytes(0, [10] * 400)
    store, segment = archived(closed(data, 0, end), interval=500)
    watched = FaultyStore(store)
    fetcher = Fetcher(watched, range_bytes=1000)
    left = {fetcher.prefetch(segment, 105, 3000, skip) for skip in (6000, 0, 9000, 3000)}
    assert len(left) == 1, "each call must return the segment's bytes after the offset"
    brought = watched.requests("get_range")
    assert len(brought) == 5, "one request for the tail, one for each part"
    got = fetcher.read(segment, 105, 11_000)
    assert watched.requests("get_range") == brought
    assert b"".join(got.buffers) == expected(data, 105, 11_000, minimum_one=True)


def test_cached_ranges_are_returned_without_a_request():
    data, end = log_bytes(0, [10] * 400)
    store, segment = archived(closed(data, 0, end), interval=500)
    watched = FaultyStore(store)
    fetcher = Fetcher(watched, range_bytes=1000)
    assert fetcher.held(segment, 105, 100) is None
    fetcher.prefetch(segment, 105, 3000)
    watched.calls.clear()
    assert fetcher.held(segment, 105, 2000) == fetcher.read(segment, 105, 2000)
    most = fetcher.held(segment, 105, 1 << 20)
    assert 2000 < most.size < 1 << 20
    assert b"".join(most.buffers) == expected(data, 105, most.size)
    assert fetcher.held(segment, most.next_offset, 100) is None
    assert fetcher.held(segment, end, 100) == Slices([], end, end)
    assert not watched.calls
