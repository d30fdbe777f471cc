"""A member of a consumer group, by the classic protocol: join, receive partitions, send heartbeats.

In: a client of its own, a group, topics. Out: the partitions to read until the next rebalance. It never starts a
task: the caller calls `beat` between two rounds, more often than the session lasts.

Rebalances are eager, with Kafka's range assignor, which every consumer knows. So any member may be the leader, and the
others can read its assignment. A JoinGroup waits for the other members, and a connection answers its requests in order.
So a separate client must do the fetches.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from stratalog.client.admin import Offsets, commit_offsets
from stratalog.client.aio import Client
from stratalog.client.calls import Call, asking, error_of
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.assignment import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from stratalog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from stratalog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from stratalog.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

__all__ = ["Member", "range_assignment"]

PROTOCOL = "range"
SESSION_MS = 45_000
REBALANCE_MS = 60_000
HEARTBEAT_S = 1.0
LEAVE_S = 5.0
_ATTEMPTS = 10

LOST = frozenset(
    {
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.unknown_member_id,
    }
)
"""Error codes that mean: the member's assignment no longer holds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Joined:
    """An answer to JoinGroup; `members` (member id, instance id, subscription) are for the leader alone."""

    error: ErrorCode
    member_id: str
    generation: int
    leader: str
    members: tuple[tuple[str, str | None, bytes], ...]


def join_group(group: str, member_id: str, subscription: bytes) -> Call[Joined]:
    """Return the call to join, or to join again. The coordinator answers once every member has joined."""

    def read(body: JoinGroupResponse) -> Joined:
        code = error_of(body.error_code)
        if code not in {ErrorCode.none, ErrorCode.member_id_required}:
            raise Rejected(code, f"joining group {group}: {code.name}")
        members = tuple(
            (one.member_id, one.group_instance_id, one.metadata) for one in body.members
        )
        return Joined(code, body.member_id, body.generation_id, body.leader, members)

    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=subscription)],
    )
    return asking(request, read)


def sync_group(
    group: str, joined: Joined, assignments: Mapping[str, bytes]
) -> Call[tuple[TopicPartition, ...]]:
    """Send the assignments (as the leader), and receive this member's own."""

    def read(body: SyncGroupResponse) -> tuple[TopicPartition, ...]:
        if body.error_code:
            code = error_of(body.error_code)
            raise Rejected(code, f"assignment in group {group}: {code.name}")
        return decode_assignment(memoryview(body.assignment))

    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name=PROTOCOL,
        assignments=[
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ],
    )
    return asking(request, read)


def heartbeat(group: str, member_id: str, generation: int) -> Call[ErrorCode]:
    """Say that a member is alive; an error of `LOST` is an answer."""

    def read(body: HeartbeatResponse) -> ErrorCode:
        code = error_of(body.error_code)
        if code and code not in LOST:
            raise Rejected(code, f"heartbeat in group {group}: {code.name}")
        return code

    request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
    return asking(request, read)


def leave_group(group: str, member_id: str) -> Call[None]:
    """Leave, so that the others need not wait for the end of the session. A member that was removed already is no
    error.
    """

    def read(_body: LeaveGroupResponse) -> None:
        return None

    return asking(
        LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member_id)]), read
    )


def range_assignment(
    members: Mapping[str, Sequence[str]], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return each member's partitions: of every topic a range of equal size; the first members get one more where
    needed.

    `members`: member -> topics, in the order of the members; `partitions`: topic -> number of partitions. Kafka:
    RangeAssignor.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for topic, count in sorted(partitions.items()):
        readers = [member for member, topics in members.items() if topic in topics]
        first = 0
        for number, member in enumerate(readers):
            share = count // len(readers) + (number < count % len(readers))
            assigned[member] += [
                TopicPartition(topic, index) for index in range(first, first + share)
            ]
            first += share
    return assigned


class Member:
    """`join`, then `beat` until it is False, then `join` again; `leave` at the end.

    Raises Unavailable where the coordinator cannot be reached, Rejected where it refuses this member.
    """

    def __init__(self, client: Client, group: str, topics: Collection[str]) -> None:
        """`client` has no other user, and its timeout is longer than `REBALANCE_MS`."""
        self.generation = -1
        self._client = client
        self._group = group
        self._topics = sorted(topics)
        self._member_id = ""
        self._is_in = False
        self._beaten_s = 0.0

    async def join(self) -> tuple[TopicPartition, ...]:
        """Wait for the other members; return the partitions to read from now on, perhaps none."""
        self._is_in = False
        for _ in range(_ATTEMPTS):
            try:
                joined = await self._ask(
                    join_group(self._group, self._member_id, encode_subscription(self._topics))
                )
                self._member_id = joined.member_id
                if joined.error == ErrorCode.member_id_required:
                    continue
                assignments = (
                    await self._assign(joined) if joined.leader == joined.member_id else {}
                )
                assigned = await self._ask(sync_group(self._group, joined, assignments))
            except Rejected as error:
                if error.code not in LOST:
                    raise
                self._forget(error.code)
                continue
            self.generation = joined.generation
            self._is_in = True
            self._beaten_s = asyncio.get_running_loop().time()
            return assigned
        raise Unavailable(f"group {self._group} does not come to rest: others join all the time")

    async def beat(self) -> bool:
        """Send a heartbeat, where one is due; return False once the assignment no longer holds."""
        now_s = asyncio.get_running_loop().time()
        if self._is_in and now_s - self._beaten_s >= HEARTBEAT_S:
            self._beaten_s = now_s
            code = await self._ask(heartbeat(self._group, self._member_id, self.generation))
            if code:
                self._lost(code)
        return self._is_in

    async def commit(self, offsets: Offsets) -> bool:
        """Commit as a member; return False where the assignment no longer holds and nothing was committed."""
        call = commit_offsets(self._group, offsets, self._member_id, self.generation)
        try:
            await self._ask(call)
        except Rejected as error:
            if error.code not in LOST:
                raise
            self._lost(error.code)
            return False
        return True

    async def leave(self) -> None:
        """Leave at once, if joined; an unreachable coordinator notices when the session ends."""
        if self._is_in:
            self._is_in = False
            with suppress(Unavailable, Rejected, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._ask(leave_group(self._group, self._member_id))

    async def _ask(self, call: Call[T]) -> T:
        return await self._client.on_coordinator(self._group, call)

    def _lost(self, code: ErrorCode) -> None:
        # While the others rejoin, the coordinator still accepts this member's offsets.
        self._is_in = False
        self._forget(code)

    def _forget(self, code: ErrorCode) -> None:
        if code == ErrorCode.unknown_member_id:
            self._member_id = ""

    async def _assign(self, joined: Joined) -> dict[str, bytes]:
        subscribed = {
            member_id: decode_subscription(memoryview(metadata))
            for member_id, instance_id, metadata in sorted(
                joined.members, key=lambda one: (one[1] is None, one[1] or one[0])
            )
        }
        topics = sorted({topic for some in subscribed.values() for topic in some})
        info = await self._client.metadata(topics)
        counts = {topic: len(info.topics[topic].partitions) for topic in topics}
        assigned = range_assignment(subscribed, counts)
        return {member_id: encode_assignment(keys) for member_id, keys in assigned.items()}
