"""The reader cuts frames out of a byte stream that is delivered in any pieces."""

import tracemalloc

import pytest

from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.frames import SCRATCH_BYTES, FrameReader


def framed(*bodies):
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def feed(reader, stream, at_most=1 << 30):
    """Pass `stream` to the reader as a transport does; return its frames."""
    frames = []
    position = 0
    while position < len(stream):
        target = reader.get_buffer(-1)
        assert len(target) > 0
        count = min(len(target), len(stream) - position, at_most)
        target[:count] = stream[position : position + count]
        del target
        position += count
        frames += reader.buffer_updated(count)
    return frames


def test_many_small_frames_arrive_in_one_read():
    assert feed(FrameReader(100), framed(b"one", b"", b"three")) == [b"one", b"", b"three"]


@pytest.mark.parametrize("tail", range(8))
def test_frames_are_cut_a_few_at_a_time_and_none_is_lost(tail):
    bodies = [b"%d" % number for number in range(10)]
    reader = FrameReader(100, bytearray(4096), frames_max=3)
    stream = framed(*bodies) + framed(b"last")[:tail]
    target = reader.get_buffer(-1)
    target[: len(stream)] = stream
    found = [reader.buffer_updated(len(stream))]
    while reader.has_more:
        assert 0 < reader.bytes_held <= len(stream)
        found.append(reader.next_frames())
    assert [len(some) for some in found if some] == [3, 3, 3, 1]
    assert [frame for some in found for frame in some] == bodies
    assert feed(reader, framed(b"last")[tail:]) == [b"last"]
    assert reader.bytes_held == 0


def test_the_missing_bytes_are_those_of_the_incomplete_frame():
    reader = FrameReader(1 << 20, bytearray(4096))
    stream = framed(b"small", bytes(200_000))
    missing, start = {}, 0
    for end in (9, 12, 13, 14, 9_000, 150_000, len(stream)):
        feed(reader, stream[start:end])
        missing[end], start = reader.missing, end
    # After 9 bytes the first frame is whole, after 13 the length of the second one.
    wanted = {end: len(stream) - end if end >= 13 else 0 for end in missing}
    assert missing == wanted


def test_a_wrong_length_is_found_in_the_remaining_bytes():
    reader = FrameReader(100, bytearray(4096), frames_max=1)
    stream = framed(b"one", b"two") + (101).to_bytes(4, "big")
    reader.get_buffer(-1)[: len(stream)] = stream
    assert reader.buffer_updated(len(stream)) == [b"one"]
    assert reader.next_frames() == [b"two"]
    with pytest.raises(Rejected, match="a frame of 101 bytes"):
        reader.next_frames()


def test_the_rest_of_a_closed_connection_is_dropped():
    reader = FrameReader(100, bytearray(4096), frames_max=1)
    stream = framed(b"one", b"two")
    reader.get_buffer(-1)[: len(stream)] = stream
    reader.buffer_updated(len(stream))
    assert reader.bytes_held == 7
    reader.drop_rest()
    assert (reader.has_more, reader.bytes_held) == (False, 0)


def test_a_frame_may_arrive_byte_by_byte():
    assert feed(FrameReader(100), framed(b"one", b"two"), at_most=1) == [b"one", b"two"]


@pytest.mark.parametrize("size", [SCRATCH_BYTES, 1 << 20, (1 << 20) + 1, 5_000_001])
def test_a_frame_larger_than_the_scratch_buffer_is_whole(size):
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[:size]
    reader = FrameReader(10_000_000, buffer=lambda wanted: bytearray(b"\xa5" * wanted))
    frames = feed(reader, framed(b"before", body, b"after"))
    assert [len(frame) for frame in frames] == [6, size, 5]
    assert frames[1] == body


def test_a_buffer_grows_for_bytes_that_came_not_for_a_stream_that_ends():
    reader = FrameReader(10_000_000)
    feed(reader, (5_000_000).to_bytes(4, "big") + bytes(60_000))
    held = reader.bytes_held
    assert len(reader.get_buffer(-1)) <= SCRATCH_BYTES
    assert reader.bytes_held == held, "a stream that ends reads no byte"
    reader.end()
    assert reader.is_empty


def test_every_frame_is_memory_of_its_own_that_can_be_patched_and_kept():
    reader = FrameReader(1 << 20)
    frames = feed(reader, framed(b"aaaa", b"bbbb", b"c" * 100_000))
    for frame in frames:
        assert isinstance(frame.obj, bytearray)
        assert len(frame.obj) == len(frame)
        frame[0] = 0
    feed(reader, framed(b"d" * 1000, b"e" * 100_000))
    assert frames[0] == b"\0aaa"
    assert frames[1] == b"\0bbb"
    assert frames[2] == b"\0" + b"c" * 99_999


def test_readers_of_one_loop_may_share_a_scratch_buffer():
    scratch = bytearray(64)
    readers = [FrameReader(1000, scratch) for _ in range(3)]
    streams = [framed(bytes([65 + n]) * 10, bytes([97 + n]) * 200) for n in range(3)]
    found = [[], [], []]
    for start in range(0, len(streams[0]), 3):
        for n, reader in enumerate(readers):
            found[n] += feed(reader, streams[n][start : start + 3])
    assert found == [[bytes([65 + n]) * 10, bytes([97 + n]) * 200] for n in range(3)]


def test_a_caller_may_keep_a_view_of_its_buffer():
    reader = FrameReader(10_000_000)
    body = b"x" * 3_000_000
    stream = framed(body)
    held = []
    frames = []
    position = 0
    while position < len(stream):
        target = reader.get_buffer(-1)
        held.append(target)
        count = min(len(target), len(stream) - position)
        target[:count] = stream[position : position + count]
        position += count
        frames += reader.buffer_updated(count)
    assert frames == [body]


@pytest.mark.parametrize("length", [-1, -(1 << 31), 1001, (1 << 31) - 1])
def test_a_length_out_of_bounds_is_refused(length):
    with pytest.raises(Rejected) as refused:
        feed(FrameReader(1000), length.to_bytes(4, "big", signed=True))
    assert refused.value.code is ErrorCode.invalid_request
    assert str(length) in refused.value.message


def test_an_announced_frame_takes_no_memory_until_it_arrives():
    reader = FrameReader(100_000_000)
    tracemalloc.start()
    try:
        feed(reader, (100_000_000).to_bytes(4, "big") + b"only this")
        reader.get_buffer(-1)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
