"""Estimate the size of a cluster: network, disks, bucket, rebalancing and cost, each with its reasoning.

In: topics, brokers, prices. Out: estimates. It never measures anything and reads no cluster: it is pure arithmetic.

The formulas are from two references. One is about tiered storage on an object store (network multiplier, one copy in
the bucket, open segments on local disks, the bound of a rebalance). The other is about replication on volumes that
protect themselves (two replicas instead of three). Bytes are those on disk, after compression. Units are decimal (1 MB
= 10^6 bytes), as in the references. As in the references, a cluster's partitions are those that its brokers hold, so
every replica counts once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

__all__ = [
    "Cluster",
    "Estimate",
    "Topic",
    "classic_bytes",
    "classic_rebalance_s",
    "cluster_multiplier",
    "compare_replication",
    "local_bytes",
    "network_multiplier",
    "open_segments_bytes",
    "plan",
    "rebalance_bound_s",
    "remote_bytes",
    "tier_share",
]

MB: Final = 10**6
GB: Final = 10**9
TB: Final = 10**12
HOUR_S: Final = 3600

CLASSIC_REBALANCE_RATE: Final = 150 * TB / (57 * HOUR_S)
"""Bytes a second that a cluster without a tier rebalances unthrottled: the reference's 57 hours for 150 TB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """The description of one topic. `ingress` is bytes a second from producers; `hotset_s` is how long tiered data
    stays on local disks (`local.retention.ms`); all are positive, groups and hotset may be 0.
    """

    name: str = "topic"
    ingress: float
    retention_s: float
    partitions: int = 1
    replication_factor: int = 3
    consumer_groups: int = 1
    segment_bytes: int = 100 * MB
    hotset_s: float = 0
    tiered: bool = True

    @property
    def replicas(self) -> int:
        """Copies of partitions that brokers hold."""
        return self.partitions * self.replication_factor

    @property
    def kept_bytes(self) -> float:
        """One copy of everything in retention."""
        return self.ingress * self.retention_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The brokers and disks of the topics. `throttle` is bytes a second of a rebalance; prices are for a GB and month;
    `volume_overhead` is raw bytes per byte on volumes that protect themselves; `downtime_s` is how long a broker is
    down before it returns with its volume.
    """

    brokers: int = 3
    throttle: float = 10 * MB
    local_price: float = 0.08
    remote_price: float = 0.023
    volume_overhead: float = 1.25
    downtime_s: float = 600


@dataclass(frozen=True, slots=True)
class Estimate:
    """One result: `unit` is one of x, %, bytes, bytes/s, s, per month, objects/s; `why` shows the arithmetic, with
    `{0}` for `terms[0]` (a value and its unit), for the printing code to fill in.
    """

    name: str
    value: float
    unit: str
    why: str
    terms: tuple[tuple[float, str], ...] = ()


def network_multiplier(topic: Topic) -> int:
    """Return how many times a byte from a producer crosses the network: to the leader, to the other replicas, to the
    tier, and to each consumer group.
    """
    return topic.replication_factor + int(topic.tiered) + topic.consumer_groups


def cluster_multiplier(topics: Sequence[Topic]) -> float:
    """Return the topics' multipliers, weighted by ingress."""
    return sum(t.ingress * network_multiplier(t) for t in topics) / _ingress(topics)


def tier_share(topics: Sequence[Topic]) -> float:
    """Return the network load of tiering, as a share of the load without it."""
    tiered = sum(t.ingress for t in topics if t.tiered)
    return tiered / (_ingress(topics) * cluster_multiplier(topics) - tiered)


def remote_bytes(topic: Topic) -> float:
    """Return the usable capacity in the bucket: one copy, because the store protects it."""
    return topic.kept_bytes if topic.tiered else 0


def classic_bytes(topic: Topic) -> float:
    """Return raw local capacity without a tier: every replica of everything."""
    return topic.kept_bytes * topic.replication_factor


def open_segments_bytes(segment_bytes: int, replicas: int) -> int:
    """Return the most bytes that are not tiered yet: an open segment in every replica."""
    return segment_bytes * replicas


def local_bytes(topic: Topic) -> float:
    """Return the local capacity of all brokers: open segments and the hotset, or everything of a topic that is not
    tiered.
    """
    if not topic.tiered:
        return classic_bytes(topic)
    hotset = topic.ingress * min(topic.hotset_s, topic.retention_s) * topic.replication_factor
    return open_segments_bytes(topic.segment_bytes, topic.replicas) + hotset


