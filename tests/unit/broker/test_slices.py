"""Goal: work is cut into slices in order, and none is lost or empty."""

import pytest

from stratalog.broker.slices import slices


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (2, [2]), (3, [3]), (4, [3, 1]), (7, [3, 3, 1])]
)
def test_slices_keep_the_order_and_have_the_requested_size(count: int, sizes: list[int]) -> None:
    parts = list(slices(iter(range(count)), 3))
    assert [len(part) for part in parts] == sizes
    assert [one for part in parts for one in part] == list(range(count))
