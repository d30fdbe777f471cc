"""Take the responses to a member's own requests.

In: a request that the member sent, its response, the time. Out: outputs. It answers no request.

A response may be late: the member then is in another epoch or state. Those of an older epoch change nothing. All of a
response is checked before anything of it is applied (`answer_checks.py`).
Kafka: the `handle…Response` methods of KafkaRaftClient.
"""

from collections.abc import Iterable

from stratalog.errors import Corrupt, ErrorCode, UserError
from stratalog.quorum.answer_checks import Control, Fetched, check, common_end
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    AppendFetched,
    EndQuorumEpochRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LoadSnapshot,
    Response,
    StoreSnapshot,
    VoteRequest,
    VoteResponse,
)
from stratalog.quorum.requests_sent import Sent
from stratalog.quorum.saved_state import NO_NODE
from stratalog.quorum.states import Candidate, Follower, Prospective, Resigned, SnapshotFetch
from stratalog.quorum.voters import opening, voter_set
from stratalog.wire.internal.control_records import LeaderChangeMessage, VotersRecord

_ELSEWHERE = (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower)


def take(member: Member, sent: Sent, response: Response, now_ms: int) -> None:
    """Take the response to a request that the member still waits for; discard one that is damaged."""
    try:
        fetched = check(member, sent, response)
    except Corrupt as damage:
        member.discard(sent, str(damage), now_ms)
        return
    error = response.error
    if response.leader_epoch < member.epoch or error is ErrorCode.unknown_leader_epoch:
        member.sent.back_off(sent.to, now_ms)
        return
    member.observe(response.leader_epoch, response.leader_id, now_ms)
    if sent.request.epoch != member.epoch:
        return  # the transition has forgotten all requests
    if error is not ErrorCode.none:
        member.sent.back_off(sent.to, now_ms)
        if _denies(member, sent, response):
            member.leave_leader(now_ms)
        elif error not in _ELSEWHERE and isinstance(response, FetchSnapshotResponse):
            _give_up_snapshot(member)
        return
    match response:
        case VoteResponse():
            _vote(member, sent, response)
        case FetchResponse():
            _fetched(member, response, fetched, now_ms)
        case FetchSnapshotResponse():
            _snapshot_part(member, response, now_ms)
        case _:
            if isinstance(sent.request, EndQuorumEpochRequest) and isinstance(
                member.state, Resigned
            ):
                member.state.unacked.discard(sent.to)


def snapshot_damaged(member: Member, reason: str, now_ms: int) -> None:
    """Discard a fetched snapshot, all of whose bytes are there: they are not those that were written."""
    state = member.state
    if isinstance(state, Follower) and state.fetching is not None:
        snapshot, position = state.fetching.snapshot, state.fetching.position
        state.fetching = None
        request = FetchSnapshotRequest(member.epoch, member.me, snapshot, position)
        member.discard(Sent(member.leader_id, request, now_ms), reason, now_ms)


def _denies(member: Member, sent: Sent, response: Response) -> bool:
    """Return whether the node that this member follows names another leader: an earlier answer named a wrong one."""
    is_followed = isinstance(member.state, Follower) and sent.to == member.leader_id
    return is_followed and response.leader_id not in (sent.to, member.me.id, NO_NODE)


def _vote(member: Member, sent: Sent, response: VoteResponse) -> None:
    state = member.state
    assert isinstance(sent.request, VoteRequest)
    wanted = Prospective if sent.request.pre_vote else Candidate
    if isinstance(state, wanted):
        ballots = state.ballots.granted if response.granted else state.ballots.rejected
        ballots.add(sent.to)


def _fetched(member: Member, response: FetchResponse, fetched: Fetched, now_ms: int) -> None:
    state = member.state
    if not isinstance(state, Follower):
        return
    state.deadline_ms = now_ms + member.timeouts.fetch_ms
    state.has_fetched = True
    member.lost_elections = member.discarded = 0
    if response.diverging is not None:
        member.truncate(common_end(member, response.diverging))
    elif response.snapshot is not None:
        state.fetching = SnapshotFetch(response.snapshot)
    elif _agrees(member, response, fetched.controls):
        if fetched.size:
            for one in fetched.controls:
                if isinstance(one.record, VotersRecord):
                    member.voter_history.add(one.offset, voter_set(one.record))
            member.write(AppendFetched(memoryview(response.records)[: fetched.size]))
        member.leader_high_watermark = max(member.leader_high_watermark, response.high_watermark)
        member.commit_as_follower()
    else:
        member.leave_leader(now_ms)


def _agrees(member: Member, response: FetchResponse, controls: Iterable[Control]) -> bool:
    """Return whether the leader counts the voters that this node's configuration names.

    Two sets may have majorities that share no voter, so a node does not follow such a leader. Raises UserError once the
    leader's first record is committed: then the others go on without this node. Kafka's nodes compare no sets.
    """
    history = member.voter_history
    if history.kraft_version:
        return True
    openings = [] if history.last_opening is None else [history.last_opening]
    for header, offset, found in controls:
        if isinstance(found, LeaderChangeMessage):
            openings.append(opening(header.leader_epoch, offset, found))
        if isinstance(found, VotersRecord):
            return True  # from here on the log names the voters
    for opened in openings:
        if opened.epoch == member.epoch and opened.voter_ids != set(member.voters.ids):
            if opened.offset < response.high_watermark:
                raise UserError(
                    f"controller.quorum.voters: this node names the {member.voters.named()}, but node "
                    f"{response.leader_id} leads epoch {member.epoch} of the metadata log, committed with the voters "
                    f"{', '.join(map(str, sorted(opened.voter_ids)))}; accepted: the same voters on every node"
                )
            return False
    return True


def _snapshot_part(member: Member, response: FetchSnapshotResponse, now_ms: int) -> None:
    state = member.state
    if not isinstance(state, Follower) or state.fetching is None or state.fetching.is_loading:
        return
    fetching = state.fetching
    state.deadline_ms = now_ms + member.timeouts.fetch_ms
    member.outputs.append(StoreSnapshot(fetching.snapshot, fetching.position, response.data))
    fetching.position += len(response.data)
    fetching.size = response.size
    if fetching.position == response.size:
        fetching.is_loading = True
        member.outputs.append(LoadSnapshot(fetching.snapshot))


def _give_up_snapshot(member: Member) -> None:
    """Fetch records again: the leader has replaced the snapshot, and will name the new one."""
    if isinstance(member.state, Follower):
        member.state.fetching = None
