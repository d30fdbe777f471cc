"""A reader refuses a request before its memory exceeds the budget, and the charge covers the memory taken."""

import tracemalloc
from collections.abc import Callable

import pytest

from stratalog.errors import ErrorCode
from stratalog.wire.apis import APIS, is_flexible
from stratalog.wire.budget import DecodeBudget, OverBudget
from stratalog.wire.envelope import decode_request

SERVED = {key: (api.oldest, api.newest) for key, api in APIS.items()}
COUNT = 4000


def frame_of(key: int, version: int, body: bytes) -> memoryview:
    header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\0\2me"
    return memoryview(bytearray(header + b"\0" * is_flexible(key, version) + body))


def counted(items: list[bytes]) -> bytes:
    return len(items).to_bytes(4, "big") + b"".join(items)


def named(number: int) -> bytes:
    return b"\0\7t%06d" % number


PARTITIONS_4 = counted(
    [n.to_bytes(4, "big") + n.to_bytes(8, "big") + b"\0\1\0\0" for n in range(COUNT)]
)
REQUESTS = {
    "Metadata": (3, 8, counted([named(n) for n in range(COUNT)]) + b"\0\0\0"),
    "DescribeGroups": (15, 0, counted([named(n) for n in range(COUNT)])),
    "Fetch": (1, 4, bytes(17) + counted([named(0) + PARTITIONS_4])),
    "Fetch of topics": (1, 4, bytes(17) + counted([named(n) + bytes(4) for n in range(COUNT)])),
    "Fetch forgets": (
        1,
        7,
        bytes(25)
        + bytes(4)
        + counted([named(0) + counted([n.to_bytes(4, "big") for n in range(COUNT)])]),
    ),
    "Produce": (
        0,
        3,
        b"\xff\xff" + bytes(6) + counted([named(0) + counted([n.to_bytes(4, "big") + bytes(4) for n in range(COUNT)])]),
    ),
    "Produce to topics": (
        0,
        3,
        b"\xff\xff" + bytes(6) + counted([named(n) + bytes(4) for n in range(COUNT)]),
    ),
    "OffsetCommit": (
        8,
        2,
        b"\0\1g" + bytes(4) + b"\0\1m" + bytes(8)
        + counted([named(0) + counted([n.to_bytes(4, "big") + bytes(7) + b"\1" + b"\0\1x" for n in range(COUNT)])]),
    ),
    "OffsetFetch": (
        9,
        1,
        b"\0\1g" + counted([named(0) + counted([n.to_bytes(4, "big") for n in range(COUNT)])]),
    ),
    "tags": (18, 3, b"\2n\2v" + b"\xa0\x1f" + b"\x05\0" * COUNT),
    "tags of a header": (18, 3, b""),
}  # fmt: skip


def request(name: str) -> memoryview:
    frame = frame_of(*REQUESTS[name])
    if name == "tags of a header":
        return memoryview(
            bytearray(bytes(frame[:-1]) + b"\xa0\x1f" + b"\x05\0" * COUNT + b"\2n\2v\0")
        )
    return frame


def memory_of(work: Callable[[], object]) -> int:
    """Return the bytes that the work holds at its peak: the least of three runs, for other threads allocate too."""
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            held = work()  # until the peak is read
            peaks.append(tracemalloc.get_traced_memory()[1])
            del held
        finally:
            tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_charge_covers_the_memory_taken(name: str) -> None:
    frame = request(name)
    # The first decoding creates objects that all requests share.
    decode_request(frame, SERVED, DecodeBudget(1 << 30))
    budget = DecodeBudget(1 << 30)
    assert decode_request(frame, SERVED, budget).body is not None
    taken = memory_of(lambda: decode_request(frame, SERVED, DecodeBudget(1 << 30)))
    # A copy of the body and the growing list of an array are temporary.
    assert taken < budget.charged + len(frame) + 20 * COUNT + 4096
    assert budget.charged < 1000 * COUNT, "the charge is so high that honest requests are refused"


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_refused_before_it_exceeds_its_budget(name: str) -> None:
    frame = request(name)
    whole = DecodeBudget(1 << 30)
    decode_request(frame, SERVED, whole)
    decode_request(frame, SERVED, DecodeBudget(whole.charged))
    allowed = whole.charged // 16

    def refuse() -> None:
        with pytest.raises(OverBudget, match=f"more than {allowed} bytes") as refused:
            decode_request(frame, SERVED, DecodeBudget(allowed))
        assert refused.value.code is ErrorCode.invalid_request

    taken = memory_of(refuse)
    assert taken < len(frame) + 2 * allowed + 16384
