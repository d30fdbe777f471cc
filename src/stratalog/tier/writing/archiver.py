"""The archiver: upload one closed segment into the bucket.

In: a segment's bytes, read piece by piece, and its companion files. Out: an object, and the manifest entry that
describes it. It never touches a manifest, and never uploads a segment with a batch that fails its CRC.

An object whose entry is never committed is an orphan: nothing refers to it, `verify` reports it and `sweep` removes
it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from stratalog.errors import Corrupt
from stratalog.ports import Buffer, ObjectStore
from stratalog.tier.formats.key_filter import PAGE_BYTES, KeyFilterBuilder
from stratalog.tier.formats.manifest import Entry, SegmentState
from stratalog.tier.formats.paths import SegmentName, partition_prefix, segment_path
from stratalog.tier.formats.segment_object import INDEX_INTERVAL_BYTES, SegmentWriter
from stratalog.wire.ids import topic_id_text
from stratalog.wire.transactions import AbortedTransaction

__all__ = ["ClosedSegment", "PartitionFolder", "archive"]


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """The folder of a partition in the bucket."""

    cluster_id: str
    topic_id: UUID
    partition: int

    @property
    def prefix(self) -> str:
        """The path before the names of its objects."""
        return partition_prefix(self.cluster_id, self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that will not change any more.

    `next_offset` is its successor's base offset. `read` opens the `.log` file again and yields its bytes in order, in
    pieces of any size (1-4 MiB is good: memory holds one at a time). `leader_epochs` are (epoch, first offset) pairs;
    then come the `.snapshot` and `.txnindex` files (empty: none). `aborted` are all aborted transactions with records
    in the segment, wherever they end (below the last stable offset each has ended). None means unknown: a reader of
    committed records refuses the object if it has transactional batches. `has_key_filter`: the object gets one.
    """

    base_offset: int
    next_offset: int
    read: Callable[[], Iterable[Buffer]]
    leader_epochs: tuple[tuple[int, int], ...] = ()
    producer_snapshot: bytes = b""
    aborted_transactions: bytes = b""
    aborted: tuple[AbortedTransaction, ...] | None = None
    has_key_filter: bool = False


def archive(
    store: ObjectStore,
    folder: PartitionFolder,
    segment: ClosedSegment,
    name: SegmentName,
    *,
    now_ms: int,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
) -> Entry:
    """Upload a segment, from `name.base_offset` on, as the object `name`. Blocking; the object is durable on return.

    Raises Corrupt where the local bytes are not sound (nothing is uploaded then), Unavailable from the store (the
    object may exist), and the errors of `segment.read`.
    """
    path = segment_path(folder.prefix, name)
    writer = SegmentWriter(
        topic_id=folder.topic_id,
        partition=folder.partition,
        leader_epoch=name.leader_epoch,
        start_offset=name.base_offset,
        index_interval_bytes=index_interval_bytes,
    )
    filters: list[bytes] = []
    store.put(path, _pieces(writer, segment, path, filters))
    summary = writer.summary
    assert summary is not None, "the store took all pieces"
    assert summary.last_offset == name.last_offset, "the name says what the object holds"
    return Entry(
        id=topic_id_text(name.object_id),
        base_offset=summary.base_offset,
        last_offset=summary.last_offset,
        leader_epoch=summary.leader_epoch,
        size=summary.size,
        data_size=summary.data_size,
        records=summary.records,
        min_timestamp=summary.min_timestamp,
        max_timestamp=summary.max_timestamp,
        min_timestamp_exact=summary.min_timestamp_exact,
        data_crc=summary.data_crc,
        footer_crc=summary.footer_crc,
        leader_epochs=segment.leader_epochs,
        state=SegmentState.COPY_FINISHED,
        state_ms=now_ms,
        key_pages=len(filters[-1]) // PAGE_BYTES,
    )


def _pieces(
    writer: SegmentWriter, segment: ClosedSegment, path: str, filters: list[bytes]
) -> Iterator[Buffer]:
    """Yield the object's bytes; `filters` receives its key filter, empty for none."""
    keys = KeyFilterBuilder() if segment.has_key_filter else None
    try:
        for chunk in segment.read():
            ready = writer.feed(chunk)
            if keys is not None:
                fed = ready.obj
                if isinstance(fed, bytes):  # as of files: without a copy
                    end = len(fed) - writer.unfinished
                    keys.take(fed, end - len(ready), end)
                else:
                    keys.take(bytes(ready), 0, len(ready))
            if len(ready):
                yield ready
        filters.append(b"" if keys is None else keys.finish())
        yield writer.finish(
            next_offset=segment.next_offset,
            leader_epochs=segment.leader_epochs,
            producer_snapshot=segment.producer_snapshot,
            aborted_transactions=segment.aborted_transactions,
            aborted=segment.aborted,
            key_filter=filters[-1],
        )
    except Corrupt as corrupt:
        raise Corrupt(f"the local segment {segment.base_offset} for {path}: {corrupt}") from corrupt
