"""A member discards a damaged answer whole: it logs and counts the answer, waits, asks again, and has changed nothing.

Method: a follower of node 2 in epoch 3, whose log has two records of epoch 2; one answer of a node that lies.
"""

from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.raft.log import Log

from stratalog.errors import ErrorCode
from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    EPOCH_MAX,
    Answer,
    AppendFetched,
    BeginQuorumEpochRequest,
    Discarded,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LoadSnapshot,
    Persist,
    Send,
    StoreSnapshot,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from stratalog.quorum.metadata_batches import encode_control_batch
from stratalog.quorum.raft import Raft
from stratalog.quorum.saved_state import QuorumState
from stratalog.quorum.states import Timeouts
from stratalog.quorum.voters import (
    ReplicaKey,
    Voter,
    VoterHistory,
    VoterSet,
    leader_change,
    voters_control,
    voters_record,
)
from stratalog.wire.batch import assign
from stratalog.wire.records import Record, build_batch

VOTERS = VoterSet.of(Voter(one, UUID(int=one)) for one in (1, 2, 3))
TWO = VoterSet.of(VOTERS.voters[:2])
BASE_MS, FETCH_MS = 20, 2000
CHANGES = (AppendFetched, Truncate, StoreSnapshot, LoadSnapshot, Persist)


def control(offset, epoch, *records):
    batch = encode_control_batch(records, 0)
    assign(memoryview(batch), 0, offset, epoch)
    return bytes(batch)


def data(offset, epoch, count=1):
    records = [Record(0, 0, None, b"value")] * count
    return bytes(build_batch(records, base_offset=offset, leader_epoch=epoch))


OPENING = control(2, 3, leader_change(2, VOTERS, {2, 3}))
REMOVAL = control(3, 3, *voters_control(voters_record(TWO)))
GOOD = FetchResponse(leader_id=2, leader_epoch=3, high_watermark=2, log_start_offset=0)


def flipped(batch, at):
    damaged = bytearray(batch)
    damaged[at] ^= 0x10
    return bytes(damaged)


class Following:
    """Member 1 follows node 2; its open request is a Fetch."""

    def __init__(self, me=1, leader_id=2):
        self.log = Log()
        self.log.append(control(0, 2, leader_change(3, VOTERS, {1, 3})) + data(1, 2))
        self.log.durable_offset = 2
        history = VoterHistory(VOTERS, kraft_version=1)
        self.member = Member(
            ReplicaKey(me, UUID(int=me)),
            self.log,
            history,
            saved=QuorumState(leader_epoch=3, leader_id=leader_id),
            timeouts=Timeouts(),
            entropy=SimpleNamespace(uniform=Random(1).uniform),
        )
        self.raft = Raft(self.member)
        self.now_ms = 0
        self.sent = self.asked(self.raft.start(0))

    def asked(self, outputs):
        return next(one for one in outputs if isinstance(one, Send))

    def answer(self, response):
        return self.raft.on_response(self.sent.correlation_id, response, self.now_ms)

    def state(self):
        member = self.member
        return (
            member.voters,
            member.high_watermark,
            member.leader_high_watermark,
            member.saved,
            member.state,
            member.is_writing,
        )


def check_discarded(following, response):
    """Give the answer; return the reason for which it is discarded."""
    before = repr(following.state())
    outputs = following.answer(response)
    assert not [one for one in outputs if isinstance(one, CHANGES)], outputs
    assert repr(following.state()) == before, "nothing of it was applied"
    (discarded,) = [one for one in outputs if isinstance(one, Discarded)]
    assert discarded.node_id == following.sent.to
    assert not [one for one in outputs if isinstance(one, Send)], "a backoff first"
    again = following.asked(following.raft.tick(following.now_ms + BASE_MS))
    assert type(again.request) is type(following.sent.request)
    following.sent = again
    return discarded.reason


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (flipped(OPENING, len(OPENING) - 1), "CRC"),
        (OPENING + flipped(REMOVAL, len(REMOVAL) - 1), "CRC"),
        (flipped(OPENING, 30), "CRC"),
        (flipped(OPENING, 7), "offset 18 of epoch 3 where offset 2"),
        (flipped(OPENING, 0), "where offset 2"),
        (flipped(OPENING, 15), "of epoch 19"),
        (flipped(OPENING, 16), "magic"),
        (flipped(OPENING, 8), "without a whole batch"),
        (OPENING[:-1], "without a whole batch"),
        (OPENING[:20], "without a whole batch"),
        (b"\xff" * 200, "a batch of"),
        (bytes(200), "a batch of"),
        (REMOVAL, "where offset 2"),
        (OPENING + OPENING, "where offset 3"),
        (data(2, 3), "of epoch 3 where offset 2 after epoch 2"),
        (data(2, 1), "of epoch 1 where offset 2 after epoch 2"),
        (OPENING + data(4, 3), "where offset 3"),
        (OPENING + data(3, 2), "of epoch 2 where offset 3 after epoch 3"),
    ],
)
def test_damaged_batches(records, reason):
    following = Following()
    assert reason in check_discarded(following, replace(GOOD, records=records, high_watermark=9))


