"""The quorum's responses as RPCs: an answer to another question is damaged, a newer error code is an unknown one."""

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from stratalog.broker.coordination.quorum_wire import answer_to, response_of, wire_request
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum import messages as raft
from stratalog.quorum.voters import ReplicaKey

ME, OTHER = ReplicaKey(1, UUID(int=1)), ReplicaKey(2, UUID(int=2))
SNAPSHOT = SnapshotId(9, 3)
ASKED: list[tuple[raft.Request, raft.Response]] = [
    (
        raft.VoteRequest(3, ME, OTHER, 2, 5, pre_vote=True),
        raft.VoteResponse(leader_id=2, leader_epoch=3, granted=True),
    ),
    (
        raft.BeginQuorumEpochRequest(3, 1, OTHER),
        raft.EpochResponse(leader_id=1, leader_epoch=3),
    ),
    (
        raft.EndQuorumEpochRequest(3, 1, (OTHER,)),
        raft.EpochResponse(leader_id=1, leader_epoch=3),
    ),
    (
        raft.FetchRequest(3, ME, 5, 2),
        raft.FetchResponse(leader_id=2, leader_epoch=3, high_watermark=4, log_start_offset=0),
    ),
    (
        raft.FetchSnapshotRequest(3, ME, SNAPSHOT, 0),
        raft.FetchSnapshotResponse(leader_id=2, leader_epoch=3, size=4, data=memoryview(b"1234")),
    ),
]
NAMES = ("topic_name", "topic", "name", "topic_id")


def answered(request: raft.Request, response: raft.Response) -> Any:
    """Return an RPC's answer as the asking node reads it."""
    answer = answer_to(wire_request(request, "cluster"), response)
    match request:
        case raft.FetchRequest():
            return changed(answer, {}, {"records": None})
        case raft.FetchSnapshotRequest():
            return changed(answer, {}, {"unaligned_records": memoryview(b"1234")})
        case _:
            return answer


def changed(answer: Any, topic: dict[str, Any], partition: dict[str, Any]) -> Any:
    """Return the answer with other fields in its one topic, and in that topic's one partition."""
    rows = "responses" if hasattr(answer, "responses") else "topics"
    (before,) = getattr(answer, rows)
    (data,) = before.partitions
    after = replace(before, **{"partitions": [replace(data, **partition)], **topic})
    return replace(answer, **{rows: [after]})


@pytest.mark.parametrize(("request_", "response"), ASKED)
def test_an_answer_arrives_as_it_was_sent(request_: raft.Request, response: raft.Response) -> None:
    assert response_of(request_, answered(request_, response)) == response


@pytest.mark.parametrize(("request_", "response"), ASKED)
def test_an_answer_to_another_question_is_damaged(
    request_: raft.Request, response: raft.Response
) -> None:
    answer = answered(request_, response)
    rows = "responses" if hasattr(answer, "responses") else "topics"
    (topic,) = getattr(answer, rows)
    index = "index" if hasattr(topic.partitions[0], "index") else "partition_index"
    other = {one: "t" for one in NAMES if isinstance(getattr(topic, one, None), str)}
    lies = [
        replace(answer, **{rows: []}),
        replace(answer, **{rows: [topic, topic]}),
        replace(answer, **{rows: [replace(topic, partitions=[])]}),
        replace(answer, **{rows: [replace(topic, partitions=[*topic.partitions] * 2)]}),
        changed(answer, {}, {index: 1}),
        changed(answer, {}, {index: -1}),
        changed(answer, other, {}),
    ]
    for lie in lies:
        with pytest.raises(Corrupt):
            response_of(request_, lie)


def test_bytes_of_another_snapshot_are_damaged() -> None:
    request, response = ASKED[-1]
    answer = answered(request, response)
    named = answer.topics[0].partitions[0].snapshot_id
    for lie in (replace(named, end_offset=8), replace(named, epoch=2)):
        with pytest.raises(Corrupt, match="not 0000000"):
            response_of(request, changed(answer, {}, {"snapshot_id": lie}))


@pytest.mark.parametrize(("request_", "response"), ASKED)
def test_a_newer_error_code_is_an_unknown_error(
    request_: raft.Request, response: raft.Response
) -> None:
    answer = answered(request_, response)
    found = response_of(request_, changed(answer, {}, {"error_code": 9999}))
    assert found.error is ErrorCode.unknown_server_error
    with pytest.raises(Rejected) as refused:
        response_of(request_, replace(answer, error_code=9999))
    assert refused.value.code is ErrorCode.unknown_server_error
