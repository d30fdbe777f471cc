"""Replicas that internal topics get as brokers join: racks first, then the brokers with the fewest."""

from uuid import UUID

from msgspec.structs import replace

from stratalog.metadata.image import EMPTY, Broker, Image, Partition, Topic
from stratalog.quorum.internal_topics import growths

NAME = "__consumer_offsets"
TOPIC_ID = UUID(int=99)


def broker(broker_id, rack=None, **state):
    return Broker(broker_id, 0, UUID(int=broker_id), (), rack, **{"fenced": False} | state)


def image(brokers, *replicas, **state) -> Image:
    partitions = {
        index: Partition(replicas=of, isr=of, leader=of[0], **state)
        for index, of in enumerate(replicas)
    }
    return replace(
        EMPTY,
        brokers={one.id: one for one in brokers},
        topics_by_id={TOPIC_ID: Topic(TOPIC_ID, NAME, partitions)},
        topic_ids_by_name={NAME: TOPIC_ID},
    )


def grown(found: Image, factor: int) -> list[tuple[int, ...] | None]:
    return [change.replicas for change in growths(found, {NAME: factor, "missing": 3})]


def test_replicas_are_added_behind_the_leader_and_spread_over_brokers() -> None:
    brokers = [broker(node) for node in (1, 2, 3)]
    assert grown(image(brokers, (1,), (1,)), 2) == [(1, 2), (1, 3)]
    assert grown(image(brokers, (1,)), 3) == [(1, 2, 3)]


def test_a_rack_without_the_partition_comes_first() -> None:
    brokers = [broker(1, "a"), broker(2, "a"), broker(3, "b")]
    assert grown(image(brokers, (1,)), 2) == [(1, 3)]


def test_as_many_replicas_as_brokers_are_active() -> None:
    brokers = [
        broker(1),
        broker(2, fenced=True),
        broker(3, in_controlled_shutdown=True),
        broker(5, directories=(UUID(int=9),), cordoned_directories=(UUID(int=9),)),
    ]
    assert grown(image(brokers, (1,)), 3) == []
    assert grown(image([*brokers, broker(4)], (1,)), 3) == [(1, 4)]


def test_enough_replicas_and_moves_under_way_are_left_alone() -> None:
    brokers = [broker(node) for node in (1, 2, 3)]
    assert grown(image(brokers, (1, 2, 3)), 2) == []
    assert grown(image(brokers, (1, 2), adding_replicas=(2,)), 3) == []
