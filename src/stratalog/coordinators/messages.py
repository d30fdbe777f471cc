"""Requests and answers of a group coordinator, free of protocol versions.

In: nothing. Out: requests, answers and read-only descriptions as values. It never decides anything and knows no wire
format. The broker's handlers translate; where versions of an API differ in meaning, the request carries a flag.

In every answer an unset `protocol_type`, `protocol_name` or `leader` is None. A handler writes "" where the version
has no null there.

The values are msgspec's Structs: 34 dataclasses take 30 ms of a start.
"""

from collections.abc import Hashable
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from stratalog.errors import ErrorCode
from stratalog.statemachine import Decision

NO_GENERATION = -1
NO_OFFSET = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1
NO_TOPIC_ID = UUID(int=0)
NO_MEMBER_ID = ""
OK = ErrorCode.none


class Protocol(Struct, frozen=True):
    """An assignment protocol that a member supports, and its metadata for the leader."""

    name: str
    metadata: bytes


class JoinGroup(Struct, frozen=True):
    """JoinGroup. Timeouts in ms; before version 1 `rebalance_timeout_ms` is the session timeout.

    `member_id_required` is true from version 4 (KIP-394), `supports_skip_assignment` from version 9 (KIP-814).

    `holder`: the client to whose share of the pending ids this request's one counts.
    """

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    group_instance_id: str | None = None
    member_id_required: bool = True
    supports_skip_assignment: bool = True
    holder: Hashable = ""


class JoinedMember(Struct, frozen=True):
    """A member as the leader sees it; `metadata` is that of the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupAnswer(Struct, frozen=True):
    """`members` is filled for the leader only; with `skip_assignment` the leader assigns nothing (KIP-814)."""

    error: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()

    def failed(self, error: ErrorCode) -> "JoinGroupAnswer":
        """Return the answer for a decision that the log did not commit."""
        return JoinGroupAnswer(error, self.member_id)


class Assignment(Struct, frozen=True):
    """What the leader assigned to one member; only clients interpret the bytes."""

    member_id: str
    assignment: bytes


class SyncGroup(Struct, frozen=True):
    """SyncGroup. `protocol_type` and `protocol_name` are checked where given (version 5 on, KIP-559)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[Assignment, ...] = ()


class SyncGroupAnswer(Struct, frozen=True):
    """A member's assignment in the generation of its request."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""

    def failed(self, error: ErrorCode) -> "SyncGroupAnswer":
        """Return the answer for a decision that the log did not commit."""
        return SyncGroupAnswer(error)


class Heartbeat(Struct, frozen=True):
    """Heartbeat: the member is alive, and checks whether its generation is current."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatAnswer(Struct, frozen=True):
    """REBALANCE_IN_PROGRESS tells the member to join again."""

    error: ErrorCode

    def failed(self, error: ErrorCode) -> "HeartbeatAnswer":
        """Return the answer for a decision that the log did not commit."""
        return HeartbeatAnswer(error)


class LeavingMember(Struct, frozen=True):
    """A leaving member: by member id, or by instance id alone where an administrator removes it (KIP-345)."""

    member_id: str
    group_instance_id: str | None = None


class LeaveGroup(Struct, frozen=True):
    """LeaveGroup; before version 3 there is exactly one member."""

    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(Struct, frozen=True):
    """The result for one leaving member."""

    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class LeaveGroupAnswer(Struct, frozen=True):
    """Before version 3 the handler answers `error`, or the only member's."""

    error: ErrorCode
    members: tuple[LeftMember, ...] = ()

    def failed(self, error: ErrorCode) -> "LeaveGroupAnswer":
        """Return the answer for a decision that the log did not commit."""
        return LeaveGroupAnswer(error)


class CommitPartition(Struct, frozen=True):
    """One offset to commit: that of the next record to read."""

    index: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = ""


class CommitTopic(Struct, frozen=True):
    """Offsets of one topic; the handler has resolved the name, and knows the id unless the topic is unknown."""

    name: str
    partitions: tuple[CommitPartition, ...]
    topic_id: UUID = NO_TOPIC_ID


class OffsetCommit(Struct, frozen=True):
    """OffsetCommit. A consumer without a group sends no member and generation -1.

    `retention_ms` is -1 but in versions 2 to 4. `supports_group_not_found` is true from version 9 (KIP-848).
    """

    group_id: str
    topics: tuple[CommitTopic, ...]
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    retention_ms: int = -1
    supports_group_not_found: bool = False
    in_transaction: bool = False
    """The offsets count once the producer's transaction is committed (KIP-98)."""


