"""Goal: a member of the quorum answers, votes, leads and commits as Raft says, whatever it receives, and when.

Method: Hypothesis plays two other voters and an observer, true and false, the disk, the clock, and `kill -9`. A model
(`raft_model.py`) says what each answer and each change must be. Bugs of `tests/raft/bugs.py` must be found.
"""

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from tests.properties.raft_model import ME, PEERS, Learned, Model
from tests.raft.bugs import planted
from tests.raft.log import Log

from stratalog.errors import Corrupt, ErrorCode
from stratalog.quorum.member import Member
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
    Persist,
    Send,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from stratalog.quorum.metadata_batches import encode_control_batch
from stratalog.quorum.raft import Raft
from stratalog.quorum.saved_state import NO_NODE
from stratalog.quorum.states import Follower, Timeouts
from stratalog.quorum.voters import ReplicaKey, Voter, VoterHistory, VoterSet, leader_change
from stratalog.wire.batch import assign
from stratalog.wire.records import Record, build_batch

OBSERVER = 9
BUGS = (
    "vote not persisted",
    "persisted after the answer",
    "no truncation",
    "watermark from one replica",
    "earlier epochs committed by counting",
    "stale answers taken",
    "voter ignores the log",
    "second vote in an epoch",
    "fetch before durable",
    "leader counts what it has not synced",
    "leader goes on after a restart",
)
peers = st.sampled_from(PEERS)
ahead = st.sampled_from((-1, 0, 0, 0, 0, 0, 1, 2))
"""How far a message's epoch is ahead of the member's."""
leaders = st.sampled_from((NO_NODE, ME, *PEERS))
offsets = st.sampled_from((-3, -1, 0, 0, 0, 1))
"""From the end of the member's log."""


