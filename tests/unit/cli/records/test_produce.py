"""Lines become records: lines stay whole in any pieces, keys and times are split off, batches are bounded."""

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.records.order import Order
from stratalog.cli.records.produce import Limits, chunks, record_of
from stratalog.errors import UserError

NOW_MS = 1_700_000_000_000


def order(**changed: object) -> Order:
    plain = {
        "topic": "t",
        "partition": None,
        "compression": "none",
        "acks": -1,
        "key_separator": None,
        "timestamp_separator": None,
        "timestamp": None,
    }
    return Order(**{**plain, **changed})  # type: ignore[arg-type]


class Drip:
    """Input that arrives in pieces of any size."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = BytesIO(data)
        self._sizes = sizes

    async def read(self) -> bytes:
        return self._data.read(self._sizes.pop() if self._sizes else 7)


async def lines_of(read: Callable[[], Awaitable[bytes | None]]) -> list[bytes]:
    return [line async for chunk in chunks(read) for line in chunk]


@given(
    st.lists(st.binary().filter(lambda b: b"\n" not in b), max_size=8),
    st.lists(st.integers(1, 9)),
    st.booleans(),
)
def test_lines_stay_whole_in_pieces_of_any_size(
    lines: list[bytes], sizes: list[int], ended: bool
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    found = asyncio.run(lines_of(Drip(data, sizes).read))
    expected = data.split(b"\n")
    assert found == (expected[:-1] if not expected[-1] else expected)


def test_an_interrupted_line_is_no_record() -> None:
    pieces: list[bytes | None] = [b"one\ntw", None]

    async def read() -> bytes | None:
        return pieces.pop(0)

    assert asyncio.run(lines_of(read)) == [b"one"]


def test_a_line_is_its_value() -> None:
    assert record_of(b"a b", order(), NOW_MS) == (None, b"a b", NOW_MS)


def test_key_and_timestamp_are_split_off_in_that_order() -> None:
    both = order(key_separator=b":", timestamp_separator=b" ")
    assert record_of(b"12 k:v:w", both, NOW_MS) == (b"k", b"v:w", 12)
    assert record_of(b"12 v", both, NOW_MS) == (None, b"v", 12)
    assert record_of(b"v", order(timestamp=5), NOW_MS) == (None, b"v", 5)
    with pytest.raises(UserError, match="no timestamp"):
        record_of(b"soon v", both, NOW_MS)


def test_expired_and_refused_timestamps_are_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = Limits(1000, retention_ms=100, before_max_ms=500, after_max_ms=50)
    for age_ms in (0, 100, 101, 500, 501, -50, -51):
        limits.look(NOW_MS - age_ms, NOW_MS)
    assert (limits.expired, limits.refused) == (2, 2)
    limits.warn("t")
    said = capsys.readouterr().err
    assert "2 record(s) are older than t's retention.ms=100" in said
    assert "2 record(s) have timestamps that t refuses" in said
    assert len(said.splitlines()) == 2


def test_a_topic_without_retention_gets_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    limits = Limits(1000, retention_ms=-1, before_max_ms=2**63 - 1, after_max_ms=2**63 - 1)
    limits.look(0, NOW_MS)
    limits.warn("t")
    assert capsys.readouterr().err == ""