class CommittedPartition(Struct, frozen=True):
    """The result for one offset."""

    index: int
    error: ErrorCode


class CommittedTopic(Struct, frozen=True):
    """The results for one topic of the request."""

    name: str
    topic_id: UUID
    partitions: tuple[CommittedPartition, ...]


class OffsetCommitAnswer(Struct, frozen=True):
    """Results in the request's order. An error of the whole request is repeated for every partition."""

    topics: tuple[CommittedTopic, ...]

    def failed(self, error: ErrorCode) -> "OffsetCommitAnswer":
        """Return the answer for a decision that the log did not commit; earlier errors stand."""
        return OffsetCommitAnswer(
            tuple(
                replace(
                    topic,
                    partitions=tuple(
                        replace(one, error=error) if one.error is OK else one
                        for one in topic.partitions
                    ),
                )
                for topic in self.topics
            )
        )


class FetchTopic(Struct, frozen=True):
    """A topic whose offsets are requested."""

    name: str
    partitions: tuple[int, ...]
    topic_id: UUID = NO_TOPIC_ID


class OffsetFetch(Struct, frozen=True):
    """OffsetFetch for one group; `topics` None is all. With `require_stable`, the answer hides offsets of undecided
    transactions.
    """

    group_id: str
    topics: tuple[FetchTopic, ...] | None = None
    require_stable: bool = False


class FetchedOffset(Struct, frozen=True):
    """A committed offset, or -1 without one."""

    index: int
    offset: int
    leader_epoch: int
    metadata: str
    error: ErrorCode = OK


class FetchedTopic(Struct, frozen=True):
    """The offsets of one topic, requested or (for a request of all) committed."""

    name: str
    topic_id: UUID
    partitions: tuple[FetchedOffset, ...]


class OffsetFetchAnswer(Struct, frozen=True):
    """One group's offsets."""

    group_id: str
    error: ErrorCode
    topics: tuple[FetchedTopic, ...] = ()


class DeleteGroup(Struct, frozen=True):
    """One of the groups of a DeleteGroups."""

    group_id: str


class DeleteGroupAnswer(Struct, frozen=True):
    """The result for one group."""

    error: ErrorCode

    def failed(self, error: ErrorCode) -> "DeleteGroupAnswer":
        """Return the answer for a decision that the log did not commit."""
        return DeleteGroupAnswer(error)


class OffsetDelete(Struct, frozen=True):
    """OffsetDelete for one group (KIP-496)."""

    group_id: str
    topics: tuple[FetchTopic, ...]


class OffsetDeleteAnswer(Struct, frozen=True):
    """In the request's order; `topics` is empty where the whole request is refused."""

    error: ErrorCode
    topics: tuple[CommittedTopic, ...] = ()

    def failed(self, error: ErrorCode) -> "OffsetDeleteAnswer":
        """Return the answer for a decision that the log did not commit."""
        return OffsetDeleteAnswer(error)


class DescribedMember(Struct, frozen=True):
    """`metadata` and assignments are empty unless the group is Stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(Struct, frozen=True):
    """DescribeGroups for one group; an unknown one is GROUP_ID_NOT_FOUND and Dead (below version 6 without error)."""

    group_id: str
    error: ErrorCode
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class ListedGroup(Struct, frozen=True):
    """One line of ListGroups."""

    group_id: str
    protocol_type: str
    state: str


Answer = (
    JoinGroupAnswer
    | SyncGroupAnswer
    | HeartbeatAnswer
    | LeaveGroupAnswer
    | OffsetCommitAnswer
    | OffsetDeleteAnswer
    | DeleteGroupAnswer
)
OffsetRecord = tuple[bytes, bytes | None]
"""Key and value of one record of `__consumer_offsets`; a None value is a tombstone."""


class Rebalanced(Struct, frozen=True):
    """Event for the log: a group formed a new generation of `members`; `reason` began the rebalance."""

    group_id: str
    generation_id: int
    members: int
    reason: str


class MemberExpired(Struct, frozen=True):
    """Event for the log: a member was removed because it missed a deadline."""

    group_id: str
    member_id: str
    reason: str


class IdsTakenBack(Struct, frozen=True):
    """Member ids that clients had received, and had not joined with, are unknown from now on: there were too many."""

    count: int


News = Rebalanced | MemberExpired | IdsTakenBack


class Outcome(Struct, frozen=True):
    """The answer of a decision about groups: answers to this and earlier requests, and events for the log.

    A token stands for a request; tokens are the caller's.
    """

    answers: tuple[tuple[Any, Answer], ...] = ()
    news: tuple[News, ...] = ()


GroupDecision = Decision[OffsetRecord, Outcome]
