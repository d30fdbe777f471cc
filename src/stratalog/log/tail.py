"""Cache the newest batches of partitions in memory.

In: views of appended batches. Out: views for readers, without touching a disk. All caches together never hold more than
their budget, and one partition never more than its share. A view counts as the whole buffer that it keeps alive.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

__all__ = ["TailBudget", "TailCache"]

TAILS_BYTES: Final = 64 << 20
TAIL_BYTES: Final = 1 << 20

_ENTRY_BYTES: Final = 250
"""Memory for one batch beside its bytes: a view, three list entries, three integers."""
_TRIM_AT: Final = 256
_SHARED_BYTES_MAX: Final = 64 << 10
"""Largest buffer that small batches keep alive together. A slow reader of one of them counts for that one alone."""
_FETCHED_BYTES_MAX: Final = 64 << 10
"""Largest answer of a leader whose batches a follower copies: consumers may read them here."""


class TailBudget:
    """The memory limit of all tails, and of one. At the limit the tail with the oldest append drops batches.

    Invariants: `bytes_held` is the sum over all tails; `_tails` are the non-empty tails, in the order of their last
    append.
    """

    __slots__ = ("_tails", "bytes_held", "bytes_max", "tail_bytes_max")

    def __init__(self, bytes_max: int = TAILS_BYTES, tail_bytes_max: int = TAIL_BYTES) -> None:
        self.bytes_max = bytes_max
        self.tail_bytes_max = tail_bytes_max
        self.bytes_held = 0
        self._tails: OrderedDict[TailCache, None] = OrderedDict()

    def grown(self, tail: "TailCache") -> None:
        """Note a batch added to `tail`, and drop batches above the budget."""
        tails = self._tails
        tails[tail] = None
        tails.move_to_end(tail)
        while self.bytes_held > self.bytes_max:
            oldest = next(iter(tails))
            oldest.trim(max(oldest.bytes_held - (self.bytes_held - self.bytes_max), 0))

    def emptied(self, tail: "TailCache") -> None:
        """Note that `tail` is empty."""
        self._tails.pop(tail, None)


class TailCache:
    """Consecutive batches ending at the log's end, the oldest dropped first.

    A batch that is a small part of a larger buffer (a request with many partitions) is copied; otherwise its
    buffer is kept and counted whole. A follower copies no batch of a large answer: the page cache has it, too.
    """

    __slots__ = ("_bases", "_budget", "_costs", "_first", "_nexts", "_views", "bytes_held")

    def __init__(self, budget: TailBudget) -> None:
        self.bytes_held = 0
        self._budget = budget
        self._first = 0
        self._bases: list[int] = []
        self._nexts: list[int] = []
        self._costs: list[int] = []
        self._views: list[memoryview | None] = []

    def add(
        self, base_offset: int, next_offset: int, view: memoryview, *, is_fetched: bool = False
    ) -> None:
        """Append one batch, which must not change any more. `is_fetched`: it is part of a leader's answer."""
        size = len(view)
        owner = view.obj
        kept = len(owner) if type(owner) is bytearray or type(owner) is bytes else size
        if kept > 2 * size:
            if is_fetched and kept > _FETCHED_BYTES_MAX:
                self.clear()
                return
            # A reader may still use the copy after the tail drops it; its bytes then count for the reader.
            view = memoryview(bytes(view))
            kept = size
        cost = kept + _ENTRY_BYTES
        self._bases.append(base_offset)
        self._nexts.append(next_offset)
        self._costs.append(cost)
        self._views.append(view)
        self._grown(cost)

    def extend(self, batches: Sequence[tuple[int, int, memoryview]], size: int) -> None:
        """Append (base offset, next offset, view) of batches of `size` bytes together, as `add` does one by one.

        Batches that are most of one buffer share it, without a copy of each. The last one, which is dropped last,
        counts all of it.
        """
        owner, count = batches[0][2].obj, len(batches)
        kept = len(owner) if count > 1 and type(owner) is bytearray else 2 * _SHARED_BYTES_MAX
        if kept > 2 * size or size > _SHARED_BYTES_MAX:
            for base_offset, next_offset, view in batches:
                self.add(base_offset, next_offset, view)
            return
        self._bases += [base_offset for base_offset, _, _ in batches]
        self._nexts += [next_offset for _, next_offset, _ in batches]
        self._views += [view for _, _, view in batches]
        self._costs += [_ENTRY_BYTES] * count
        self._costs[-1] += kept
        self._grown(count * _ENTRY_BYTES + kept)

    def _grown(self, cost: int) -> None:
        self.bytes_held += cost
        budget = self._budget
        budget.bytes_held += cost
        if self.bytes_held > budget.tail_bytes_max:
            self.trim(budget.tail_bytes_max)
        if self.bytes_held:
            budget.grown(self)

    def forget_before(self, offset: int) -> None:
        """Drop the batches that end at or before `offset`."""
        last = bisect_right(self._nexts, offset, self._first)
        self.trim(self.bytes_held - sum(self._costs[self._first : last]))

    def trim(self, bytes_max: int) -> None:
        """Drop the oldest until at most `bytes_max` are held."""
        first = self._first
        before = self.bytes_held
        while self.bytes_held > bytes_max and first < len(self._views):
            self.bytes_held -= self._costs[first]
            self._views[first] = None
            first += 1
        self._first = first
        self._budget.bytes_held -= before - self.bytes_held
        if not self.bytes_held:
            self._budget.emptied(self)
        if first >= _TRIM_AT or first == len(self._views):
            del self._bases[:first], self._nexts[:first], self._costs[:first], self._views[:first]
            self._first = 0

    def clear(self) -> None:
        """Drop everything."""
        self.trim(0)

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, minimum_one_batch: bool
    ) -> tuple[list[memoryview], int, int] | None:
        """Return whole batches from the one that holds `offset`, as (views, first offset, next offset).

        None where the batch is not here, no batch ends at or below `end_offset`, or none fits `max_bytes`.
        """
        at = bisect_right(self._bases, offset, self._first) - 1
        if at < self._first or self._nexts[at] <= offset:
            return None
        first = at
        found: list[memoryview] = []
        left = max_bytes
        while at < len(self._views) and self._nexts[at] <= end_offset:
            view = self._views[at]
            assert view is not None, "batches before the first kept one are dropped"
            left -= len(view)
            if left < 0 and (found or not minimum_one_batch):
                break
            found.append(view)
            at += 1
        if not found:
            return None
        return found, self._bases[first], self._nexts[at - 1]
