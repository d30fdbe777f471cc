"""The broker's settings for the tier: the bucket, the threads that upload, read and delete, and their rates.

In: nothing. Out: `TIER`, with Kafka's names where Kafka has them (KIP-405, KIP-956). Data only.
"""

from stratalog.config.kinds import LONG_MAX, Between, Dynamic, Kind, Setting, Shaped
from stratalog.config.listeners import check_url

MIB = 1 << 20
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS


def _quota(what: str, done: str, follows: str) -> tuple[Setting, ...]:
    """Return a rate and the window that it is measured over (KIP-956)."""
    name = f"remote.log.manager.{what}"
    return (
        Setting(
            f"{name}.max.bytes.per.second",
            Kind.LONG,
            LONG_MAX,
            f"Bytes {done} a second, at most. {follows}",
            Between(1),
            Dynamic.CLUSTER_WIDE,
        ),
        Setting(
            f"{name}.quota.window.num",
            Kind.INT,
            11,
            "Samples in the window that the rate is measured over.",
            Between(1),
        ),
        Setting(
            f"{name}.quota.window.size.seconds",
            Kind.INT,
            1,
            "Length of a sample.",
            Between(1),
        ),
    )


TIER = (
    Setting(
        "tier.url",
        Kind.STRING,
        "",
        "The bucket, or a prefix of one, that closed segments go to; empty: no tier. A directory "
        "(`file:///data/bucket`) is a bucket too. Endpoint, region and more are part of the URL "
        "([stores.md](stores.md)).",
        Shaped(
            check_url, "file:///…, s3://bucket/prefix, gs://…, az://…, memory://name or nothing"
        ),
        ours=True,
    ),
    Setting(
        "tier.accept.lost.history",
        Kind.BOOLEAN,
        False,
        "Start although the bucket lacks what the manifests beside the logs name: it is another one, was emptied, or "
        "is an older copy. What only the right bucket had is an error for readers from then on. For one start: "
        "`--override tier.accept.lost.history=true`.",
        ours=True,
    ),
    Setting(
        "tier.enable",
        Kind.BOOLEAN,
        False,
        "Whether topics made from now on are tiered (`remote.storage.enable`) unless they say otherwise or are "
        "compacted.",
        ours=True,
    ),
    Setting(
        "tier.max.lag.ms",
        Kind.LONG,
        10 * MINUTE_MS,
        "Default of the topics' `tier.max.lag.ms`.",
        Between(-1),
        ours=True,
    ),
    Setting(
        "tier.state.interval.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "How often topics, settings and committed offsets are uploaded, where one of them or the end of a partition "
        "has changed. After a takeover they may be this old ([recovery.md](recovery.md)).",
        Between(100, MINUTE_MS),
        ours=True,
    ),
    Setting(
        "tier.cache.bytes",
        Kind.LONG,
        64 * MIB,
        "Memory for pieces of segments read back from the bucket.",
        Between(0),
        ours=True,
    ),
    Setting(
        "remote.delete.grace.ms",
        Kind.LONG,
        5 * MINUTE_MS,
        "How long an object stays in the bucket after the manifest has dropped it, for readers "
        "that hold an older manifest. Measured on a steady clock, and again from zero after a restart. Read "
        "leases keep objects for longer.",
        Between(0),
        ours=True,
    ),
    Setting(
        "remote.log.manager.task.interval.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "How often each partition looks for segments to copy or to expire, and followers ask for the bucket's end.",
        Between(1),
    ),
    Setting(
        "remote.log.manager.task.retry.backoff.ms",
        Kind.LONG,
        500,
        "Backoff of a partition after its first failed upload; each further failure doubles it. Segments that "
        "close meanwhile wait too.",
        Between(1),
    ),
    Setting(
        "remote.log.manager.task.retry.backoff.max.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "The longest wait after a failure of the bucket.",
        Between(1),
    ),
    Setting(
        "remote.log.manager.task.retry.jitter",
        Kind.DOUBLE,
        0.2,
        "The random part of such a backoff, so that partitions do not retry together.",
        Between(0, 0.5),
    ),
    Setting(
        "remote.log.manager.copier.thread.pool.size",
        Kind.INT,
        2,
        "Segments copied to the bucket at a time. Each copy streams, and a core is soon full.",
        Between(1),
        Dynamic.CLUSTER_WIDE,
        kafka_default="10",
    ),
    Setting(
        "remote.log.manager.expiration.thread.pool.size",
        Kind.INT,
        2,
        "Partitions whose expired objects are deleted at a time.",
        Between(1),
        Dynamic.CLUSTER_WIDE,
        kafka_default="10",
    ),
    Setting(
        "remote.log.reader.threads",
        Kind.INT,
        4,
        "Reads from the bucket at a time.",
        Between(1),
        Dynamic.CLUSTER_WIDE,
        kafka_default="10",
    ),
    Setting(
        "remote.log.reader.max.pending.tasks",
        Kind.INT,
        100,
        "Reads from the bucket that may wait for a thread; further fetches get "
        "`KAFKA_STORAGE_ERROR`, on which clients retry.",
        Between(1),
    ),
    Setting(
        "remote.fetch.max.wait.ms",
        Kind.INT,
        500,
        "How long a fetch waits for the bucket before its answer leaves without records. A late read is cached.",
        Between(1),
        Dynamic.CLUSTER_WIDE,
    ),
    Setting(
        "remote.list.offsets.request.timeout.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "How long a search for an offset by time waits for the bucket.",
        Between(1),
        Dynamic.CLUSTER_WIDE,
    ),
    *_quota("copy", "copied to the bucket", "The next segment waits, on the local disk."),
    *_quota("fetch", "read from the bucket", "Fetches wait, up to `remote.fetch.max.wait.ms`."),
)
