"""Answer the requests of other members.

In: a request with its token, the time. Out: an answer among the member's outputs, at once or, for a fetch that waits,
later. It sends no requests.

Kafka: the `handle…Request` methods of KafkaRaftClient.
"""

from typing import Any

from stratalog.errors import ErrorCode
from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    EPOCH_MAX,
    Answer,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from stratalog.quorum.progress import UNKNOWN_OFFSET
from stratalog.quorum.states import Follower, Leader, ParkedFetch, may_grant
from stratalog.quorum.voters import ReplicaKey


def answer(member: Member, token: Any, request: Request, now_ms: int) -> None:
    """Answer a request; the member's outputs get the answer, now or when a parked fetch has something to return."""
    if request.epoch > EPOCH_MAX:
        member.outputs.append(Answer(token, _refusal(member, request)))
        return
    match request:
        case VoteRequest():
            member.outputs.append(Answer(token, _vote(member, request, now_ms)))
        case BeginQuorumEpochRequest():
            member.outputs.append(Answer(token, _begin_epoch(member, request, now_ms)))
        case EndQuorumEpochRequest():
            member.outputs.append(Answer(token, _end_epoch(member, request, now_ms)))
        case FetchRequest():
            _fetch(member, token, request, now_ms)
        case FetchSnapshotRequest():
            _fetch_snapshot(member, token, request, now_ms)


def _refusal(member: Member, request: Request) -> Response:
    """Return INVALID_REQUEST: no sound node is in that epoch."""
    error, leader, epoch = ErrorCode.invalid_request, member.leader_id, member.epoch
    match request:
        case VoteRequest():
            return VoteResponse(error=error, leader_id=leader, leader_epoch=epoch)
        case FetchRequest():
            return FetchResponse(error=error, leader_id=leader, leader_epoch=epoch)
        case FetchSnapshotRequest():
            return FetchSnapshotResponse(error=error, leader_id=leader, leader_epoch=epoch)
        case _:
            return EpochResponse(error=error, leader_id=leader, leader_epoch=epoch)


def release_fetches(member: Member, leader: Leader, now_ms: int) -> None:
    """Answer the parked fetches that have something to return, or whose wait is over."""
    parked, leader.parked = leader.parked, []
    for one in parked:
        _serve(member, leader, one, now_ms)


def _is_for_me(member: Member, voter: ReplicaKey) -> bool:
    """Return whether a request that names its receiver means this member and its directory."""
    any_directory = voter.directory_id.int == 0
    return voter.id == member.me.id and (
        any_directory or voter.directory_id == member.me.directory_id
    )


def _vote(member: Member, request: VoteRequest, now_ms: int) -> VoteResponse:
    def response(error: ErrorCode = ErrorCode.none, *, granted: bool = False) -> VoteResponse:
        return VoteResponse(
            error=error, leader_id=member.leader_id, leader_epoch=member.epoch, granted=granted
        )

    if request.epoch < member.epoch:
        return response(ErrorCode.fenced_leader_epoch)
    # A candidate votes in an epoch above its log's; a pre-vote is in the epoch that the log may already have.
    latest = request.epoch if request.pre_vote else request.epoch - 1
    if not 0 <= request.last_epoch <= latest or request.candidate.id < 0 or request.last_offset < 0:
        return response(ErrorCode.invalid_request)
    if request.epoch > member.epoch:
        member.become_unattached(request.epoch, now_ms)
    if not _is_for_me(member, request.voter):
        return response(ErrorCode.invalid_voter_key)
    mine = (member.log.last_epoch, member.log.end_offset)
    is_up_to_date = (request.last_epoch, request.last_offset) >= mine
    granted = may_grant(member.state, member.saved, request, is_up_to_date=is_up_to_date)
    if granted and not request.pre_vote:
        member.grant(request.candidate, now_ms)
    return response(granted=granted)


def _epoch_response(member: Member, error: ErrorCode = ErrorCode.none) -> EpochResponse:
    return EpochResponse(error=error, leader_id=member.leader_id, leader_epoch=member.epoch)


def _begin_epoch(member: Member, request: BeginQuorumEpochRequest, now_ms: int) -> EpochResponse:
    if request.epoch < member.epoch:
        return _epoch_response(member, ErrorCode.fenced_leader_epoch)
    if request.leader_id < 0:
        return _epoch_response(member, ErrorCode.invalid_request)
    member.observe(request.epoch, request.leader_id, now_ms)
    if not _is_for_me(member, request.voter):
        return _epoch_response(member, ErrorCode.invalid_voter_key)
    return _epoch_response(member)


def _end_epoch(member: Member, request: EndQuorumEpochRequest, now_ms: int) -> EpochResponse:
    if request.epoch < member.epoch:
        return _epoch_response(member, ErrorCode.fenced_leader_epoch)
    if request.leader_id < 0:
        return _epoch_response(member, ErrorCode.invalid_request)
    member.observe(request.epoch, request.leader_id, now_ms)
    if isinstance(member.state, Follower) and member.leader_id == request.leader_id:
        member.state.has_fetched = False  # pre-votes are welcome: the leader is gone
        member.state.deadline_ms = now_ms + _wait_for_successors(member, request)
    return _epoch_response(member)


