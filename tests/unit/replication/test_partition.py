"""Goal: the high watermark is the lowest log end of the ISR, and never falls within a leadership."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import ErrorCode, Rejected
from stratalog.replication.partition import PartitionReplica


def leader(isr=(1, 2, 3), replicas=(1, 2, 3), log_end_offset=0, epoch=4, now_ms=0):
    replica = PartitionReplica(node_id=1, replicas=replicas, isr=isr)
    replica.become_leader(epoch, log_end_offset, now_ms=now_ms)
    return replica


def fetch(replica, node_id, offset, now_ms=0, *, lag_ms_max=1_000, may_join=True):
    return replica.on_follower_fetch(
        node_id,
        offset,
        now_ms,
        log_start_offset=0,
        lag_ms_max=lag_ms_max,
        broker_epoch=7,
        may_join=may_join,
    )


def test_a_sole_replica_commits_each_append_at_once():
    replica = PartitionReplica(node_id=1, replicas=(1,), isr=(1,))
    replica.become_leader(1, 10)
    assert replica.high_watermark == 10
    assert replica.on_append(15)
    assert replica.high_watermark == 15
    assert not replica.on_append(15)


def test_the_slowest_replica_of_the_isr_decides_the_high_watermark():
    replica = leader(isr=(1, 2))
    assert not replica.on_append(10)
    assert fetch(replica, 2, 6)
    assert not fetch(replica, 3, 1)
    assert replica.high_watermark == 6
    assert fetch(replica, 2, 10)
    assert replica.high_watermark == 10


def test_a_smaller_isr_commits_records_that_the_removed_replica_lacked():
    replica = leader()
    replica.on_append(10)
    fetch(replica, 2, 10)
    assert replica.high_watermark == 0
    replica.become_leader(4, 10, isr=(1, 2), partition_epoch=1)
    assert replica.high_watermark == 10


def test_a_replica_that_joins_the_isr_does_not_lower_the_high_watermark():
    replica = leader(isr=(1,))
    replica.on_append(10)
    fetch(replica, 3, 4)
    replica.become_leader(4, 10, isr=(1, 3), partition_epoch=1)
    assert replica.high_watermark == 10


def test_a_log_that_lost_its_end_lowers_the_checkpointed_high_watermark():
    replica = PartitionReplica(
        node_id=1, replicas=(1,), isr=(1,), leader_epoch=3, high_watermark=100
    )
    replica.become_leader(4, 60)
    assert replica.high_watermark == 60


def test_epochs_only_grow():
    replica = leader(epoch=4)
    with pytest.raises(AssertionError):
        replica.become_leader(3, 0)
    replica.become_follower(4)
    with pytest.raises(AssertionError):
        replica.become_leader(4, 0)
    replica.become_leader(5, 0)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (4, None),
        (3, ErrorCode.fenced_leader_epoch),
        (5, ErrorCode.unknown_leader_epoch),
    ],
)
def test_requests_of_another_leadership_are_refused(epoch, code):
    replica = leader(epoch=4)
    if code is None:
        replica.check_leader(epoch)
    else:
        with pytest.raises(Rejected) as refused:
            replica.check_leader(epoch)
        assert refused.value.code is code


def test_a_replica_that_does_not_lead_refuses_requests_with_the_reason():
    replica = leader(epoch=4)
    replica.become_follower(5)
    replica.check_epoch(5)
    for epoch, code in ((5, ErrorCode.not_leader_or_follower), (4, ErrorCode.fenced_leader_epoch)):
        with pytest.raises(Rejected) as refused:
            replica.check_leader(epoch)
        assert refused.value.code is code


def test_a_follower_knows_the_replicas_and_the_isr_of_the_metadata():
    replica = leader(epoch=4)
    with pytest.raises(AssertionError):
        replica.follow((1, 2), (2,))
    replica.become_follower(5)
    replica.follow((1, 2, 9), (9,))
    assert (replica.replicas, replica.isr) == ((1, 2, 9), (9,))


def test_a_followers_high_watermark_is_the_leaders_up_to_its_own_log_end():
    replica = PartitionReplica(node_id=1, replicas=(1, 2), isr=(1, 2))
    replica.become_follower(2)
    assert replica.on_leader_high_watermark(50, 20)
    assert replica.high_watermark == 20
    assert not replica.on_leader_high_watermark(10, 30)
    assert replica.high_watermark == 20
    replica.on_truncated(15)
    assert replica.high_watermark == 15


def test_undecided_transactions_hold_back_the_last_stable_offset():
    replica = leader(isr=(1,))
    replica.on_append(10)
    assert replica.last_stable_offset(None) == 10
    assert replica.last_stable_offset(4) == 4
    assert replica.last_stable_offset(12) == 10


def test_a_broker_without_a_replica_may_not_fetch_as_a_follower():
    with pytest.raises(Rejected) as refused:
        fetch(leader(), 9, 0)
    assert refused.value.code is ErrorCode.unknown_leader_epoch


def test_a_replica_that_keeps_up_under_load_stays_in_the_isr():
    """The replica never reaches the log's end, but each time the end at its previous fetch (KAFKA-1546)."""
    replica = leader(isr=(1, 2), now_ms=0)
    for now_ms in range(0, 5_000, 100):
        replica.on_append(now_ms + 100)
        fetch(replica, 2, now_ms, now_ms)
    assert replica.propose_isr(5_000, 1_000) is None
    replica.on_append(99_999)
    assert replica.propose_isr(7_000, 1_000) == (1,)


