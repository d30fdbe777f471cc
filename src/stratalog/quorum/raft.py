"""A member of the metadata quorum: KRaft as a pure state machine.

In: requests with their tokens, responses, broken connections, the log's durable end, the time. Out: outputs in order
(`messages.py` has the driver's duties). It opens no socket or file and reads no clock.

Kafka: KafkaRaftClient; KIP-595, KIP-630 (snapshots), KIP-853 (voters), KIP-996 (pre-votes).
"""

from collections.abc import Mapping
from typing import Any, get_args

from stratalog.quorum.answers import answer, release_fetches
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    ANY_NODE,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Output,
    Request,
    Response,
    VoterChangeRequest,
    VoteRequest,
)
from stratalog.quorum.progress import UNKNOWN_OFFSET
from stratalog.quorum.progress import Follower as ReplicaState
from stratalog.quorum.replies import snapshot_damaged, take
from stratalog.quorum.states import (
    Ballots,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    State,
    Unattached,
)
from stratalog.quorum.voter_changes import answer_change, change_voters, is_removed
from stratalog.quorum.voters import ReplicaKey, VoterSet

OBSERVER = "observer"
ROLES = (*(one.__name__.lower() for one in get_args(State)), OBSERVER)


class Raft:
    """See the module. Every method returns its outputs; `next_ms` says when to call `tick`."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def epoch(self) -> int:
        return self._member.epoch

    @property
    def leader_id(self) -> int:
        """The leader, or -1 if unknown."""
        return self._member.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the epoch, and so may append to the log."""
        return isinstance(self._member.state, Leader)

    @property
    def role(self) -> str:
        """The state of this member, as Kafka's metric `current-state` names it: one of `ROLES`."""
        member = self._member
        return type(member.state).__name__.lower() if member.is_voter else OBSERVER

    @property
    def high_watermark(self) -> int:
        """Offset below which every record is committed."""
        return self._member.high_watermark

    @property
    def voters(self) -> VoterSet:
        """The current voters, perhaps not committed yet."""
        return self._member.voters

    def voters_at(self, offset: int) -> VoterSet:
        """Return the voters that counted at an offset: those that a snapshot up to there names."""
        return self._member.voter_history.at(offset)

    @property
    def has_logged_voters(self) -> bool:
        """Whether the log names the voters; else the configuration does, and they never change."""
        return self._member.voter_history.kraft_version > 0

    @property
    def is_caught_up(self) -> bool:
        """Whether this member knows how far the leader's log is committed, and has all of that."""
        member = self._member
        if isinstance(member.state, Leader):
            return member.state.progress.high_watermark != UNKNOWN_OFFSET
        return UNKNOWN_OFFSET < member.leader_high_watermark <= member.high_watermark

    def replicas(self) -> Mapping[ReplicaKey, ReplicaState]:
        """Return how far the other replicas are, as the leader sees it; empty on other members."""
        state = self._member.state
        return state.progress.followers if isinstance(state, Leader) else {}

    @property
    def may_stop(self) -> bool:
        """Whether every voter that can be reached knows that this member has resigned."""
        state = self._member.state
        return not isinstance(state, Leader) and not (isinstance(state, Resigned) and state.unacked)

    # Inputs

    def start(self, now_ms: int) -> list[Output]:
        """Take part in the quorum; once, before every other input."""
        self._member.start(now_ms)
        return self.tick(now_ms)

    def on_request(self, token: Any, request: Request, now_ms: int) -> list[Output]:
        """Take a request; an `Answer` with the token comes now, or later for a fetch that waits."""
        self._run_timers(now_ms)
        answer(self._member, token, request, now_ms)
        return self.tick(now_ms)

    def on_change(self, token: Any, request: VoterChangeRequest, now_ms: int) -> list[Output]:
        """Take a change of the voters; an `Answer` with the token comes now, or once the change is committed."""
        self._run_timers(now_ms)
        change_voters(self._member, token, request, now_ms)
        return self.tick(now_ms)

    def on_response(self, correlation_id: int, response: Response, now_ms: int) -> list[Output]:
        """Take the response to a request of this member."""
        self._run_timers(now_ms)
        sent = self._member.sent.answered(correlation_id)
        if sent is not None:
            take(self._member, sent, response, now_ms)
        return self.tick(now_ms)

    def on_damaged_response(self, correlation_id: int, reason: str, now_ms: int) -> list[Output]:
        """Note that the response to a request of this member cannot be read."""
        member = self._member
        self._run_timers(now_ms)
        sent = member.sent.answered(correlation_id)
        if sent is not None:
            member.discard(sent, reason, now_ms)
        return self.tick(now_ms)

    def on_damaged_log(self, now_ms: int) -> list[Output]:
        """Note that this member's log cannot be read: a leader resigns, and another voter with the records leads."""
        member = self._member
        self._run_timers(now_ms)
        if isinstance(member.state, Leader) and len(member.voters.voters) > 1:
            member.resign(now_ms)
        return self.tick(now_ms)

    def on_broken_connection(self, node_id: int, now_ms: int) -> list[Output]:
        """Note that the connection to a node broke, or could not be made: a lost leader starts a pre-vote at once."""
        member = self._member
        self._run_timers(now_ms)
        member.sent.back_off(node_id, now_ms)
        state = member.state
        if isinstance(state, Follower) and node_id == member.leader_id:
            # A leader that never answered gets the time of a backoff: it may be starting.
            wait_ms = 0 if state.has_fetched else member.backoff_ms()
            state.deadline_ms = min(state.deadline_ms, now_ms + wait_ms)
        elif isinstance(state, Prospective | Candidate):
            state.ballots.unreachable.add(node_id)
        elif isinstance(state, Resigned) and member.is_stopping:
            # The last controller of a cluster that stops waits for no voter.
            state.unacked.discard(node_id)
        return self.tick(now_ms)

    def on_durable(self, end_offset: int, now_ms: int) -> list[Output]:
        """Note that the log is durable below `end_offset`; also after each truncation."""
        member = self._member
        self._run_timers(now_ms)
        member.durable_offset = end_offset
        member.is_writing = end_offset < member.log.end_offset
        if isinstance(member.state, Leader):
            if member.state.progress.on_durable(end_offset, member.voters):
                member.commit(member.state.progress.high_watermark)
            release_fetches(member, member.state, now_ms)
        else:
            member.commit_as_follower()
        return self.tick(now_ms)

    def on_snapshot_loaded(self, voters: VoterSet | None, now_ms: int) -> list[Output]:
        """Note that the log begins at the end of the fetched snapshot, which names `voters` (None: a static set)."""
        member = self._member
        end = member.log.start_offset
        member.durable_offset = member.log.end_offset
        member.is_writing = False
        if voters is not None:
            member.voter_history.reset(end - 1, voters)
        if isinstance(member.state, Follower):
            member.state.fetching = None
        member.high_watermark = max(member.high_watermark, end)
        return self.tick(now_ms)

    def on_snapshot_damaged(self, reason: str, now_ms: int) -> list[Output]:
        """Note that the fetched snapshot is damaged, and nothing has changed; the member fetches again."""
        self._run_timers(now_ms)
        snapshot_damaged(self._member, reason, now_ms)
        return self.tick(now_ms)

    def stop(self, now_ms: int) -> list[Output]:
        """Take part in no more elections, and resign as a leader; then wait for `may_stop`."""
        self._member.is_stopping = True
        return self.tick(now_ms)

    def tick(self, now_ms: int) -> list[Output]:
        """Act on the timers that are due; return all outputs since the last call."""
        self._run_timers(now_ms)
        self._send_requests(now_ms)
        outputs, self._member.outputs = self._member.outputs, []
        return outputs

    def next_ms(self, now_ms: int) -> int | None:
        """Return when `tick` may have something to do without another input; always after `now_ms`.

        None: never, as for a sole voter without observers.
        """
        member = self._member
        times = member.sent.next_ms(now_ms)
        state = member.state
        match state:
            case Leader():
                times += [one.deadline_ms for one in state.parked]
                check = state.progress.check_deadline_ms(member.voters)
                times += [] if check is None else [check]
                if check is not None or state.progress.followers:
                    times.append(state.begin_ms)
                times += [] if state.change is None else [state.change.deadline_ms]
            case _:
                times.append(state.deadline_ms)
        future = [one for one in times if one > now_ms]
        if isinstance(state, Leader):
            return min(future, default=None)
        # A deadline of the past has no effect in this state: an observer stands for no election.
        return min(future, default=now_ms + member.timeouts.election_ms)

    # Timers

    def _run_timers(self, now_ms: int) -> None:
        """Make every transition that is due: one may lead to the next."""
        self._member.sent.expire(now_ms)
        state = None
        while state is not self._member.state:
            state = self._member.state
            self._run_timer(now_ms)

    def _run_timer(self, now_ms: int) -> None:
        member = self._member
        state = member.state
        may_stand = member.may_stand and not member.is_stopping
        match state:
            case Prospective() | Candidate():
                self._count_ballots(state, now_ms)
            case Leader():
                answer_change(member, state, now_ms)
                check = state.progress.check_deadline_ms(member.voters)
                is_cut_off = check is not None and now_ms >= check
                if member.is_stopping or is_cut_off or is_removed(member, state):
                    member.resign(now_ms)
                elif any(one.deadline_ms <= now_ms for one in state.parked):
                    release_fetches(member, state, now_ms)
            case _ if now_ms < state.deadline_ms:
                pass
            case Unattached() | Follower() if may_stand:
                member.start_pre_vote(now_ms)
            case Follower() if not member.is_voter:
                member.lose_leader(now_ms)
            case Resigned() if not member.is_stopping:
                member.become_unattached(member.epoch + 1, now_ms)
            case _:
                pass

    def _count_ballots(self, state: Prospective | Candidate, now_ms: int) -> None:
        member = self._member
        ballots, is_over = state.ballots, now_ms >= state.deadline_ms
        if not member.may_stand:
            member.lose_leader(now_ms)
        elif ballots.is_won(member.voters):
            if isinstance(state, Prospective):
                member.become_candidate(now_ms)
            else:
                member.become_leader(ballots, now_ms)
        elif isinstance(state, Prospective):
            if is_over or ballots.is_lost(member.voters):
                member.end_pre_vote(now_ms)
        elif is_over:
            member.start_pre_vote(now_ms)
        elif ballots.is_lost(member.voters) and not state.is_backing_off:
            member.lost_elections += 1
            state.is_backing_off = True
            state.deadline_ms = now_ms + member.backoff_ms()

    # Requests of this member

    def _send_requests(self, now_ms: int) -> None:
        member = self._member
        state = member.state
        match state:
            case Unattached() if not member.is_voter:
                self._fetch_from(self._any_voter(), now_ms)
            case Prospective() | Candidate():
                self._ask_for_votes(state.ballots, now_ms, pre_vote=isinstance(state, Prospective))
            case Follower(fetching=None):
                self._fetch_from(member.leader_id, now_ms)
            case Follower(fetching=fetching) if fetching is not None and not fetching.is_loading:
                request = FetchSnapshotRequest(
                    member.epoch, member.me, fetching.snapshot, fetching.position
                )
                member.send(member.leader_id, request, now_ms)
            case Leader() if now_ms >= state.begin_ms:
                self._begin_epoch(state, now_ms)
            case Resigned():
                request_end = EndQuorumEpochRequest(member.epoch, member.me.id, state.successors)
                for node_id in sorted(state.unacked):
                    member.send(node_id, request_end, now_ms)
            case _:
                pass

    def _ask_for_votes(self, ballots: Ballots, now_ms: int, *, pre_vote: bool) -> None:
        member = self._member
        if ballots.is_lost(member.voters):
            return
        for node_id in ballots.open_voters(member.voters):
            voter = member.voters.voter(node_id)
            assert voter is not None
            if node_id == member.me.id:
                continue  # the voter is another directory of this node
            request = VoteRequest(
                member.epoch,
                member.me,
                voter.key,
                member.log.last_epoch,
                member.log.end_offset,
                pre_vote,
            )
            member.send(node_id, request, now_ms)

    def _fetch_from(self, node_id: int, now_ms: int) -> None:
        """Fetch once the whole log is durable: the offset of a fetch acknowledges every record below it."""
        member = self._member
        log = member.log
        if member.is_writing or member.durable_offset < log.end_offset:
            return
        request = FetchRequest(
            member.epoch,
            member.me,
            log.end_offset,
            log.last_epoch,
            member.timeouts.fetch_wait_ms,
            member.high_watermark,
        )
        member.send(node_id, request, now_ms)

    def _begin_epoch(self, leader: Leader, now_ms: int) -> None:
        """Make the leader known to voters that do not fetch from it."""
        member = self._member
        interval = member.timeouts.fetch_ms // 2
        leader.begin_ms = now_ms + interval
        leader.progress.forget_observers(member.voters, now_ms)
        for voter in member.voters.voters:
            fetched_ms = leader.progress.fetched_ms(voter.key)
            if voter.id != member.me.id and (fetched_ms < 0 or fetched_ms <= now_ms - interval):
                request = BeginQuorumEpochRequest(member.epoch, member.me.id, voter.key)
                member.send(voter.id, request, now_ms)

    def _any_voter(self) -> int:
        """Return a voter to ask for the leader; any bootstrap server where no voter is known."""
        member = self._member
        others = [one for one in member.voters.ids if one != member.me.id]
        if not others:
            return ANY_NODE
        return others[int(member.entropy.uniform(0, len(others))) % len(others)]