@pytest.mark.parametrize(
    "response",
    [
        replace(GOOD, high_watermark=-2),
        replace(GOOD, leader_id=3),
        replace(GOOD, leader_id=-1),
        replace(GOOD, leader_id=-7),
        replace(GOOD, leader_epoch=EPOCH_MAX + 1),
        replace(GOOD, leader_epoch=(1 << 31) - 1, error=ErrorCode.fenced_leader_epoch),
        replace(GOOD, diverging=(2, 1 << 40)),
        replace(GOOD, diverging=(2, -3)),
        replace(GOOD, diverging=(1 << 30, 1)),
        replace(GOOD, snapshot=SnapshotId(-1, 2)),
        replace(GOOD, snapshot=SnapshotId(0, 2)),
        replace(GOOD, snapshot=SnapshotId(9, 4)),
    ],
)
def test_fetch_answers_that_make_no_sense(response):
    check_discarded(Following(), response)


def test_a_truncation_of_committed_records():
    following = Following()
    following.member.high_watermark = 2
    reason = check_discarded(following, replace(GOOD, diverging=(2, 1)))
    assert "lacks committed records" in reason


def test_an_undecodable_answer_is_discarded_too():
    following = Following()
    outputs = following.raft.on_damaged_response(following.sent.correlation_id, "why", 0)
    assert [one for one in outputs if isinstance(one, Discarded)] == [
        Discarded(2, following.sent.request, "why")
    ]


def test_each_damaged_answer_doubles_the_backoff_and_a_sound_one_ends_it():
    following = Following()
    damaged = replace(GOOD, records=OPENING[:-1])
    for wait_ms in (20, 40, 80, 160, 320, 640, 640):
        assert not [one for one in following.answer(damaged) if isinstance(one, Send)]
        following.now_ms += wait_ms
        assert not [
            one for one in following.raft.tick(following.now_ms - 1) if isinstance(one, Send)
        ]
        following.sent = following.asked(following.raft.tick(following.now_ms))
    following.sent = following.asked(following.answer(GOOD))
    following.answer(damaged)
    following.now_ms += BASE_MS
    following.asked(following.raft.tick(following.now_ms))


def test_a_leader_that_sends_damaged_answers_only_loses_its_follower_after_the_fetch_timeout():
    following = Following()
    damaged = replace(GOOD, records=OPENING[:-1])
    while following.now_ms < FETCH_MS - 700:
        following.answer(damaged)
        following.now_ms += 700
        following.sent = following.asked(following.raft.tick(following.now_ms))
    assert following.raft.role == "follower"
    following.raft.tick(FETCH_MS)
    assert following.raft.role == "prospective"


def test_sound_batches_are_appended_and_a_part_of_one_behind_them_is_left_out():
    following = Following()
    outputs = following.answer(replace(GOOD, records=OPENING + REMOVAL + data(5, 3)[:-1]))
    (appended,) = [one for one in outputs if isinstance(one, AppendFetched)]
    assert bytes(appended.records) == OPENING + REMOVAL
    assert following.member.voters == TWO


PART = FetchSnapshotResponse(leader_id=2, leader_epoch=3, size=10, position=0, data=b"1234")


