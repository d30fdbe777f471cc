"""The settings of replication between brokers, by Kafka's names.

In: nothing. Out: `REPLICATION`, a part of `broker_settings.BROKER_SETTINGS`. Data only.
"""

from typing import Final

from stratalog.config.kinds import INT_MAX, LONG_MAX, Between, Dynamic, Kind, OneOf, Setting

__all__ = ["REPLICATION"]

REPLICATION: Final = (
    Setting(
        "inter.broker.listener.name",
        Kind.STRING,
        "",
        "The listener on which other brokers reach this one; by default the one of the name PLAINTEXT, else the first.",
        kafka_default="null",
    ),
    Setting(
        "num.replica.fetchers",
        Kind.INT,
        1,
        "Connections to each broker that leads partitions which this one follows.",
        Between(1),
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    Setting(
        "replica.fetch.max.bytes",
        Kind.INT,
        4 << 20,
        "Most bytes that a follower takes of one partition in one fetch; a larger batch comes alone. More than "
        "Kafka's, because fewer fetches cost less CPU; `replica.fetch.response.max.bytes` bounds the memory.",
        Between(0, INT_MAX),
        kafka_default="1048576",
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        10 << 20,
        "Most bytes that a follower takes in one fetch.",
        Between(0, INT_MAX),
    ),
    Setting(
        "replica.fetch.min.bytes",
        Kind.INT,
        1,
        "Bytes for which a follower's fetch waits.",
        Between(0),
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        Kind.INT,
        500,
        "How long a follower's fetch waits for records. Shorter than `replica.lag.time.max.ms`.",
        Between(0),
    ),
    Setting(
        "replica.fetch.backoff.ms",
        Kind.INT,
        1000,
        "How long a follower waits after a fetch that failed.",
        Between(0),
    ),
    Setting(
        "follower.fetch.last.tiered.offset.enable",
        Kind.BOOLEAN,
        default=True,
        doc="Whether an empty replica skips all that the bucket has (KIP-1023), or only what its leader's disk lacks. "
        "True here: a new replica then moves the same number of bytes, however long the history.",
        dynamic=Dynamic.CLUSTER_WIDE,
        kafka_default="false",
    ),
    Setting(
        "replica.lag.time.max.ms",
        Kind.LONG,
        30_000,
        "A follower that was not caught up for so long leaves the in-sync replicas.",
        Between(1),
    ),
    Setting(
        "replica.selector.class",
        Kind.STRING,
        "",
        "Which replica serves a consumer that names its rack (`client.rack`): by default the leader. With this class a "
        "leader names a follower of the consumer's rack instead (KIP-392).",
        OneOf(("org.apache.kafka.common.replica.RackAwareReplicaSelector",)),
        kafka_default="null",
    ),
    Setting(
        "replica.socket.timeout.ms",
        Kind.INT,
        30_000,
        "How long a follower waits for its leader's answer, beyond which it connects again.",
        Between(1),
    ),
    Setting(
        "replica.socket.receive.buffer.bytes",
        Kind.INT,
        -1,
        "Size of the system's receive buffer of a connection over which a follower fetches; -1: the system decides, "
        "which costs less CPU than Kafka's.",
        Between(-1, INT_MAX),
        kafka_default="65536",
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.LONG,
        5000,
        "How often the high watermarks of partitions with several replicas are written down.",
        Between(1),
    ),
    Setting(
        "leader.replication.throttled.rate",
        Kind.LONG,
        LONG_MAX,
        "Bytes a second that this broker sends to followers which are not in sync, of the replicas that the topics' "
        "`leader.replication.throttled.replicas` name.",
        Between(0),
        dynamic=Dynamic.CLUSTER_WIDE,
        unlisted=True,
    ),
    Setting(
        "follower.replication.throttled.rate",
        Kind.LONG,
        LONG_MAX,
        "Bytes a second that this broker fetches to catch up, of the replicas that the topics' "
        "`follower.replication.throttled.replicas` name.",
        Between(0),
        dynamic=Dynamic.CLUSTER_WIDE,
        unlisted=True,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Kind.LONG,
        LONG_MAX,
        "Bytes a second that moves between the log directories of this broker copy.",
        Between(0),
        dynamic=Dynamic.CLUSTER_WIDE,
        unlisted=True,
    ),
    Setting(
        "replication.quota.window.num",
        Kind.INT,
        11,
        "Samples of the window over which the rates of replication count; so many may pass at once.",
        Between(1),
    ),
    Setting(
        "replication.quota.window.size.seconds",
        Kind.INT,
        1,
        "Length of each of these samples.",
        Between(1),
    ),
    Setting(
        "alter.log.dirs.replication.quota.window.num",
        Kind.INT,
        11,
        "Samples of the window over which the rate of moves between log directories count; so many may pass at once.",
        Between(1),
    ),
    Setting(
        "alter.log.dirs.replication.quota.window.size.seconds",
        Kind.INT,
        1,
        "Length of each of these samples.",
        Between(1),
    ),
)
