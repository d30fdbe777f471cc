"""The quorum's messages as Kafka's RPCs, and back.

In: a request or response of `quorum.messages`, or the generated class of an RPC. Out: the other. It never sends, and
never decides.

Kafka nests each message in topics and partitions; the quorum has one partition. A request that is not of this cluster
or this partition is refused here, as Kafka's RaftUtil and KafkaRaftClient refuse it.
"""

from collections.abc import Sequence
from typing import Any, Final

from stratalog.config.quorum_settings import Address
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.metadata.image import Endpoint
from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum import messages as raft
from stratalog.quorum.metadata_batches import METADATA_TOPIC, METADATA_TOPIC_ID
from stratalog.quorum.voters import ReplicaKey
from stratalog.wire.messages import begin_quorum_epoch as begin
from stratalog.wire.messages import end_quorum_epoch as end
from stratalog.wire.messages import fetch, fetch_snapshot, vote

__all__ = ["answer_to", "api_key_of", "request_of", "response_of", "wire_request"]

FETCH_BYTES_MAX: Final = 1 << 20
"""Kafka: the defaults of controller.quorum.fetch.max.bytes and controller.quorum.fetch.snapshot.max.bytes."""
_TOPIC_IDS_FROM: Final = 13
_REPLICA_STATE_FROM: Final = 15


_KEYS: Final[dict[type[raft.Request], int]] = {
    raft.VoteRequest: vote.VoteRequest.KEY,
    raft.BeginQuorumEpochRequest: begin.BeginQuorumEpochRequest.KEY,
    raft.EndQuorumEpochRequest: end.EndQuorumEpochRequest.KEY,
    raft.FetchRequest: fetch.FetchRequest.KEY,
    raft.FetchSnapshotRequest: fetch_snapshot.FetchSnapshotRequest.KEY,
}


# Requests that this node sends


def wire_request(request: raft.Request, cluster_id: str, own: Endpoint | None = None) -> Any:
    """Return the RPC of a request; `own` is this node's controller listener."""
    match request:
        case raft.VoteRequest():
            vote_data = vote.VoteRequestPartitionData(
                partition_index=0,
                replica_epoch=request.epoch,
                replica_id=request.candidate.id,
                replica_directory_id=request.candidate.directory_id,
                voter_directory_id=request.voter.directory_id,
                last_offset_epoch=request.last_epoch,
                last_offset=request.last_offset,
                pre_vote=request.pre_vote,
            )
            vote_topic = vote.VoteRequestTopicData(
                topic_name=METADATA_TOPIC, partitions=[vote_data]
            )
            return vote.VoteRequest(
                cluster_id=cluster_id, voter_id=request.voter.id, topics=[vote_topic]
            )
        case raft.BeginQuorumEpochRequest():
            begin_data = begin.BeginQuorumEpochRequestPartitionData(
                partition_index=0,
                voter_directory_id=request.voter.directory_id,
                leader_id=request.leader_id,
                leader_epoch=request.epoch,
            )
            begin_topic = begin.BeginQuorumEpochRequestTopicData(
                topic_name=METADATA_TOPIC, partitions=[begin_data]
            )
            return begin.BeginQuorumEpochRequest(
                cluster_id=cluster_id,
                voter_id=request.voter.id,
                topics=[begin_topic],
                leader_endpoints=[]
                if own is None
                else [begin.LeaderEndpoint(name=own.name, host=own.host, port=own.port)],
            )
        case raft.EndQuorumEpochRequest():
            return _end_request(request, cluster_id)
        case raft.FetchRequest():
            return _fetch_request(request, cluster_id)
        case raft.FetchSnapshotRequest():
            return _snapshot_request(request, cluster_id)


def api_key_of(request: raft.Request) -> int:
    """Return the number of a request's RPC."""
    return _KEYS[type(request)]


def _end_request(request: raft.EndQuorumEpochRequest, cluster_id: str) -> end.EndQuorumEpochRequest:
    data = end.EndQuorumEpochRequestPartitionData(
        partition_index=0,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_candidates=[
            end.ReplicaInfo(candidate_id=one.id, candidate_directory_id=one.directory_id)
            for one in request.preferred_candidates
        ],
    )
    topic = end.EndQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[data])
    return end.EndQuorumEpochRequest(cluster_id=cluster_id, topics=[topic])


