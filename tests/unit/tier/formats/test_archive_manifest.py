"""Archive manifests: entries are read as they were written, each altered byte is found, and the size is bounded."""

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.tier.formats.archive_manifest import Archive, decode_archive, encode_archive
from stratalog.tier.formats.manifest import Entry, SegmentState
from stratalog.wire.ids import topic_id_text

TOPIC_ID = UUID(int=7 << 64)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U32 = st.integers(0, (1 << 32) - 1)


def decoded(data, topic_id=TOPIC_ID, partition=3):
    return decode_archive(data, topic_id, partition, "an/archive")


def encoded(entries):
    return encode_archive(Archive.of(entries), TOPIC_ID, 3)


def listed(archive):
    return [archive.entry(at) for at in range(len(archive))]


@st.composite
def entries_of_any_kind(draw):
    made = []
    base = draw(st.integers(0, 1 << 62))
    for _ in range(draw(st.integers(0, 12))):
        last = base + draw(st.integers(0, 1 << 40))
        made.append(
            Entry(
                id=topic_id_text(UUID(int=draw(st.integers(0, (1 << 128) - 1)))),
                base_offset=base,
                last_offset=last,
                leader_epoch=draw(st.integers(0, 1 << 31)),
                size=draw(st.integers(0, 1 << 50)),
                data_size=draw(st.integers(0, 1 << 50)),
                records=draw(st.integers(0, 1 << 40)),
                min_timestamp=draw(I64),
                max_timestamp=draw(I64),
                min_timestamp_exact=draw(st.booleans()),
                data_crc=draw(U32),
                footer_crc=draw(U32),
                leader_epochs=tuple(draw(st.lists(st.tuples(U32, I64), max_size=3))),
                state=SegmentState.COPY_FINISHED,
                state_ms=draw(I64),
                key_pages=draw(st.sampled_from((0, 0, 1, 5000))),
            )
        )
        base = last + 1
    return made


@given(entries_of_any_kind(), st.data())
def test_entries_are_read_back_whole_in_parts_and_joined(entries, data):
    archive = decoded(encoded(entries))
    assert listed(archive) == entries
    first = data.draw(st.integers(0, len(entries)))
    stop = data.draw(st.integers(first, len(entries)))
    parts = [archive.cut(0, first), archive.cut(first, stop), archive.cut(stop, len(entries))]
    assert [one for part in parts for one in listed(part)] == entries
    whole = parts[0].extended(parts[1]).extended(parts[2])
    assert listed(whole) == entries
    assert encode_archive(whole, TOPIC_ID, 3) == encoded(entries)


def hours(count, seed=1):
    """Segments of an hour each, no two alike."""
    chance = Random(seed)
    made = []
    base, now = 0, 1_700_000_000_000
    for _ in range(count):
        records = chance.randrange(100_000, 500_000)
        size = records * 200 + chance.randrange(10_000)
        made.append(
            Entry(
                id=topic_id_text(UUID(int=chance.getrandbits(128))),
                base_offset=base,
                last_offset=base + records - 1,
                leader_epoch=1,
                size=size + 60_000 + chance.randrange(3000),
                data_size=size,
                records=records,
                min_timestamp=now + chance.randrange(1000),
                max_timestamp=now + 3_600_000 - chance.randrange(1, 2000),
                min_timestamp_exact=False,
                data_crc=chance.getrandbits(32),
                footer_crc=chance.getrandbits(32),
                leader_epochs=((1, 0),),
                state=SegmentState.COPY_FINISHED,
                state_ms=now + 3_600_000 + chance.randrange(5000),
            )
        )
        base += records
        now += 3_600_000
    return made


def test_an_altered_byte_or_another_partitions_manifest_is_refused():
    data = encoded(hours(3))
    assert listed(decoded(data)) == hours(3)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(Corrupt, match="an/archive"):
            decoded(bytes(damaged))
    for cut in (0, 10, len(data) - 1):
        with pytest.raises(Corrupt, match="an/archive"):
            decoded(data[:cut])
    with pytest.raises(Corrupt, match="another partition"):
        decoded(data, partition=2)
    with pytest.raises(Corrupt, match="another partition"):
        decoded(data, topic_id=UUID(int=1))


def test_a_segment_takes_half_of_its_hundred_bytes_at_most():
    assert len(encoded(hours(2000))) / 2000 < 50
