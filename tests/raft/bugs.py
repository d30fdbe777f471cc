"""Bugs that a consensus may have, each as a patch of the product, for `python -m tests.raft --bugs`.

In: the name of a bug. Out: a context in which every member has that bug. Each must be found by some seed.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace
from tests.planting import Patch, named, planting

from stratalog.quorum import answer_checks, answers, member, raft, replies, states, voter_changes
from stratalog.quorum.messages import Answer, Persist, Send
from stratalog.quorum.progress import UNKNOWN_OFFSET, Progress
from stratalog.quorum.saved_state import NO_NODE, QuorumState
from stratalog.quorum.voters import Voter, VoterSet

Member, Raft = member.Member, raft.Raft


def vote_not_persisted() -> Iterator[Patch]:
    real = Member._persist

    def persist(self: Any, state: Any) -> None:
        real(self, state)
        if self.outputs and isinstance(self.outputs[-1], Persist) and state.voted_id != NO_NODE:
            self.outputs.pop()

    yield Member, "_persist", persist


def persisted_after_the_answer() -> Iterator[Patch]:
    real = Raft.tick

    def tick(self: Any, now_ms: int) -> Any:
        return sorted(real(self, now_ms), key=lambda one: not isinstance(one, Send | Answer))

    yield Raft, "tick", tick


def no_truncation() -> Iterator[Patch]:
    real = answers._missing

    def missing(self: Any, request: Any) -> Any:
        found = real(self, request)
        return None if isinstance(found, tuple) and request.offset <= self.log.end_offset else found

    yield answers, "_missing", missing


def watermark_from_one_replica() -> Iterator[Patch]:
    def advance(self: Any, voters: Any) -> bool:
        reached = max(self._end_of(one.key) for one in voters.voters)
        moved = self.epoch_start < reached > self.high_watermark
        self.high_watermark = max(self.high_watermark, reached) if moved else self.high_watermark
        return moved

    yield Progress, "advance", advance


def earlier_epochs_committed_by_counting() -> Iterator[Patch]:
    real = Progress.__init__

    def init(self: Any, me: Any, epoch_start: int, **others: Any) -> None:
        real(self, me, UNKNOWN_OFFSET, **others)

    yield Progress, "__init__", init


def epoch_not_raised() -> Iterator[Patch]:
    def become_candidate(self: Any, now_ms: int) -> None:
        self._persist(QuorumState(max(self.epoch, 1), voted_id=self.me.id))
        self._enter(
            states.Candidate(self.election_deadline_ms(now_ms), states.Ballots({self.me.id}))
        )

    yield Member, "become_candidate", become_candidate


def stale_answers_taken() -> Iterator[Patch]:
    real = replies.take

    def take(self: Any, sent: Any, response: Any, now_ms: int) -> None:
        request = replace(sent.request, epoch=self.epoch)
        leader = self.leader_id if response.leader_epoch < self.epoch else response.leader_id
        epoch = max(self.epoch, response.leader_epoch)
        response = replace(response, leader_id=leader, leader_epoch=epoch)
        real(self, replace(sent, request=request), response, now_ms)

    yield raft, "take", take
    yield member.RequestsSent, "clear", lambda _self: None


def voter_ignores_the_log() -> Iterator[Patch]:
    real = answers.may_grant
    yield answers, "may_grant", lambda *given, **_: real(*given, is_up_to_date=True)


def second_vote_in_an_epoch() -> Iterator[Patch]:
    real = answers.may_grant

    def may_grant(state: Any, saved: Any, asked: Any, **others: Any) -> bool:
        return real(state, replace(saved, voted_id=NO_NODE), asked, **others)

    def grant(self: Any, candidate: Any, now_ms: int) -> None:
        self._persist(QuorumState(self.epoch, voted_id=candidate.id))
        self._enter(states.Unattached(self.election_deadline_ms(now_ms)))

    yield answers, "may_grant", may_grant
    yield Member, "grant", grant


def fetch_before_durable() -> Iterator[Patch]:
    real = Raft._fetch_from

    def fetch_from(self: Any, node_id: int, now_ms: int) -> None:
        log = self._member.log
        ends = (self._member.durable_offset, self._member.is_writing)
        changed = any(not isinstance(one, Send | Answer) for one in self._member.outputs)
        if not changed:
            self._member.durable_offset, self._member.is_writing = log.end_offset, False
        real(self, node_id, now_ms)
        self._member.durable_offset, self._member.is_writing = ends

    yield Raft, "_fetch_from", fetch_from


def leader_counts_what_it_has_not_synced() -> Iterator[Patch]:
    real = Progress.on_fetch

    def on_fetch(self: Any, replica: Any, offset: int, leader_end: int, *others: Any) -> bool:
        self._local_end = leader_end
        return real(self, replica, offset, leader_end, *others)

    yield Progress, "on_fetch", on_fetch


def leader_goes_on_after_a_restart() -> Iterator[Patch]:
    real = Member.start

    def start(self: Any, now_ms: int) -> None:
        was = self.saved
        real(self, now_ms)
        if was.leader_id == self.me.id:
            self.become_leader(states.Ballots({self.me.id}), now_ms)

    yield Member, "start", start


def short_snapshot() -> Iterator[Patch]:
    real = replies._snapshot_part

    def part(self: Any, response: Any, now_ms: int) -> None:
        size = min(response.size, response.position + len(response.data))
        real(self, replace(response, size=size), now_ms)

    yield replies, "_snapshot_part", part


def old_epochs_of_the_log_forgotten() -> Iterator[Patch]:
    """The simulator found this bug: a leader may no longer know the end of an epoch below its log's start."""
    real = answers._missing

    def missing(self: Any, request: Any) -> Any:
        epoch = self.log.start_epoch
        self.log.start_epoch = min(epoch, request.last_epoch)
        found = real(self, request)
        self.log.start_epoch = epoch
        return found

    yield answers, "_missing", missing


def second_change_while_one_is_open() -> Iterator[Patch]:
    yield voter_changes, "_check_open", lambda *_: None


def removed_leader_counts_itself() -> Iterator[Patch]:
    real = Progress.advance

    def advance(self: Any, voters: Any) -> bool:
        return real(self, VoterSet.of((*voters.voters, Voter(*self._me))))

    yield Progress, "advance", advance


def removed_voter_never_stands() -> Iterator[Patch]:
    """Found by the simulator: a voter alone has the record of its own removal, and the others cannot win."""
    yield Member, "may_stand", property(lambda self: self.is_voter)


def damaged_batches_appended() -> Iterator[Patch]:
    """A follower checks no CRC."""
    yield answer_checks, "crc_holds", lambda *_: True


BUGS = named(
    (
        vote_not_persisted,
        persisted_after_the_answer,
        no_truncation,
        watermark_from_one_replica,
        earlier_epochs_committed_by_counting,
        epoch_not_raised,
        stale_answers_taken,
        voter_ignores_the_log,
        second_vote_in_an_epoch,
        fetch_before_durable,
        leader_counts_what_it_has_not_synced,
        leader_goes_on_after_a_restart,
        short_snapshot,
        old_epochs_of_the_log_forgotten,
        second_change_while_one_is_open,
        removed_leader_counts_itself,
        removed_voter_never_stands,
        damaged_batches_appended,
    )
)
OF_LIES = frozenset({"damaged batches appended"})
"""Bugs that only a run with damaged answers can show."""


def planted(name: str) -> AbstractContextManager[None]:
    """Run with that bug in every member."""
    return planting(BUGS[name])
