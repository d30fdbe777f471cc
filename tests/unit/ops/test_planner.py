"""The planner's formulas give the references' own numbers, each quoted beside it."""

import pytest

from stratalog.ops.planner import (
    GB,
    HOUR_S,
    MB,
    TB,
    Cluster,
    Topic,
    classic_bytes,
    classic_rebalance_s,
    cluster_multiplier,
    compare_replication,
    local_bytes,
    network_multiplier,
    open_segments_bytes,
    plan,
    rebalance_bound_s,
    remote_bytes,
    tier_share,
)

WEEK_S = 7 * 24 * HOUR_S
STREAM = Topic(ingress=GB, retention_s=WEEK_S)


def estimates(*topics, **cluster):
    return {estimate.name: estimate.value for estimate in plan(topics, Cluster(**cluster))}


def test_a_record_crosses_the_network_five_times():
    """Reference: replication factor 3, one copy to the tier, one consumer group: "a 5x multiplier"."""
    assert network_multiplier(STREAM) == 5
    assert network_multiplier(Topic(ingress=1, retention_s=1, consumer_groups=4)) == 8
    assert network_multiplier(Topic(ingress=1, retention_s=1, tiered=False)) == 4


def test_one_gigabyte_a_second_needs_five_of_network_a_quarter_of_it_more_for_the_tier():
    """Reference: 1 GB/s in, RF 3, one group: 5 GB/s; tiering adds 25 %; 3 GB/s of local and 1 GB/s of tier writes."""
    found = estimates(STREAM)
    assert found["network"] == 5 * GB
    assert tier_share([STREAM]) == 0.25
    assert found["network for the tier"] == 25
    assert found["local writes"] == 3 * GB
    assert found["tier writes"] == GB
    assert found["tier objects"] == 10


def test_a_week_of_a_hundred_megabytes_a_second_is_sixty_terabytes_not_a_hundred_and_eighty():
    """Reference: "requires 60TB of usable capacity", "will require 180TB of raw storage"."""
    topic = Topic(ingress=100 * MB, retention_s=WEEK_S)
    assert remote_bytes(topic) == pytest.approx(60 * TB, rel=0.01)
    assert classic_bytes(topic) == pytest.approx(180 * TB, rel=0.01)
    found = estimates(topic)
    assert found["bucket capacity"] == remote_bytes(topic)
    assert found["local capacity without a tier"] == classic_bytes(topic)


def test_ten_thousand_partitions_need_a_terabyte_of_local_disk():
    """Reference: "10k partitions would then need at most 1TB of local storage spread across all brokers"."""
    assert open_segments_bytes(100 * MB, 10_000) == TB
    topic = Topic(ingress=GB, retention_s=WEEK_S, partitions=5_000, replication_factor=2)
    assert local_bytes(topic) == TB
    assert estimates(topic)["local capacity"] == TB


def test_a_broker_of_a_thousand_partitions_moves_a_hundred_gigabytes_in_ten_thousand_seconds():
    """Reference: "100MB * 1,000 = 100GB", at the default throttle of 10 MB/s "close to three hours"."""
    assert open_segments_bytes(100 * MB, 1_000) == 100 * GB
    assert rebalance_bound_s(100 * MB, 1_000, 10 * MB) == 10_000
    topic = Topic(ingress=GB, retention_s=WEEK_S, partitions=1_000)
    found = estimates(topic, brokers=3)
    assert found["moved for a broker"] == 100 * GB
    assert found["rebalance bound for a broker"] == 10_000
    later = Topic(ingress=GB, retention_s=520 * WEEK_S, partitions=1_000)
    assert estimates(later)["rebalance bound for a broker"] == 10_000


def test_a_classic_cluster_of_150_terabytes_rebalances_for_57_hours_and_a_tiered_one_for_seconds():
    """Reference: "150TB Kafka cluster would take 57 hours", linear in what is kept; tiered "less than one minute"
    at a throttle of 10 GB/s.
    """
    assert classic_rebalance_s(150 * TB) == pytest.approx(57 * HOUR_S)
    assert classic_rebalance_s(300 * TB) == pytest.approx(114 * HOUR_S)
    assert rebalance_bound_s(100 * MB, 1_000, 10 * GB) < 60


def test_a_cluster_s_multiplier_is_the_weighted_average_of_its_topics():
    """Reference: "a cluster-wide total is simply a weighted average over all topics"."""
    loud = Topic(ingress=3 * GB, retention_s=1)  # 5
    wide = Topic(ingress=GB, retention_s=1, consumer_groups=5)  # 9
    assert cluster_multiplier([loud, wide]) == (3 * 5 + 1 * 9) / 4
    assert estimates(loud, wide)["network"] == 3 * 5 * GB + 9 * GB


def test_a_topic_without_a_tier_and_a_hotset_stay_on_local_disks():
    bare = Topic(ingress=MB, retention_s=1000, tiered=False)
    assert (remote_bytes(bare), local_bytes(bare)) == (0, 3 * GB)
    warm = Topic(ingress=MB, retention_s=5000, hotset_s=1000)
    assert local_bytes(warm) == 3 * 100 * MB + 3 * GB
    short = Topic(ingress=MB, retention_s=1000, hotset_s=5000)
    assert local_bytes(short) == 3 * 100 * MB + 3 * GB
    assert tier_share([bare]) == 0


def test_cost_is_the_sum_of_bytes_times_price_of_each_place():
    topic = Topic(ingress=100 * MB, retention_s=WEEK_S)
    found = estimates(topic, local_price=0.1, remote_price=0.02)
    assert found["storage cost"] == pytest.approx(0.3 * 0.1 + 60_480 * 0.02)
    assert found["storage cost without a tier"] == pytest.approx(181_440 * 0.1)


def test_two_replicas_on_protected_volumes_against_three_on_drives():
    """Reference: volumes rebuild drives themselves, so that replication "can be set to '2'"; a server replaced under
    the old id with its volume synchronizes "only writes that were missed".
    """
    topic = Topic(ingress=GB, retention_s=WEEK_S, tiered=False)
    lines = {
        line.name: (line.drives, line.volumes) for line in compare_replication([topic], Cluster())
    }
    assert lines["network multiplier"] == (4, 3)
    assert lines["local writes"] == (3 * GB, 2 * GB)
    assert lines["replicas that acks=all waits for"] == (2, 1)
    kept = GB * WEEK_S
    assert lines["local capacity"] == (3 * kept, 2 * kept)
    assert lines["raw local capacity"] == (3 * kept, 2 * kept * 1.25)
    assert lines["fetched by a replaced broker"] == (kept, 2 * GB * 600 / 3)
    assert lines["fetched after a drive failed"] == (kept, 0)
