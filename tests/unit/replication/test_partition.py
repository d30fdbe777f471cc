"""Goal: the high watermark is what all of the ISR has, and never falls within a leadership."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import ErrorCode, Rejected
from stratalog.replication.partition import PartitionReplica


def leader(isr=(1, 2, 3), replicas=(1, 2, 3), log_end_offset=0, epoch=4, now_ms=0):
    replica = PartitionReplica(node_id=1, replicas=replicas, isr=isr)
    replica.become_leader(epoch, log_end_offset, now_ms=now_ms)
    return replica


def test_alone_everything_is_committed_at_once():
    replica = PartitionReplica(node_id=1, replicas=(1,), isr=(1,))
    replica.become_leader(1, 10)
    assert replica.high_watermark == 10
    assert replica.on_append(15)
    assert replica.high_watermark == 15
    assert not replica.on_append(15)


def test_the_slowest_of_the_isr_decides():
    replica = leader(isr=(1, 2))
    assert not replica.on_append(10)
    assert replica.on_follower_fetch(2, 6, 0)
    assert not replica.on_follower_fetch(3, 1, 0)
    assert replica.high_watermark == 6
    assert replica.on_follower_fetch(2, 10, 0)
    assert replica.high_watermark == 10


def test_a_smaller_isr_commits_what_the_lost_one_held_up():
    replica = leader()
    replica.on_append(10)
    replica.on_follower_fetch(2, 10, 0)
    assert replica.high_watermark == 0
    replica.become_leader(4, 10, isr=(1, 2))
    assert replica.high_watermark == 10


def test_a_replica_that_joins_the_isr_does_not_pull_the_high_watermark_back():
    replica = leader(isr=(1,))
    replica.on_append(10)
    replica.on_follower_fetch(3, 4, 0)
    replica.become_leader(4, 10, isr=(1, 3))
    assert replica.high_watermark == 10


def test_a_log_that_lost_its_end_takes_the_written_high_watermark_with_it():
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


def test_one_that_does_not_lead_says_so():
    replica = leader(epoch=4)
    replica.become_follower(5)
    replica.check_epoch(5)
    for epoch, code in ((5, ErrorCode.not_leader_or_follower), (4, ErrorCode.fenced_leader_epoch)):
        with pytest.raises(Rejected) as refused:
            replica.check_leader(epoch)
        assert refused.value.code is code


def test_a_follower_takes_the_leaders_word_as_far_as_it_has_the_log():
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


def test_a_stranger_may_not_fetch_as_a_follower():
    with pytest.raises(Rejected) as refused:
        leader().on_follower_fetch(9, 0, 0)
    assert refused.value.code is ErrorCode.unknown_topic_or_partition


def test_one_that_keeps_up_under_load_is_not_behind():
    """It never reaches the end, but always where the end was at its last fetch (KAFKA-1546)."""
    replica = leader(isr=(1, 2), now_ms=0)
    for now_ms in range(0, 5_000, 100):
        replica.on_append(now_ms + 100)
        replica.on_follower_fetch(2, now_ms, now_ms)
    assert replica.fallen_behind(5_000, 1_000) == ()
    replica.on_append(99_999)
    assert replica.fallen_behind(7_000, 1_000) == (2,)


def test_one_that_stops_is_behind_after_the_lag_and_may_return():
    replica = leader(isr=(1, 2, 3))
    replica.on_append(10)
    replica.on_follower_fetch(2, 10, 900)
    assert replica.fallen_behind(1_000, 1_000) == ()
    assert replica.fallen_behind(1_001, 1_000) == (3,)
    replica.become_leader(4, 10, isr=(1, 2))
    assert replica.high_watermark == 10
    replica.on_follower_fetch(3, 9, 2_000)
    assert not replica.may_join_isr(3)
    replica.on_follower_fetch(3, 10, 2_000)
    assert replica.may_join_isr(3)
    assert not replica.may_join_isr(2)


def test_an_idle_partition_is_not_behind():
    replica = leader(isr=(1, 2), log_end_offset=5)
    replica.on_follower_fetch(2, 5, 0)
    assert replica.fallen_behind(1_000_000, 1_000) == ()


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
def test_against_the_definition(script):
    replica = leader(isr=(1, 2, 3))
    end, isr, fetched, high_watermark = 0, (1, 2, 3), {2: -1, 3: -1}, 0
    for verb, what, offset in script:
        if verb == "append":
            end += what
            replica.on_append(end)
        elif verb == "fetch":
            fetched[what] = min(offset, end)
            replica.on_follower_fetch(what, fetched[what], 0)
        else:
            isr = what
            replica.become_leader(4, end, isr=isr)
        high_watermark = max(high_watermark, min([end, *(fetched[one] for one in isr if one != 1)]))
        assert replica.high_watermark == high_watermark