def rebalance_bound_s(segment_bytes: int, replicas: int, throttle: float) -> float:
    """Return the longest time to move `replicas`: only bytes that are not tiered yet move, whatever the retention."""
    return open_segments_bytes(segment_bytes, replicas) / throttle


def classic_rebalance_s(kept_bytes: float, rate: float = CLASSIC_REBALANCE_RATE) -> float:
    """Return how long a rebalance takes without a tier, extrapolated from the reference: it grows with retention."""
    return kept_bytes / rate


def plan(topics: Sequence[Topic], cluster: Cluster) -> list[Estimate]:
    """Return every estimate for topics (at least one) on a cluster."""
    assert topics, "a plan of nothing"
    return [
        *_network(topics),
        *_capacity(topics),
        *_rebalance(topics, cluster),
        *_cost(topics, cluster),
    ]


def _ingress(topics: Sequence[Topic]) -> float:
    return sum(topic.ingress for topic in topics)


def _total(topics: Sequence[Topic], measure: Callable[[Topic], float]) -> float:
    return sum(measure(topic) for topic in topics)


def _network(topics: Sequence[Topic]) -> list[Estimate]:
    ingress, multiplier = _ingress(topics), cluster_multiplier(topics)
    parts = "; ".join(
        f"{t.name}: {t.replication_factor} replicas + {int(t.tiered)} to the tier"
        f" + {t.consumer_groups} groups = {network_multiplier(t)}"
        for t in topics
    )
    if len(topics) > 1:
        parts += "; averaged by what comes in"
    tiered = sum(t.ingress for t in topics if t.tiered)
    without = ingress * multiplier - tiered
    writes = _local_writes(topics)
    objects = sum(t.ingress / t.segment_bytes for t in topics if t.tiered)
    rate = "bytes/s"
    return [
        Estimate("network multiplier", multiplier, "x", parts),
        Estimate(
            "network",
            ingress * multiplier,
            rate,
            "{0} in, {1} times",
            ((ingress, rate), (multiplier, "")),
        ),
        Estimate(
            "network for the tier",
            tier_share(topics) * 100,
            "%",
            "{0} to the tier on top of {1}",
            ((tiered, rate), (without, rate)),
        ),
        Estimate("local writes", writes, rate, "{0} in, on every replica", ((ingress, rate),)),
        Estimate(
            "tier writes",
            tiered,
            rate,
            "one replica is copied; in bursts of up to {0}, where segments fill together",
            ((writes, rate),),
        ),
        Estimate("tier objects", objects, "objects/s", "one object for each closed segment"),
    ]


def _capacity(topics: Sequence[Topic]) -> list[Estimate]:
    kept = _total(topics, lambda t: t.kept_bytes)
    classic = _total(topics, classic_bytes)
    open_bytes = sum(open_segments_bytes(t.segment_bytes, t.replicas) for t in topics if t.tiered)
    local = _total(topics, local_bytes)
    replicas = sum(t.replicas for t in topics if t.tiered)
    return [
        Estimate(
            "bucket capacity",
            _total(topics, remote_bytes),
            "bytes",
            "{0} kept; one copy, the store protects it",
            ((kept, "bytes"),),
        ),
        Estimate(
            "local capacity without a tier",
            classic,
            "bytes",
            "{0} kept, on every replica",
            ((kept, "bytes"),),
        ),
        Estimate(
            "local capacity",
            local,
            "bytes",
            "at most {0} in the open segments of {1} replicas, {2} in hotsets and topics without a tier",
            ((open_bytes, "bytes"), (replicas, ""), (local - open_bytes, "bytes")),
        ),
    ]


def _rebalance(topics: Sequence[Topic], cluster: Cluster) -> list[Estimate]:
    replicas = sum(topic.replicas for topic in topics)
    all_tiered = all(topic.tiered for topic in topics)
    held = ceil(replicas / cluster.brokers)
    moved = sum(
        open_segments_bytes(t.segment_bytes, t.replicas) if t.tiered else classic_bytes(t)
        for t in topics
    )
    classic = _total(topics, classic_bytes)
    return [
        Estimate(
            "moved for a broker",
            moved / cluster.brokers,
            "bytes",
            "what is not tiered of {0} replicas on each of {1} brokers",
            ((held, ""), (cluster.brokers, "")),
        ),
        Estimate(
            "rebalance bound for a broker",
            moved / cluster.brokers / cluster.throttle,
            "s",
            "{0} at {1}" + ("; does not grow with what is kept" if all_tiered else ""),
            ((moved / cluster.brokers, "bytes"), (cluster.throttle, "bytes/s")),
        ),
        Estimate(
            "the same without a tier",
            classic / cluster.brokers / cluster.throttle,
            "s",
            "{0} at {1}",
            ((classic / cluster.brokers, "bytes"), (cluster.throttle, "bytes/s")),
        ),
        Estimate(
            "whole cluster without a tier or throttle",
            classic_rebalance_s(_total(topics, lambda t: t.kept_bytes)),
            "s",
            "{0} kept at {1}, the reference's 57 hours for 150 TB",
            (
                (_total(topics, lambda t: t.kept_bytes), "bytes"),
                (CLASSIC_REBALANCE_RATE, "bytes/s"),
            ),
        ),
    ]


