"""The marker that ends a transaction, in Kafka's bytes."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.wire.batch import HEADER_SIZE
from stratalog.wire.markers import Ended, Marker, marker_of, read_marker
from stratalog.wire.records import Record, build_batch, read_records


def control(key, value):
    return memoryview(build_batch([Record(0, 1, key, value)], producer_id=1, control=True))


def test_a_marker_is_read_from_kafkas_bytes():
    value = bytes.fromhex("0000 00000007")
    assert read_marker(control(bytes.fromhex("0000 0000"), value)) == Marker(False, 7)
    assert read_marker(control(bytes.fromhex("0000 0001"), value)) == Marker(True, 7)
    # A later version may add fields behind these.
    assert read_marker(control(b"\0\1\0\1\0", pack(">hi", 1, 9) + b"more")) == Marker(True, 9)


def test_another_control_record_is_no_marker():
    assert read_marker(control(pack(">hh", 0, 2), b"\0\0")) is None


@pytest.mark.parametrize(("key", "value"), [(None, b""), (b"\0\0\0", b""), (b"\0\0\0\1", b"\0\0")])
def test_a_marker_cut_short_is_corrupt(key, value):
    with pytest.raises(Corrupt):
        read_marker(control(key, value))


@given(
    at=st.integers(HEADER_SIZE, HEADER_SIZE + 16), byte=st.integers(0, 255), is_commit=st.booleans()
)
def test_a_coordinators_marker_is_read_as_by_the_general_reader(at, byte, is_commit):
    """The short way takes the usual bytes only: with any byte of the record changed, both ways agree."""
    batch = Ended(5, 2, Marker(is_commit, 7)).batch(1)
    assert read_marker(memoryview(batch)) == Marker(is_commit, 7)
    batch[at] = byte

    def found(read):
        try:
            return read(memoryview(batch))
        except Corrupt:
            return Corrupt

    def generally(view):
        record = next(iter(read_records(view)))
        return marker_of(record)

    assert found(read_marker) == found(generally)
