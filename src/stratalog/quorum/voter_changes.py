"""Change the voters of the quorum while it works: add, remove or update one of them.

In: a request at the leader, the time. Out: a Voters record to append, and an answer once that is committed. Only one
change is open at a time, so the majorities of the sets before and after it share a voter. It sends no requests.

The new set counts as soon as its record is in the log, and the record is committed by the new set's majority. A leader
that removes itself does not count itself from then on, leads until the record is committed, and resigns.

Kafka: KIP-853; AddVoterHandler, RemoveVoterHandler, UpdateVoterHandler.
"""

from typing import Any, Final

from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    AddVoterRequest,
    Answer,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from stratalog.quorum.progress import UNKNOWN_OFFSET
from stratalog.quorum.states import Leader, OpenChange
from stratalog.quorum.voters import KRAFT_VERSION, Voter, VoterSet

CAUGHT_UP_WITHIN_MS: Final = 3_600_000
"""A new voter must have fetched, and have had all of the log, within an hour (Kafka: LeaderState.isReplicaCaughtUp)."""


def change_voters(member: Member, token: Any, request: VoterChangeRequest, now_ms: int) -> None:
    """Append the changed set and answer once it is committed; refuse at once where the change is not allowed.

    Codes: NOT_LEADER_OR_FOLLOWER, UNSUPPORTED_VERSION, REQUEST_TIMED_OUT (another change is open, or the new voter
    lags), DUPLICATE_VOTER, VOTER_NOT_FOUND (also for the last voter, and for another directory), INVALID_REQUEST.
    """
    leader = member.state
    try:
        if not isinstance(leader, Leader) or member.is_stopping:
            raise Rejected(ErrorCode.not_leader_or_follower, "this node does not lead the quorum")
        voters = _changed(member, leader, request, now_ms)
    except Rejected as refusal:
        _answer(member, token, refusal.code, refusal.message)
        return
    offset = member.append_voters(voters)
    if request.ack_when_committed:
        leader.change = OpenChange(token, offset, now_ms + request.timeout_ms)
    else:
        _answer(member, token, ErrorCode.none)


def answer_change(member: Member, leader: Leader, now_ms: int) -> None:
    """Answer the open change where it is committed, or where its time is over: it may still be committed later."""
    change = leader.change
    if change is not None and change.offset < leader.progress.high_watermark:
        leader.change = None
        _answer(member, change.token, ErrorCode.none)
    elif change is not None and now_ms >= change.deadline_ms:
        leader.change = None
        late = "the change is in the log, and not committed yet"
        _answer(member, change.token, ErrorCode.request_timed_out, late)


def is_removed(member: Member, leader: Leader) -> bool:
    """Return whether the committed set lacks the leader, which must resign then."""
    committed = member.voter_history.latest_offset < leader.progress.high_watermark
    return committed and not member.is_voter


def _answer(member: Member, token: Any, code: ErrorCode, message: str | None = None) -> None:
    response = VoterChangeResponse(
        error=code, message=message, leader_id=member.leader_id, leader_epoch=member.epoch
    )
    member.outputs.append(Answer(token, response))


def _changed(member: Member, leader: Leader, request: VoterChangeRequest, now_ms: int) -> VoterSet:
    """Return the voters after a change. Raises Rejected."""
    if isinstance(request, UpdateVoterRequest) and request.epoch != member.epoch:
        older = request.epoch < member.epoch
        code = ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        raise Rejected(code, f"the request is for epoch {request.epoch}, this is {member.epoch}")
    _check_open(member, leader)
    before = member.voters
    match request:
        case AddVoterRequest(voter):
            _check_new(leader, before, voter, now_ms)
            return VoterSet.of((*before.voters, voter))
        case RemoveVoterRequest(key):
            if not _has(before, key):
                raise Rejected(
                    ErrorCode.voter_not_found,
                    f"voter {key.id} in directory {key.directory_id} is not in {before.named()}",
                )
            if len(before.voters) == 1:
                raise Rejected(
                    ErrorCode.voter_not_found,
                    f"voter {key.id} is the only one and cannot leave; add another voter first",
                )
            return VoterSet(tuple(one for one in before.voters if one.key != key))
        case UpdateVoterRequest(voter):
            _check_version(voter)
            if not _has(before, voter.key):
                raise Rejected(
                    ErrorCode.voter_not_found,
                    f"voter {voter.id} in directory {voter.directory_id} is not in {before.named()}",
                )
            return VoterSet.of((*before.voters, voter))


def _check_open(member: Member, leader: Leader) -> None:
    """Raise Rejected unless all earlier changes are committed, in an epoch whose first record is."""
    if not member.voter_history.kraft_version:
        raise Rejected(
            ErrorCode.unsupported_version,
            "kraft.version is 0: controller.quorum.voters names the voters, which never change",
        )
    high_watermark = leader.progress.high_watermark
    if high_watermark == UNKNOWN_OFFSET:
        raise Rejected(ErrorCode.request_timed_out, "the leader has committed no record yet")
    if leader.change is not None or member.voter_history.latest_offset >= high_watermark:
        raise Rejected(ErrorCode.request_timed_out, "another change of the voters is open")


def _check_new(leader: Leader, before: VoterSet, voter: Voter, now_ms: int) -> None:
    if before.voter(voter.id) is not None:
        raise Rejected(ErrorCode.duplicate_voter, f"{voter.id} is one of {before.named()} already")
    _check_version(voter)
    seen = leader.progress.followers.get(voter.key)
    oldest_ms = now_ms - CAUGHT_UP_WITHIN_MS
    if seen is None or seen.caught_up_ms < 0 or seen.fetched_ms <= oldest_ms:
        raise Rejected(
            ErrorCode.request_timed_out,
            f"node {voter.id} with directory {voter.directory_id} has not caught up with the log",
        )


def _check_version(voter: Voter) -> None:
    low, high = voter.kraft_versions
    if not low <= KRAFT_VERSION <= high:
        raise Rejected(
            ErrorCode.invalid_request,
            f"node {voter.id} supports kraft.version {low} to {high}, the cluster is at {KRAFT_VERSION}",
        )


def _has(voters: VoterSet, key: Any) -> bool:
    voter = voters.voter(key.id)
    return voter is not None and voter.key == key
