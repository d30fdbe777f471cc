"""Goal: a consumer reads from a replica of its rack that has what the consumer asks for."""

from stratalog.replication.partition import PartitionReplica
from stratalog.replication.selection import nearest_follower

RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}


def leader(ends, starts=None, isr=(1, 2, 3, 4)):
    replica = PartitionReplica(node_id=1, replicas=(1, 2, 3, 4), isr=isr)
    replica.become_leader(1, 100)
    for node, end in ends.items():
        start = (starts or {}).get(node, 0)
        replica.on_follower_fetch(
            node,
            end,
            node,  # the time in ms
            log_start_offset=start,
            lag_ms_max=1000,
            broker_epoch=7,
            may_join=True,
        )
    return replica


def nearest(replica, rack, offset=10, racks=RACKS):
    return nearest_follower(replica, racks.get, rack, offset)


def test_the_leader_serves_its_own_rack_and_racks_without_a_replica():
    replica = leader({2: 100, 3: 100, 4: 100})
    assert nearest(replica, "a") is None
    assert nearest(replica, "z") is None
    assert nearest(replica, "c") == 4


def test_the_follower_with_the_most_records_is_nearest_then_the_last_to_catch_up():
    assert nearest(leader({2: 90, 3: 80}), "b") == 2
    assert nearest(leader({2: 80, 3: 90}), "b") == 3
    assert nearest(leader({2: 100, 3: 100}), "b") == 3


def test_a_follower_counts_only_with_the_offset_in_sync_and_active():
    replica = leader({2: 90, 3: 50}, {2: 20})
    assert nearest(replica, "b", 10) == 3, "the log of 2 begins later"
    assert nearest(replica, "b", 60) == 2
    assert nearest(replica, "b", 90) == 2, "its next record"
    assert nearest(replica, "b", 91) is None
    assert nearest(leader({2: 90}, isr=(1, 3, 4)), "b") is None
    assert nearest(replica, "b", 60, {**RACKS, 2: None}) is None
    assert nearest(leader({}), "b") is None, "none has fetched yet"
