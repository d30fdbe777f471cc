"""Aborted transactions, whose records a reader of committed ones does not see (KIP-98).

In: nothing. Out: values. It never looks at a batch: `kernels` pass over what is hidden.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["AbortedTransaction", "reaching"]


class AbortedTransaction(NamedTuple):
    """Its producer's transactional batches from `first_offset` to `last_offset`, its marker's, never happened."""

    producer_id: int
    first_offset: int
    last_offset: int


def reaching(listed: Sequence[AbortedTransaction], offset: int) -> list[tuple[int, int]]:
    """Of transactions in the order of their last offsets those that end at `offset` or later, as a Fetch answer lists
    them: (producer id, first offset).
    """
    begin = bisect_left(listed, offset, key=lambda one: one.last_offset)
    return [(one.producer_id, one.first_offset) for one in listed[begin:]]
