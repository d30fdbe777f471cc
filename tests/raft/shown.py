"""Outputs of a member as short lines, for traces and golden stories."""

from typing import Any

from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.messages import (
    Answer,
    AppendControl,
    AppendFetched,
    BeginQuorumEpochRequest,
    Committed,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LoadSnapshot,
    Persist,
    Request,
    Response,
    Send,
    StoreSnapshot,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from stratalog.quorum.saved_state import NO_NODE
from stratalog.wire.batch import scan
from stratalog.wire.internal.control_records import LeaderChangeMessage, VotersRecord


def shown(output: Any) -> str:
    match output:
        case Persist(state):
            leader = "" if state.leader_id == NO_NODE else f" leader {state.leader_id}"
            voted = "" if state.voted_id == NO_NODE else f" voted {state.voted_id}"
            return f"persist epoch {state.leader_epoch}{leader}{voted}"
        case Send(to, _, request):
            return f"send to {to}: {request_line(request)}"
        case Answer(_, response, read_from, snapshot):
            what = "" if read_from is None else f" records from {read_from}"
            what += "" if snapshot is None else f" of snapshot {id_line(snapshot)}"
            return f"answer: {response_line(response)}{what}"
        case AppendControl(epoch, records):
            return f"append epoch {epoch}: {', '.join(map(record_line, records))}"
        case AppendFetched(records):
            batches = [(h.base_offset, h.leader_epoch) for _, h in scan(records)]
            return f"append (offset, epoch) {', '.join(map(str, batches))}"
        case Truncate(offset):
            return f"truncate to {offset}"
        case StoreSnapshot(snapshot, position, data):
            return f"store {len(data)} bytes at {position} of snapshot {id_line(snapshot)}"
        case LoadSnapshot(snapshot):
            return f"load snapshot {id_line(snapshot)}"
        case Committed(high_watermark):
            return f"committed below {high_watermark}"
        case _:
            return str(output)


def request_line(request: Request) -> str:
    match request:
        case VoteRequest():
            kind = "PreVote" if request.pre_vote else "Vote"
            return (
                f"{kind} epoch {request.epoch}, log ({request.last_offset}, {request.last_epoch})"
            )
        case BeginQuorumEpochRequest():
            return f"BeginQuorumEpoch epoch {request.epoch}"
        case EndQuorumEpochRequest():
            after = [one.id for one in request.preferred_candidates]
            return f"EndQuorumEpoch epoch {request.epoch}, successors {after}"
        case FetchRequest():
            return f"Fetch epoch {request.epoch}, from ({request.offset}, {request.last_epoch})"
        case FetchSnapshotRequest():
            return f"FetchSnapshot {id_line(request.snapshot)} from {request.position}"


def response_line(response: Response) -> str:
    leader = "?" if response.leader_id == NO_NODE else str(response.leader_id)
    line = f"epoch {response.leader_epoch}, leader {leader}"
    if response.error:
        return f"{response.error.name.upper()}, {line}"
    match response:
        case VoteResponse():
            return f"{'granted' if response.granted else 'refused'}, {line}"
        case FetchResponse(diverging=(epoch, end)):
            return f"diverging: epoch {epoch} ends at {end}, {line}"
        case FetchResponse(snapshot=SnapshotId() as snapshot):
            return f"fetch snapshot {id_line(snapshot)}, {line}"
        case FetchResponse():
            return f"high watermark {response.high_watermark}, {line}"
        case FetchSnapshotResponse():
            return f"{response.position} of {response.size} bytes, {line}"
        case EpochResponse():
            return line


def record_line(record: Any) -> str:
    match record:
        case LeaderChangeMessage():
            granting = [one.voter_id for one in record.granting_voters]
            return f"LeaderChange {record.leader_id} by {granting}"
        case VotersRecord():
            return f"Voters {[one.voter_id for one in record.voters]}"
        case _:
            return type(record).__name__


def id_line(snapshot: SnapshotId) -> str:
    return f"({snapshot.end_offset}, {snapshot.epoch})"
