"""A broker's defaults for the logs of its topics, and the intervals of log maintenance.

In: nothing. Out: `LOG_SETTINGS`, a part of `broker_settings.BROKER_SETTINGS`. Data only: it decides nothing.

A setting whose default is None counts only where it is set: then it beats its coarser relatives (`log.retention.ms`
before `log.retention.minutes` before `log.retention.hours`).
"""

from stratalog.config.kinds import LONG_MAX, Between, Dynamic, Kind, OneOf, Setting
from stratalog.config.topic_settings import COMPRESSIONS

MIB = 1024 * 1024
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
DAY_MS = 24 * 60 * MINUTE_MS

LOG_SETTINGS = (
    Setting(
        "log.cleanup.policy",
        Kind.LIST,
        ("delete",),
        "Default of `cleanup.policy`.",
        OneOf(("delete", "compact")),
    ),
    Setting(
        "compression.type",
        Kind.STRING,
        "producer",
        "Default of the topics' `compression.type`.",
        OneOf(COMPRESSIONS),
    ),
    Setting(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "Default of the topics' `compression.gzip.level`.",
        Between(1, 9, also=(-1,)),
    ),
    Setting(
        "compression.lz4.level",
        Kind.INT,
        9,
        "Default of the topics' `compression.lz4.level`.",
        Between(1, 17),
    ),
    Setting(
        "compression.zstd.level",
        Kind.INT,
        3,
        "Default of the topics' `compression.zstd.level`.",
        Between(-131072, 22),
    ),
    Setting(
        "log.flush.interval.messages",
        Kind.LONG,
        LONG_MAX,
        "Default of `flush.messages`.",
        Between(1),
    ),
    Setting("log.flush.interval.ms", Kind.LONG, None, "Default of `flush.ms`."),
    Setting(
        "log.flush.scheduler.interval.ms",
        Kind.LONG,
        LONG_MAX,
        "Default of `flush.ms` where `log.flush.interval.ms` is not set.",
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        MINUTE_MS,
        "How often the recovery points are written to their checkpoint file.",
        Between(0),
    ),
    Setting(
        "log.index.interval.bytes",
        Kind.INT,
        4096,
        "Default of `index.interval.bytes`.",
        Between(0),
    ),
    Setting(
        "log.index.size.max.bytes",
        Kind.INT,
        10 * MIB,
        "Default of `segment.index.bytes`.",
        Between(4),
    ),
    Setting(
        "log.local.retention.bytes",
        Kind.LONG,
        -2,
        "Default of `local.retention.bytes`.",
        Between(-2),
    ),
    Setting(
        "log.local.retention.ms",
        Kind.LONG,
        -2,
        "Default of `local.retention.ms`.",
        Between(-2),
    ),
    Setting(
        "message.max.bytes",
        Kind.INT,
        1048588,
        "Default of `max.message.bytes`.",
        Between(0),
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        Kind.LONG,
        60 * MINUTE_MS,
        "Default of `message.timestamp.after.max.ms`.",
        Between(0),
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "Default of `message.timestamp.before.max.ms`.",
        Between(0),
    ),
    Setting(
        "log.message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Default of `message.timestamp.type`.",
        OneOf(("CreateTime", "LogAppendTime")),
    ),
    Setting(
        "min.insync.replicas",
        Kind.INT,
        1,
        "Default of the topics' `min.insync.replicas`.",
        Between(1),
    ),
    Setting(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Default of the topics' `unclean.leader.election.enable`.",
    ),
    Setting("log.retention.bytes", Kind.LONG, -1, "Default of `retention.bytes`."),
    Setting(
        "log.retention.ms",
        Kind.LONG,
        None,
        "Default of `retention.ms`; -1: never.",
        Between(-1),
    ),
    Setting(
        "log.retention.minutes",
        Kind.INT,
        None,
        "Default of `retention.ms` in minutes.",
        Between(-1),
    ),
    Setting(
        "log.retention.hours",
        Kind.INT,
        168,
        "Default of `retention.ms` in hours.",
        Between(-1),
    ),
    Setting(
        "log.retention.check.interval.ms",
        Kind.LONG,
        5 * MINUTE_MS,
        "How often the broker looks for segments that retention no longer keeps.",
        Between(1),
    ),
    Setting("log.preallocate", Kind.BOOLEAN, False, "Default of `preallocate`."),
    Setting("log.roll.jitter.ms", Kind.LONG, None, "Default of `segment.jitter.ms`.", Between(0)),
    Setting(
        "log.roll.jitter.hours",
        Kind.INT,
        0,
        "Default of `segment.jitter.ms` in hours.",
        Between(0),
    ),
    Setting("log.roll.ms", Kind.LONG, None, "Default of `segment.ms`.", Between(1)),
    Setting("log.roll.hours", Kind.INT, 168, "Default of `segment.ms` in hours.", Between(1)),
    Setting(
        "log.segment.bytes",
        Kind.INT,
        1024 * MIB,
        "Default of `segment.bytes`.",
        Between(MIB),
    ),
    Setting(
        "log.segment.delete.delay.ms",
        Kind.LONG,
        MINUTE_MS,
        "Default of `file.delete.delay.ms`.",
        Between(0),
    ),
    Setting(
        "producer.id.expiration.ms",
        Kind.INT,
        DAY_MS,
        "How long an idempotent producer that writes nothing is remembered.",
        Between(1),
        Dynamic.CLUSTER_WIDE,
    ),
)