def test_a_snapshot_that_is_damaged_as_a_whole_is_fetched_again():
    following = Following()
    outputs = following.answer(replace(GOOD, snapshot=SnapshotId(9, 3)))
    following.sent = following.asked(outputs)
    outputs = following.answer(replace(PART, size=4))
    assert [type(one) for one in outputs] == [StoreSnapshot, LoadSnapshot]
    outputs = following.raft.on_snapshot_damaged("why", 0)
    assert [one.reason for one in outputs if isinstance(one, Discarded)] == ["why"]
    again = following.asked(following.raft.tick(BASE_MS))
    assert isinstance(again.request, FetchRequest)
    assert following.member.high_watermark == 0


@pytest.mark.parametrize(
    "response",
    [
        replace(PART, data=b""),
        replace(PART, position=1),
        replace(PART, position=-1),
        replace(PART, size=3),
        replace(PART, size=-1),
        replace(PART, size=0),
        replace(PART, leader_id=3),
    ],
)
def test_parts_of_a_snapshot_that_make_no_sense(response):
    following = Following()
    following.sent = following.asked(following.answer(replace(GOOD, snapshot=SnapshotId(9, 3))))
    assert isinstance(following.sent.request, FetchSnapshotRequest)
    check_discarded(following, response)


def test_a_snapshot_whose_size_changes():
    following = Following()
    following.sent = following.asked(following.answer(replace(GOOD, snapshot=SnapshotId(9, 3))))
    following.sent = following.asked(following.answer(PART))
    assert following.sent.request.position == 4
    check_discarded(following, replace(PART, position=4, size=12))


def test_a_follower_leaves_a_leader_that_says_another_node_leads():
    following = Following()
    refusal = FetchResponse(error=ErrorCode.not_leader_or_follower, leader_id=3, leader_epoch=3)
    following.answer(refusal)
    assert following.raft.role == "unattached"
    following.raft.on_request("begin", BeginQuorumEpochRequest(3, 3, ReplicaKey(1)), 1)
    assert following.raft.leader_id == 3


def test_an_observer_that_got_the_name_of_a_wrong_leader_finds_the_right_one():
    """The wrong name is saved: it must not make the right leader's answers look damaged."""
    following = Following(me=9, leader_id=99)
    following.raft.on_broken_connection(99, 0)
    sent = following.asked(following.raft.tick(FETCH_MS))
    assert following.raft.role == "observer"
    leader = sent.to
    outputs = following.raft.on_response(
        sent.correlation_id, replace(GOOD, leader_id=leader), FETCH_MS
    )
    assert not [one for one in outputs if isinstance(one, Discarded)]
    assert following.raft.leader_id == leader


def test_a_lost_pre_vote_leads_back_to_a_leader_that_the_log_does_not_name_as_a_voter():
    """The log is older than that leader's entry: without its records the member asks for pre-votes for ever."""
    following = Following()
    votes = [one for one in following.raft.tick(FETCH_MS) if isinstance(one, Send)]
    assert following.raft.role == "prospective"
    following.member.saved = QuorumState(leader_epoch=3, leader_id=99)
    for vote in votes:
        refusal = VoteResponse(leader_id=99, leader_epoch=3)
        following.raft.on_response(vote.correlation_id, refusal, FETCH_MS)
    assert (following.raft.role, following.raft.leader_id) == ("follower", 99)


def test_a_pre_vote_finds_the_leader_where_the_saved_name_is_wrong():
    """Another voter names it: no leader sends anything to a node that is no voter any more."""
    following = Following()
    vote = following.asked(following.raft.tick(FETCH_MS))
    assert following.raft.role == "prospective"
    following.member.saved = QuorumState(leader_epoch=3, leader_id=99)
    refusal = VoteResponse(leader_id=2, leader_epoch=3)
    following.raft.on_response(vote.correlation_id, refusal, FETCH_MS)
    assert (following.raft.role, following.raft.leader_id) == ("follower", 2)


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_voter_gives_up_its_epoch_for_a_fetch_of_a_later_one(role):
    """The observer that fetches got its epoch from a damaged answer, and no leader of it will come otherwise."""
    following = Following()
    if role == "leader":
        votes = [one for one in following.raft.tick(FETCH_MS) if isinstance(one, Send)]
        grant = VoteResponse(leader_id=-1, leader_epoch=3, granted=True)
        outputs = following.raft.on_response(votes[0].correlation_id, grant, FETCH_MS)
        (vote, *_) = [one for one in outputs if isinstance(one, Send)]
        following.raft.on_response(vote.correlation_id, replace(grant, leader_epoch=4), FETCH_MS)
        assert following.raft.is_leader
    following.raft.on_request("token", FetchRequest(7, ReplicaKey(9), 2, 2), FETCH_MS)
    assert (following.raft.epoch, following.raft.leader_id) == (7, -1)
    assert following.raft.role == "unattached"