def _cost(topics: Sequence[Topic], cluster: Cluster) -> list[Estimate]:
    local, remote = _total(topics, local_bytes), _total(topics, remote_bytes)
    classic = _total(topics, classic_bytes)
    month = "per month"
    with_tier = (local * cluster.local_price + remote * cluster.remote_price) / GB
    return [
        Estimate(
            "storage cost",
            with_tier,
            month,
            "{0} local at {1} + {2} in the bucket at {3} for a GB",
            (
                (local, "bytes"),
                (cluster.local_price, ""),
                (remote, "bytes"),
                (cluster.remote_price, ""),
            ),
        ),
        Estimate(
            "storage cost without a tier",
            classic * cluster.local_price / GB,
            month,
            "{0} local at {1} for a GB",
            ((classic, "bytes"), (cluster.local_price, "")),
        ),
    ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of a comparison: two estimates in the same unit; `why` and `terms` as in `Estimate`."""

    name: str
    drives: float
    volumes: float
    unit: str
    why: str
    terms: tuple[tuple[float, str], ...] = ()


def compare_replication(
    topics: Sequence[Topic], cluster: Cluster, *, drives: int = 3, volumes: int = 2
) -> list[Comparison]:
    """Return `drives` replicas on brokers' own drives against `volumes` replicas on volumes that protect themselves.

    A volume repairs a failed drive itself, and a broker replaced under its old id with its old volume fetches only the
    missed records. On drives, the broker fetches everything it held.
    """
    on_drives = [replace(topic, replication_factor=drives) for topic in topics]
    on_volumes = [replace(topic, replication_factor=volumes) for topic in topics]
    rate, ingress = "bytes/s", _ingress(topics)

    def both(
        name: str,
        measure: Callable[[Sequence[Topic]], float],
        unit: str,
        why: str,
        *terms: tuple[float, str],
    ) -> Comparison:
        return Comparison(name, measure(on_drives), measure(on_volumes), unit, why, terms)

    return [
        both("network multiplier", cluster_multiplier, "x", "replicas + tier + groups, as above"),
        both(
            "network", lambda ts: ingress * cluster_multiplier(ts), rate, "{0} in", (ingress, rate)
        ),
        both("local writes", _local_writes, rate, "{0} in, on every replica", (ingress, rate)),
        both(
            "replicas that acks=all waits for",
            lambda ts: max(t.replication_factor for t in ts) - 1,
            "",
            "all but the leader",
        ),
        both(
            "local capacity",
            lambda ts: _total(ts, local_bytes),
            "bytes",
            "what is not tiered, and the hotset, of every replica",
        ),
        *_raw_and_fetched(on_drives, on_volumes, cluster),
    ]


def _raw_and_fetched(
    on_drives: Sequence[Topic], on_volumes: Sequence[Topic], cluster: Cluster
) -> list[Comparison]:
    local, held = _total(on_drives, local_bytes), _total(on_volumes, local_bytes)
    lost = local / cluster.brokers
    missed = min(_local_writes(on_volumes) * cluster.downtime_s / cluster.brokers, lost)
    return [
        Comparison(
            "raw local capacity",
            local,
            held * cluster.volume_overhead,
            "bytes",
            "a volume keeps {0} raw bytes for each, so as to lose a drive",
            ((cluster.volume_overhead, ""),),
        ),
        Comparison(
            "fetched by a replaced broker",
            lost,
            missed,
            "bytes",
            "all it held; under its old id with its old volume at most the writes of {0}",
            ((cluster.downtime_s, "s"),),
        ),
        Comparison(
            "the same at the throttle",
            lost / cluster.throttle,
            missed / cluster.throttle,
            "s",
            "at {0}",
            ((cluster.throttle, "bytes/s"),),
        ),
        Comparison(
            "fetched after a drive failed",
            lost,
            0,
            "bytes",
            "all the broker held, from the others; a volume rebuilds itself",
        ),
    ]


def _local_writes(topics: Sequence[Topic]) -> float:
    return sum(topic.ingress * topic.replication_factor for topic in topics)