def test_a_replica_that_stops_leaves_the_isr_after_the_lag_and_joins_again():
    replica = leader(isr=(1, 2, 3))
    replica.on_append(10)
    fetch(replica, 2, 10, 900)
    assert replica.propose_isr(1_000, 1_000) is None
    assert replica.propose_isr(1_001, 1_000) == (1, 2)
    assert replica.high_watermark == 0, "the controller has not decided about the earlier proposal"
    assert replica.on_isr_decided((1, 2), 5)
    assert replica.high_watermark == 10
    fetch(replica, 3, 9, 2_000)
    assert replica.propose_isr(2_000, 10_000) is None
    fetch(replica, 3, 10, 2_000)
    assert replica.propose_isr(2_000, 10_000) == (1, 2, 3)


def test_the_high_watermark_waits_for_a_replica_that_the_controller_may_have_added():
    replica = leader(isr=(1,))
    fetch(replica, 2, 0)
    assert replica.propose_isr(0, 1_000) == (1, 2)
    replica.on_append(10)
    assert replica.high_watermark == 0
    assert replica.propose_isr(5_000, 1_000) is None, "only one proposal may be open"
    assert replica.high_watermark == 0, "it lags, but the controller may have added it"
    assert replica.on_isr_refused()
    assert replica.high_watermark == 10


def test_the_high_watermark_waits_for_a_replica_that_is_about_to_join():
    """Otherwise a follower of a busy leader never catches up (Kafka: shouldWaitForReplicaToJoinIsr)."""
    replica = leader(isr=(1,))
    fetch(replica, 2, 0, now_ms=0)
    replica.on_append(10)
    assert replica.high_watermark == 0
    fetch(replica, 2, 8, now_ms=500)
    assert replica.high_watermark == 8
    assert replica.propose_isr(501, 1_000) == (1, 2)


def test_the_high_watermark_does_not_wait_for_a_fenced_replica():
    replica = leader(isr=(1,))
    fetch(replica, 2, 0, may_join=False)
    replica.on_append(10)
    assert replica.high_watermark == 10


def test_the_high_watermark_waits_no_more_for_a_replica_whose_broker_is_fenced():
    """Kafka: isReplicaIsrEligible is asked again each time."""
    replica = leader(isr=(1,))
    fetch(replica, 2, 0)
    replica.on_append(10)
    assert replica.high_watermark == 0
    assert not replica.on_inactive(frozenset({3, 9})), "it waits for broker 2 only"
    assert replica.on_inactive(frozenset({2}))
    assert replica.high_watermark == 10


def test_a_fenced_broker_holds_the_high_watermark_while_it_is_in_the_isr():
    replica = leader(isr=(1, 2))
    fetch(replica, 2, 0)
    replica.on_append(10)
    assert not replica.on_inactive(frozenset({2})), (
        "the controller removes it from the ISR, not the leader"
    )
    assert replica.high_watermark == 0


def test_a_replica_that_stops_before_it_joins_is_waited_for_only_for_the_lag():
    replica = leader(isr=(1,))
    fetch(replica, 2, 0, now_ms=0)
    replica.on_append(10)
    assert replica.propose_isr(1_001, 1_000) is None
    assert replica.high_watermark == 10


@pytest.mark.parametrize("how", ["metadata", "answer"])
def test_a_replica_that_has_left_the_isr_is_not_waited_for_before_it_fetches_again(how):
    replica = leader(isr=(1, 2, 3))
    fetch(replica, 2, 0)
    fetch(replica, 3, 0)
    replica.on_append(10)
    fetch(replica, 3, 10)
    if how == "metadata":
        replica.become_leader(4, 10, isr=(1, 3), partition_epoch=8)
    else:
        replica.on_isr_decided((1, 3), 8)
    assert replica.high_watermark == 10, "its broker may be dead"
    replica.on_append(12)
    fetch(replica, 2, 10)
    fetch(replica, 3, 12)
    assert replica.high_watermark == 10, "it is about to join again"


