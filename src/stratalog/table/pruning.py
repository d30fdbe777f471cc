"""Narrow a query's ranges by its conditions.

In: bounds on topic, partition, offset and timestamp, and keys. Out: narrower ranges, with the bounds on times and the
keys for the tasks. It never looks at a record, and ignores a bound that it cannot use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from stratalog.table.log import LogTopic, Snapshot
from stratalog.table.plan import Range
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.murmur2 import partition_of_key


@dataclass(frozen=True, slots=True)
class Pruning:
    """Bounds for every requested row; None: no bound."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """The first offset that is not requested."""
    since_ms: int | None = None
    """No requested row's timestamp (epoch ms) is older."""
    until_ms: int | None = None
    """Each requested row's timestamp is older than this."""
    keys: frozenset[bytes] | None = None
    """Each requested row has one of these keys."""
    by_murmur2: bool = False
    """Only the partitions that Java's default partitioner chooses for `keys` have them."""

    @property
    def of_keys(self) -> "Pruning":
        """The bounds that hold for all records of a key alike, or for none."""
        return Pruning(self.topics, self.partitions, keys=self.keys, by_murmur2=self.by_murmur2)

    def cut(
        self,
        snapshot: Snapshot,
        first: Mapping[TopicIdPartition, int],
        end: Mapping[TopicIdPartition, int],
        ask: Callable[[Mapping[TopicIdPartition, int]], Mapping[TopicIdPartition, int | None]],
    ) -> tuple[dict[TopicIdPartition, int], dict[TopicIdPartition, int]]:
        """Return bounds of each partition, narrowed.

        `ask` finds an offset below which every record is older than a timestamp (epoch ms).
        """
        first, end = dict(first), dict(end)
        for key in first:
            if not self._touches(snapshot.topics[key[0]], key[1]):
                end[key] = first[key]
                continue
            if self.first_offset is not None:
                first[key] = min(max(first[key], self.first_offset), max(first[key], end[key]))
            if self.end_offset is not None:
                end[key] = min(end[key], max(first[key], self.end_offset))
        if self.since_ms is not None:
            open_keys = [key for key in first if first[key] < end[key]]
            for key, offset in ask(dict.fromkeys(open_keys, self.since_ms)).items():
                # None: all are older.
                first[key] = end[key] if offset is None else min(max(first[key], offset), end[key])
        return first, end

    def narrowed(self, wanted: Range) -> Range:
        """Return the range with the requested bounds on timestamps, and the keys."""
        return replace(wanted, since_ms=self.since_ms, until_ms=self.until_ms, keys=self.keys)

    def _touches(self, topic: LogTopic, partition: int) -> bool:
        if self.topics is not None and topic.name not in self.topics:
            return False
        if self.partitions is not None and partition not in self.partitions:
            return False
        if self.keys is None:
            return True
        chosen = (partition_of_key(key, topic.partition_count) for key in self.keys)
        return partition in chosen if self.by_murmur2 else bool(self.keys)
