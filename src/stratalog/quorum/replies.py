"""Take the responses to a member's own requests.

In: a request that the member sent, its response, the time. Out: outputs. It answers no request.

A response may be late: the member then is in another epoch or state. Those of an older epoch change nothing.
Kafka: the `handle…Response` methods of KafkaRaftClient.
"""

from collections.abc import Iterator

from stratalog.errors import Corrupt, ErrorCode, UserError
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    AppendFetched,
    EndQuorumEpochRequest,
    FetchResponse,
    FetchSnapshotResponse,
    LoadSnapshot,
    Response,
    StoreSnapshot,
    VoteRequest,
    VoteResponse,
)
from stratalog.quorum.requests_sent import Sent
from stratalog.quorum.states import Candidate, Follower, Prospective, Resigned, SnapshotFetch
from stratalog.quorum.voters import opening, voter_set
from stratalog.wire.batch import BatchHeader, scan
from stratalog.wire.internal.control import ControlRecord, decode_control
from stratalog.wire.internal.control_records import LeaderChangeMessage, VotersRecord
from stratalog.wire.records import read_records

_ELSEWHERE = (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower)


def take(member: Member, sent: Sent, response: Response, now_ms: int) -> None:
    """Take the response to a request that the member still waits for."""
    error = response.error
    if response.leader_epoch < member.epoch or error is ErrorCode.unknown_leader_epoch:
        member.sent.back_off(sent.to, now_ms)
        return
    member.observe(response.leader_epoch, response.leader_id, now_ms)
    if sent.request.epoch != member.epoch:
        return  # the transition has forgotten all requests
    if error is not ErrorCode.none:
        member.sent.back_off(sent.to, now_ms)
        if error not in _ELSEWHERE and isinstance(response, FetchSnapshotResponse):
            _give_up_snapshot(member)
        return
    match response:
        case VoteResponse():
            _vote(member, sent, response)
        case FetchResponse():
            _fetched(member, response, now_ms)
        case FetchSnapshotResponse():
            _snapshot_part(member, response, now_ms)
        case _:
            if isinstance(sent.request, EndQuorumEpochRequest) and isinstance(
                member.state, Resigned
            ):
                member.state.unacked.discard(sent.to)


def _vote(member: Member, sent: Sent, response: VoteResponse) -> None:
    state = member.state
    assert isinstance(sent.request, VoteRequest)
    wanted = Prospective if sent.request.pre_vote else Candidate
    if isinstance(state, wanted):
        ballots = state.ballots.granted if response.granted else state.ballots.rejected
        ballots.add(sent.to)


def _fetched(member: Member, response: FetchResponse, now_ms: int) -> None:
    state = member.state
    if not isinstance(state, Follower) or response.leader_id != member.leader_id:
        return
    state.deadline_ms = now_ms + member.timeouts.fetch_ms
    state.has_fetched = True
    member.lost_elections = 0
    if response.diverging is not None:
        epoch, end = response.diverging
        own_epoch, own_end = member.log.end_of(epoch)
        member.truncate(min(own_end, end) if own_epoch == epoch else own_end)
    elif response.snapshot is not None:
        state.fetching = SnapshotFetch(response.snapshot)
    elif _agrees(member, response):
        if len(response.records):
            _append(member, response)
        member.leader_high_watermark = max(member.leader_high_watermark, response.high_watermark)
        member.commit_as_follower()
    else:
        member.leave_leader(now_ms)


def _agrees(member: Member, response: FetchResponse) -> bool:
    """Return whether the leader counts the voters that this node's configuration names.

    Two sets may have majorities that share no voter, so a node does not follow such a leader. Raises UserError once the
    leader's first record is committed: then the others go on without this node. Kafka's nodes compare no sets.
    """
    history = member.voter_history
    if history.kraft_version:
        return True
    openings = [] if history.last_opening is None else [history.last_opening]
    for header, offset, found in _controls(response):
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


def _append(member: Member, response: FetchResponse) -> None:
    """Append the leader's records. Raises Corrupt where no leader of that epoch can have sent them."""
    offset, epoch = member.log.end_offset, member.log.last_epoch
    for _, header in scan(memoryview(response.records)):
        if header.base_offset < offset or not epoch <= header.leader_epoch <= response.leader_epoch:
            raise Corrupt(
                f"leader {response.leader_id} of epoch {response.leader_epoch} sent offset {header.base_offset} "
                f"of epoch {header.leader_epoch} where offset {offset} of epoch {epoch} or later belongs"
            )
        offset, epoch = header.next_offset, header.leader_epoch
    for _, at, found in _controls(response):
        if isinstance(found, VotersRecord):
            member.voter_history.add(at, voter_set(found))
    member.write(AppendFetched(response.records))


def _controls(response: FetchResponse) -> Iterator[tuple[BatchHeader, int, ControlRecord | None]]:
    """Yield the control records of a response, each with its batch's header and its offset."""
    view = memoryview(response.records)
    for position, header in scan(view):
        if header.is_control:
            for record in read_records(view[position : position + header.size]):
                yield header, record.offset, decode_control(record.key, record.value)


def _snapshot_part(member: Member, response: FetchSnapshotResponse, now_ms: int) -> None:
    state = member.state
    fetching = state.fetching if isinstance(state, Follower) else None
    if fetching is None or fetching.is_loading or response.position != fetching.position:
        return
    assert isinstance(state, Follower)
    state.deadline_ms = now_ms + member.timeouts.fetch_ms
    member.outputs.append(StoreSnapshot(fetching.snapshot, fetching.position, response.data))
    fetching.position += len(response.data)
    if fetching.position >= response.size:
        fetching.is_loading = True
        member.outputs.append(LoadSnapshot(fetching.snapshot))


def _give_up_snapshot(member: Member) -> None:
    """Fetch records again: the leader has replaced the snapshot, and will name the new one."""
    if isinstance(member.state, Follower):
        member.state.fetching = None
