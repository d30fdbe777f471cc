"""New places for replicas: as few moves as possible, spread over racks and brokers."""

import pytest

from stratalog.errors import UserError
from stratalog.ops.placing import cost_of, spread
from stratalog.wire.ids import TopicPartition

FLAT = dict.fromkeys((1, 2, 3, 4))


def part(index: int) -> TopicPartition:
    return TopicPartition("orders", index)


def test_a_replica_in_an_allowed_place_does_not_move() -> None:
    assert spread({part(0): (2, 1, 3)}, FLAT) == {}


def test_an_excluded_broker_loses_its_replicas_and_the_others_keep_their_order() -> None:
    without_2 = {node: None for node in FLAT if node != 2}
    assert spread({part(0): (2, 3, 1), part(1): (3, 1, 4)}, without_2) == {part(0): (3, 1, 4)}


def test_new_replicas_go_to_the_brokers_with_the_fewest() -> None:
    partitions = {part(index): (1,) for index in range(4)}
    changed = spread(partitions, dict.fromkeys((2, 3)), counts={2: 2})
    assert [replicas for _, replicas in sorted(changed.items())] == [(3,), (3,), (2,), (3,)]


def test_a_closed_broker_keeps_replicas_and_gets_none() -> None:
    changed = spread({part(0): (1, 4)}, FLAT, factor=3, counts={2: 9}, closed={1, 2, 4})
    assert changed == {part(0): (1, 4, 3)}
    with pytest.raises(UserError, match=r"orders-0 needs 3 replicas, and 2 broker\(s\)"):
        spread({part(0): (2, 3)}, FLAT, factor=3, closed={1, 4})


def test_a_new_replica_goes_to_a_rack_without_the_partition() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    changed = spread({part(0): (1,)}, racks, factor=2, counts={2: 0, 3: 9})
    assert changed == {part(0): (1, 3)}


def test_a_replication_factor_is_raised_and_lowered() -> None:
    assert spread({part(0): (1, 2)}, FLAT, factor=3) == {part(0): (1, 2, 3)}
    assert spread({part(0): (1, 2, 3)}, FLAT, factor=1) == {part(0): (1,)}


def test_more_replicas_than_brokers_are_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"orders-0 needs 3 replicas, and 2 broker\(s\)"):
        spread({part(0): (1, 2, 3)}, {1: None, 2: None})


def test_a_move_costs_the_leaders_bytes_for_each_new_replica() -> None:
    before = {part(0): (1, 2), part(1): (2, 1)}
    changed = {part(0): (3, 4), part(1): (2, 3)}
    cost = cost_of(changed, before, {part(0): 1, part(1): 2}, {part(0): 100, part(1): 50})
    assert cost.moved_bytes == 250
    assert dict(cost.received_bytes) == {3: 150, 4: 100}
    assert sorted(cost.brokers) == [1, 2, 3, 4]
    assert cost.seconds(50) == pytest.approx(3)


def test_a_smaller_factor_moves_no_bytes() -> None:
    cost = cost_of({part(0): (1,)}, {part(0): (1, 2)}, {part(0): 1}, {part(0): 100})
    assert (cost.moved_bytes, cost.seconds(1), sorted(cost.brokers)) == (0, 0, [2])
