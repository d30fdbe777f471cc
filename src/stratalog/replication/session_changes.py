"""Remember which partitions of a follower's fetch session changed since they were last answered.

In: changes of partitions, the fetches of a session. Out: the partitions that a fetch must look at. It knows neither
logs nor answers. A leader of thousands of partitions answers a fetch by those that changed, and not by all.

Invariants: a partition that is not marked would be answered as before: without records and error, with the same high
watermark and log start. Marked partitions are members.
"""

from collections.abc import Collection
from typing import Any

from stratalog.wire.ids import TopicIdPartition, TopicPartition

__all__ = ["Changes"]

PartitionKey = TopicPartition | TopicIdPartition


class Changes:
    """The marked partitions of one session, in the order in which they were marked."""

    __slots__ = ("_marks", "_members", "_times", "events", "fetched_ms", "identity", "watching")

    def __init__(self, members: Collection[PartitionKey]) -> None:
        """`members` are the partitions of the session, and may change: call `drop` for one that leaves."""
        self.events = 0
        """How many changes were reasons to wake a waiting fetch."""
        self.fetched_ms = 0
        """When the session's last fetch came, on the steady clock."""
        self.identity: tuple[int, int, bool] = (-1, -1, False)
        """The follower of the last fetch: node, broker epoch, whether it may join an ISR."""
        self.watching: dict[Any, None] = {}
        """The fetches that wait for a change."""
        self._members: Collection[PartitionKey] = members
        self._marks: dict[PartitionKey, int] = {}
        self._times = 0

    @property
    def version(self) -> int:
        """Return a number that grows with each change of `marked`."""
        return self._times

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return isinstance(self._members, tuple)

    def end(self) -> None:
        """Forget everything: the session has ended."""
        self._members = ()
        self._marks.clear()
        self._times += 1

    def has(self, key: PartitionKey) -> bool:
        """Return whether the partition is a member of the session."""
        return key in self._members

    def marked(self) -> dict[PartitionKey, int]:
        """Return the partitions to look at, each with a number for `unmark`."""
        return self._marks

    def mark(self, key: PartitionKey) -> bool:
        """Look at the partition in the next answer; return False where it is no member of the session."""
        if key not in self._members:
            self.drop(key)
            return False
        self._times += 1
        self._marks.pop(
            key, None
        )  # to the end: those that miss an answer that is full come first in the next one
        self._marks[key] = self._times
        return True

    def drop(self, key: PartitionKey) -> None:
        """Look at the partition no more: it left the session."""
        self._times += 1
        self._marks.pop(key, None)

    def mark_all(self) -> None:
        """Look at every partition in the next answer."""
        for key in self._members:
            self.mark(key)

    def unmark(self, key: PartitionKey, number: int) -> None:
        """Look at the partition no more, unless it changed since `marked` returned the number."""
        if self._marks.get(key) == number:
            self.drop(key)
