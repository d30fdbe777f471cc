"""The settings of a topic, by Kafka's names.

In: nothing. Out: `TOPIC_SETTINGS`, and for each the broker settings that give its default. Data only: it decides
nothing.

Names, types and limits are those of Apache Kafka 4.3's `LogConfig` and `TopicConfig`; the wording is ours.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from stratalog.config.kinds import LONG_MAX, BadValue, Between, Kind, OneOf, Setting, Shaped

COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
MIB = 1024 * 1024
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Synonym(Struct, frozen=True):
    """A broker setting that gives a topic setting its default; its value is multiplied by `factor` (hours to ms)."""

    name: str
    factor: int = 1


class TopicSetting(Struct, frozen=True):
    """A topic's setting and the broker settings behind it, the first one set wins."""

    setting: Setting
    synonyms: tuple[Synonym, ...] = ()


def _table(*rows: tuple[Setting, *tuple[str | Synonym, ...]]) -> Mapping[str, TopicSetting]:
    return MappingProxyType(
        {
            setting.name: TopicSetting(
                setting, tuple(s if isinstance(s, Synonym) else Synonym(s) for s in synonyms)
            )
            for setting, *synonyms in rows
        }
    )


_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")


def _check_replicas(items: Sequence[str]) -> None:
    if list(items) != ["*"] and not all(_REPLICA.fullmatch(one) for one in items):
        raise BadValue


_THROTTLED: Final = Shaped(_check_replicas, "* or replicas as partition:broker,partition:broker")

