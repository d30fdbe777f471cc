"""Consumer assignments in the encodings of third-party libraries."""

import pytest
from kafka.protocol.old.consumer_protocol import ConsumerProtocolMemberAssignment_v0 as Foreign

from stratalog.wire.assignment import decode_assignment

WANTED = [("orders", [0, 3]), ("é", [7])]


def foreign() -> bytes:
    return Foreign(0, WANTED, b"mine").encode()


def test_an_assignment_of_another_library_is_read() -> None:
    assert decode_assignment(memoryview(foreign())) == (("orders", 0), ("orders", 3), ("é", 7))


@pytest.mark.parametrize("size", [0, 1, 5, 9, 20, 30])
def test_a_torn_assignment_has_no_partitions(size: int) -> None:
    data = foreign()
    assert size < len(data) - 6
    assert decode_assignment(memoryview(data[:size])) == ()
