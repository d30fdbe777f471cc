"""Check an answer of another member before anything of it is applied.

In: a member, a request that it sent, the response. Out: the control records of fetched batches, or Corrupt. It changes
nothing.

A node with a bad disk, bad memory or a faulty version may answer anything. A batch's CRC protects its records. The
offset, length and epoch before them, and the other fields of a response, have only these rules. A high watermark that
is too high, or another epoch of the batch that opens an epoch, passes them: only the leader knows better.
"""

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.errors import Corrupt, ErrorCode
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    ANY_NODE,
    EPOCH_MAX,
    FetchRequest,
    FetchResponse,
    FetchSnapshotResponse,
    Response,
)
from stratalog.quorum.requests_sent import Sent
from stratalog.quorum.saved_state import NO_NODE
from stratalog.quorum.states import Follower
from stratalog.wire.batch import BatchHeader, crc_holds, scan
from stratalog.wire.internal.control import ControlRecord, decode_control
from stratalog.wire.internal.control_records import LeaderChangeMessage
from stratalog.wire.records import read_records

__all__ = ["Control", "Fetched", "check", "common_end"]


class Control(NamedTuple):
    """A control record, its batch's header, and its offset."""

    header: BatchHeader
    offset: int
    record: ControlRecord | None


class Fetched(NamedTuple):
    """How many bytes of a response are whole batches, and their control records."""

    size: int = 0
    controls: tuple[Control, ...] = ()


def check(member: Member, sent: Sent, response: Response) -> Fetched:
    """Return what the response's batches are. Raises Corrupt where no sound node of that epoch can have sent it."""
    epoch, leader = response.leader_epoch, response.leader_id
    if epoch > EPOCH_MAX or leader < NO_NODE:
        raise Corrupt(f"an answer of epoch {epoch} and leader {leader}")
    is_refusal = response.error is not ErrorCode.none or epoch != sent.request.epoch
    if is_refusal or not isinstance(response, FetchResponse | FetchSnapshotResponse):
        return Fetched()  # nothing of its content is used
    # One that looks for the leader may have the name of a wrong one, from an earlier answer.
    followed = member.leader_id if isinstance(member.state, Follower) else NO_NODE
    other_leaders = {sent.to, followed} - {leader, ANY_NODE, NO_NODE}
    if leader == NO_NODE or other_leaders:
        raise Corrupt(f"node {sent.to} answers for leader {leader} of epoch {epoch}")
    if isinstance(response, FetchResponse):
        assert isinstance(sent.request, FetchRequest)
        return _check_fetched(member, sent.request, response)
    _check_snapshot_part(member, response)
    return Fetched()


def common_end(member: Member, diverging: tuple[int, int]) -> int:
    """Return where the member's log and the leader's part, by the leader's diverging epoch and its end (KIP-595)."""
    epoch, end = diverging
    own_epoch, own_end = member.log.end_of(epoch)
    return min(own_end, end) if own_epoch == epoch else own_end


def _check_fetched(member: Member, request: FetchRequest, response: FetchResponse) -> Fetched:
    if response.high_watermark < -1:
        raise Corrupt(f"high watermark {response.high_watermark}")
    if response.diverging is not None:
        _check_diverging(member, request, response.diverging)
    elif response.snapshot is not None:
        end, epoch = response.snapshot.end_offset, response.snapshot.epoch
        if end <= member.high_watermark or epoch > response.leader_epoch:
            raise Corrupt(
                f"a snapshot up to {end} of epoch {epoch} for a log up to {request.offset}"
            )
    elif len(response.records):
        return _check_records(member, response)
    return Fetched()


def _check_diverging(member: Member, request: FetchRequest, diverging: tuple[int, int]) -> None:
    epoch, end = diverging
    if epoch > request.last_epoch or end < 0 or common_end(member, diverging) >= request.offset:
        raise Corrupt(
            f"the logs part at the end {end} of epoch {epoch}, where this one has {request.offset} of epoch "
            f"{request.last_epoch}"
        )
    if common_end(member, diverging) < member.high_watermark:
        raise Corrupt(
            f"the leader lacks committed records: its log parts at {common_end(member, diverging)}, below the high "
            f"watermark {member.high_watermark}; restore the metadata log of that node"
        )


def _check_records(member: Member, response: FetchResponse) -> Fetched:
    """Check that batches are whole and sound, and follow the log's end without a gap.

    A later epoch begins with the record that opens it. A leader of Apache Kafka may cut the last batch off.
    """
    view = memoryview(response.records)
    offset, epoch = member.log.end_offset, member.log.last_epoch
    size = 0
    controls: list[Control] = []
    for position, header in scan(view):
        size = position + header.size
        if not crc_holds(view, position, header):
            raise Corrupt(f"the CRC of the batch at offset {header.base_offset} fails")
        found = list(_controls(header, view[position:size]))
        is_next = header.base_offset == offset and header.last_offset_delta >= 0
        opens = any(isinstance(one.record, LeaderChangeMessage) for one in found)
        in_order = epoch < header.leader_epoch if opens else epoch == header.leader_epoch
        if not is_next or not in_order or header.leader_epoch > response.leader_epoch:
            raise Corrupt(
                f"offset {header.base_offset} of epoch {header.leader_epoch} where offset {offset} after epoch "
                f"{epoch} belongs"
            )
        controls += found
        offset, epoch = header.next_offset, header.leader_epoch
    if not size:
        raise Corrupt(f"{len(view)} bytes without a whole batch")
    return Fetched(size, tuple(controls))


def _controls(header: BatchHeader, batch: memoryview) -> Iterator[Control]:
    if header.is_control:
        for record in read_records(batch):
            yield Control(header, record.offset, decode_control(record.key, record.value))


def _check_snapshot_part(member: Member, response: FetchSnapshotResponse) -> None:
    fetching = member.state.fetching if isinstance(member.state, Follower) else None
    if fetching is None or fetching.is_loading:
        return
    end = response.position + len(response.data)
    is_next = response.position == fetching.position and len(response.data) > 0
    if not is_next or end > response.size or fetching.size not in (None, response.size):
        raise Corrupt(
            f"bytes {response.position} to {end} of {response.size} of snapshot {fetching.snapshot.file_name()}, where "
            f"byte {fetching.position} of {fetching.size} is next"
        )
