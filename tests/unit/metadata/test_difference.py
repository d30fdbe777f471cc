"""One delta between two images: computed from the images, and merged from the deltas between them."""

from uuid import UUID

from stratalog.metadata.delta import Delta
from stratalog.metadata.difference import difference, merged, parts
from stratalog.metadata.image import EMPTY
from stratalog.wire.internal.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

KEPT, GONE, BRIEF, NEW = (UUID(int=number) for number in range(1, 5))


def topic(topic_id, name, partitions=1):
    yield TopicRecord(name=name, topic_id=topic_id)
    for index in range(partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=(1, 2),
            isr=(1, 2),
            removing_replicas=(),
            adding_replicas=(),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(UUID(int=11), UUID(int=12)),
        )


def led(leader, index=0):
    return PartitionChangeRecord(partition_id=index, topic_id=KEPT, leader=leader)


def replayed(image, *records):
    delta = Delta(image)
    for offset, record in enumerate(records, image.offset + 1):
        delta.replay(offset, record)
    return delta.image(), delta


def listed(delta):
    return (
        delta.base,
        delta.offset,
        delta.epoch,
        delta.created_topics,
        delta.deleted_topics,
        delta.changed_partitions,
        delta.changed_configs,
        delta.changed_brokers,
        delta.changed_features,
    )


def test_merged_deltas_list_what_differs_between_the_images():
    base, _ = replayed(EMPTY, *topic(KEPT, "kept", 3), *topic(GONE, "gone"))
    config = ConfigRecord(resource_type=2, resource_name="kept", name="retention.ms", value="1")
    first, delta_1 = replayed(base, led(2), *topic(BRIEF, "brief"), config)
    second, delta_2 = replayed(first, led(2, 1), RemoveTopicRecord(topic_id=BRIEF))
    after, delta_3 = replayed(second, RemoveTopicRecord(topic_id=GONE), *topic(NEW, "gone"))
    found = merged([delta_1, delta_2, delta_3])
    assert listed(found) == listed(difference(base, after))
    assert (found.created_topics, set(found.deleted_topics)) == ({NEW}, {GONE})
    assert found.changed_partitions == {KEPT: {0, 1}, NEW: {0}}


def test_a_change_that_is_taken_back_keeps_its_partition_in_the_list():
    base, _ = replayed(EMPTY, *topic(KEPT, "kept"))
    there, delta_1 = replayed(base, led(2))
    _, delta_2 = replayed(there, led(1))
    assert merged([delta_1, delta_2]).changed_partitions == {KEPT: {0}}


def test_parts_have_a_few_partitions_each_and_are_the_delta_together():
    base, _ = replayed(EMPTY, *topic(KEPT, "kept", 3), *topic(GONE, "gone"))
    config = ConfigRecord(resource_type=2, resource_name="kept", name="retention.ms", value="1")
    _, delta = replayed(
        base,
        led(2),
        led(2, 1),
        led(2, 2),
        config,
        RemoveTopicRecord(topic_id=GONE),
        *topic(NEW, "new", 2),
    )
    found = list(parts(delta, 2))
    assert [sum(map(len, one.changed_partitions.values())) for one in found] == [2, 2, 1]
    assert listed(merged(found)) == listed(delta)
    assert all((found[0].deleted_topics, found[0].created_topics, found[0].changed_configs))
    assert not any(
        one.deleted_topics or one.created_topics or one.changed_configs for one in found[1:]
    )


def test_a_delta_without_partitions_is_one_part():
    base, _ = replayed(EMPTY, *topic(KEPT, "kept"))
    _, delta = replayed(base, ConfigRecord(resource_type=4, resource_name="", name="a", value="1"))
    assert [listed(one) for one in parts(delta, 2)] == [listed(delta)]
