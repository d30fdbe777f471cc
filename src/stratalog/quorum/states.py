"""The states of a member of the quorum, the rule by which it votes, and its settings.

In: a state, a request of a vote. Out: whether the vote is granted. It never changes a state.

- Unattached: it knows no leader that it can follow; an election timeout makes it Prospective.
- Prospective: it collects pre-votes in its own epoch (KIP-996); with a majority it becomes Candidate.
- Candidate: it has voted for itself in a new epoch; with a majority it becomes Leader.
- Follower: it fetches from the leader; a fetch timeout makes it Prospective.
- Leader: it serves fetches and moves the high watermark.
- Resigned: it led this epoch and has resigned; it never votes or appends in it.

Observers are Unattached or Follower only. Kafka: QuorumState and the classes of its states.
"""

from typing import Any

from msgspec import Struct, field

from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.messages import FetchRequest, VoteRequest
from stratalog.quorum.progress import Progress
from stratalog.quorum.saved_state import NO_NODE, QuorumState
from stratalog.quorum.voters import ReplicaKey, VoterSet


class Timeouts(Struct, frozen=True):
    """The `controller.quorum.*` settings of time, in ms, with Kafka's defaults."""

    election_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_ms: int = 2000
    request_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_wait_ms: int = 500
    """Kafka: KafkaRaftClient.MAX_FETCH_WAIT_MS."""

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader stays without fetches of a majority. Kafka: CHECK_QUORUM_TIMEOUT_FACTOR."""
        return self.fetch_ms * 3 // 2


class Ballots(Struct):
    """The votes of one election, the member's own included.

    A voter is `unreachable` while its connection is broken. Once another voter has rejected, such voters count as
    rejecting too. Else the survivors of a dead leader would wait for its vote, where they stand at the same time.
    """

    granted: set[int]
    rejected: set[int] = field(default_factory=set)
    unreachable: set[int] = field(default_factory=set)

    def is_won(self, voters: VoterSet) -> bool:
        return len(self.granted.intersection(voters.ids)) >= voters.majority

    def is_lost(self, voters: VoterSet) -> bool:
        lost = self.rejected | (self.unreachable - self.granted) if self.rejected else set()
        left = len(voters.voters) - len(lost.intersection(voters.ids))
        return left < voters.majority

    def open_voters(self, voters: VoterSet) -> list[int]:
        """Return the voters that have not answered."""
        return [one for one in voters.ids if one not in self.granted and one not in self.rejected]


class Unattached(Struct):
    """See the module. `deadline_ms` is the election timeout."""

    deadline_ms: int


class Prospective(Struct):
    """See the module."""

    deadline_ms: int
    ballots: Ballots


class Candidate(Struct):
    """See the module. After a lost election `deadline_ms` is the end of the backoff."""

    deadline_ms: int
    ballots: Ballots
    is_backing_off: bool = False


class SnapshotFetch(Struct):
    """A snapshot that a follower fetches, and how many of its bytes the follower has."""

    snapshot: SnapshotId
    position: int = 0
    size: int | None = None
    """In bytes, as the first answer says."""
    is_loading: bool = False
    """All bytes are stored; the driver makes the snapshot the log's beginning."""


class Follower(Struct):
    """See the module. `deadline_ms` is the fetch timeout."""

    deadline_ms: int
    has_fetched: bool = False
    """Whether a fetch from this leader has succeeded: only then does the member refuse pre-votes."""
    fetching: SnapshotFetch | None = None


class ParkedFetch(Struct):
    """A fetch that waits for records, a higher high watermark, or `deadline_ms`."""

    token: Any
    request: FetchRequest
    deadline_ms: int


class OpenChange(Struct, frozen=True):
    """A change of the voters that waits for the commit of the record at `offset`, or for `deadline_ms`."""

    token: Any
    offset: int
    deadline_ms: int


class Leader(Struct):
    """See the module."""

    progress: Progress
    begin_ms: int
    """When BeginQuorumEpoch is next sent to voters that do not fetch."""
    parked: list[ParkedFetch] = field(default_factory=list)
    change: OpenChange | None = None


class Resigned(Struct):
    """See the module. EndQuorumEpoch goes to `unacked` voters until `deadline_ms`."""

    deadline_ms: int
    unacked: set[int]
    successors: tuple[ReplicaKey, ...]


State = Unattached | Prospective | Candidate | Follower | Leader | Resigned


def may_grant(
    state: State, saved: QuorumState, request: VoteRequest, *, is_up_to_date: bool
) -> bool:
    """Return whether a member in the candidate's epoch grants the vote.

    A vote binds: one for each epoch, none in an epoch whose leader is known. A pre-vote binds nothing; a member refuses
    it while it has a leader that answers.
    """
    if request.pre_vote:
        has_leader = isinstance(state, Leader) or (
            isinstance(state, Follower) and state.has_fetched
        )
        return is_up_to_date and not has_leader
    if saved.voted_id != NO_NODE:
        return ReplicaKey(saved.voted_id, saved.voted_directory_id) == request.candidate
    return is_up_to_date and saved.leader_id == NO_NODE
