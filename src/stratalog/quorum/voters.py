"""The voters of the quorum, and the history of that set in the log.

In: Voters records with their offsets. Out: the current set, and control records for it. It never appends.

The latest set in the log counts, also before it is committed (KIP-853). A log under kraft.version 0 has no such
record: `controller.quorum.voters` names a set that never changes. Kafka: VoterSet, VoterSetHistory, ReplicaKey.
"""

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from stratalog.metadata.image import Endpoint
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.internal.control import ControlRecord
from stratalog.wire.internal.control_records import Endpoint as WireEndpoint
from stratalog.wire.internal.control_records import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
    VotersRecordVoter,
)

KRAFT_VERSION = 1


class ReplicaKey(NamedTuple):
    """A replica of the metadata log: the node's id and its directory's. The zero id stands for any directory."""

    id: int
    directory_id: UUID = ZERO_ID


class Voter(Struct, frozen=True):
    """A voter: its id, the directory that holds its log, its controller endpoints, its range of kraft.version."""

    id: int
    directory_id: UUID = ZERO_ID
    endpoints: tuple[Endpoint, ...] = ()
    kraft_versions: tuple[int, int] = (0, KRAFT_VERSION)

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, self.directory_id)


class Opening(NamedTuple):
    """The record that opens a leader's epoch: epoch, offset, and the ids of the voters that the leader counts."""

    epoch: int
    offset: int
    voter_ids: frozenset[int]


class VoterSet(Struct, frozen=True):
    """Voters, in the order of their ids."""

    voters: tuple[Voter, ...] = ()

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> "VoterSet":
        """Return the set of these voters; an id counts once, with its last entry."""
        by_id = {voter.id: voter for voter in voters}
        return cls(tuple(by_id[one] for one in sorted(by_id)))

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.id for voter in self.voters)

    @property
    def majority(self) -> int:
        """The least number of voters of which any two groups share a voter."""
        return len(self.voters) // 2 + 1

    def voter(self, voter_id: int) -> Voter | None:
        """Return the voter of that id, or None."""
        return next((one for one in self.voters if one.id == voter_id), None)

    def named(self) -> str:
        """Return the ids of the voters, for messages."""
        return f"voters {', '.join(map(str, self.ids))}"

    def has(self, key: ReplicaKey) -> bool:
        """Return whether that replica is a voter; a voter without a directory id matches any directory."""
        voter = self.voter(key.id)
        return voter is not None and voter.directory_id in (ZERO_ID, key.directory_id)


class VoterHistory:
    """The voter sets of the log, oldest first. The set at offset -1 comes from outside the log."""

    def __init__(
        self,
        base: VoterSet,
        logged: Iterable[tuple[int, VoterSet]] = (),
        *,
        kraft_version: int,
        last_opening: Opening | None = None,
    ) -> None:
        """`kraft_version` 0: `base` never changes, and the log has no set. The log had `last_opening` at its start."""
        self.kraft_version = kraft_version
        self.last_opening = last_opening
        self._sets: list[tuple[int, VoterSet]] = [(-1, base), *logged]

    @property
    def latest(self) -> VoterSet:
        """The current set."""
        return self._sets[-1][1]

    @property
    def latest_offset(self) -> int:
        """The offset of the record with the latest set; -1 where the log has none."""
        return self._sets[-1][0]

    def at(self, offset: int) -> VoterSet:
        """Return the set that counted up to `offset`, the record there included."""
        return next(voters for at, voters in reversed(self._sets) if at <= max(offset, -1))

    def open_at(self, high_watermark: int) -> list[VoterSet]:
        """Return the sets that may count while all below `high_watermark` is committed: that one, and later ones."""
        return [self.at(high_watermark - 1), *(v for at, v in self._sets if at >= high_watermark)]

    def add(self, offset: int, voters: VoterSet) -> None:
        """Note the set of the Voters record at `offset`."""
        assert offset > self.latest_offset, (offset, self.latest_offset)
        self.kraft_version = KRAFT_VERSION
        self._sets.append((offset, voters))

    def truncate_end(self, offset: int) -> None:
        """Forget the sets at `offset` or beyond: the log was truncated there."""
        while self._sets[-1][0] >= offset:
            self._sets.pop()

    def reset(self, offset: int, voters: VoterSet) -> None:
        """Note that the log begins with a snapshot that ends before `offset + 1` and has these voters."""
        self.kraft_version = KRAFT_VERSION
        self._sets = [(offset, voters)]


def voter_set(record: VotersRecord) -> VoterSet:
    """Return the set in a Voters record."""
    return VoterSet.of(
        Voter(
            one.voter_id,
            one.voter_directory_id,
            tuple(Endpoint(e.name, e.host, e.port) for e in one.endpoints),
            (
                one.kraft_version_feature.min_supported_version,
                one.kraft_version_feature.max_supported_version,
            ),
        )
        for one in record.voters
    )


def voters_record(voters: VoterSet) -> VotersRecord:
    """Return the record of that set."""
    return VotersRecord(
        version=0,
        voters=tuple(
            VotersRecordVoter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=tuple(
                    WireEndpoint(name=e.name, host=e.host, port=e.port) for e in voter.endpoints
                ),
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0],
                    max_supported_version=voter.kraft_versions[1],
                ),
            )
            for voter in voters.voters
        ),
    )


def leader_change(leader_id: int, voters: VoterSet, granting: Iterable[int]) -> ControlRecord:
    """Return the record that opens a leader's epoch, as Kafka's LeaderState writes it."""
    return LeaderChangeMessage(
        version=0,
        leader_id=leader_id,
        voters=tuple(LeaderChangeMessageVoter(voter_id=one) for one in voters.ids),
        granting_voters=tuple(LeaderChangeMessageVoter(voter_id=one) for one in sorted(granting)),
    )


def opening(epoch: int, offset: int, record: LeaderChangeMessage) -> Opening:
    """Return what the record at `offset` says."""
    return Opening(epoch, offset, frozenset(one.voter_id for one in record.voters))


def voters_control(voters: VotersRecord | None) -> list[ControlRecord]:
    """Return the control records with which a log or a snapshot names its voters; none for a static set."""
    if voters is None:
        return []
    return [KRaftVersionRecord(version=0, kraft_version=KRAFT_VERSION), voters]
