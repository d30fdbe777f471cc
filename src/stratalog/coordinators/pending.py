"""The member ids of one shard that clients have received, and have not joined with yet (KIP-394).

In: ids with their holders: a principal, or the address of an anonymous client. Out: ids to take back, where there are
too many. It changes no group, and does not learn that an id has joined: `is_pending` tells.

Kafka has no such limit: there a client that never joins fills the heap.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

__all__ = ["IDS_MAX", "PendingId", "PendingIds"]

IDS_MAX: Final = 1_000
"""Most ids of one shard. A client that works joins within milliseconds."""
_IDS_LEFT: Final = 900
"""Ids that stay where some are taken back: so that looking at all of them is rare."""


class PendingId(NamedTuple):
    """An id, and the group that it is for."""

    group_id: str
    member_id: str


class PendingIds:
    """The ids in the order in which they were sent; some may have joined since."""

    def __init__(self, is_pending: Callable[[PendingId], bool]) -> None:
        self._is_pending = is_pending
        self._holders: dict[PendingId, Hashable] = {}

    def count(self) -> int:
        """Return how many ids have not joined."""
        return sum(map(self._is_pending, self._holders))

    def add(self, one: PendingId, holder: Hashable) -> list[PendingId]:
        """Note an id; return ids to take back: the oldest ones of the holder with most."""
        self._holders[one] = holder
        if len(self._holders) <= IDS_MAX:
            return []
        self._holders = {key: by for key, by in self._holders.items() if self._is_pending(key)}
        if len(self._holders) <= IDS_MAX:
            return []
        shares = Counter(self._holders.values())
        to_go: Counter[Hashable] = Counter()
        for _ in range(len(self._holders) - _IDS_LEFT):
            largest = max(shares, key=shares.__getitem__)
            shares[largest] -= 1
            to_go[largest] += 1
        gone = []
        for key, by in self._holders.items():
            if to_go[by]:
                to_go[by] -= 1
                gone.append(key)
        for key in gone:
            del self._holders[key]
        return gone
