"""The marker that ends a transaction, in Kafka's bytes."""

from struct import pack

import pytest

from stratalog.errors import Corrupt
from stratalog.wire.markers import Marker, read_marker
from stratalog.wire.records import Record, build_batch


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
