"""One member of the quorum: its saved state, its state, and every transition between states.

In: elections won and lost, leaders and epochs that other nodes name, the time. Out: outputs, in order (`messages.py`).
It never answers a request, reads no clock, and draws chance from the port that it is given.

Invariants:

- the epoch never falls; a member votes once and follows one leader in each epoch;
- `Persist` stands before every output that relies on the new state;
- the high watermark never falls, and the log is never truncated below it;
- records are appended by a leader in its own epoch only, and never in an epoch that it led before a restart.

Kafka: QuorumState, KafkaRaftClient.
"""

from typing import Protocol

from stratalog.errors import ErrorCode
from stratalog.metadata.snapshot import SnapshotId
from stratalog.ports import Entropy
from stratalog.quorum.messages import (
    Answer,
    AppendControl,
    AppendFetched,
    Committed,
    Discarded,
    FetchResponse,
    Output,
    Persist,
    Request,
    Send,
    Truncate,
    VoterChangeResponse,
)
from stratalog.quorum.progress import UNKNOWN_OFFSET, Progress
from stratalog.quorum.requests_sent import RequestsSent, Sent
from stratalog.quorum.saved_state import NO_NODE, QuorumState
from stratalog.quorum.states import (
    Ballots,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    State,
    Timeouts,
    Unattached,
)
from stratalog.quorum.voters import (
    ReplicaKey,
    VoterHistory,
    VoterSet,
    leader_change,
    voters_control,
    voters_record,
)

_BACKOFF_BASE_MS = 100
"""Kafka: KafkaRaftClient.RETRY_BACKOFF_BASE_MS."""


class LogView(Protocol):
    """The metadata log as a member reads it: all written records, durable or not."""

    @property
    def start_offset(self) -> int: ...

    @property
    def start_epoch(self) -> int:
        """The epoch of the record before `start_offset`, which only a snapshot has; 0 at offset 0."""

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot where no record follows it; 0 for an empty log."""

    @property
    def snapshot(self) -> SnapshotId | None:
        """The latest snapshot."""

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` and the offset after its last record (KIP-101)."""

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """Return the size in bytes of a snapshot; None where the node lacks it."""