def _fetch_request(request: raft.FetchRequest, cluster_id: str) -> fetch.FetchRequest:
    data = fetch.FetchPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        partition_max_bytes=0,  # as Kafka: the leader's limit counts
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=fetch.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=FETCH_BYTES_MAX,
        topics=[fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[data])],
    )


def _snapshot_request(
    request: raft.FetchSnapshotRequest, cluster_id: str
) -> fetch_snapshot.FetchSnapshotRequest:
    data = fetch_snapshot.FetchSnapshotRequestPartitionSnapshot(
        partition=0,
        current_leader_epoch=request.epoch,
        snapshot_id=fetch_snapshot.FetchSnapshotRequestSnapshotId(
            end_offset=request.snapshot.end_offset, epoch=request.snapshot.epoch
        ),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    topic = fetch_snapshot.FetchSnapshotRequestTopicSnapshot(name=METADATA_TOPIC, partitions=[data])
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=request.replica.id,
        max_bytes=FETCH_BYTES_MAX,
        topics=[topic],
    )


# Responses to them


def response_of(request: raft.Request, response: Any) -> raft.Response:
    """Return the quorum's response to a request, in an RPC's.

    Raises Rejected with the code of a request that was refused whole, Corrupt for an answer to another question.
    """
    if response.error_code:
        code = ErrorCode(response.error_code)
        raise Rejected(code, f"the node answers {code.name}")
    topics = response.responses if isinstance(response, fetch.FetchResponse) else response.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise Corrupt(f"an answer without {METADATA_TOPIC}-0")
    data: Any = topics[0].partitions[0]
    _check_names(request, topics[0], data)
    error = ErrorCode(data.error_code)
    match response:
        case vote.VoteResponse():
            return raft.VoteResponse(
                error=error,
                leader_id=data.leader_id,
                leader_epoch=data.leader_epoch,
                granted=data.vote_granted,
            )
        case fetch.FetchResponse():
            return _fetched(data, error)
        case fetch_snapshot.FetchSnapshotResponse():
            return raft.FetchSnapshotResponse(
                error=error,
                leader_id=data.current_leader.leader_id,
                leader_epoch=data.current_leader.leader_epoch,
                size=data.size,
                position=data.position,
                data=data.unaligned_records,
            )
        case _:
            return raft.EpochResponse(
                error=error, leader_id=data.leader_id, leader_epoch=data.leader_epoch
            )


def _check_names(request: raft.Request, topic: Any, data: Any) -> None:
    """Raise Corrupt where an answer names another partition, or another snapshot."""
    index = data.index if isinstance(request, raft.FetchSnapshotRequest) else data.partition_index
    name: Any = METADATA_TOPIC
    match request:
        case raft.FetchRequest():
            # Of the two, a version of Fetch has one.
            named = topic.topic or topic.topic_id
            name = METADATA_TOPIC if topic.topic else METADATA_TOPIC_ID
        case raft.FetchSnapshotRequest():
            named = topic.name
        case _:
            named = topic.topic_name
    if named != name or index != 0:
        raise Corrupt(f"an answer for {named}-{index}, not {METADATA_TOPIC}-0")
    if isinstance(request, raft.FetchSnapshotRequest):
        found = SnapshotId(data.snapshot_id.end_offset, data.snapshot_id.epoch)
        if not data.error_code and found != request.snapshot:
            raise Corrupt(
                f"bytes of snapshot {found.file_name()}, not {request.snapshot.file_name()}"
            )


def _fetched(data: fetch.PartitionData, error: ErrorCode) -> raft.FetchResponse:
    diverging, snapshot = data.diverging_epoch, data.snapshot_id
    assert data.records is None or isinstance(data.records, memoryview), "as it was decoded"
    return raft.FetchResponse(
        error=error,
        leader_id=data.current_leader.leader_id,
        leader_epoch=data.current_leader.leader_epoch,
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
        diverging=None if diverging.epoch < 0 else (diverging.epoch, diverging.end_offset),
        snapshot=None if snapshot.epoch < 0 else SnapshotId(snapshot.end_offset, snapshot.epoch),
        records=data.records or b"",
    )


# Requests of other nodes


