"""Aborted transactions, whose records a reader of committed records skips (KIP-98).

In: batch headers, in their order. Out: values. It never decodes a batch; `kernels` has its own loop.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from stratalog.wire.batch import BatchHeader

__all__ = ["Aborted", "AbortedTransaction", "reaching"]


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer's transactional batches from `first_offset` to `last_offset`, the marker's,
    do not count.
    """

    producer_id: int
    first_offset: int
    last_offset: int


def reaching(listed: Sequence[AbortedTransaction], offset: int) -> list[tuple[int, int]]:
    """Return the transactions that end at `offset` or later, as a Fetch answer lists them: (producer id, first offset).
    The input is in the order of last offsets.
    """
    begin = bisect_left(listed, offset, key=lambda one: one.last_offset)
    return [(one.producer_id, one.first_offset) for one in listed[begin:]]


class Aborted:
    """Finds the batches of one Fetch answer that belong to its aborted transactions (Kafka: CompletedFetch).

    `listed`: (producer id, first offset) of each, in any order.
    """

    def __init__(self, listed: Sequence[tuple[int, int]]) -> None:
        self._ahead = sorted(listed, key=itemgetter(1), reverse=True)
        self._open: set[int] = set()

    def has(self, header: BatchHeader) -> bool:
        """Return whether to skip a batch, the next in the order of offsets."""
        while self._ahead and self._ahead[-1][1] <= header.last_offset:
            self._open.add(self._ahead.pop()[0])
        if header.is_control:  # the marker that ends its producer's transaction
            self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open
