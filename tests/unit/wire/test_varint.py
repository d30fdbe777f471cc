"""Variable-length integers are written and read by their bytes."""

import pytest

from stratalog.errors import Corrupt
from stratalog.wire.varint import encode_signed, encode_unsigned, read_signed, read_unsigned


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (2**32 - 1, "ffffffff0f"),
        (2**64 - 1, "ffffffffffffffffff01"),
    ],
)
def test_unsigned_varints_have_their_bytes(value, encoded):
    assert encode_unsigned(value).hex() == encoded
    assert read_unsigned(b"x" + bytes.fromhex(encoded) + b"y", 1, 64) == (
        value,
        1 + len(encoded) // 2,
    )


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_signed_varints_have_their_bytes(value, encoded):
    assert encode_signed(value).hex() == encoded
    assert read_signed(bytes.fromhex(encoded), 0, 64) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    "encoded", ["", "80", "ffffffff10", "ffffffffff01", "808080808000", "80" * 20 + "01"]
)
def test_bytes_that_end_early_or_do_not_fit_are_corrupt(encoded):
    with pytest.raises(Corrupt):
        read_unsigned(bytes.fromhex(encoded), 0, 32)
    with pytest.raises(Corrupt):
        read_signed(bytes.fromhex(encoded), 0, 32)
