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

from typing import Any

from msgspec import Struct

from stratalog.errors import ErrorCode
from stratalog.metadata.snapshot import SnapshotId
from stratalog.ports import Buffer
from stratalog.quorum.saved_state import NO_NODE, QuorumState
from stratalog.quorum.voters import ReplicaKey, Voter
from stratalog.wire.internal.control import ControlRecord

ANY_NODE = NO_NODE
"""Receiver of a Fetch that looks for the leader: any address in `controller.quorum.bootstrap.servers`."""
EPOCH_MAX = (1 << 31) - (1 << 20)
"""Greatest epoch that a member believes: an int32 leaves room for elections after it. More is damage."""


class VoteRequest(Struct, frozen=True):
    """Request of a vote in `epoch`; as a pre-vote (KIP-996) without any promise, and in the sender's own epoch."""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: int
    last_offset: int
    pre_vote: bool


class BeginQuorumEpochRequest(Struct, frozen=True):
    """A leader's notice to a voter that has not fetched from it of late."""

    epoch: int
    leader_id: int
    voter: ReplicaKey


class EndQuorumEpochRequest(Struct, frozen=True):
    """A leader's notice that it resigned; the candidates that it prefers come first."""

    epoch: int
    leader_id: int
    preferred_candidates: tuple[ReplicaKey, ...]


class FetchRequest(Struct, frozen=True):
    """Request of records from `offset`; everything below is durable at the sender. `high_watermark` is the sender's."""

    epoch: int
    replica: ReplicaKey
    offset: int
    last_epoch: int
    max_wait_ms: int = 0
    high_watermark: int = (1 << 63) - 1


class FetchSnapshotRequest(Struct, frozen=True):
    """Request of a snapshot's bytes from `position`."""

    epoch: int
    replica: ReplicaKey
    snapshot: SnapshotId
    position: int


class AddVoterRequest(Struct, frozen=True):
    """Request to make a node a voter; the answer waits for the commit, or comes once the record is in the log."""

    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True


class RemoveVoterRequest(Struct, frozen=True):
    """Request to take the vote from a node with that directory."""

    voter: ReplicaKey
    timeout_ms: int
    ack_when_committed: bool = True


class UpdateVoterRequest(Struct, frozen=True):
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


class EpochResponse(Struct, frozen=True, kw_only=True):
    """Answer to BeginQuorumEpoch and EndQuorumEpoch: the answering node's epoch, and its leader if known."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int


class VoteResponse(Struct, frozen=True, kw_only=True):
    """Answer to VoteRequest."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int
    granted: bool = False


class FetchResponse(Struct, frozen=True, kw_only=True):
    """Answer to FetchRequest: records, or a diverging epoch (epoch, its end) to truncate by, or a snapshot to fetch."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: tuple[int, int] | None = None
    snapshot: SnapshotId | None = None
    records: Buffer = b""


class FetchSnapshotResponse(Struct, frozen=True, kw_only=True):
    """Answer to FetchSnapshotRequest: bytes from `position` of a snapshot of `size` bytes."""

    error: ErrorCode = ErrorCode.none
    leader_id: int = NO_NODE
    leader_epoch: int
    size: int = 0
    position: int = 0
    data: Buffer = b""


class VoterChangeResponse(Struct, frozen=True, kw_only=True):
    """Answer to a change of the voters."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    leader_id: int = NO_NODE
    leader_epoch: int


Response = (
    EpochResponse | VoteResponse | FetchResponse | FetchSnapshotResponse | VoterChangeResponse
)


# Outputs


class Persist(Struct, frozen=True):
    """Write `quorum-state` durably."""

    state: QuorumState


class Send(Struct, frozen=True):
    """Send a request; pass the response, or its failure, back with `correlation_id`."""

    to: int
    correlation_id: int
    request: Request


class Answer(Struct, frozen=True):
    """Answer the request that came with `token`.

    With `read_from` the driver puts in the log's records from that offset, with `snapshot` that snapshot's bytes from
    `response.position`: as many as fit its limit, one batch at least.
    """

    token: Any
    response: Response
    read_from: int | None = None
    snapshot: SnapshotId | None = None


class AppendControl(Struct, frozen=True):
    """Append one control batch as the leader of `epoch`."""

    epoch: int
    records: tuple[ControlRecord, ...]


class AppendFetched(Struct, frozen=True):
    """Append whole batches from the leader, with their own offsets and epochs."""

    records: Buffer


class Truncate(Struct, frozen=True):
    """Cut the log off at `offset`, durably."""

    offset: int


class StoreSnapshot(Struct, frozen=True):
    """Write bytes at `position` of the file of a snapshot that is being fetched."""

    snapshot: SnapshotId
    position: int
    data: Buffer


class LoadSnapshot(Struct, frozen=True):
    """Make the fetched snapshot durable, begin the log anew at its end, and report `Raft.on_snapshot_loaded`.

    A damaged one changes nothing: report `Raft.on_snapshot_damaged`.
    """

    snapshot: SnapshotId


class Committed(Struct, frozen=True):
    """All below `high_watermark` is committed: apply it."""

    high_watermark: int


class Discarded(Struct, frozen=True):
    """Count the answer of a node that was damaged, or made no sense, and log why. It has changed nothing."""

    node_id: int
    request: Request
    reason: str


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
    | Discarded
)
