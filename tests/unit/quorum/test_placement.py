"""Replicas are placed on brokers and racks in turn."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Broker
from stratalog.quorum.placement import place


def broker(broker_id, rack=None, **state):
    return Broker(broker_id, 0, UUID(int=broker_id), (), rack, **{"fenced": False} | state)


def test_one_broker_holds_everything():
    assert place([broker(5)], 3, 1, 0) == [(5,), (5,), (5,)]


def test_leaders_take_turns_from_the_given_start():
    brokers = [broker(n) for n in (1, 2, 3)]
    assert [replicas[0] for replicas in place(brokers, 4, 2, 2)] == [3, 1, 2, 3]


def test_followers_shift_by_one_in_each_round():
    placed = place([broker(n) for n in (1, 2, 3)], 6, 2, 0)
    assert sorted(placed) == [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]


def test_replicas_spread_over_racks():
    brokers = [broker(n, "abc"[n % 3]) for n in range(9)]
    for replicas in place(brokers, 18, 3, 0):
        assert len({n % 3 for n in replicas}) == 3
    for replicas in place(brokers, 18, 6, 0):
        assert Counter(n % 3 for n in replicas) == {0: 2, 1: 2, 2: 2}


def test_a_fenced_broker_gets_no_replica_while_enough_brokers_are_active():
    brokers = [broker(1), broker(2), broker(3), broker(4, fenced=True)]
    for factor in (1, 2, 3):
        placed = place(brokers, 30, factor, 0)
        assert 4 not in {one for replicas in placed for one in replicas}
        held = Counter(one for replicas in placed for one in replicas)
        assert set(held.values()) == {10 * factor}
    assert {4} <= {one for replicas in place(brokers, 30, 4, 0) for one in replicas}


def test_a_rack_whose_brokers_are_fenced_gets_its_replica():
    brokers = [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "c", fenced=True)]
    assert all(set(replicas) >= {3, 4} for replicas in place(brokers, 9, 3, 0))


def test_a_fenced_broker_gets_replicas_but_leads_none():
    brokers = [broker(1), broker(2, fenced=True), broker(3)]
    for replicas in place(brokers, 6, 3, 0):
        assert replicas[0] in (1, 3)
        assert set(replicas) == {1, 2, 3}


def test_a_cordoned_broker_gets_no_replica():
    """One directory that is not cordoned is enough to get one (KIP-1066)."""
    first, second = UUID(int=1001), UUID(int=1002)
    half = broker(3, directories=(first, second), cordoned_directories=(first,))
    whole = broker(3, directories=(first, second), cordoned_directories=(second, first))
    others = [broker(1), broker(2)]
    assert {node for replicas in place([*others, half], 6, 2, 0) for node in replicas} == {1, 2, 3}
    assert {node for replicas in place([*others, whole], 6, 2, 0) for node in replicas} == {1, 2}
    with pytest.raises(Rejected, match="with 2 brokers registered and 1 cordoned") as refused:
        place([*others, whole], 1, 3, 0)
    assert refused.value.code is ErrorCode.invalid_replication_factor


@pytest.mark.parametrize(
    "brokers",
    [
        [],
        [broker(1)],
        [broker(1), broker(2, in_controlled_shutdown=True)],
        [broker(1, fenced=True)] * 2,
    ],
)
def test_too_few_brokers_are_refused(brokers):
    with pytest.raises(Rejected) as refusal:
        place(brokers, 1, 2, 0)
    assert refusal.value.code is ErrorCode.invalid_replication_factor


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7),
    partitions=st.integers(1, 20),
    start=st.integers(0, 6),
    data=st.data(),
)
def test_every_partition_has_that_many_different_replicas(racks, partitions, start, data):
    factor = data.draw(st.integers(1, len(racks)))
    brokers = [broker(n, rack) for n, rack in enumerate(racks)]
    placed = place(brokers, partitions, factor, start)
    assert len(placed) == partitions
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(n, 0) for n in range(len(racks))) <= 1
