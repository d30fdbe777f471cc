"""The coordinator of all groups of one `__consumer_offsets` partition.

In: requests with their tokens, the time, and the partition's records. Out: decisions: records to append, and answers,
sometimes to earlier requests. It never waits: the shell keeps one timer, for `next_deadline_ms`, and calls `tick`.

The caller's duty, as `statemachine` says: `replay` a decision's records in order before the next decision, and send
its answers once they are committed. If the log refuses them, or leadership is lost, drop this object. Sessions and
phases use the steady clock; records and the expiry of offsets use wall time. Tokens are never None.

Joining members, timers and the generation being formed are in memory only and end with the leadership, as in Kafka:
members join again. Offsets, and the assignments that make a group Stable, change in `replay` only.

Kafka: `GroupCoordinatorShard`, `GroupMetadataManager` (classic protocol).
"""

from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from stratalog.coordinators.administration import delete_group, delete_offsets, expire
from stratalog.coordinators.group import Group
from stratalog.coordinators.join import join, take_back
from stratalog.coordinators.members import heartbeat, leave, sync
from stratalog.coordinators.messages import (
    NO_MEMBER_ID,
    OK,
    Answer,
    DeleteGroup,
    GroupDecision,
    GroupDescription,
    Heartbeat,
    HeartbeatAnswer,
    IdsTakenBack,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    LeaveGroupAnswer,
    LeftMember,
    ListedGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetFetchAnswer,
    SyncGroup,
    SyncGroupAnswer,
)
from stratalog.coordinators.offsets import Offsets, Pending, refused
from stratalog.coordinators.pending import PendingId, PendingIds
from stratalog.coordinators.rebalance import (
    drop,
    on_join_deadline,
    on_session_deadline,
    on_sync_deadline,
    prepare,
    prepare_or_complete,
)
from stratalog.coordinators.records import KeptOffset, group_of, kept_offset, new_group_record
from stratalog.coordinators.states import GroupState
from stratalog.coordinators.timers import Timers
from stratalog.coordinators.turn import GroupSettings, TimerKey, TimerKind, Turn, records_bytes
from stratalog.errors import ErrorCode
from stratalog.ports import Entropy
from stratalog.statemachine import Now
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
)
from stratalog.wire.sift import LastValues, last_values, plain_values

DEADLINES_PER_TICK_MAX = 100
"""Deadlines per tick, so that the records of one step stay one moderate batch; `next_deadline_ms` is then now."""

RECORDS_PER_EXPIRY = 1_000
"""Likewise the limit of expired offsets; those of one group expire together."""
OFFSETS_PER_EXPIRY = 5_000
"""Number of offsets that one step of the expiry examines, except for those of its last group."""
EXPIRY_PAUSE_MS = 100
"""Pause between two steps of the expiry, so that other requests get their turn."""
_EXPIRY = TimerKey(TimerKind.EXPIRY, "")

Request = TypeVar("Request", JoinGroup, SyncGroup, Heartbeat, LeaveGroup)