class Member:
    """See the module. `poll` and the answers are in modules above this one."""

    def __init__(
        self,
        me: ReplicaKey,
        log: LogView,
        voters: VoterHistory,
        *,
        saved: QuorumState,
        timeouts: Timeouts,
        entropy: Entropy,
    ) -> None:
        """`saved` is as `quorum-state` has it; the log is durable as it stands."""
        self.me = me
        self.log = log
        self.voter_history = voters
        self.timeouts = timeouts
        self.entropy = entropy
        self.saved = saved
        self.state: State = Unattached(0)
        self.durable_offset = log.end_offset
        self.is_writing = False
        """Whether outputs change the log, and the driver has not reported its new end."""
        self.high_watermark = log.start_offset if log.snapshot is None else log.snapshot.end_offset
        self.leader_high_watermark = UNKNOWN_OFFSET
        """A follower's copy of the leader's high watermark, which its own log may not reach yet."""
        self.is_stopping = False
        self.lost_elections = 0
        """Pre-votes and votes lost since the member last had a leader."""
        self.discarded = 0
        """Damaged answers since the last fetch that succeeded."""
        self.sent = RequestsSent(timeouts.request_ms, timeouts.retry_backoff_ms)
        self.outputs: list[Output] = []

    @property
    def epoch(self) -> int:
        return self.saved.leader_epoch

    @property
    def leader_id(self) -> int:
        """The leader of the epoch as far as known, else -1; also a leader that has resigned."""
        return self.saved.leader_id

    @property
    def voters(self) -> VoterSet:
        return self.voter_history.latest

    @property
    def is_voter(self) -> bool:
        return self.voters.has(self.me)

    @property
    def may_stand(self) -> bool:
        """Whether this member may start an election: the latest voters have it, or may not be committed yet.

        A member that alone has the record of its own removal must lead until that record is committed: voters without
        the record cannot win against the longer log (Ongaro's thesis, 4.2.2; Kafka's members do not stand then).
        """
        return any(one.has(self.me) for one in self.voter_history.open_at(self.high_watermark))

    def start(self, now_ms: int) -> None:
        """Enter the state that follows from the saved one. Kafka: QuorumState.initialize.

        Kafka's voter that knows no leader waits an election timeout first. A pre-vote disturbs no leader, and its
        answer names one; so this voter begins after a short wait, and a new cluster is ready a second earlier.
        """
        saved, log_epoch = self.saved, self.log.last_epoch
        self.state = Unattached(now_ms + self.backoff_ms())
        if saved.leader_epoch < log_epoch:
            self._persist(QuorumState(leader_epoch=log_epoch))
        elif saved.leader_id == self.me.id:
            # Records that it appended in this epoch and did not sync are lost: it must not append in this epoch again.
            self.state = Resigned(self.election_deadline_ms(now_ms), set(), ())
        elif self.voters.voter(saved.leader_id) is not None:
            self.state = Follower(now_ms + self.timeouts.fetch_ms)
        if self.is_voter and len(self.voters.voters) == 1:
            self.start_pre_vote(now_ms)

    # Transitions

    def observe(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Adopt a later epoch that another node reports, and the leader of that epoch if it names one."""
        if epoch < self.epoch:
            return
        if leader_id == self.me.id:
            if epoch > self.epoch:
                # This node led that epoch and has lost the record of it: it must not vote for another node in it.
                self._persist(
                    QuorumState(epoch, voted_id=self.me.id, voted_directory_id=self.me.directory_id)
                )
                self._enter(Unattached(self.election_deadline_ms(now_ms)))
        elif leader_id == NO_NODE:
            if epoch > self.epoch:
                self.become_unattached(epoch, now_ms)
        elif epoch > self.epoch or self._looks_for(leader_id):
            self.become_follower(epoch, leader_id, now_ms)

    def become_unattached(self, epoch: int, now_ms: int) -> None:
        """Enter a later epoch, whose leader is not known."""
        assert epoch > self.epoch, (epoch, self.epoch)
        self._persist(QuorumState(leader_epoch=epoch))
        self._enter(Unattached(self.election_deadline_ms(now_ms)))

    def become_follower(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Follow `leader_id`, the leader of `epoch`."""
        assert epoch >= self.epoch, (epoch, self.epoch)
        assert leader_id not in (self.me.id, NO_NODE), leader_id
        voted = self.saved if epoch == self.epoch else QuorumState()
        self._persist(QuorumState(epoch, leader_id, voted.voted_id, voted.voted_directory_id))
        self._enter(Follower(now_ms + self.timeouts.fetch_ms))

    def grant(self, candidate: ReplicaKey, now_ms: int) -> None:
        """Vote for the candidate in the present epoch."""
        if self.saved.voted_id == NO_NODE:
            self._persist(
                QuorumState(
                    self.epoch, voted_id=candidate.id, voted_directory_id=candidate.directory_id
                )
            )
            self._enter(Unattached(self.election_deadline_ms(now_ms)))

    def start_pre_vote(self, now_ms: int) -> None:
        """Find out whether a majority would vote for this member."""
        ballots = Ballots(self._own_vote())
        self._enter(Prospective(self.election_deadline_ms(now_ms), ballots))
        if ballots.is_won(self.voters):
            self.become_candidate(now_ms)

    def end_pre_vote(self, now_ms: int) -> None:
        """Return to the leader, or wait for another one; the next pre-vote comes after a backoff."""
        self.lost_elections += 1
        deadline_ms = now_ms + self.backoff_ms()
        if self.leader_id not in (self.me.id, NO_NODE):
            # Also to one that is no voter of this log, which may be old: the refusals name that leader again and again.
            self._enter(Follower(deadline_ms))
        else:
            self._enter(Unattached(deadline_ms))

    def lose_leader(self, now_ms: int) -> None:
        """Look for the leader of the epoch among the voters, as an observer."""
        self._enter(Unattached(self.election_deadline_ms(now_ms)))

    def leave_leader(self, now_ms: int) -> None:
        """Follow the leader no more, for a backoff: it does not count the voters that this member counts."""
        self.lost_elections += 1
        self._enter(Unattached(now_ms + self.backoff_ms()))

    def become_candidate(self, now_ms: int) -> None:
        """Vote for oneself in a new epoch."""
        self._persist(
            QuorumState(
                self.epoch + 1, voted_id=self.me.id, voted_directory_id=self.me.directory_id
            )
        )
        ballots = Ballots(self._own_vote())
        self._enter(Candidate(self.election_deadline_ms(now_ms), ballots))
        if ballots.is_won(self.voters):
            self.become_leader(ballots, now_ms)

    def become_leader(self, ballots: Ballots, now_ms: int) -> None:
        """Lead the epoch, and open it with a control batch that commits what came before."""
        self._persist(QuorumState(self.epoch, self.me.id))
        self.lost_elections = 0
        start = self.log.end_offset
        timeouts = self.timeouts
        progress = Progress(self.me, start, check_quorum_ms=timeouts.check_quorum_ms, now_ms=now_ms)
        progress.on_durable(self.durable_offset, self.voters)
        self._enter(Leader(progress, begin_ms=now_ms))
        records = [leader_change(self.me.id, self.voters, ballots.granted)]
        if self.voter_history.kraft_version and self.voter_history.latest_offset < 0:
            records += voters_control(voters_record(self.voters))
            self.voter_history.add(start + len(records) - 1, self.voters)
        self.write(AppendControl(self.epoch, tuple(records)))

    def resign(self, now_ms: int) -> None:
        """Stop leading; EndQuorumEpoch lets a voter with the most of the log start an election at once."""
        assert isinstance(self.state, Leader)
        successors = self.state.progress.successors(self.voters)
        others = {one.id for one in successors}
        self._enter(Resigned(self.election_deadline_ms(now_ms), others, successors))

    def _enter(self, state: State) -> None:
        left, self.state = self.state, state
        self.sent.clear()
        self.leader_high_watermark = UNKNOWN_OFFSET
        if isinstance(left, Leader):
            error = ErrorCode.not_leader_or_follower
            for parked in left.parked:
                response = FetchResponse(
                    error=error, leader_id=self.leader_id, leader_epoch=self.epoch
                )
                self.outputs.append(Answer(parked.token, response))
            if left.change is not None:
                changed = VoterChangeResponse(
                    error=error, leader_id=self.leader_id, leader_epoch=self.epoch
                )
                self.outputs.append(Answer(left.change.token, changed))

    def _looks_for(self, leader_id: int) -> bool:
        """Return whether the member follows no leader of its epoch, and would follow this one.

        During a pre-vote it does not return to the leader that it left. Another name shows that its own is wrong.
        """
        match self.state:
            case Unattached() | Candidate():
                return True
            case Prospective():
                return self.leader_id != leader_id
            case Follower() | Leader() | Resigned():
                return False

    def _own_vote(self) -> set[int]:
        return {self.me.id} if self.is_voter else set()

    # Parts of transitions and answers

    def _persist(self, state: QuorumState) -> None:
        if state == self.saved:
            return
        self.saved = state
        if self.outputs and isinstance(self.outputs[-1], Persist):
            self.outputs.pop()  # no output relies on the state between the two
        self.outputs.append(Persist(state))

    def send(self, to: int, request: Request, now_ms: int) -> None:
        """Send, unless the node has an open request or a backoff."""
        if self.sent.is_ready(to, now_ms):
            self.outputs.append(Send(to, self.sent.add(to, request, now_ms), request))

    def discard(self, sent: Sent, reason: str, now_ms: int) -> None:
        """Discard a damaged answer, and wait before the next request, longer after each such answer.

        It is no sign of life: a leader that sends nothing else loses its followers after the fetch timeout.
        """
        self.sent.back_off(sent.to, now_ms, self.discarded)
        self.discarded += 1
        self.outputs.append(Discarded(sent.to, sent.request, reason))

    def append_voters(self, voters: VoterSet) -> int:
        """Append the record of another voter set, which counts from now on; return its offset."""
        offset = self.log.end_offset
        self.voter_history.add(offset, voters)
        self.write(AppendControl(self.epoch, (voters_record(voters),)))
        return offset

    def commit(self, high_watermark: int) -> None:
        """Raise the high watermark."""
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.outputs.append(Committed(high_watermark))

    def commit_as_follower(self) -> None:
        """Raise the high watermark to the leader's, as far as the own log is durable."""
        self.commit(min(self.leader_high_watermark, self.durable_offset))

    def truncate(self, offset: int) -> None:
        """Cut off the end of the log, which the leader lacks; never below the high watermark."""
        assert offset >= self.high_watermark, (offset, self.high_watermark)
        self.durable_offset = min(self.durable_offset, offset)
        self.voter_history.truncate_end(offset)
        self.write(Truncate(offset))

    def write(self, output: AppendControl | AppendFetched | Truncate) -> None:
        """Change the log; the member fetches again once that is durable."""
        self.is_writing = True
        self.outputs.append(output)

    def election_deadline_ms(self, now_ms: int) -> int:
        """Return the end of an election timeout that begins now, with jitter."""
        timeout = self.timeouts.election_ms
        return now_ms + int(self.entropy.uniform(timeout, 2 * timeout))

    def backoff_ms(self) -> int:
        """Return a wait after a lost election; its bound doubles with each one."""
        bound = _BACKOFF_BASE_MS << min(self.lost_elections, 10)
        return int(self.entropy.uniform(0, min(bound, self.timeouts.election_backoff_max_ms)))
