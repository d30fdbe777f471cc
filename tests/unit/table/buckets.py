"""Buckets with known contents, which the brokers' own code writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid5

from stratalog.adapters.system import SystemEntropy
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import claim_bucket, register_topic
from stratalog.tier.writing.archiver import ClosedSegment, PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext
from stratalog.wire.records import BatchBuilder
from stratalog.wire.transactions import AbortedTransaction

CLUSTER = "stratalog-test-cluster"
NOW_MS = 1_700_000_000_000


def topic_id(name: str) -> UUID:
    """Return the id of a name, always the same."""
    return uuid5(UUID(int=7), name)


def batch(
    base_offset: int,
    count: int,
    *,
    codec: str = "none",
    size: int = 20,
    timestamp: int | None = None,
) -> bytes:
    """Return a batch of `count` records whose key and value have their offset; timestamps: NOW_MS + offset, or one."""
    builder = BatchBuilder(codec)
    for offset in range(base_offset, base_offset + count):
        value = b"value-%d" % offset
        builder.add(b"key-%d" % offset, value.ljust(size, b"."), timestamp or NOW_MS + offset)
    return bytes(builder.build(base_offset, 0))


@dataclass
class Bucket:
    """One cluster's bucket, filled partition by partition."""

    store: ObjectStore
    index_interval_bytes: int = 1 << 10

    def create(self, name: str, partitions: int = 1) -> None:
        """Register a topic."""
        claim_bucket(self.store, CLUSTER, NOW_MS)
        register_topic(self.store, CLUSTER, topic_id(name), name, partitions, {}, NOW_MS)

    def archive(
        self,
        name: str,
        partition: int,
        segments: Sequence[Sequence[bytes]],
        *,
        first: int = 0,
        aborted: Sequence[AbortedTransaction] | None = None,
        log_start: int = 0,
        key_filters: bool = False,
    ) -> int:
        """Archive segments of batches that follow each other from offset `first`; returns the tiered end.

        `aborted` are the log's aborted transactions; each segment gets those with records in it.
        """
        context = WriterContext(
            self.store, SystemEntropy(), index_interval_bytes=self.index_interval_bytes
        )
        folder, writer = PartitionFolder(CLUSTER, topic_id(name), partition), Writer(1, 0)
        tier = TierWriter.activate(context, folder, name, writer, now_ms=NOW_MS)
        closed = []
        base = first
        for batches in segments:
            end = base
            for one in batches:
                end = int.from_bytes(one[:8], "big") + int.from_bytes(one[23:27], "big") + 1
            data = b"".join(batches)
            known = (
                None
                if aborted is None
                else tuple(a for a in aborted if a.first_offset < end and a.last_offset >= base)
            )
            read = partial(list, [data])
            closed.append(
                ClosedSegment(
                    base, end, read, ((0, base),), aborted=known, has_key_filter=key_filters
                )
            )
            base = end
        tier.archive(closed, last_stable_offset=base, log_start_offset=log_start, now_ms=NOW_MS)
        tier.spill(NOW_MS)
        return base
