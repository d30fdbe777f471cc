"""A quorum of one voter: its saved state, and how the voter becomes leader.

In: the saved state, the voter. Out: the state to save, and the control records that open the new epoch. It never
saves or appends. The caller saves the state durably *before* it appends, so that no epoch is used twice.

Formats are Kafka's. `quorum-state` is as FileQuorumStateStore writes it under kraft.version 1. LeaderChange is as
LeaderState writes it, followed by KRaftVersion and Voters where the log lacks them (KIP-853).
"""

from dataclasses import dataclass
from json import dumps, loads
from uuid import UUID

from stratalog.errors import Corrupt
from stratalog.metadata.image import Endpoint
from stratalog.ports import Buffer
from stratalog.wire.ids import ZERO_ID, topic_id_parse, topic_id_text
from stratalog.wire.internal.control import ControlRecord
from stratalog.wire.internal.control_records import (
    Endpoint as WireEndpoint,
)
from stratalog.wire.internal.control_records import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
    VotersRecordVoter,
)

QUORUM_STATE_FILE = "quorum-state"
KRAFT_VERSION = 1
NO_NODE = -1


@dataclass(frozen=True, slots=True)
class QuorumState:
    """A voter's saved state: its epoch, that epoch's leader, and its vote. Kafka: ElectionState."""

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: UUID = ZERO_ID


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter: its id, the directory that holds its log, and where other controllers reach it."""

    id: int
    directory_id: UUID
    endpoints: tuple[Endpoint, ...] = ()


def encode_quorum_state(state: QuorumState) -> bytes:
    """The content of `quorum-state`, byte for byte as Kafka 4.3 writes it."""
    content = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "votedDirectoryId": topic_id_text(state.voted_directory_id),
        "data_version": 1,
    }
    return dumps(content, separators=(",", ":")).encode()


def decode_quorum_state(data: Buffer) -> QuorumState:
    """Return the state in a `quorum-state` file of version 0 or 1; raises Corrupt for anything else."""
    try:
        content = loads(bytes(data))
        if content["data_version"] not in (0, 1):
            raise ValueError("of another version")
        state = QuorumState(
            leader_epoch=content["leaderEpoch"],
            leader_id=content["leaderId"],
            voted_id=content["votedId"],
            voted_directory_id=topic_id_parse(
                content.get("votedDirectoryId", topic_id_text(ZERO_ID))
            ),
        )
        if not all(type(n) is int for n in (state.leader_epoch, state.leader_id, state.voted_id)):
            raise ValueError("not whole numbers")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(
            f"{QUORUM_STATE_FILE} is not as Kafka or Strata writes it; remove the file: the metadata log beside it has "
            "the epoch, too"
        ) from error
    return state


def become_leader(
    state: QuorumState, voter: Voter, *, log_epoch: int = 0, voters: VotersRecord | None = None
) -> tuple[QuorumState, list[ControlRecord]]:
    """The state to save first, then the control records to append as one batch, in the new epoch.

    `log_epoch` is the last epoch in the log: the new one is above it even where the saved state was lost. `voters` is
    the last Voters record of the log: another is written only where it would differ.
    """
    leading = QuorumState(leader_epoch=max(state.leader_epoch, log_epoch) + 1, leader_id=voter.id)
    myself = (LeaderChangeMessageVoter(voter_id=voter.id),)
    records: list[ControlRecord] = [
        LeaderChangeMessage(version=0, leader_id=voter.id, voters=myself, granting_voters=myself)
    ]
    mine = voters_record(voter)
    if voters != mine:
        records += [KRaftVersionRecord(version=0, kraft_version=KRAFT_VERSION), mine]
    return leading, records


def voters_record(voter: Voter) -> VotersRecord:
    """The voter set of a quorum of one."""
    return VotersRecord(
        version=0,
        voters=(
            VotersRecordVoter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=tuple(
                    WireEndpoint(name=e.name, host=e.host, port=e.port) for e in voter.endpoints
                ),
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=KRAFT_VERSION
                ),
            ),
        ),
    )


def snapshot_control(voters: VotersRecord | None) -> list[ControlRecord]:
    """Return the control records that a snapshot repeats."""
    if voters is None:
        return []
    return [KRaftVersionRecord(version=0, kraft_version=KRAFT_VERSION), voters]
