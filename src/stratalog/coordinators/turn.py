"""The inputs and outputs of one call into the coordinator.

In: settings, timers, random numbers and the time of the call. Out: a decision's records and outcome. It never
decides.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from stratalog.coordinators.group import Group, Member
from stratalog.coordinators.messages import Answer, GroupDecision, News, OffsetRecord, Outcome
from stratalog.coordinators.records import group_record
from stratalog.coordinators.timers import Timers
from stratalog.ports import Entropy
from stratalog.statemachine import Decision, Now


class GroupSettings(Struct, frozen=True):
    """Kafka's `group.*` and `offset*` settings, in the units of their names."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    size_max: int = 2**31 - 1
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait for its first answer (a constant in Kafka)."""
    commit_timeout_ms: int = 5_000
    """How long a request waits for its commit."""


class TimerKind(Enum):
    """The kinds of deadlines."""

    JOIN = "join"
    SYNC = "sync"
    SESSION = "session"
    EXPIRY = "expiry"


class TimerKey(NamedTuple):
    """`member_id` is "" except for sessions; `group_id` is "" for the expiry of offsets, which is the shard's."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


class Turn(Struct):
    """One call: `records` and `answers` collect its decisions."""

    settings: GroupSettings
    timers: Timers[TimerKey]
    entropy: Entropy
    now: Now
    records: list[OffsetRecord] = field(default_factory=list)
    answers: list[tuple[Any, Answer]] = field(default_factory=list)
    news: list[News] = field(default_factory=list)

    def answer(self, token: Any, answer: Answer) -> None:
        """Answer the request that `token` stands for."""
        self.answers.append((token, answer))

    def persist(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Add a record of the group's present state, with these assignments by member id."""
        self.records.append(group_record(group, assignments))

    def set_timer(self, kind: TimerKind, group: Group, delay_ms: int) -> None:
        self.timers.set(TimerKey(kind, group.group_id), self.now.steady_ms + delay_ms)

    def cancel_timer(self, kind: TimerKind, group: Group) -> None:
        self.timers.cancel(TimerKey(kind, group.group_id))

    def keep_alive(self, group: Group, member: Member) -> None:
        """Restart the member's session."""
        self.keep_waiting(group, member.member_id, member.session_timeout_ms)

    def keep_waiting(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Let a member or pending id wait for `timeout_ms`."""
        self.timers.set(
            TimerKey(TimerKind.SESSION, group.group_id, member_id), self.now.steady_ms + timeout_ms
        )

    def end_session(self, group: Group, member_id: str) -> None:
        self.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))

    def decision(self) -> GroupDecision:
        """Return the call's decision."""
        return Decision(tuple(self.records), Outcome(tuple(self.answers), tuple(self.news)))


_RECORD_BYTES: Final = 32
"""Most bytes that a batch adds to a record's key and value."""


def records_bytes(records: Sequence[OffsetRecord]) -> int:
    """Return the largest size that these records can have in a batch."""
    return sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in records)
