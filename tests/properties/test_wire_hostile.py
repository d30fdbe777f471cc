"""Any bytes raise only the documented exceptions: requests, responses, batches, codecs, frames."""

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.kio_oracle import instance, kio_bytes, kio_class

from stratalog.errors import Corrupt, Rejected
from stratalog.wire.apis import APIS, is_flexible
from stratalog.wire.batch import check_produced, last_whole, parse_header, scan
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.compression import CODEC_NAMES, compress, decompress
from stratalog.wire.envelope import decode_request, decode_response
from stratalog.wire.frames import FrameReader
from stratalog.wire.records import Record, build_batch, read_records

SERVED = {key: (api.oldest, api.newest) for key, api in APIS.items()}
SPANS = {0: 12, 1: 17, 2: 10, 3: 13, 8: 9, 9: 9, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 18: 4, 19: 7}
SPANS |= {20: 6, 22: 5, 32: 4, 60: 2}
VERSIONS = [
    (key, version)
    for key, newest in SPANS.items()
    for version in range(APIS[key].oldest, newest + 1)
]
BYTES = st.binary(max_size=120) | st.lists(
    st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 0x7F, 0x80, 0xFF]), max_size=120
).map(bytes)


def try_request(frame):
    try:
        decode_request(memoryview(bytearray(frame)), SERVED, DecodeBudget(1 << 20))
    except Rejected:
        return False
    return True


def try_response(key, version, frame):
    try:
        decode_response(key, version, memoryview(bytearray(frame)))
    except Corrupt:
        return False
    return True


def request_header(key, version):
    start = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\0\2me"
    return start + b"\0" if is_flexible(key, version) else start


@settings(max_examples=300, deadline=None)
@given(BYTES)
def test_any_bytes_are_a_request_or_an_error(frame):
    try_request(frame)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(VERSIONS), BYTES)
def test_any_bytes_are_a_body_of_a_message_or_an_error(api, body):
    key, version = api
    try_request(request_header(key, version) + body)
    try_response(key, version, b"\0\0\0\1" + body)


def mutated(chance, sound):
    """`sound` with a few bytes changed, cut out, put in or cut off."""
    data = bytearray(sound)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0 if at < len(data):
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 1:
                del data[at : at + chance.randrange(1, 9)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 6))
            case _:
                del data[at:]
    return bytes(data)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_mutated_requests_and_responses_are_read_or_refused(key, version):
    chance = random.Random(f"{key} {version}")
    for side in ("request", "response"):
        cls = kio_class(key, version, side)
        for _ in range(3):
            body = kio_bytes(instance(chance, cls))
            if len(body) > 5000:
                continue
            if side == "request":
                assert try_request(request_header(key, version) + body)
            for _ in range(12):
                changed = mutated(chance, body)
                if side == "request":
                    try_request(request_header(key, version) + changed)
                else:
                    try_response(key, version, b"\0\0\0\1\0" + changed)


def read_everything(data):
    """Call every reader of a batch; read the records only if the batch passes its check."""
    view = memoryview(bytearray(data))
    assert 0 <= last_whole(view) <= len(view)
    for attempt in (parse_header, lambda it: list(scan(it)), lambda it: list(read_records(it))):
        with suppress(Corrupt):
            attempt(view)
    try:
        check_produced(view, max_batch_bytes=1 << 20)
    except Rejected:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(BYTES)
def test_any_bytes_are_batches_or_an_error(data):
    assert not read_everything(data)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_mutated_batches_never_pass_the_check(codec):
    chance = random.Random(codec)
    records = [
        Record(n, n, b"k" * (n % 3), b"v" * n, (("h", None), ("i", b"2"))) for n in range(1, 20)
    ]
    sound = bytes(build_batch(records, codec=codec))
    assert read_everything(sound)
    for _ in range(400):
        # The first sixteen bytes lie outside the CRC: the length is checked, offset and epoch are the broker's.
        changed = mutated(chance, sound)
        passed = read_everything(changed)
        assert not passed or (changed[16:], changed[8:12]) == (sound[16:], sound[8:12])


@pytest.mark.parametrize("codec", range(1, 5))
def test_mutated_compressed_bytes_are_read_or_corrupt(codec):
    chance = random.Random(codec)
    plain = b"".join(b"%d some text " % (n * n) for n in range(600))
    sound = compress(codec, plain)
    for _ in range(300):
        with suppress(Corrupt):
            decompress(codec, mutated(chance, sound), max_bytes=1 << 20)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=30) | st.sampled_from([b"x" * 500, b"y" * 3000]), max_size=8),
    st.lists(st.integers(1, 400), min_size=1),
    st.integers(8, 600),
)
def test_frames_are_read_as_they_were_sent_for_any_cuts(bodies, cuts, scratch_bytes):
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    reader = FrameReader(3000, bytearray(scratch_bytes))
    found = []
    position = turn = 0
    while position < len(stream):
        target = reader.get_buffer(-1)
        count = min(len(target), len(stream) - position, cuts[turn % len(cuts)])
        turn += 1
        target[:count] = stream[position : position + count]
        position += count
        found += reader.buffer_updated(count)
    assert found == bodies


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_stream_gives_frames_within_bounds_or_is_refused(stream):
    reader = FrameReader(100, bytearray(16))
    position = 0
    while position < len(stream):
        target = reader.get_buffer(-1)
        count = min(len(target), len(stream) - position)
        target[:count] = stream[position : position + count]
        position += count
        try:
            frames = reader.buffer_updated(count)
        except Rejected:
            return
        assert all(len(frame) <= 100 for frame in frames)
