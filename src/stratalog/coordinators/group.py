"""One classic consumer group: its members, its generation and their protocol.

In: members that join, change and leave. Out: the leader, the chosen protocol, the members still awaited. It never
answers a request, sets a timer or writes a record: `rebalance.py`, `join.py` and `members.py` do, through a `Turn`.

Invariants:

- a member that waits for its JoinGroup answer holds the request's token in `join_token`, for SyncGroup in
  `sync_token`; `awaiting_join` counts the former;
- `leader_id` is None exactly while there are no members; every instance id maps to one member;
- all members support some common protocol (a join that would end that is refused);
- `pending` holds ids sent with MEMBER_ID_REQUIRED whose client has not joined yet; they are not members.

Kafka: `ClassicGroup`, `ClassicGroupMember`.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from stratalog.coordinators.messages import (
    NO_TIMESTAMP,
    DescribedMember,
    GroupDescription,
    JoinedMember,
    Protocol,
)
from stratalog.coordinators.states import TRANSITIONS, GroupState
from stratalog.coordinators.subscriptions import CONSUMER, subscribed_topics
from stratalog.errors import ErrorCode


class Member(Struct):
    """One member. A token of None means that it waits for nothing."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    """In order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """The member never got an answer with a generation: it does not know its id, and cannot send heartbeats."""
    join_token: Any = None
    supports_skip_assignment: bool = False
    sync_token: Any = None

    def prefers(self, protocols: Iterable[Protocol]) -> bool:
        """Return whether these are the protocols it has already given, in that order."""
        return list(self.protocols.items()) == [(one.name, one.metadata) for one in protocols]

    def vote(self, candidates: set[str]) -> str:
        """Return the member's first choice among protocols that all members support."""
        return next(name for name in self.protocols if name in candidates)

    def is_excused(self) -> bool:
        """Return whether a missed heartbeat is excused: the member waits for the coordinator's answer."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)


class Group(Struct):
    """A group as the coordinator knows it. Only `become` changes its state."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = NO_TIMESTAMP
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    """In order of arrival: the first member leads."""
    instances: dict[str, str] = field(default_factory=dict)
    """Static members (KIP-345): instance id to member id."""
    pending: dict[str, None] = field(default_factory=dict)
    """In the order in which they were sent."""
    unsynced: set[str] = field(default_factory=set)
    """Members of this generation that have not sent SyncGroup yet."""
    awaiting_join: int = 0
    rebalance_reason: str = ""
    """The reason for the current or the last rebalance."""
    joined_meanwhile: bool = False
    """A member came during the initial delay, which is then extended."""
    initial_delay_ms: int = 0
    initial_remaining_ms: int = 0
    persisted: bool = False
    """The log has a record of the group."""
    metadata_bytes: int = 0
    """Of all protocols of all members."""
    support: Counter[str] = field(default_factory=Counter)
    """Number of supporting members by protocol."""
    topics: frozenset[str] | None = None
    """The topics that this generation subscribes to; None where a member's subscription cannot be read."""

    @property
    def has_subscriptions(self) -> bool:
        """Whether the members' protocol type has subscriptions."""
        return self.protocol_type == CONSUMER

    @property
    def is_vacant(self) -> bool:
        """Return whether the group has no member, and no id is pending."""
        return self.state is GroupState.EMPTY and not self.pending

    def reads(self, topic: str) -> bool:
        """Return whether a member may read `topic`; True where subscriptions are unknown."""
        return self.has_subscriptions if self.topics is None else topic in self.topics

    def note_topics(self) -> None:
        """Read the subscriptions of a new (or loaded) generation."""
        name = self.protocol_name
        if not self.has_subscriptions or (self.members and name is None):
            self.topics = None
        else:
            self.topics = subscribed_topics(
                one.protocols[name or ""] for one in self.members.values()
            )

    def become(self, state: GroupState, wall_ms: int) -> None:
        """Change state; a transition that the table lacks is a bug."""
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = wall_ms

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member after `supports` accepted its protocols."""
        assert member.member_id not in self.members, member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.supports(protocol_type, member.protocols), f"{self.group_id}: {member}"
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.instances, member.group_instance_id
            self.instances[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.support.update(member.protocols.keys())
        self.metadata_bytes += metadata_bytes(member.protocols.values())
        self.awaiting_join += member.join_token is not None
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id; if it led, the next member in order of arrival leads."""
        self.pending.pop(member_id, None)
        self.unsynced.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.support.subtract(member.protocols.keys())
        self.metadata_bytes -= metadata_bytes(member.protocols.values())
        self.awaiting_join -= member.join_token is not None
        if member.group_instance_id is not None:
            del self.instances[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def update(
        self,
        member: Member,
        protocols: Iterable[Protocol],
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Update a member from its new JoinGroup."""
        self.support.subtract(member.protocols.keys())
        self.metadata_bytes -= metadata_bytes(member.protocols.values())
        member.protocols = {one.name: one.metadata for one in protocols}
        self.support.update(member.protocols.keys())
        self.metadata_bytes += metadata_bytes(member.protocols.values())
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def await_join(self, member: Member, token: object, *, supports_skip_assignment: bool) -> None:
        """Park a member's JoinGroup. The caller must have answered or dropped an earlier one."""
        self.awaiting_join += member.join_token is None
        member.join_token = token
        member.supports_skip_assignment = supports_skip_assignment

    def end_join(self, member: Member) -> Any:
        """Take back the token of a parked JoinGroup, or None."""
        token, member.join_token = member.join_token, None
        self.awaiting_join -= token is not None
        return token

    def replace_static(self, instance_id: str, member_id: str) -> Member:
        """Give the static member `instance_id` a new member id; the old id is unknown from here on."""
        old_id = self.instances[instance_id]
        member = self.members.pop(old_id)
        assert member.join_token is None, "the parked requests of the old one are answered first"
        assert member.sync_token is None, "the parked requests of the old one are answered first"
        member.member_id = member_id
        member.is_new = False
        self.members[member_id] = member
        self.instances[instance_id] = member_id
        if self.leader_id == old_id:
            self.leader_id = member_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(member_id)
        return member

    def start_generation(self, wall_ms: int) -> None:
        """Start the next generation with the present members, and choose their protocol."""
        self.generation_id = self.generation_id + 1 if self.generation_id < 2**31 - 1 else 1
        self.unsynced.clear()
        if self.members:
            self.protocol_name = self.elect_protocol()
            self.become(GroupState.COMPLETING_REBALANCE, wall_ms)
        else:
            self.protocol_name = None
            self.become(GroupState.EMPTY, wall_ms)
        self.note_topics()

    def elect_protocol(self) -> str:
        """Return the protocol with most votes among those that all members support; among equals, the first one voted
        for.
        """
        candidates = {name for name, count in self.support.items() if count == len(self.members)}
        assert candidates, f"{self.group_id}: nothing in common"
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=lambda name: votes[name])

    def elect_leader(self) -> bool:
        """Keep the leader if it waits to join, else choose the first member that does; return False without one."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join_token is None:
            joined = (one.member_id for one in self.members.values() if one.join_token is not None)
            first = next(joined, None)
            if first is None:
                return False
            self.leader_id = first
        return True

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Return whether a client with these protocols may join: always in an empty group, else with a common
        protocol.
        """
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return self.protocol_type == protocol_type and any(
            self.support[name] == len(self.members) for name in protocols
        )

    def every_member_joined(self) -> bool:
        """Return whether every member has joined, and no id is pending."""
        return len(self.members) == self.awaiting_join and not self.pending

    def accepts(self, member_id: str, size_max: int) -> bool:
        """Return whether the group has room for the member.

        During the join phase only joined members count, so that a group above a lowered limit shrinks.
        """
        match self.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                member = self.members.get(member_id)
                waits = member is not None and member.join_token is not None
                return waits or self.awaiting_join < size_max
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member_id in self.members or len(self.members) < size_max

    def metadata_bytes_with(self, member_id: str, size: int) -> int:
        """Return the bytes of all members' protocols where those of one, or of a new member, are `size` bytes."""
        member = self.members.get(member_id)
        before = 0 if member is None else metadata_bytes(member.protocols.values())
        return self.metadata_bytes - before + size

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((one.rebalance_timeout_ms for one in self.members.values()), default=0)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return FENCED_INSTANCE_ID where another member has the instance id now, UNKNOWN_MEMBER_ID for an unknown
        member, or NONE.
        """
        if instance_id is not None and self.instances.get(instance_id, member_id) != member_id:
            return ErrorCode.fenced_instance_id
        if member_id not in self.members or (
            instance_id is not None and instance_id not in self.instances
        ):
            return ErrorCode.unknown_member_id
        return ErrorCode.none

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return the generation's members, for its leader."""
        assert self.protocol_name is not None, self.group_id
        return tuple(
            JoinedMember(one.member_id, one.group_instance_id, one.protocols[self.protocol_name])
            for one in self.members.values()
        )

    def describe(self) -> GroupDescription:
        """Return the group for DescribeGroups; during a rebalance with the last assignments, as Kafka."""
        is_stable = self.state is GroupState.STABLE
        name = self.protocol_name or ""
        return GroupDescription(
            self.group_id,
            ErrorCode.none,
            self.state.value,
            self.protocol_type or "",
            name if is_stable else "",
            tuple(
                DescribedMember(
                    one.member_id,
                    one.group_instance_id,
                    one.client_id,
                    one.client_host,
                    one.protocols[name] if is_stable else b"",
                    one.assignment,
                )
                for one in self.members.values()
            ),
        )


def metadata_bytes(protocols: Iterable[bytes]) -> int:
    """Return the bytes of a member's protocols."""
    return sum(map(len, protocols))