class Halfway:
    """Chance that never surprises."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


class MemberAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.log = Log()
        self.now_ms = 1000
        self.tokens = 0
        self.open: dict[int, Send] = {}
        """Requests of the member, each with its correlation id, answered or not."""
        self.answered: dict[int, Answer] = {}
        self.learned = Learned()
        self.asked_pre_vote = False
        self.cut = 0
        self.begin()

    def begin(self) -> None:
        voters = VoterSet.of(Voter(one) for one in (ME, *PEERS))
        self.member = Member(
            ReplicaKey(ME),
            self.log,
            VoterHistory(voters, kraft_version=0),
            saved=self.log.saved,
            timeouts=Timeouts(),
            entropy=Halfway(),  # type: ignore[arg-type]
        )
        self.raft = Raft(self.member)
        self.open.clear()
        self.give(self.raft.start)

    # One input

    def give(self, call: Any, learned: Learned | None = None) -> None:
        """Pass an input, and compare what follows from it."""
        self.learned = learned or Learned()
        before = self.member.state
        self.model.follows = isinstance(before, Follower)
        outputs = call(self.now_ms)
        for output in outputs:
            self.take(output)
        if self.member.state is not before and not self.raft.is_leader:
            self.model.entered()
        self.model.commits()
        assert self.raft.is_leader == self.model.leads
        assert self.raft.high_watermark == self.model.high_watermark
        assert [one.epoch for one in self.log.batches] == self.model.epochs

    def take(self, output: Any) -> None:
        model, log = self.model, self.log
        match output:
            case Persist(state):
                model.persisted(state, self.learned)
                log.saved = state
            case Send(to, correlation_id, request):
                self.open[correlation_id] = output
                self.is_true(to, request)
            case Answer(token, response):
                assert response.leader_epoch == model.epoch, "PersistBeforeMessage"
                if getattr(response, "granted", False) and not self.asked_pre_vote:
                    assert log.saved.voted_id == self.learned.candidate, "PersistBeforeMessage"
                self.answered[token] = output
            case AppendControl(epoch, records):
                model.opens(epoch)
                self.append(encode_control_batch(records, self.now_ms), epoch)
            case AppendFetched(records):
                log.append(bytes(records))
            case Truncate(offset):
                assert offset == self.cut, (offset, self.cut)
                log.truncate(offset)
            case Committed(high_watermark):
                assert high_watermark <= log.end_offset

    def is_true(self, to: int, request: Any) -> None:
        """Check what the member says of itself."""
        model = self.model
        assert request.epoch == model.epoch, "PersistBeforeMessage"
        match request:
            case VoteRequest(_, _, _, last_epoch, last_offset, pre_vote):
                assert (last_epoch, last_offset) == (model.last_epoch, model.end)
                assert pre_vote or self.log.saved.voted_id == ME, "PersistBeforeMessage"
            case FetchRequest(_, _, offset, last_epoch):
                assert (last_epoch, offset) == (model.last_epoch, model.end)
                assert offset == model.durable, "a fetch acknowledges what is not durable"
                assert to == model.leader
            case BeginQuorumEpochRequest() | EndQuorumEpochRequest():
                assert model.leader == ME

    def append(self, data: bytearray, epoch: int) -> None:
        assign(memoryview(data), 0, self.log.end_offset, epoch)
        self.log.append(bytes(data))

    def ask(self, request: Any, learned: Learned | None = None) -> Answer | None:
        """Send a request to the member; return its answer, None where the request waits."""
        self.tokens += 1
        self.give(partial(self.raft.on_request, self.tokens, request), learned)
        return self.answered.pop(self.tokens, None)

    # Requests of others

    @rule(peer=peers, by=ahead, pre_vote=st.booleans(), older=st.integers(-1, 2), at=offsets)
    def asks_for_a_vote(self, peer: int, by: int, pre_vote: bool, older: int, at: int) -> None:
        model = self.model
        request = VoteRequest(
            max(0, model.epoch + by),
            ReplicaKey(peer),
            ReplicaKey(ME),
            max(0, model.last_epoch - older),
            max(0, model.end + at),
            pre_vote,
        )
        error, granted = model.vote(request)
        is_valid = error is ErrorCode.none
        learned = Learned(
            request.epoch if is_valid else -1, candidate=NO_NODE if pre_vote else peer
        )
        self.asked_pre_vote = pre_vote
        answer = self.ask(request, learned)
        assert answer is not None
        response = answer.response
        assert isinstance(response, VoteResponse)
        assert (response.error, response.granted) == (error, granted)
        assert pre_vote or not granted or model.voted == peer

    @rule(peer=peers, by=ahead)
    def says_that_it_leads(self, peer: int, by: int) -> None:
        epoch = max(0, self.model.epoch + by)
        answer = self.ask(
            BeginQuorumEpochRequest(epoch, peer, ReplicaKey(ME)), Learned(epoch, peer)
        )
        assert answer is not None
        is_older = epoch < self.model.epoch
        assert answer.response.error is (
            ErrorCode.fenced_leader_epoch if is_older else ErrorCode.none
        )

    @rule(peer=peers, by=ahead)
    def says_that_it_leads_no_more(self, peer: int, by: int) -> None:
        epoch = max(0, self.model.epoch + by)
        if epoch >= self.model.epoch and peer == self.model.leader:
            self.model.has_answer = False
        self.ask(EndQuorumEpochRequest(epoch, peer, ()), Learned(epoch, peer))

    @rule(
        replica=st.sampled_from((*PEERS, *PEERS, OBSERVER)),
        by=ahead,
        at=offsets,
        older=st.sampled_from((0, 0, 0, 0, 1, 2)),
    )
    def fetches(self, replica: int, by: int, at: int, older: int) -> None:
        model = self.model
        offset = max(0, model.end + at)
        epoch_there = model.epochs[offset - 1] if 0 < offset <= model.end else model.last_epoch
        request = FetchRequest(
            max(0, model.epoch + by), ReplicaKey(replica), offset, max(0, epoch_there - older), 500
        )
        error, diverging = model.fetch(request), model.diverging(request)
        if error is ErrorCode.none and diverging is None:
            model.reached[replica] = offset
        is_later = error is not ErrorCode.invalid_request and request.epoch > model.epoch
        answer = self.ask(request, Learned(request.epoch) if is_later else None)
        if answer is None:
            assert (error, diverging, offset) == (ErrorCode.none, None, model.end)
            return
        response = answer.response
        assert isinstance(response, FetchResponse)
        assert response.error is error
        if error is ErrorCode.none:
            assert response.diverging == diverging
            is_read = diverging is None and offset < model.end
            assert answer.read_from == (offset if is_read else None)
            assert response.high_watermark == model.led_to

    @precondition(lambda self: self.model.leads and self.model.durable < self.model.end)
    @rule(peer=peers)
    def has_more_than_the_leader_has_synced(self, peer: int) -> None:
        self.fetches(peer, 0, 0, 0)

    # Responses of others

    def chosen(self, kinds: Any, which: int, *, is_repeated: bool) -> Send | None:
        """Return a request of the member to answer; `is_repeated`: the answer may come again."""
        ids = [one for one, sent in self.open.items() if isinstance(sent.request, kinds)]
        if not ids:
            return None
        one = ids[which % len(ids)]
        return self.open[one] if is_repeated else self.open.pop(one)

    def respond(self, sent: Send, response: Any) -> None:
        is_taken = self.waits_for(sent) and response.leader_epoch >= self.model.epoch
        learned = Learned(response.leader_epoch, response.leader_id) if is_taken else None
        self.give(partial(self.raft.on_response, sent.correlation_id, response), learned)

    def waits_for(self, sent: Send) -> bool:
        return sent.correlation_id in self.member.sent._sent

    @rule(
        which=st.integers(0, 9),
        how=st.sampled_from(("granted", "granted", "refused", "newer", "older")),
        leader=leaders,
        is_repeated=st.booleans(),
    )
    def vote_is_answered(self, which: int, how: str, leader: int, is_repeated: bool) -> None:
        sent = self.chosen(VoteRequest, which, is_repeated=is_repeated)
        if sent is None:
            return
        model, epoch = self.model, sent.request.epoch
        is_granted = how == "granted" and self.waits_for(sent) and epoch == model.epoch
        assert isinstance(sent.request, VoteRequest)
        if is_granted:
            (model.pre_votes if sent.request.pre_vote else model.votes).add(sent.to)
        response = {
            "granted": VoteResponse(leader_epoch=epoch, granted=True),
            "refused": VoteResponse(leader_epoch=epoch),
            "newer": VoteResponse(leader_epoch=model.epoch + 1, leader_id=leader),
            "older": VoteResponse(leader_epoch=max(0, model.epoch - 1), granted=model.epoch > 0),
        }[how]
        self.respond(sent, response)
        if is_granted:
            assert self.raft.role == ("candidate" if sent.request.pre_vote else "leader")

    @rule(
        which=st.integers(0, 9),
        count=st.integers(0, 3),
        back=st.sampled_from((0, 0, 1, 2)),
        committed=st.integers(-3, 0),
        is_opened=st.sampled_from((True, True, True, False)),
        is_repeated=st.booleans(),
    )
    def records_arrive(
        self,
        which: int,
        count: int,
        back: int,
        committed: int,
        is_opened: bool,
        is_repeated: bool,
    ) -> None:
        sent = self.chosen(FetchRequest, which, is_repeated=is_repeated)
        if sent is None:
            return
        model, epoch, end = self.model, sent.request.epoch, sent.request.offset
        of = max(sent.request.last_epoch, epoch - back)
        is_open = of == sent.request.last_epoch
        batches = []
        for offset in range(end, end + count):
            if is_opened and offset == end and not is_open:
                change = leader_change(sent.to, self.member.voters, ())
                batch = encode_control_batch([change], self.now_ms)
            else:
                batch = build_batch([Record(0, self.now_ms, None, b"v")])
            assign(memoryview(batch), 0, offset, of)
            batches.append(bytes(batch))
        high_watermark = max(0, end + count + committed)
        response = FetchResponse(
            leader_id=sent.to,
            leader_epoch=epoch,
            high_watermark=high_watermark,
            records=b"".join(batches),
        )
        # An epoch begins with the record that opens it; a member discards an answer with another one.
        is_sound = is_open or is_opened or not count
        if self.waits_for(sent) and epoch == model.epoch and is_sound:
            model.has_answer = True
            model.epochs += [of] * count
            model.copied = max(model.copied, high_watermark)
        self.respond(sent, response)

    @rule(which=st.integers(0, 9), epoch=st.integers(0, 6), at=offsets)
    def logs_diverge(self, which: int, epoch: int, at: int) -> None:
        sent = self.chosen(FetchRequest, which, is_repeated=False)
        if sent is None or not self.waits_for(sent):
            return
        model = self.model
        diverging = (min(epoch, model.epoch), max(0, model.end + at))
        self.cut = model.common_end(diverging)
        assert isinstance(sent.request, FetchRequest)
        response = FetchResponse(
            leader_id=sent.to, leader_epoch=sent.request.epoch, diverging=diverging
        )
        if model.may_diverge(sent.request, diverging):
            model.has_answer = True
            del model.epochs[self.cut :]
            model.durable = min(model.durable, self.cut)
        self.respond(sent, response)

    @rule(which=st.integers(0, 9), by=st.sampled_from((0, 0, 1)), leader=leaders)
    def another_answer_arrives(self, which: int, by: int, leader: int) -> None:
        kinds = FetchRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest
        sent = self.chosen(kinds, which, is_repeated=False)
        if sent is None:
            return
        epoch = self.model.epoch + by
        if isinstance(sent.request, FetchRequest):
            error = ErrorCode.not_leader_or_follower
            self.respond(sent, FetchResponse(error=error, leader_id=leader, leader_epoch=epoch))
        else:
            self.respond(sent, EpochResponse(leader_id=leader if by else ME, leader_epoch=epoch))

    # The disk, the clock, the process

    @precondition(lambda self: self.model.leads)
    @rule(count=st.integers(1, 2))
    def writes(self, count: int) -> None:
        for _ in range(count):
            self.append(build_batch([Record(0, self.now_ms, None, b"v")]), self.model.epoch)
            self.model.epochs.append(self.model.epoch)

    @rule(short=st.sampled_from((0, 0, 1)))
    def syncs(self, short: int) -> None:
        model = self.model
        model.durable = max(model.durable, model.end - short)
        self.give(partial(self.raft.on_durable, model.durable))

    @rule(by=st.sampled_from((10, 60, 300, 1100, 2500)))
    def time_passes(self, by: int) -> None:
        self.now_ms += by
        self.give(self.raft.tick)

    @rule(peer=peers)
    def a_connection_breaks(self, peer: int) -> None:
        self.give(partial(self.raft.on_broken_connection, peer))

    @rule(is_synced=st.booleans(), peer=peers)
    def stands(self, is_synced: bool, peer: int) -> None:
        """Let the member be elected, where it may be: chance alone seldom gets that far."""
        self.time_passes(2500)
        for _ in ("pre-vote", "vote"):
            for sent in list(self.open.values()):
                is_asked = isinstance(sent.request, VoteRequest) and sent.to == peer
                if is_asked and self.waits_for(sent):
                    which = [
                        one
                        for one, other in self.open.items()
                        if isinstance(other.request, VoteRequest)
                    ].index(sent.correlation_id)
                    self.vote_is_answered(which, "granted", NO_NODE, is_repeated=True)
        if is_synced:
            self.syncs(0)

    @rule(kept=st.integers(0, 3))
    def dies(self, kept: int) -> None:
        """Kill the process; of what is not durable, some stays."""
        model = self.model
        end = min(model.durable + kept, model.end)
        del model.epochs[end:], self.log.batches[end:]
        model.durable, model.high_watermark = end, 0
        model.votes = set()
        model.entered()
        self.begin()


def check(examples: int, phases: tuple[Phase, ...]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        MemberAgainstModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_member_does_as_the_model() -> None:
    check(150, (Phase.generate, Phase.shrink))


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug), pytest.raises((AssertionError, Corrupt)):
        check(400, (Phase.generate,))
