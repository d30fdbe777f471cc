"""Buffers that are not cleared."""

import pytest

from stratalog.adapters.memory import buffer


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 5_000_001])
def test_a_buffer_takes_and_keeps_what_is_written(size: int) -> None:
    made = buffer(size)
    assert type(made) is bytearray
    assert len(made) == size
    view = memoryview(made)
    view[:] = bytes(range(251)) * (size // 251) + bytes(size % 251)
    del view
    made += b"more"
    assert made == bytes(range(251)) * (size // 251) + bytes(size % 251) + b"more"