def test_an_older_decision_about_the_isr_changes_nothing():
    replica = leader(isr=(1, 2, 3))
    replica.become_leader(4, 0, isr=(1, 2), partition_epoch=8)
    assert not replica.on_isr_decided((1, 2, 3), 8)
    replica.become_leader(4, 0, isr=(1, 2, 3), partition_epoch=7)
    assert replica.isr == (1, 2)


def test_a_record_that_comes_after_the_answer_keeps_a_later_proposal():
    replica = leader(isr=(1,))
    fetch(replica, 2, 0)
    assert replica.propose_isr(0, 1_000) == (1, 2)
    replica.on_isr_decided((1, 2), 8)
    fetch(replica, 3, 0)
    assert replica.propose_isr(0, 1_000) == (1, 2, 3)
    replica.become_leader(4, 0, isr=(1, 2), partition_epoch=8)
    assert replica.proposed == (1, 2, 3), "the controller may have accepted it"


def test_below_min_isr_nothing_is_committed_and_acks_all_is_refused():
    replica = PartitionReplica(node_id=1, replicas=(1, 2, 3), isr=(1,), min_isr=2)
    replica.become_leader(4, 10)
    assert replica.high_watermark == 0
    with pytest.raises(Rejected) as refused:
        replica.check_min_isr()
    assert refused.value.code is ErrorCode.not_enough_replicas
    too_few = replica.too_few_in_sync()
    assert too_few is not None
    assert too_few.code is ErrorCode.not_enough_replicas_after_append
    fetch(replica, 3, 10)
    assert replica.on_isr_decided((1, 3), 9)
    assert replica.high_watermark == 10
    replica.check_min_isr()
    assert replica.too_few_in_sync() is None


def test_a_former_leader_sends_its_clients_to_the_new_one_however_small_its_last_isr_was():
    replica = PartitionReplica(node_id=1, replicas=(1, 2, 3), isr=(1,), min_isr=2)
    replica.become_leader(4, 10)
    replica.become_follower(5)
    with pytest.raises(Rejected) as refused:
        replica.check_min_isr()
    assert refused.value.code is ErrorCode.not_leader_or_follower


def test_a_single_replica_satisfies_acks_all_whatever_min_isr_is():
    replica = PartitionReplica(node_id=1, replicas=(1,), isr=(1,), min_isr=2)
    replica.become_leader(4, 10)
    replica.check_min_isr()
    assert replica.high_watermark == 10


def test_replicas_of_an_idle_partition_stay_in_the_isr():
    replica = leader(isr=(1, 2), log_end_offset=5)
    fetch(replica, 2, 5)
    assert replica.propose_isr(1_000_000, 1_000) is None


def test_a_replica_whose_fetches_passed_over_an_idle_partition_has_the_whole_lag_for_the_next_record():
    replica = leader(isr=(1, 2), replicas=(1, 2), log_end_offset=5)
    fetch(replica, 2, 5)
    replica.on_quiet_fetches(2, 500_000)
    replica.on_append(6)
    replica.on_quiet_fetches(2, 501_000)  # with an offset that is behind by now
    assert replica.propose_isr(501_000, 1_000) is None
    assert replica.propose_isr(501_001, 1_000) == (1,)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("fetch"), st.sampled_from((2, 3)), st.integers(0, 30)),
            st.tuples(st.just("isr"), st.sampled_from(((1,), (1, 2), (1, 2, 3))), st.just(0)),
        ),
        max_size=60,
    )
)
def test_the_high_watermark_agrees_with_its_definition(script):
    replica = leader(isr=(1, 2, 3))
    end, isr, fetched, high_watermark = 0, (1, 2, 3), {2: -1, 3: -1}, 0
    partition_epoch = 0
    for verb, what, offset in script:
        if verb == "append":
            end += what
            replica.on_append(end)
        elif verb == "fetch":
            fetched[what] = min(offset, end)
            fetch(replica, what, fetched[what], may_join=False)
        else:
            isr, partition_epoch = what, partition_epoch + 1
            replica.become_leader(4, end, isr=isr, partition_epoch=partition_epoch)
        high_watermark = max(high_watermark, min([end, *(fetched[one] for one in isr if one != 1)]))
        assert replica.high_watermark == high_watermark
