"""The list of every hosted partition, while partitions come and go."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from stratalog.broker.partitions.hosted_partitions import HostedPartitions
from stratalog.wire.ids import TopicIdPartition, TopicPartition


def partition(index: int) -> Any:
    name = TopicPartition("t", index)
    return SimpleNamespace(key=TopicIdPartition(UUID(int=1), index), name=name, directory="d")


def test_a_new_partition_joins_the_list_and_a_removed_one_stays_in_the_old_list() -> None:
    hosted = cast(Any, HostedPartitions(1))
    first, second, third, again = (partition(index) for index in (0, 1, 2, 1))
    hosted._add(first)
    before = hosted.all()
    hosted._add(second)
    hosted._add(third)
    assert before == hosted.all() == [first, second, third]
    hosted._remove(first.key)
    assert before == [first, second, third]
    assert hosted.all() == [second, third]
    hosted._add(again)
    assert hosted.all() == [again, third]
