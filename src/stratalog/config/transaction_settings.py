"""The settings of transactions, by Kafka's names.

In: nothing. Out: `TRANSACTIONS`, a part of `broker_settings.BROKER_SETTINGS`. Data only.
"""

from typing import Final

from stratalog.config.kinds import Between, Dynamic, Kind, Setting

__all__ = ["TRANSACTIONS"]

TRANSACTIONS: Final = (
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10_000,
        "How often a coordinator looks for transactions that are open for too long, and for ids that have expired.",
        Between(1),
    ),
    Setting(
        "transaction.max.timeout.ms",
        Kind.INT,
        900_000,
        "The longest time-out that a transactional producer may ask for. An open transaction holds back readers of "
        "committed records, and the tier.",
        Between(1),
    ),
    Setting(
        "transaction.partition.verification.enable",
        Kind.BOOLEAN,
        True,
        "Whether a leader asks the coordinator before it stores a transaction's first batch of a partition (KIP-890).",
        dynamic=Dynamic.CLUSTER_WIDE,
    ),
    Setting(
        "transaction.state.log.min.isr",
        Kind.INT,
        2,
        "`min.insync.replicas` of `__transaction_state`; fewer where it has fewer replicas.",
        Between(1),
    ),
    Setting(
        "transaction.state.log.num.partitions",
        Kind.INT,
        50,
        "Partitions of `__transaction_state`, fixed when it is created.",
        Between(1),
    ),
    Setting(
        "transaction.state.log.replication.factor",
        Kind.SHORT,
        3,
        "Replicas of each partition of `__transaction_state`, counted as `offsets.topic.replication.factor`.",
        Between(1),
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        Kind.INT,
        100 << 20,
        "Segment size of `__transaction_state`. As for every topic, at least a mebibyte.",
        Between(1 << 20),
    ),
    Setting(
        "transaction.two.phase.commit.enable",
        Kind.BOOLEAN,
        False,
        "Whether clients may have transactions that no time-out aborts, and keep those of an earlier client (KIP-939). "
        "Turn it on for all brokers. Apache Kafka 4.3 does so only with unstable API versions.",
    ),
    Setting(
        "transactional.id.expiration.ms",
        Kind.INT,
        604_800_000,
        "A coordinator forgets a transactional id that no producer used for so long.",
        Between(1),
    ),
)