class GroupShard:
    """A new shard is loading: call `replay` for the whole log, then `load_complete`. Send requests only after that."""

    def __init__(self, settings: GroupSettings, entropy: Entropy) -> None:
        self._settings = settings
        self._entropy = entropy
        self._timers: Timers[TimerKey] = Timers()
        self._groups: dict[str, Group] = {}
        self._offsets = Offsets(settings.offset_metadata_bytes_max)
        self._loading: LastValues | None = LastValues()
        self._loading_pending: Pending[bytes, bytes] = Pending()
        self._pending_ids = PendingIds(self._is_pending)
        self._to_expire: list[str] = []
        """Groups that the current expiry has still to examine."""
        self.batch_bytes_max = 100 << 20
        """The log's largest batch: a decision with larger records is refused."""

    def join(self, request: JoinGroup, token: Any, now: Now) -> GroupDecision:
        """Join a group; answer when the join phase ends, or at once with an error or MEMBER_ID_REQUIRED."""
        turn = self._turn(now)
        error = self._check_join(request)
        if error is not OK:
            turn.answer(token, JoinGroupAnswer(error, request.member_id))
            return self._decision(turn)
        group_id = request.group_id
        is_new = group_id not in self._groups and group_id not in self._offsets
        group = self._groups.setdefault(group_id, Group(group_id))
        pending = len(group.pending)
        join(turn, group, request, token)
        if len(group.pending) > pending:
            self._limit_pending(turn, group, request.holder)
        if is_new and (group.members or group.pending):
            turn.records.append(new_group_record(group_id, now.wall_ms))
        self._drop_if_nothing(turn, group)
        return self._decision(turn)

    def new_member(self, group_id: str, token: Any) -> str | None:
        """Return the id of the member that this JoinGroup has just added, and which waits for its first answer."""
        group = self._groups.get(group_id)
        member = None if group is None else next(reversed(group.members.values()), None)
        is_it = member is not None and member.is_new and member.join_token is token
        return member.member_id if member is not None and is_it else None

    def abandon(self, group_id: str, member_id: str, token: Any, now: Now) -> GroupDecision:
        """Remove a new member whose client has gone before its first answer: nothing will use its place.

        Kafka keeps it for `new_member_join_timeout_ms`, and so one for each connection that a client closes.
        """
        turn = self._turn(now)
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is not None and member is not None and member.join_token is token:
            drop(turn, group, member)
            prepare_or_complete(turn, group, f"the client of member {member_id} has gone")
            self._drop_if_nothing(turn, group)
        return self._decision(turn)

    def _limit_pending(self, turn: Turn, group: Group, holder: Hashable) -> None:
        """Take ids back where the group, or the shard, has too many with the newest one of `group`."""
        sent = PendingId(group.group_id, next(reversed(group.pending)))
        gone = self._pending_ids.add(sent, holder)
        if len(group.pending) > self._settings.size_max:
            gone.append(PendingId(group.group_id, next(iter(group.pending))))
        if gone:
            turn.news.append(IdsTakenBack(len(gone)))
        for one in gone:
            other = self._groups[one.group_id]
            if one.member_id in other.pending:
                take_back(turn, other, one.member_id)
            if other is not group and other.is_vacant and not other.persisted:
                del self._groups[one.group_id]

    def _is_pending(self, one: PendingId) -> bool:
        group = self._groups.get(one.group_id)
        return group is not None and one.member_id in group.pending

    def sync(self, request: SyncGroup, token: Any, now: Now) -> GroupDecision:
        """Answer a SyncGroup once the leader's assignment is committed."""
        return self._ask(sync, request, token, now, SyncGroupAnswer)

    def heartbeat(self, request: Heartbeat, token: Any, now: Now) -> GroupDecision:
        """Extend a member's session; answer at once."""
        return self._ask(heartbeat, request, token, now, HeartbeatAnswer)

    def leave(self, request: LeaveGroup, token: Any, now: Now) -> GroupDecision:
        """Remove members; answer at once, perhaps also to members that wait."""

        def unknown(error: ErrorCode) -> LeaveGroupAnswer:
            if error is ErrorCode.invalid_group_id:
                return LeaveGroupAnswer(error)
            return LeaveGroupAnswer(
                OK,
                tuple(
                    LeftMember(one.member_id, one.group_instance_id, error)
                    for one in request.members
                ),
            )

        return self._ask(leave, request, token, now, unknown)

    def commit(self, request: OffsetCommit, token: Any, now: Now) -> GroupDecision:
        """Commit offsets; answer once they are committed. Extends the member's session, as a heartbeat does."""
        turn = self._turn(now)
        group = self._groups.get(request.group_id)
        error = self._check_commit(request, group)
        if error is not OK:
            turn.answer(token, refused(request.topics, error))
            return self._decision(turn)
        if group is not None and (member := group.members.get(request.member_id)) is not None:
            turn.keep_alive(group, member)
        records, answer = self._offsets.commit(request, now.wall_ms)
        turn.records.extend(records)
        turn.answer(token, answer)
        return self._decision(turn)

    def delete(self, request: DeleteGroup, token: Any, now: Now) -> GroupDecision:
        """Delete a group; answer once its tombstones are committed."""
        turn = self._turn(now)
        group = self._groups.get(request.group_id)
        delete_group(turn, group, self._offsets, request, token)
        return self._decision(turn)

    def delete_offsets(self, request: OffsetDelete, token: Any, now: Now) -> GroupDecision:
        """Delete offsets; answer once their tombstones are committed."""
        turn = self._turn(now)
        group = self._groups.get(request.group_id)
        delete_offsets(turn, group, self._offsets, request, token)
        return self._decision(turn)

    def fetch_offsets(self, request: OffsetFetch) -> OffsetFetchAnswer:
        """Return committed offsets at once; an unknown group has none."""
        self._check_loaded()
        topics = self._offsets.fetch(
            request.group_id, request.topics, stable=request.require_stable
        )
        return OffsetFetchAnswer(request.group_id, OK, topics)

    def forget_offsets(
        self, group_id: str, is_gone: Callable[[str, UUID], bool], now: Now
    ) -> GroupDecision:
        """Delete a group's offsets of deleted topics (name, id)."""
        turn = self._turn(now)
        turn.records.extend(self._offsets.forget(group_id, is_gone))
        return self._decision(turn)

    def pending_id_count(self) -> int:
        """Return how many member ids clients have received, and have not joined with."""
        return self._pending_ids.count()

    def describe(self, group_id: str) -> GroupDescription:
        """Return one group's present state."""
        self._check_loaded()
        group = self._groups.get(group_id)
        if group is not None:
            return group.describe()
        if group_id in self._offsets:
            return Group(group_id).describe()
        dead = GroupState.DEAD.value
        return GroupDescription(group_id, ErrorCode.group_id_not_found, dead)

    def list_groups(self, states: Collection[str] = ()) -> list[ListedGroup]:
        """Return all groups, or those in one of `states` (names in any case)."""
        self._check_loaded()
        ids = dict.fromkeys((*self._groups, *self._offsets.group_ids()))
        groups = [self._groups.get(group_id) or Group(group_id) for group_id in ids]
        wanted = {name.lower() for name in states}
        return [
            ListedGroup(one.group_id, one.protocol_type or "", one.state.value)
            for one in groups
            if not wanted or one.state.value.lower() in wanted
        ]

    def committed(self) -> Iterator[tuple[str, list[tuple[str, int, KeptOffset]]]]:
        """Yield each group with offsets, and these by topic and partition.

        A caller may let the state change between two of them.
        """
        self._check_loaded()
        for group_id in list(self._offsets.committed_group_ids()):
            yield group_id, list(self._offsets.of_group(group_id))

    def topics(self) -> Iterator[tuple[str, list[tuple[str, UUID]]]]:
        """Yield each group with offsets, committed or staged, and their topics (name, id); as `committed`."""
        self._check_loaded()
        for group_id in self._offsets.group_ids():
            yield group_id, list(self._offsets.topics(group_id))

    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`: no later than the next deadline, maybe before it. None: not loaded yet."""
        return self._timers.next_ms()

    def tick(self, now: Now) -> GroupDecision:
        """Handle deadlines that have passed. Where there are many, some stay: call `next_deadline_ms` again."""
        turn = self._turn(now)
        for key in islice(self._timers.due(now.steady_ms), DEADLINES_PER_TICK_MAX):
            if key.kind is TimerKind.EXPIRY:
                self._expire(turn)
                continue
            group = self._groups[key.group_id]
            match key.kind:
                case TimerKind.JOIN:
                    on_join_deadline(turn, group)
                case TimerKind.SYNC:
                    on_sync_deadline(turn, group)
                case TimerKind.SESSION:
                    on_session_deadline(turn, group, key.member_id)
            self._drop_if_nothing(turn, group)
        return self._decision(turn)

    def _expire(self, turn: Turn) -> None:
        """Expire offsets and groups whose retention is over; where there are many, continue in a later tick."""
        if not self._to_expire:
            self._to_expire = list(dict.fromkeys((*self._groups, *self._offsets.group_ids())))
        left = OFFSETS_PER_EXPIRY
        while self._to_expire and left > 0 and len(turn.records) < RECORDS_PER_EXPIRY:
            group_id = self._to_expire.pop()
            left -= 1 + expire(turn, group_id, self._groups.get(group_id), self._offsets)
        if self._to_expire:
            self._timers.set(_EXPIRY, turn.now.steady_ms + EXPIRY_PAUSE_MS)
            return
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._timers.set(_EXPIRY, turn.now.steady_ms + interval_ms)

    def replay(
        self,
        offset: int,
        key: bytes,
        value: bytes | None,
        producer_id: int = -1,
    ) -> None:
        """Apply one record, in a transaction of `producer_id` if that is not -1.

        While loading only the last one of each key is kept, undecoded.
        """
        if self._loading is None:
            self._apply(key, value, offset, producer_id)
        elif producer_id >= 0:
            if value is not None:
                self._loading_pending.put(producer_id, bytes(key), offset, bytes(value))
        else:
            key = bytes(key)
            if value is None:
                self._loading_pending.drop(key)
                self._loading.drop(key)
            else:
                self._loading_pending.supersede(key, offset)
                self._loading.put(key, bytes(value))

    def replay_batch(self, records: bytes, count: int) -> bool:
        """While loading: apply a batch outside transactions, restored, at once. False: `replay` each record."""
        if self._loading is None or self._loading_pending:
            return False
        return last_values(records, count, self._loading)

    def replay_plain(self, data: bytes, position: int, stop: int) -> int:
        """While loading: apply batches outside transactions that begin between two positions of `data`.

        Return the position of the first batch that is not applied: damaged, compressed, or for `replay` to judge.
        """
        if self._loading is None or self._loading_pending:
            return position
        return plain_values(data, position, stop, self._loading)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker: the producer's transactional records count now, or never."""
        if self._loading is None:
            self._offsets.end_transaction(producer_id, commit=commit)
            return
        for key, value in self._loading_pending.end(producer_id, commit=commit):
            self._loading.put(key, value)

    def load_complete(self, now: Now) -> Iterator[None]:
        """Decode the replayed log, one record a step, and begin a new session for each of its members.

        The shard is loaded once the iterator has ended. Raises Corrupt for a record that cannot be read.
        """
        assert self._loading is not None, "loaded already"
        for key, value in self._loading.take():
            self._apply(key, value, 0)
            yield
        self._loading = None
        for producer_id, key, offset, pending in self._loading_pending.items():
            self._apply(key, pending, offset, producer_id)
            yield
        self._loading_pending = Pending()
        turn = self._turn(now)
        for group in self._groups.values():
            for member in group.members.values():
                turn.keep_alive(group, member)
            if len(group.members) > self._settings.size_max:
                # The limit was lowered: the members that join first stay.
                prepare(turn, group, "there are more members than group.max.size")
        assert not turn.records, "no request waits yet"
        assert not turn.answers, "no request waits yet"
        self._timers.set(
            _EXPIRY, now.steady_ms + self._settings.offsets_retention_check_interval_ms
        )

    def _check_join(self, request: JoinGroup) -> ErrorCode:
        settings = self._settings
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if not (
            settings.session_timeout_ms_min
            <= request.session_timeout_ms
            <= settings.session_timeout_ms_max
        ):
            return ErrorCode.invalid_session_timeout
        if request.member_id != NO_MEMBER_ID and request.group_id not in self._groups:
            return ErrorCode.unknown_member_id
        return OK

    def _check_commit(self, request: OffsetCommit, group: Group | None) -> ErrorCode:
        """Check a commit's sender: a member of this generation, or a simple consumer of a group without members."""
        if group is None and request.group_id in self._offsets:
            group = Group(request.group_id)
        alone = request.generation_id < 0
        if group is None:
            if alone:
                return OK
            supported = request.supports_group_not_found
            return ErrorCode.group_id_not_found if supported else ErrorCode.illegal_generation
        if alone and group.state is GroupState.EMPTY:
            return OK
        if alone and request.member_id == NO_MEMBER_ID and request.group_instance_id is None:
            return OK if request.in_transaction else ErrorCode.unknown_member_id
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not OK:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.illegal_generation
        if group.state is GroupState.COMPLETING_REBALANCE and not request.in_transaction:
            # The member knows the new generation, but not yet its assignment.
            return ErrorCode.rebalance_in_progress
        return OK

    def _ask(
        self,
        handle: Callable[[Turn, Group, Request, Any], None],
        request: Request,
        token: Any,
        now: Now,
        failure: Callable[[ErrorCode], Answer],
    ) -> GroupDecision:
        turn = self._turn(now)
        group = self._groups.get(request.group_id)
        if not request.group_id:
            turn.answer(token, failure(ErrorCode.invalid_group_id))
        elif group is None:
            turn.answer(token, failure(ErrorCode.unknown_member_id))
        else:
            handle(turn, group, request, token)
            self._drop_if_nothing(turn, group)
        return self._decision(turn)

    def _turn(self, now: Now) -> Turn:
        self._check_loaded()
        return Turn(self._settings, self._timers, self._entropy, now)

    def _decision(self, turn: Turn) -> GroupDecision:
        """Return the turn's decision, or a refusal where its records do not fit into one batch."""
        if turn.records and records_bytes(turn.records) > self.batch_bytes_max:
            self._refuse(turn)
        return turn.decision()

    def _refuse(self, turn: Turn) -> None:
        """Fail a turn whose records are too large; a group that loses its assignment rebalances.

        Kafka: `RecordTooLargeException`, answered as UNKNOWN_SERVER_ERROR.
        """
        records, answers = turn.records, turn.answers
        turn.records, turn.answers = [], []
        for token, answer in answers:
            turn.answer(token, answer.failed(ErrorCode.unknown_server_error))
        for key, _ in records:
            record = decode_key(key)
            group = self._groups.get(record.group) if record is not None else None
            formed = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
            if isinstance(record, GroupMetadataKey) and group and group.state in formed:
                prepare(turn, group, "its assignment is too large for a record")
        assert not turn.records, "no member has joined again yet"

    def _check_loaded(self) -> None:
        assert self._loading is None, "asked while loading"

    def _drop_if_nothing(self, turn: Turn, group: Group) -> None:
        """Drop a group without members, pending ids and records."""
        if (
            group.state is GroupState.EMPTY
            and not group.pending
            and not group.persisted
            and not turn.records
        ):
            group.become(GroupState.DEAD, turn.now.wall_ms)
            del self._groups[group.group_id]

    def _apply(self, key: bytes, value: bytes | None, offset: int, producer_id: int = -1) -> None:
        record = decode_key(key)
        decoded = None if record is None or value is None else decode_value(record, value)
        if isinstance(record, OffsetCommitKey):
            assert decoded is None or isinstance(decoded, OffsetCommitValue)
            kept = None if decoded is None else kept_offset(decoded)
            place = (record.group, record.topic, record.partition)
            if producer_id >= 0:
                self._offsets.replay_pending(producer_id, place, offset, kept)
            else:
                self._offsets.replay(*place, kept, offset)
        elif isinstance(record, GroupMetadataKey):
            assert decoded is None or isinstance(decoded, GroupMetadataValue)
            self._apply_group(record.group, decoded)

    def _apply_group(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self._groups.get(group_id)
        if value is None:
            if group is not None and group.state is GroupState.EMPTY:
                for member_id in group.pending:
                    self._timers.cancel(TimerKey(TimerKind.SESSION, group_id, member_id))
                del self._groups[group_id]
            elif group is not None:
                group.persisted = False
        elif group is None:
            self._groups[group_id] = group_of(group_id, value)
        else:
            group.persisted = True
            if (
                group.state is GroupState.COMPLETING_REBALANCE
                and group.generation_id == value.generation
            ):
                for one in value.members:
                    group.members[one.member_id].assignment = one.assignment
                group.become(GroupState.STABLE, group.state_timestamp_ms)