def request_of(request: Any, version: int, cluster_id: str) -> raft.Request:
    """Return the quorum's request in an RPC. Raises Rejected: INCONSISTENT_CLUSTER_ID, INVALID_REQUEST."""
    if request.cluster_id is not None and request.cluster_id != cluster_id:
        message = f"the request is for cluster {request.cluster_id}, this is {cluster_id}"
        raise Rejected(ErrorCode.inconsistent_cluster_id, message)
    match request:
        case vote.VoteRequest():
            data = _only(request.topics, "topic_name", "partition_index")
            return raft.VoteRequest(
                epoch=data.replica_epoch,
                candidate=ReplicaKey(data.replica_id, data.replica_directory_id),
                voter=ReplicaKey(request.voter_id, data.voter_directory_id),
                last_epoch=data.last_offset_epoch,
                last_offset=data.last_offset,
                pre_vote=data.pre_vote,
            )
        case begin.BeginQuorumEpochRequest():
            data = _only(request.topics, "topic_name", "partition_index")
            return raft.BeginQuorumEpochRequest(
                epoch=data.leader_epoch,
                leader_id=data.leader_id,
                voter=ReplicaKey(request.voter_id, data.voter_directory_id),
            )
        case end.EndQuorumEpochRequest():
            data = _only(request.topics, "topic_name", "partition_index")
            candidates = [
                ReplicaKey(one.candidate_id, one.candidate_directory_id)
                for one in data.preferred_candidates
            ]
            candidates += [ReplicaKey(one) for one in data.preferred_successors]
            return raft.EndQuorumEpochRequest(
                epoch=data.leader_epoch,
                leader_id=data.leader_id,
                preferred_candidates=tuple(candidates),
            )
        case fetch.FetchRequest():
            return _fetch_of(request, version)
        case _:
            data = _only(request.topics, "name", "partition")
            return raft.FetchSnapshotRequest(
                epoch=data.current_leader_epoch,
                replica=ReplicaKey(request.replica_id, data.replica_directory_id),
                snapshot=SnapshotId(data.snapshot_id.end_offset, data.snapshot_id.epoch),
                position=data.position,
            )


def _fetch_of(request: fetch.FetchRequest, version: int) -> raft.FetchRequest:
    if version >= _TOPIC_IDS_FROM:
        data = _only(request.topics, "topic_id", "partition")
    else:
        data = _only(request.topics, "topic", "partition")
    has_state = version >= _REPLICA_STATE_FROM
    replica_id = request.replica_state.replica_id if has_state else request.replica_id
    return raft.FetchRequest(
        epoch=data.current_leader_epoch,
        replica=ReplicaKey(replica_id, data.replica_directory_id),
        offset=data.fetch_offset,
        last_epoch=data.last_fetched_epoch,
        max_wait_ms=request.max_wait_ms,
        high_watermark=data.high_watermark,
    )


def _only(topics: Sequence[Any], topic: str, partition: str) -> Any:
    """Return the data of the one partition that the quorum has."""
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        (data,) = topics[0].partitions
        named = getattr(topics[0], topic)
        if named in (METADATA_TOPIC, METADATA_TOPIC_ID) and getattr(data, partition) == 0:
            return data
    raise Rejected(
        ErrorCode.invalid_request, f"the quorum keeps {METADATA_TOPIC}-0 and nothing else"
    )


# Answers to them


def answer_to(
    request: Any, response: raft.Response | ErrorCode, leader: Address | None = None
) -> Any:
    """Return the RPC's answer: a response, with the leader's address where it is known; or why it was refused whole."""
    match request:
        case vote.VoteRequest():
            return _vote_answer(response, leader)
        case begin.BeginQuorumEpochRequest():
            return _begin_answer(response, leader)
        case end.EndQuorumEpochRequest():
            return _end_answer(response, leader)
        case fetch.FetchRequest():
            return _fetch_answer(request, response, leader)
        case _:
            return _snapshot_answer(request, response, leader)


def _vote_answer(response: raft.Response | ErrorCode, leader: Address | None) -> vote.VoteResponse:
    if isinstance(response, ErrorCode):
        return vote.VoteResponse(error_code=response, topics=[])
    assert isinstance(response, raft.VoteResponse)
    data = vote.VoteResponsePartitionData(
        partition_index=0,
        error_code=response.error,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
        vote_granted=response.granted,
    )
    topic = vote.VoteResponseTopicData(topic_name=METADATA_TOPIC, partitions=[data])
    nodes = [vote.NodeEndpoint(**one) for one in _endpoints(response, leader)]
    return vote.VoteResponse(error_code=ErrorCode.none, topics=[topic], node_endpoints=nodes)


