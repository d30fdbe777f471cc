"""Take a partition's manifest over: the first act of a leader in the bucket.

In: the bucket, a partition, the leader epoch. Out: the writer of that leadership. It uploads no segment, and never
changes the log.
"""

from contextlib import suppress
from typing import Final

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.survey import TIER_MANIFEST
from stratalog.broker.tier.bucket import ClaimedBucket
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import register_topic
from stratalog.tier.formats.manifest import Manifest, decode
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext

__all__ = ["activate", "local_manifest"]

_MANIFEST_BYTES_MAX: Final = 64 << 20


async def activate(
    bucket: ClaimedBucket,
    hosted: HostedPartition,
    leader_epoch: int,
    before: TierWriter | None = None,
) -> TierWriter:
    """Register the topic, commit a manifest version of `leader_epoch`, and return its writer.

    From then on no earlier leader uploads anything. With `before`, this broker's former writer, or with the manifest
    beside the log, no list is needed. Raises Fenced, Unavailable, Corrupt.
    """
    now_ms = bucket.outside.clock.now_ms()
    key, name, image = hosted.key, hosted.name, bucket.image()
    topic = image.topics_by_id.get(key.topic_id)
    partitions = len(topic.partitions) if topic is not None else name.partition + 1
    configs = image.topic_configs(name.topic)
    disk, path = hosted.directory.disk, f"{hosted.log.directory}/{TIER_MANIFEST}"
    context = WriterContext(
        bucket.store,
        bucket.outside.entropy,
        archives=bucket.archives,
        steady_ms=bucket.outside.clock.steady_ms,
        leases=bucket.leases,
    )

    def take_over() -> TierWriter:
        register_topic(
            bucket.store,
            bucket.cluster_id,
            key.topic_id,
            name.topic,
            partitions,
            configs,
            now_ms,
        )
        local_manifest = before.manifest_bytes() if before is not None else None
        if local_manifest is None:
            with suppress(FileNotFoundError):
                local_manifest = disk.read(path, 0, _MANIFEST_BYTES_MAX)
        return TierWriter.activate(
            context,
            PartitionFolder(bucket.cluster_id, key.topic_id, name.partition),
            name.topic,
            Writer(bucket.config.int("node.id"), leader_epoch),
            local_manifest=local_manifest,
            now_ms=now_ms,
        )

    tier = await bucket.threads.copier(hosted).submit(take_over)
    # After the first version, not before: a takeover lists the manifests after it has begun.
    await bucket.claim.check_incarnation()
    return tier


def local_manifest(hosted: HostedPartition) -> Manifest:
    """Return the manifest beside a partition's log. Blocking. Raises FileNotFoundError, Corrupt."""
    path = f"{hosted.log.directory}/{TIER_MANIFEST}"
    return decode(hosted.directory.disk.read(path, 0, _MANIFEST_BYTES_MAX), path)