@pytest.mark.parametrize(("offset", "last_epoch"), [(-1, 2), (2, -1), (2, 8)])
def test_a_voter_keeps_its_epoch_where_a_fetch_of_a_later_one_makes_no_sense(offset, last_epoch):
    following = Following()
    before = (following.raft.epoch, following.raft.leader_id)
    request = FetchRequest(7, ReplicaKey(9), offset, last_epoch)
    outputs = following.raft.on_request("token", request, 1)
    (answer,) = [one for one in outputs if isinstance(one, Answer)]
    assert answer.response.error is ErrorCode.invalid_request
    assert (following.raft.epoch, following.raft.leader_id) == before


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1, (1 << 31) - 1])
def test_requests_of_an_epoch_that_cannot_be_are_invalid(epoch):
    following = Following()
    me = VOTERS.voters[0].key
    two = VOTERS.voters[1].key
    requests = [
        VoteRequest(epoch, two, me, 2, 2, pre_vote=False),
        BeginQuorumEpochRequest(epoch, 2, me),
        EndQuorumEpochRequest(epoch, 2, ()),
        FetchRequest(epoch, two, 2, 2),
        FetchSnapshotRequest(epoch, two, SnapshotId(1, 1), 0),
    ]
    for request in requests:
        (answer,) = [
            one
            for one in following.raft.on_request("token", request, 0)
            if not isinstance(one, Send)
        ]
        assert answer.response.error is ErrorCode.invalid_request
        assert (answer.response.leader_epoch, following.raft.epoch) == (3, 3)


def test_answers_to_votes_with_a_strange_epoch_or_leader_are_discarded():
    following = Following()
    outputs = following.raft.tick(FETCH_MS)
    votes = [one for one in outputs if isinstance(one, Send)]
    assert all(isinstance(one.request, VoteRequest) for one in votes)
    lies = [
        VoteResponse(leader_id=-9, leader_epoch=3, granted=True),
        VoteResponse(leader_id=-1, leader_epoch=EPOCH_MAX + 5, granted=True),
    ]
    for vote, lie in zip(votes, lies, strict=True):
        found = following.raft.on_response(vote.correlation_id, lie, FETCH_MS)
        assert [one.node_id for one in found if isinstance(one, Discarded)] == [vote.to]
    assert following.raft.role == "prospective", "no vote of them counts"


def test_a_leader_whose_log_is_damaged_resigns_and_the_others_learn_of_it():
    following = Following()
    votes = [one for one in following.raft.tick(FETCH_MS) if isinstance(one, Send)]
    grant = VoteResponse(leader_id=-1, leader_epoch=3, granted=True)
    outputs = following.raft.on_response(votes[0].correlation_id, grant, FETCH_MS)
    (vote, *_) = [one for one in outputs if isinstance(one, Send)]
    following.raft.on_response(vote.correlation_id, replace(grant, leader_epoch=4), FETCH_MS)
    assert following.raft.is_leader
    outputs = following.raft.on_damaged_log(FETCH_MS)
    ends = [one for one in outputs if isinstance(one, Send)]
    assert following.raft.role == "resigned"
    assert {one.to for one in ends} == {2, 3}
    assert all(isinstance(one.request, EndQuorumEpochRequest) for one in ends)
    lie = EpochResponse(leader_id=-4, leader_epoch=4)
    found = following.raft.on_response(ends[0].correlation_id, lie, FETCH_MS)
    assert [type(one) for one in found] == [Discarded]
    assert not following.raft.may_stop, "the lie acknowledges nothing"
