"""Committed offsets of every group of one coordinator partition.

In: OffsetCommit and OffsetFetch requests whose sender has been checked, and committed records. Out: records and
answers. It never checks permissions: `groups.py` does.

Invariant: `_kept`, `_pending` and `_staged` change in `replay`, `replay_pending` and `end_transaction` only.

Kafka: `OffsetMetadataManager`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar
from uuid import UUID

from msgspec.structs import replace

from stratalog.coordinators.messages import (
    NO_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    NO_TOPIC_ID,
    OK,
    CommitPartition,
    CommittedPartition,
    CommittedTopic,
    CommitTopic,
    FetchedOffset,
    FetchedTopic,
    FetchTopic,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetRecord,
)
from stratalog.coordinators.records import KeptOffset, offset_record, offset_tombstone
from stratalog.errors import ErrorCode
from stratalog.wire.ids import TopicPartition

Kept = dict[str, dict[int, KeptOffset]]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_Place = tuple[str, str, int]
"""Group, topic name, partition."""


class Pending(Generic[K, V]):
    """The values of open transactions, by producer id and key.

    The newest record of a key counts, not the transaction that ends last: otherwise compaction of the log could change
    what counts. So each value has its record's offset, and a committed record leaves None in place of older values.
    Such a key stays unstable until its transaction ends. A tombstone leaves nothing.
    """

    def __init__(self) -> None:
        self._values: dict[int, dict[K, tuple[int, V | None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def put(self, producer_id: int, key: K, offset: int, value: V | None) -> bool:
        """Note a record of an open transaction; return whether it is the transaction's first one of the key."""
        values = self._values.setdefault(producer_id, {})
        is_first = key not in values
        values[key] = (offset, value)
        return is_first

    def supersede(self, key: K, offset: int) -> None:
        """Note a committed record."""
        for values in self._values.values():
            found = values.get(key)
            if found is not None and found[0] < offset:
                values[key] = (found[0], None)

    def drop(self, key: K) -> None:
        """Note a tombstone: no open transaction brings the key back."""
        for values in self._values.values():
            values.pop(key, None)

    def keys(self, producer_id: int) -> Iterable[K]:
        """Return the keys that a transaction may change."""
        return self._values.get(producer_id, {}).keys()

    def end(self, producer_id: int, *, commit: bool) -> Iterator[tuple[K, V]]:
        """End a transaction; yield what counts from now on."""
        for key, (offset, value) in self._values.pop(producer_id, {}).items():
            if commit and value is not None:
                self.supersede(key, offset)
                yield key, value

    def values(self, key: K) -> Iterator[V]:
        """Yield what each open transaction would make of a key."""
        for values in self._values.values():
            _, value = values.get(key, (0, None))
            if value is not None:
                yield value

    def items(self) -> Iterator[tuple[int, K, int, V | None]]:
        """Yield producer id, key, offset and value of each."""
        for producer_id, values in self._values.items():
            for key, (offset, value) in values.items():
                yield producer_id, key, offset, value