def _begin_answer(
    response: raft.Response | ErrorCode, leader: Address | None
) -> begin.BeginQuorumEpochResponse:
    if isinstance(response, ErrorCode):
        return begin.BeginQuorumEpochResponse(error_code=response, topics=[])
    data = begin.BeginQuorumEpochResponsePartitionData(
        partition_index=0,
        error_code=response.error,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
    )
    topic = begin.BeginQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[data])
    nodes = [begin.NodeEndpoint(**one) for one in _endpoints(response, leader)]
    return begin.BeginQuorumEpochResponse(
        error_code=ErrorCode.none, topics=[topic], node_endpoints=nodes
    )


def _end_answer(
    response: raft.Response | ErrorCode, leader: Address | None
) -> end.EndQuorumEpochResponse:
    if isinstance(response, ErrorCode):
        return end.EndQuorumEpochResponse(error_code=response, topics=[])
    data = end.EndQuorumEpochResponsePartitionData(
        partition_index=0,
        error_code=response.error,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
    )
    topic = end.EndQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[data])
    nodes = [end.NodeEndpoint(**one) for one in _endpoints(response, leader)]
    return end.EndQuorumEpochResponse(
        error_code=ErrorCode.none, topics=[topic], node_endpoints=nodes
    )


def _fetch_answer(
    request: fetch.FetchRequest, response: raft.Response | ErrorCode, leader: Address | None
) -> fetch.FetchResponse:
    if isinstance(response, ErrorCode):
        return fetch.FetchResponse(error_code=response, responses=[])
    assert isinstance(response, raft.FetchResponse)
    diverging, snapshot = response.diverging, response.snapshot
    data = fetch.PartitionData(
        partition_index=0,
        error_code=response.error,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        diverging_epoch=fetch.NO_EPOCH_END_OFFSET
        if diverging is None
        else fetch.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
        current_leader=fetch.LeaderIdAndEpoch(
            leader_id=response.leader_id, leader_epoch=response.leader_epoch
        ),
        snapshot_id=fetch.NO_SNAPSHOT_ID
        if snapshot is None
        else fetch.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        aborted_transactions=None,
        records=[response.records],
    )
    (wanted,) = request.topics
    topic = fetch.FetchableTopicResponse(
        topic=wanted.topic, topic_id=wanted.topic_id, partitions=[data]
    )
    nodes = [fetch.NodeEndpoint(**one) for one in _endpoints(response, leader)]
    return fetch.FetchResponse(responses=[topic], node_endpoints=nodes)


def _snapshot_answer(
    request: fetch_snapshot.FetchSnapshotRequest,
    response: raft.Response | ErrorCode,
    leader: Address | None,
) -> fetch_snapshot.FetchSnapshotResponse:
    if isinstance(response, ErrorCode):
        return fetch_snapshot.FetchSnapshotResponse(error_code=response, topics=[])
    assert isinstance(response, raft.FetchSnapshotResponse)
    wanted = request.topics[0].partitions[0].snapshot_id
    data = fetch_snapshot.FetchSnapshotResponsePartitionSnapshot(
        index=0,
        error_code=response.error,
        snapshot_id=fetch_snapshot.FetchSnapshotResponseSnapshotId(
            end_offset=wanted.end_offset, epoch=wanted.epoch
        ),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(
            leader_id=response.leader_id, leader_epoch=response.leader_epoch
        ),
        size=response.size,
        position=response.position,
        unaligned_records=[response.data],
    )
    topic = fetch_snapshot.FetchSnapshotResponseTopicSnapshot(
        name=METADATA_TOPIC, partitions=[data]
    )
    nodes = [fetch_snapshot.NodeEndpoint(**one) for one in _endpoints(response, leader)]
    return fetch_snapshot.FetchSnapshotResponse(
        error_code=ErrorCode.none, topics=[topic], node_endpoints=nodes
    )


def _endpoints(response: raft.Response, leader: Address | None) -> list[dict[str, Any]]:
    if leader is None or response.leader_id < 0:
        return []
    return [{"node_id": response.leader_id, "host": leader.host, "port": leader.port}]
