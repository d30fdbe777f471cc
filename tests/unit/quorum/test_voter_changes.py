"""Changes of voters at their leader: what is refused, with which code, and when the answer comes."""

from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest
from tests.raft.log import Log

from stratalog.errors import ErrorCode
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    AddVoterRequest,
    Answer,
    AppendControl,
    FetchRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
)
from stratalog.quorum.metadata_batches import encode_control_batch
from stratalog.quorum.raft import Raft
from stratalog.quorum.saved_state import QuorumState
from stratalog.quorum.states import Timeouts
from stratalog.quorum.voter_changes import CAUGHT_UP_WITHIN_MS
from stratalog.quorum.voters import ReplicaKey, Voter, VoterHistory, VoterSet
from stratalog.wire.batch import assign

ONE, TWO, THREE = (Voter(one, UUID(int=one)) for one in (1, 2, 3))
OTHER = UUID(int=99)


class Leading:
    """Member 1 leads; its appends are durable at once."""

    def __init__(self, *voters, kraft_version=1):
        self.log = Log()
        history = VoterHistory(VoterSet(voters), kraft_version=kraft_version)
        entropy = SimpleNamespace(uniform=Random(1).uniform)
        member = Member(
            ONE.key, self.log, history, saved=QuorumState(), timeouts=Timeouts(), entropy=entropy
        )
        self.now_ms, self.answers = 0, {}
        self.raft = Raft(member)
        self.take(self.raft.start(0))

    def take(self, outputs):
        for output in outputs:
            if isinstance(output, Answer):
                self.answers[output.token] = output.response
            elif isinstance(output, AppendControl):
                batch = encode_control_batch(output.records, 0)
                assign(memoryview(batch), 0, self.log.end_offset, output.epoch)
                self.log.append(bytes(batch))
                self.log.durable_offset = self.log.end_offset
                self.take(self.raft.on_durable(self.log.end_offset, self.now_ms))

    def ask(self, request):
        """Return the error, or None while the answer waits."""
        self.answers.pop("asked", None)
        self.take(self.raft.on_change("asked", request, self.now_ms))
        return self.error()

    def error(self):
        answer = self.answers.get("asked")
        return None if answer is None else answer.error

    def fetch(self, replica, offset=None):
        end = self.log.end_offset if offset is None else offset
        request = FetchRequest(self.raft.epoch, replica, end, self.log.end_of(99)[0] if end else 0)
        self.take(self.raft.on_request("fetch", request, self.now_ms))


def test_a_voter_is_added_once_the_new_majority_has_the_record():
    leader = Leading(ONE)
    leader.fetch(TWO.key)
    assert leader.ask(AddVoterRequest(TWO, 1000)) is None, "two of two must have it"
    assert leader.raft.voters.ids == (1, 2)
    leader.fetch(TWO.key)
    assert leader.error() is ErrorCode.none
    assert leader.ask(AddVoterRequest(TWO, 1000)) is ErrorCode.duplicate_voter
    assert leader.ask(AddVoterRequest(Voter(2, OTHER), 1000)) is ErrorCode.duplicate_voter


def test_a_request_may_ask_for_no_wait():
    leader = Leading(ONE)
    leader.fetch(TWO.key)
    assert leader.ask(AddVoterRequest(TWO, 1000, ack_when_committed=False)) is ErrorCode.none


def test_one_change_is_open_at_a_time_also_after_its_time_is_over():
    leader = Leading(ONE)
    leader.fetch(TWO.key)
    leader.fetch(THREE.key)
    assert leader.ask(AddVoterRequest(TWO, 1000)) is None
    assert leader.ask(AddVoterRequest(THREE, 1000)) is ErrorCode.request_timed_out
    leader.answers.clear()
    leader.now_ms = 1000
    leader.take(leader.raft.tick(1000))
    assert leader.error() is ErrorCode.request_timed_out
    assert leader.ask(AddVoterRequest(THREE, 1000)) is ErrorCode.request_timed_out


def test_a_new_voter_must_have_caught_up_within_the_hour():
    leader = Leading(ONE)
    assert leader.ask(AddVoterRequest(TWO, 1000)) is ErrorCode.request_timed_out
    leader.fetch(TWO.key, offset=0)
    assert leader.ask(AddVoterRequest(TWO, 1000)) is ErrorCode.request_timed_out
    leader.fetch(TWO.key)
    leader.now_ms = CAUGHT_UP_WITHIN_MS
    assert leader.ask(AddVoterRequest(TWO, 1000)) is ErrorCode.request_timed_out


def test_a_new_voter_must_support_the_version():
    leader = Leading(ONE)
    leader.fetch(TWO.key)
    old = Voter(2, TWO.directory_id, kraft_versions=(0, 0))
    assert leader.ask(AddVoterRequest(old, 1000)) is ErrorCode.invalid_request
    assert leader.ask(UpdateVoterRequest(old, leader.raft.epoch)) is ErrorCode.invalid_request


@pytest.mark.parametrize("key", [ONE.key, ReplicaKey(1, OTHER), TWO.key, ReplicaKey(1)])
def test_the_last_voter_and_another_directory_stay(key):
    leader = Leading(ONE)
    assert leader.ask(RemoveVoterRequest(key, 1000)) is ErrorCode.voter_not_found


def test_a_leader_that_removes_itself_leads_until_the_record_is_committed():
    leader = Leading(ONE)
    leader.fetch(TWO.key)
    leader.ask(AddVoterRequest(TWO, 1000))
    leader.fetch(TWO.key)
    assert leader.ask(RemoveVoterRequest(ONE.key, 1000)) is None, "its own copy counts no more"
    assert leader.raft.is_leader
    leader.fetch(TWO.key)
    assert leader.error() is ErrorCode.none
    assert not leader.raft.is_leader


def test_a_voter_updates_its_endpoints_in_the_leaders_epoch():
    leader = Leading(ONE)
    moved = Voter(1, ONE.directory_id, kraft_versions=(1, 1))
    epoch = leader.raft.epoch
    assert leader.ask(UpdateVoterRequest(moved, epoch - 1)) is ErrorCode.fenced_leader_epoch
    assert leader.ask(UpdateVoterRequest(moved, epoch + 1)) is ErrorCode.unknown_leader_epoch
    assert leader.ask(UpdateVoterRequest(THREE, epoch)) is ErrorCode.voter_not_found
    assert leader.ask(UpdateVoterRequest(moved, epoch)) is ErrorCode.none
    assert leader.raft.voters.voters == (moved,)


def test_static_voters_never_change():
    leader = Leading(ONE, kraft_version=0)
    assert leader.ask(RemoveVoterRequest(ONE.key, 1000)) is ErrorCode.unsupported_version


def test_a_follower_refuses():
    member = Leading(ONE, TWO, THREE)
    assert not member.raft.is_leader
    assert member.ask(AddVoterRequest(TWO, 1000)) is ErrorCode.not_leader_or_follower