class Offsets:
    """Group, topic name and partition -> committed offset."""

    def __init__(self, metadata_bytes_max: int) -> None:
        self._metadata_bytes_max = metadata_bytes_max
        self._kept: dict[str, Kept] = {}
        self._pending: Pending[_Place, KeptOffset] = Pending()
        self._staged: dict[str, Counter[TopicPartition]] = {}
        """Group -> partition -> number of open transactions that have an offset there."""

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._kept or group_id in self._staged

    def group_ids(self) -> Iterable[str]:
        """Return groups with an offset, committed or staged in an open transaction."""
        return dict.fromkeys((*self._kept, *self._staged))

    def committed_group_ids(self) -> Iterable[str]:
        """Return groups with a committed offset, in the order of their first commit."""
        return self._kept.keys()

    def staged(self, group_id: str) -> Collection[TopicPartition]:
        """Return each partition whose offset an open transaction may change."""
        return self._staged.get(group_id, {}).keys()

    def places(self, group_id: str) -> Iterable[TopicPartition]:
        """Return each partition of which a group has an offset, committed or staged."""
        kept = (TopicPartition(topic, partition) for topic, partition, _ in self.of_group(group_id))
        return dict.fromkeys((*kept, *self.staged(group_id)))

    def topics(self, group_id: str) -> Iterator[tuple[str, UUID]]:
        """Yield name and id of the topic of each offset of a group, committed or staged."""
        for topic, _, kept in self.of_group(group_id):
            yield topic, kept.topic_id
        for topic, _, kept in self._staged_of(group_id):
            yield topic, kept.topic_id

    def _staged_of(self, group_id: str) -> Iterator[tuple[str, int, KeptOffset]]:
        for topic, partition in self.staged(group_id):
            for kept in self._pending.values((group_id, topic, partition)):
                yield topic, partition, kept

    def of_group(self, group_id: str) -> Iterator[tuple[str, int, KeptOffset]]:
        """Yield topic, partition and offset of each that a group has committed."""
        for topic, partitions in self._kept.get(group_id, {}).items():
            for partition, kept in partitions.items():
                yield topic, partition, kept

    def commit(
        self, request: OffsetCommit, wall_ms: int
    ) -> tuple[list[OffsetRecord], OffsetCommitAnswer]:
        """Return records for the accepted offsets, and the result of each offset."""
        expire_ms = wall_ms + request.retention_ms if request.retention_ms >= 0 else NO_TIMESTAMP
        records: list[OffsetRecord] = []
        topics = []
        for topic in request.topics:
            done = []
            for one in topic.partitions:
                error = self._check(one)
                done.append(CommittedPartition(one.index, error))
                if error is OK:
                    kept = KeptOffset(
                        one.offset,
                        one.leader_epoch,
                        one.metadata or "",
                        wall_ms,
                        expire_ms,
                        topic.topic_id,
                    )
                    records.append(offset_record(request.group_id, topic.name, one.index, kept))
            topics.append(CommittedTopic(topic.name, topic.topic_id, tuple(done)))
        return records, OffsetCommitAnswer(tuple(topics))

    def _check(self, one: CommitPartition) -> ErrorCode:
        if one.metadata and java_length(one.metadata) > self._metadata_bytes_max:
            return ErrorCode.offset_metadata_too_large
        return OK

    def fetch(
        self, group_id: str, topics: tuple[FetchTopic, ...] | None, *, stable: bool = False
    ) -> tuple[FetchedTopic, ...]:
        """Return committed offsets, -1 for a partition without one; topics None means all committed offsets.

        An offset that belongs to an earlier topic of that name counts as none. With `stable`, an offset that an open
        transaction may change has UNSTABLE_OFFSET_COMMIT.
        """
        found = self._fetch(group_id, topics)
        unstable = self.staged(group_id)
        if not stable or not unstable:
            return found
        return tuple(
            replace(
                topic,
                partitions=tuple(
                    FetchedOffset(
                        one.index, NO_OFFSET, NO_EPOCH, "", ErrorCode.unstable_offset_commit
                    )
                    if (topic.name, one.index) in unstable
                    else one
                    for one in topic.partitions
                ),
            )
            for topic in found
        )

    def _fetch(
        self, group_id: str, topics: tuple[FetchTopic, ...] | None
    ) -> tuple[FetchedTopic, ...]:
        kept = self._kept.get(group_id, {})
        if topics is None:
            return tuple(_all_of_topic(name, by_partition) for name, by_partition in kept.items())
        return tuple(
            FetchedTopic(
                topic.name,
                topic.topic_id,
                tuple(
                    _fetched(
                        index, _same_topic(kept.get(topic.name, {}).get(index), topic.topic_id)
                    )
                    for index in topic.partitions
                ),
            )
            for topic in topics
        )

    def forget(self, group_id: str, is_gone: Callable[[str, UUID], bool]) -> list[OffsetRecord]:
        """Return tombstones for a group's offsets of deleted topics (name, id), committed or staged."""
        gone = {
            (topic, partition): None
            for topic, partition, kept in (*self.of_group(group_id), *self._staged_of(group_id))
            if is_gone(topic, kept.topic_id)
        }
        return [offset_tombstone(group_id, topic, partition) for topic, partition in gone]

    def replay(
        self, group_id: str, topic: str, partition: int, kept: KeptOffset | None, offset: int
    ) -> None:
        """Apply one committed record at `offset`: the new offset, or None for its deletion."""
        if kept is not None:
            self._pending.supersede((group_id, topic, partition), offset)
        else:
            self._pending.drop((group_id, topic, partition))
            self._unstage(group_id, TopicPartition(topic, partition), None)
        self._keep(group_id, topic, partition, kept)

    def replay_pending(
        self, producer_id: int, place: _Place, offset: int, kept: KeptOffset | None
    ) -> None:
        """Apply one record of an open transaction; None: a later record counts."""
        if self._pending.put(producer_id, place, offset, kept):
            group_id, topic, partition = place
            self._staged.setdefault(group_id, Counter())[TopicPartition(topic, partition)] += 1

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the end of a producer's transaction: its offsets count now, or never."""
        for group_id, topic, partition in self._pending.keys(producer_id):
            self._unstage(group_id, TopicPartition(topic, partition), 1)
        for place, kept in self._pending.end(producer_id, commit=commit):
            self._keep(*place, kept)

    def _unstage(self, group_id: str, place: TopicPartition, count: int | None) -> None:
        """Note that fewer open transactions have a partition; None: that none has."""
        places = self._staged.get(group_id)
        if places is None or place not in places:
            return
        places[place] -= places[place] if count is None else count
        if not places[place]:
            del places[place]
        if not places:
            del self._staged[group_id]

    def _keep(self, group_id: str, topic: str, partition: int, kept: KeptOffset | None) -> None:
        if kept is not None:
            self._kept.setdefault(group_id, {}).setdefault(topic, {})[partition] = kept
            return
        topics = self._kept.get(group_id, {})
        topics.get(topic, {}).pop(partition, None)
        if not topics.get(topic, True):
            del topics[topic]
        if not self._kept.get(group_id, True):
            del self._kept[group_id]


def refused(topics: Iterable[CommitTopic], error: ErrorCode) -> OffsetCommitAnswer:
    """Return the answer where the whole request is refused."""
    return OffsetCommitAnswer(
        tuple(
            CommittedTopic(
                topic.name,
                topic.topic_id,
                tuple(CommittedPartition(one.index, error) for one in topic.partitions),
            )
            for topic in topics
        )
    )


def java_length(text: str) -> int:
    """Return the length in UTF-16 code units, in which Kafka counts `offset.metadata.max.bytes`."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _all_of_topic(name: str, by_partition: Mapping[int, KeptOffset]) -> FetchedTopic:
    latest = max(by_partition.values(), key=lambda kept: kept.commit_timestamp_ms)
    return FetchedTopic(
        name, latest.topic_id, tuple(_fetched(index, kept) for index, kept in by_partition.items())
    )


def _same_topic(kept: KeptOffset | None, topic_id: UUID) -> KeptOffset | None:
    if kept is None or NO_TOPIC_ID in (kept.topic_id, topic_id) or kept.topic_id == topic_id:
        return kept
    return None


def _fetched(index: int, kept: KeptOffset | None) -> FetchedOffset:
    if kept is None:
        return FetchedOffset(index, NO_OFFSET, NO_EPOCH, "")
    return FetchedOffset(index, kept.offset, kept.leader_epoch, kept.metadata)
