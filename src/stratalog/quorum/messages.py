"""Messages of the quorum, and the outputs of a member.

In: nothing. Out: values. It decides nothing.

Each request and response has the fields of Kafka's RPC of that name for the one partition of `__cluster_metadata`.
A driver adds the rest when it encodes them: the cluster's id, the topic, addresses of nodes.

A driver performs the outputs of one input in their order, and each one to its end before the next one:

- `Persist` is durable before the next output is performed. A member puts it before every message that relies on it;
- `AppendControl`, `AppendFetched`, `Truncate` and records of the state machine change the log in order; the driver
  reports with `Raft.on_durable`, perhaps later, the durable end of the log;
- an answer with records or a snapshot's bytes is read when it is performed, before the next input is passed.
"""

from dataclasses import dataclass, field
from typing import Any

from stratalog.errors import ErrorCode
from stratalog.metadata.snapshot import SnapshotId
from stratalog.ports import Buffer
from stratalog.quorum.saved_state import NO_NODE, QuorumState
from stratalog.quorum.voters import ReplicaKey, Voter
from stratalog.wire.internal.control import ControlRecord

ANY_NODE = NO_NODE
"""Receiver of a Fetch that looks for the leader: any address in `controller.quorum.bootstrap.servers`."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Request of a vote in `epoch`; as a pre-vote (KIP-996) without any promise, and in the sender's own epoch."""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: int
    last_offset: int
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequest:
    """A leader's notice to a voter that has not fetched from it of late."""

    epoch: int
    leader_id: int
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequest:
    """A leader's notice that it resigned; the candidates that it prefers come first."""

    epoch: int
    leader_id: int
    preferred_candidates: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Request of records from `offset`; everything below is durable at the sender. `high_watermark` is the sender's."""

    epoch: int
    replica: ReplicaKey
    offset: int
    last_epoch: int
    max_wait_ms: int = 0
    high_watermark: int = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    """Request of a snapshot's bytes from `position`."""

    epoch: int
    replica: ReplicaKey
    snapshot: SnapshotId
    position: int


@dataclass(frozen=True, slots=True)
class AddVoterRequest:
    """Request to make a node a voter; the answer waits for the commit, or comes once the record is in the log."""

    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True)
class RemoveVoterRequest:
    """Request to take the vote from a node with that directory."""

    voter: ReplicaKey
    timeout_ms: int
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True)
class UpdateVoterRequest:
    """A voter's notice to the leader of `epoch` of its endpoints and versions; the answer waits for no commit."""

    voter: Voter
    epoch: int
    timeout_ms: int = 0
    ack_when_committed: bool = False


VoterChangeRequest = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest

Request = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
)
"""What members ask of one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResponse:
    """Answer to BeginQuorumEpoch and EndQuorumEpoch: the answering node's epoch, and its leader if known."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """Answer to VoteRequest."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int
    granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """Answer to FetchRequest: records, or a diverging epoch (epoch, its end) to truncate by, or a snapshot to fetch."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: tuple[int, int] | None = None
    snapshot: SnapshotId | None = None
    records: Buffer = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """Answer to FetchSnapshotRequest: bytes from `position` of a snapshot of `size` bytes."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int
    size: int = 0
    position: int = 0
    data: Buffer = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResponse:
    """Answer to a change of the voters."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    leader_id: int = NO_NODE
    leader_epoch: int


Response = (
    EpochResponse | VoteResponse | FetchResponse | FetchSnapshotResponse | VoterChangeResponse
)


# Outputs


@dataclass(frozen=True, slots=True)
class Persist:
    """Write `quorum-state` durably."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; pass the response, or its failure, back with `correlation_id`."""

    to: int
    correlation_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request that came with `token`.

    With `read_from` the driver puts in the log's records from that offset, with `snapshot` that snapshot's bytes from
    `response.position`: as many as fit its limit, one batch at least.
    """

    token: Any
    response: Response
    read_from: int | None = None
    snapshot: SnapshotId | None = None


@dataclass(frozen=True, slots=True)
class AppendControl:
    """Append one control batch as the leader of `epoch`."""

    epoch: int
    records: tuple[ControlRecord, ...]


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append whole batches from the leader, with their own offsets and epochs."""

    records: Buffer


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log off at `offset`, durably."""

    offset: int


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Write bytes at `position` of the file of a snapshot that is being fetched."""

    snapshot: SnapshotId
    position: int
    data: Buffer = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Make the fetched snapshot durable, begin the log anew at its end, and report `Raft.on_snapshot_loaded`."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Committed:
    """All below `high_watermark` is committed: apply it."""

    high_watermark: int


Output = (
    Persist
    | Send
    | Answer
    | AppendControl
    | AppendFetched
    | Truncate
    | StoreSnapshot
    | LoadSnapshot
    | Committed
)