def _wait_for_successors(member: Member, request: EndQuorumEpochRequest) -> int:
    """Return how long to wait for the preferred candidates before this one, in ms.

    The first waits for none, each later one twice as long as the one before, up to the largest backoff.
    """
    candidates = request.preferred_candidates
    position = next((at for at, one in enumerate(candidates) if _is_for_me(member, one)), None)
    longest_ms = member.timeouts.election_backoff_max_ms
    if position is None:
        return longest_ms
    return 0 if position == 0 else longest_ms >> (len(candidates) - 1 - position)


def _leader_error(member: Member, request: FetchRequest | FetchSnapshotRequest) -> ErrorCode:
    """Return why this member cannot serve a request that is for the leader of an epoch; `none` where it can."""
    if request.epoch < member.epoch:
        return ErrorCode.fenced_leader_epoch
    if request.epoch > member.epoch:
        return ErrorCode.unknown_leader_epoch
    if not isinstance(member.state, Leader):
        return ErrorCode.not_leader_or_follower
    if request.replica.id == member.me.id:
        return ErrorCode.invalid_request
    return ErrorCode.none


def _fetch(member: Member, token: Any, request: FetchRequest, now_ms: int) -> None:
    is_valid = request.offset >= 0 and 0 <= request.last_epoch <= request.epoch
    if is_valid and request.epoch > member.epoch and member.is_voter and request.replica.id >= 0:
        # An observer stands for no election, so it would wait for a leader of that epoch for ever. It may know this
        # voter alone.
        member.become_unattached(request.epoch, now_ms)
    error = _leader_error(member, request)
    if not is_valid:
        error = ErrorCode.invalid_request
    if error is not ErrorCode.none or not isinstance(member.state, Leader):
        response = FetchResponse(error=error, leader_id=member.leader_id, leader_epoch=member.epoch)
        member.outputs.append(Answer(token, response))
        return
    leader = member.state
    if _missing(member, request) is None and request.replica.id >= 0:
        moved = leader.progress.on_fetch(
            request.replica, request.offset, member.log.end_offset, member.voters, now_ms
        )
        if moved:
            member.commit(leader.progress.high_watermark)
            release_fetches(member, leader, now_ms)
    _serve(member, leader, ParkedFetch(token, request, now_ms + request.max_wait_ms), now_ms)


def _serve(member: Member, leader: Leader, fetch: ParkedFetch, now_ms: int) -> None:
    """Answer a valid fetch with records, a diverging epoch or a snapshot; park a fetch that must wait."""
    request = fetch.request
    missing = _missing(member, request)
    high_watermark = leader.progress.high_watermark

    def reply(
        read_from: int | None = None,
        diverging: tuple[int, int] | None = None,
        snapshot: SnapshotId | None = None,
    ) -> None:
        response = FetchResponse(
            leader_id=member.me.id,
            leader_epoch=member.epoch,
            high_watermark=high_watermark,
            log_start_offset=member.log.start_offset,
            diverging=diverging,
            snapshot=snapshot,
        )
        member.outputs.append(Answer(fetch.token, response, read_from))

    if isinstance(missing, SnapshotId):
        reply(snapshot=missing)
    elif missing is not None:
        reply(diverging=missing)
    elif request.offset < member.log.end_offset:
        reply(read_from=request.offset)
    elif request.high_watermark < high_watermark or fetch.deadline_ms <= now_ms:
        reply()
    else:
        leader.parked.append(fetch)


def _missing(member: Member, request: FetchRequest) -> SnapshotId | tuple[int, int] | None:
    """Return the snapshot that the replica needs, or the diverging epoch and its end; None where its log is a prefix.

    Kafka: KafkaMetadataLog.validateOffsetAndEpoch.
    """
    log = member.log
    snapshot = log.snapshot
    if snapshot is not None and snapshot.end_offset > 0:
        # The end of an older epoch is unknown: only the snapshot has those records.
        is_older = request.offset == 0 or request.last_epoch < log.start_epoch
        is_other = request.offset == log.start_offset and request.last_epoch != log.start_epoch
        if is_older or is_other or request.offset < log.start_offset:
            return snapshot
    if request.offset == 0:
        return None
    epoch, end = log.end_of(request.last_epoch)
    if epoch == UNKNOWN_OFFSET:
        epoch, end = log.last_epoch, log.end_offset
    if epoch != request.last_epoch or end < request.offset:
        return epoch, end
    return None


def _fetch_snapshot(member: Member, token: Any, request: FetchSnapshotRequest, now_ms: int) -> None:
    error = _leader_error(member, request)
    size = member.log.snapshot_size(request.snapshot)
    if error is ErrorCode.none and size is None:
        error = ErrorCode.snapshot_not_found
    elif error is ErrorCode.none and not 0 <= request.position < (size or 0):
        error = ErrorCode.position_out_of_range
    if error is ErrorCode.none and isinstance(member.state, Leader):
        member.state.progress.on_contact(request.replica, member.voters, now_ms)
    response = FetchSnapshotResponse(
        error=error,
        leader_id=member.leader_id,
        leader_epoch=member.epoch,
        size=size or 0,
        position=request.position,
    )
    found = request.snapshot if error is ErrorCode.none else None
    member.outputs.append(Answer(token, response, snapshot=found))
