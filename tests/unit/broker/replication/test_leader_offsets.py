"""Offsets that a follower asks its leader for: an answer that no sound leader sends is damaged."""

import pytest

from stratalog.broker.replication.leader_offsets import read_offsets
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

WANTED = [TopicPartition("t", 0), TopicPartition("t", 1)]


def answer(*rows: tuple[int, int, int], name: str = "t") -> ListOffsetsResponse:
    """Return an answer with rows of partition, error and offset."""
    partitions = [
        ListOffsetsPartitionResponse(partition_index=index, error_code=error, offset=offset)
        for index, error, offset in rows
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=name, partitions=partitions)])


def test_each_partition_has_its_offset_or_its_error() -> None:
    found = read_offsets(answer((0, 0, 7), (1, 9999, -1)), -2, WANTED)
    assert found[WANTED[0]] == 7
    error = found[WANTED[1]]
    assert isinstance(error, Rejected)
    assert error.code is ErrorCode.unknown_server_error


@pytest.mark.parametrize(
    "lie",
    [
        answer((0, 0, 7)),
        answer((0, 0, 7), (1, 0, 7), (2, 0, 7)),
        answer((0, 0, 7), (5, 0, 7)),
        answer((0, 0, 7), (1, 0, 7), name="u"),
        answer((0, 0, -2), (1, 0, 7)),
        answer((0, 0, 7), (1, 0, -(1 << 40))),
        ListOffsetsResponse(topics=[]),
    ],
)
def test_an_answer_that_no_sound_leader_sends_is_damaged(lie: ListOffsetsResponse) -> None:
    with pytest.raises(Corrupt):
        read_offsets(lie, -2, WANTED)
