"""Profiles: named sets of recommended settings, such as `strata server --profile production`.

In: nothing. Out: `PROFILES`. Data only. A value from file, environment or override wins over a profile's.

The recommendations come from two articles. *Tips*: "Kafka tips", nine months of running Kafka at Conversant (Medium,
2015). *FlashBlade*: tiered storage on a FlashBlade object store (2020).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

__all__ = ["LEFT_TO_YOU", "PROFILES", "WITH_THREE", "WITH_TIER", "Advice"]

WITH_TIER: Final = "with a tier"
"""Nodes with a bucket: `tier.url` is set."""
WITH_THREE: Final = "with three voters or more"
"""Nodes whose `controller.quorum.voters` names three nodes or more."""


class Advice(Struct, frozen=True):
    """A recommended value, as text. `of`: the article; `why`: its reason; `where`: the nodes that it is for."""

    name: str
    value: str
    of: str
    why: str
    where: str = "always"


PRODUCTION = (
    Advice(
        "auto.create.topics.enable",
        "false",
        "Tips",
        "a misspelt topic is found at once instead of being created",
    ),
    Advice("message.max.bytes", "4194304", "Tips", "2-4 MB, with room for what is to come"),
    Advice(
        "log.roll.hours",
        "24",
        "Tips",
        "roll more often than every 7 days, so that old records do not stay because new ones lie beside them",
    ),
    Advice(
        "default.replication.factor",
        "3",
        "both",
        "a topic survives two lost brokers",
        where=WITH_THREE,
    ),
    Advice(
        "min.insync.replicas",
        "2",
        "ours",
        "an acknowledged record (acks=all) is on two brokers",
        where=WITH_THREE,
    ),
    Advice(
        "tier.enable",
        "true",
        "FlashBlade",
        "topics go to the bucket from the start",
        where=WITH_TIER,
    ),
    Advice(
        "log.segment.bytes",
        "104857600",
        "FlashBlade",
        "a segment of 100 MB is still in memory when it is copied to the bucket",
        where=WITH_TIER,
    ),
    Advice(
        "log.local.retention.ms",
        "0",
        "FlashBlade",
        "a fast bucket needs no second copy on local disks",
        where=WITH_TIER,
    ),
    Advice(
        "remote.log.manager.copier.thread.pool.size",
        "8",
        "FlashBlade",
        "archiver threads, for throughput",
        where=WITH_TIER,
    ),
    Advice(
        "remote.log.reader.threads",
        "16",
        "FlashBlade",
        "fetcher threads, for throughput",
        where=WITH_TIER,
    ),
)

PROFILES: Mapping[str, tuple[Advice, ...]] = MappingProxyType({"production": PRODUCTION})

LEFT_TO_YOU = (
    ("log.dirs", "Tips", "one large file system on RAID", "only you know the disks"),
    (
        "log.retention.hours",
        "Tips",
        "as short as is practical, 3 days say",
        "it deletes data; with a tier years may be the point",
    ),
    (
        "socket.send.buffer.bytes, socket.receive.buffer.bytes",
        "Tips",
        "4 MB",
        "it is for links with a long delay; on others 512 KiB suffice",
    ),
    ("cleanup.policy", "Tips", "avoid compaction", "the default is `delete`"),
    ("controlled.shutdown.enable", "Tips", "true", "a stop is always a controlled one here"),
    ("num.partitions", "Tips", "few partitions per topic", "the default is 1"),
    (
        "tier.url",
        "FlashBlade",
        "a bucket for each cluster",
        "a bucket belongs to the cluster that came first, another's is refused",
    ),
    (
        "compression.type",
        "both",
        "compress at the producer if possible, else at the broker",
        "the default, `producer`, keeps what producers do",
    ),
)
"""Setting, article, its recommendation, and why no profile applies it."""