TOPIC_SETTINGS = _table(
    (
        Setting(
            "cleanup.policy",
            Kind.LIST,
            ("delete",),
            "What happens to old segments: `delete` drops them past retention, `compact` keeps the last record of "
            "each key.",
            OneOf(("delete", "compact")),
        ),
        "log.cleanup.policy",
    ),
    (
        Setting(
            "compression.type",
            Kind.STRING,
            "producer",
            "Codec of stored batches: `producer` stores each as the producer sent it. With a codec or "
            "`uncompressed`, processes beside the broker recompress batches in another codec.",
            OneOf(COMPRESSIONS),
        ),
        "compression.type",
    ),
    (
        Setting(
            "file.delete.delay.ms",
            Kind.LONG,
            MINUTE_MS,
            "How long a deleted segment's files stay on disk under the name `*.deleted`.",
            Between(0),
        ),
        "log.segment.delete.delay.ms",
    ),
    (
        Setting(
            "flush.messages",
            Kind.LONG,
            LONG_MAX,
            "Records that may be appended before the log is synced to the drive; 1 syncs before every answer.",
            Between(1),
        ),
        "log.flush.interval.messages",
    ),
    (
        Setting(
            "flush.ms",
            Kind.LONG,
            LONG_MAX,
            "Milliseconds that an appended record may stay unsynced.",
            Between(0),
        ),
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    ),
    (
        Setting(
            "index.interval.bytes",
            Kind.INT,
            4096,
            "Bytes of log between two entries of the offset index.",
            Between(0),
        ),
        "log.index.interval.bytes",
    ),
    (
        Setting(
            "local.retention.bytes",
            Kind.LONG,
            -2,
            "Bytes of a tiered partition kept on local disk besides the bucket; -2 is `retention.bytes`, -1 no limit.",
            Between(-2),
        ),
        "log.local.retention.bytes",
    ),
    (
        Setting(
            "local.retention.ms",
            Kind.LONG,
            -2,
            "Age until which tiered segments stay on local disk; 0: they go as soon as they are tiered; -2 is "
            "`retention.ms`, -1 no limit.",
            Between(-2),
        ),
        "log.local.retention.ms",
    ),
    (
        Setting(
            "max.message.bytes",
            Kind.INT,
            1048588,
            "Largest record batch accepted, in bytes, as it is sent.",
            Between(0),
        ),
        "message.max.bytes",
    ),
    (
        Setting(
            "message.timestamp.after.max.ms",
            Kind.LONG,
            HOUR_MS,
            "How far a record's timestamp may lie in the future.",
            Between(0),
        ),
        "log.message.timestamp.after.max.ms",
    ),
    (
        Setting(
            "message.timestamp.before.max.ms",
            Kind.LONG,
            LONG_MAX,
            "How far a record's timestamp may lie in the past.",
            Between(0),
        ),
        "log.message.timestamp.before.max.ms",
    ),
    (
        Setting(
            "message.timestamp.type",
            Kind.STRING,
            "CreateTime",
            "The clock of timestamps: the producer's, or the broker's at the append.",
            OneOf(("CreateTime", "LogAppendTime")),
        ),
        "log.message.timestamp.type",
    ),
    (
        Setting(
            "min.insync.replicas",
            Kind.INT,
            1,
            "Replicas in sync that a write with `acks=all` needs; a partition never needs more than it has replicas.",
            Between(1),
        ),
        "min.insync.replicas",
    ),
    (
        Setting(
            "remote.storage.enable",
            Kind.BOOLEAN,
            False,
            "Closed segments go to the bucket (`tier.url`).",
        ),
    ),
    (
        Setting(
            "retention.bytes",
            Kind.LONG,
            -1,
            "Bytes that a partition keeps, local disk and bucket together; -1: no limit.",
        ),
        "log.retention.bytes",
    ),
    (
        Setting(
            "retention.ms",
            Kind.LONG,
            7 * DAY_MS,
            "Age at which a segment is deleted everywhere; -1: never.",
            Between(-1),
        ),
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    (
        Setting(
            "segment.bytes",
            Kind.INT,
            1024 * MIB,
            "Size at which the active segment is closed and a new one begins.",
            Between(MIB),
        ),
        "log.segment.bytes",
    ),
    (
        Setting(
            "segment.index.bytes",
            Kind.INT,
            10 * MIB,
            "Largest index of one segment; a segment whose index is full is closed.",
            Between(4),
        ),
        "log.index.size.max.bytes",
    ),
    (
        Setting(
            "segment.ms",
            Kind.LONG,
            7 * DAY_MS,
            "Age, in the records' own time, at which the active segment is closed.",
            Between(1),
        ),
        "log.roll.ms",
        Synonym("log.roll.hours", HOUR_MS),
    ),
    (
        Setting(
            "tier.max.lag.ms",
            Kind.LONG,
            10 * MINUTE_MS,
            "Age at which a non-empty active segment of a tiered topic is closed, so that records of a quiet topic "
            "reach the bucket; -1: never.",
            Between(-1),
            ours=True,
        ),
        "tier.max.lag.ms",
    ),
    (
        Setting(
            "tier.key.filter",
            Kind.BOOLEAN,
            False,
            "Whether segments get a key filter in the bucket, some 2.4 bytes a key, so that reads by key open few of "
            "them. Segments that are in the bucket already stay as they are.",
            ours=True,
        ),
    ),
    (
        Setting(
            "compression.gzip.level",
            Kind.INT,
            -1,
            "Level for gzip where the broker compresses; -1 is zlib's own choice.",
            Between(1, 9, also=(-1,)),
        ),
        "compression.gzip.level",
    ),
    (
        Setting(
            "compression.lz4.level",
            Kind.INT,
            9,
            "Level for lz4 where the broker compresses: 9 is the fast compressor, any other the thorough one.",
            Between(1, 17),
        ),
        "compression.lz4.level",
    ),
    (
        Setting(
            "compression.zstd.level",
            Kind.INT,
            3,
            "Level for zstd where the broker compresses.",
            Between(-131072, 22),
        ),
        "compression.zstd.level",
    ),
    (
        Setting(
            "delete.retention.ms",
            Kind.LONG,
            DAY_MS,
            "How long compaction keeps a key's tombstone after the first cleaning that met it.",
            Between(0),
        ),
        "log.cleaner.delete.retention.ms",
    ),
    (
        Setting(
            "max.compaction.lag.ms",
            Kind.LONG,
            LONG_MAX,
            "Time after which a record is compacted however small the dirty share is. A segment rolls by then.",
            Between(1),
        ),
        "log.cleaner.max.compaction.lag.ms",
    ),
    (
        Setting(
            "min.cleanable.dirty.ratio",
            Kind.DOUBLE,
            0.5,
            "Share of dirty bytes in the log above which compaction begins.",
            Between(0, 1),
        ),
        "log.cleaner.min.cleanable.ratio",
    ),
    (
        Setting(
            "min.compaction.lag.ms",
            Kind.LONG,
            0,
            "Shortest time that a record stays uncompacted.",
            Between(0),
        ),
        "log.cleaner.min.compaction.lag.ms",
    ),
    (
        Setting(
            "preallocate",
            Kind.BOOLEAN,
            False,
            "Whether a new segment's file is given its full size at once.",
        ),
        "log.preallocate",
    ),
    (
        Setting(
            "remote.log.copy.disable",
            Kind.BOOLEAN,
            False,
            "The archiver uploads no further segments; uploaded ones stay readable.",
        ),
    ),
    (
        Setting(
            "remote.log.delete.on.disable",
            Kind.BOOLEAN,
            False,
            "Lets `remote.storage.enable` be taken away from a topic that is tiered: what is in the bucket is deleted "
            "then, and the log begins with what is on local disk.",
        ),
    ),
    (
        Setting(
            "segment.jitter.ms",
            Kind.LONG,
            0,
            "Spread of `segment.ms` between partitions.",
            Between(0),
        ),
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", HOUR_MS),
    ),
    (
        Setting(
            "unclean.leader.election.enable",
            Kind.BOOLEAN,
            False,
            "Whether a replica that is not in sync may lead when no other is left.",
        ),
        "unclean.leader.election.enable",
    ),
    (
        Setting(
            "internal.segment.bytes",
            Kind.INT,
            None,
            "In place of `segment.bytes`, without its lower limit: for tests.",
            unlisted=True,
        ),
    ),
    (
        Setting(
            "leader.replication.throttled.replicas",
            Kind.LIST,
            (),
            "Replicas, as partition:broker or * for all, whose broker sends at most "
            "`leader.replication.throttled.rate`.",
            _THROTTLED,
        ),
    ),
    (
        Setting(
            "follower.replication.throttled.replicas",
            Kind.LIST,
            (),
            "Replicas, as partition:broker or * for all, whose broker fetches at most "
            "`follower.replication.throttled.rate`.",
            _THROTTLED,
        ),
    ),
)
