"""Maps whose next version costs what changes: equal to dictionaries, and no copies of what is large."""

import tracemalloc
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Image
from stratalog.metadata.layered import LAYER_MAX, finished, next_version
from stratalog.quorum.controller import Controller
from stratalog.wire.internal.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

TOPICS = 10_000
SMALL_BYTES = 64_000
"""Far below the least copy of one map of 10,000 topics."""

steps = st.lists(st.tuples(st.integers(0, 30), st.one_of(st.none(), st.integers())), max_size=30)


@given(versions=st.lists(steps, max_size=8), layer_max=st.integers(0, 5))
def test_each_version_equals_a_dictionary_and_stays_as_it_is(
    versions: list[list[tuple[int, int | None]]], layer_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stratalog.metadata.layered.LAYER_MAX", layer_max)
        now: Mapping[int, int] = {}
        model: dict[int, int] = {}
        kept: list[tuple[Mapping[int, int], dict[int, int]]] = []
        for version in versions:
            mine = next_version(now)
            for key, value in version:
                if value is not None:
                    mine[key] = model[key] = value
                elif key in model:
                    del mine[key], model[key]
                else:
                    assert key not in mine
                    with pytest.raises(KeyError):
                        del mine[key]
            now = finished(mine)
            kept.append((now, dict(model)))
        for one, expected in kept:
            assert one == expected
            assert expected == one
            assert sorted(one) == sorted(expected)
            assert len(one) == len(expected)
            assert [one.get(key, "none") for key in range(31)] == [
                expected.get(key, "none") for key in range(31)
            ]


def test_keys_come_in_the_order_of_their_first_change() -> None:
    mine = next_version(dict.fromkeys(range(LAYER_MAX + 1), 0))
    mine["new"] = mine[3] = 1  # type: ignore[index] # a key of another kind
    del mine[5]
    assert list(mine) == [*range(5), *range(6, LAYER_MAX + 1), "new"]


def topic_id(number: int) -> UUID:
    return UUID(int=number + 1, version=4)


def partition_of(topic: UUID) -> PartitionRecord:
    return PartitionRecord(
        partition_id=0,
        topic_id=topic,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        removing_replicas=(),
        adding_replicas=(),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )


def setting_of(topic: str) -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=topic, name="retention.ms", value="1")


def image_of(topics: int) -> Image:
    delta = Delta(Image())
    for number in range(topics):
        delta.replay(number, TopicRecord(name=f"t.{number}", topic_id=topic_id(number)))
        delta.replay(number, partition_of(topic_id(number)))
        delta.replay(number, setting_of(f"t.{number}"))
    return delta.image()


def test_a_change_to_one_topic_of_10_000_copies_no_map_of_them() -> None:
    """Neither the controller nor a node's image does; in steps, so that the layers are merged once in between."""
    controller = Controller(image=image_of(TOPICS))
    new = topic_id(TOPICS)
    changes = [
        [TopicRecord(name="x", topic_id=new), partition_of(new)],
        [setting_of("x")],
        [PartitionChangeRecord(partition_id=0, topic_id=new, leader=2, isr=(2, 3))],
        [RemoveTopicRecord(topic_id=new)],
    ]
    copied = {}
    for records in changes:
        tracemalloc.start()
        controller.replay_batch(controller.image.offset + 1, records)
        copied[type(records[0]).__name__] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert max(copied.values()) < SMALL_BYTES, copied


def test_a_long_row_of_changes_merges_the_layers() -> None:
    image = image_of(LAYER_MAX + 1)
    for number in range(3 * LAYER_MAX):
        delta = Delta(image)
        delta.replay(
            image.offset + 1, TopicRecord(name=f"more.{number}", topic_id=topic_id(TOPICS + number))
        )
        image = delta.image()
    assert len(image.topics_by_id) == 4 * LAYER_MAX + 1
    layers = image.topics_by_id
    assert len(layers.changed) <= LAYER_MAX  # type: ignore[attr-defined] # the map of two layers
