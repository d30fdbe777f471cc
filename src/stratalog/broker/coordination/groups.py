"""The group coordinators of this broker: one state machine for each partition of `__consumer_offsets` that it leads.

In: requests of the group APIs. Out: answers, once the decided records are committed. It decides nothing about groups:
`coordinators` does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from stratalog.broker.coordination.led_shards import LedShards
from stratalog.broker.coordination.runtime import Runtime, check_available, in_turns, load
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import Failure
from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.messages import (
    NO_TOPIC_ID,
    DeleteGroup,
    DeleteGroupAnswer,
    GroupDecision,
    GroupDescription,
    Heartbeat,
    HeartbeatAnswer,
    IdsTakenBack,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    LeaveGroupAnswer,
    ListedGroup,
    MemberExpired,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetDelete,
    OffsetDeleteAnswer,
    OffsetFetch,
    OffsetFetchAnswer,
    OffsetRecord,
    Outcome,
    Rebalanced,
    SyncGroup,
    SyncGroupAnswer,
)
from stratalog.coordinators.placement import partition_for
from stratalog.coordinators.records import KeptOffset
from stratalog.coordinators.turn import GroupSettings, records_bytes
from stratalog.errors import Corrupt, ErrorCode, Rejected, again
from stratalog.ports import Clock, Entropy
from stratalog.statemachine import Decision, Now
from stratalog.wire.batch import HEADER_SIZE, BatchHeader, parse_header
from stratalog.wire.compression import decompress
from stratalog.wire.markers import Ended, marker_of
from stratalog.wire.records import Record, build_batch

OFFSETS_TOPIC: Final = "__consumer_offsets"
A = TypeVar("A")
Token = asyncio.Future[Any]
_BATCH_HEADER: Final = 61


class Groups:
    """The group coordinators of one broker: find the shard of a group, and run requests on it."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        entropy: Entropy,
        *,
        partition_count: Callable[[], int],
        create_topic: Callable[[], Awaitable[None]],
        topic_id: Callable[[str], UUID | None],
    ) -> None:
        """`partition_count` is 0 until the offsets topic exists; `topic_id` is None for a name without a topic."""
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._partition_count = partition_count
        self._create_topic = create_topic
        self._topic_id = topic_id
        self._creating = asyncio.Lock()
        self._shards: LedShards[_Shard] = LedShards(self._shard_of)
        self.ids_taken_back = 0
        """How many member ids were, since the start, because there were too many."""

    def _shard_of(
        self, partition: HostedPartition, fell: Callable[[BaseException], None]
    ) -> "_Shard":
        return _Shard(
            partition,
            self._settings,
            self._clock,
            self._entropy,
            fell,
            is_gone=self._is_gone,
            note_taken_back=self._note_taken_back,
        )

    def _note_taken_back(self, count: int) -> None:
        self.ids_taken_back += count

    def pending_id_count(self) -> int:
        """Return how many member ids clients have received, and have not joined with."""
        return sum(one.pending_id_count() for one in self._shards.by_index.values())

    async def lead(self, partition: HostedPartition) -> None:
        """Load a partition of the offsets topic that this broker now leads, then coordinate its groups.

        Without all of its offsets, members would read records again, or pass over some: see `LedShards.lead`.
        """
        await self._shards.lead(partition)

    def resign(self, partition: HostedPartition) -> None:
        """Coordinate no groups of this partition any more: every request that waits gets NOT_COORDINATOR."""
        self._shards.resign(partition)

    def close(self) -> None:
        """Answer all waiting requests with NOT_COORDINATOR, and set no more timers."""
        self._shards.close()

    @property
    def not_loaded(self) -> Mapping[HostedPartition, str]:
        """Partitions that this broker leads and cannot read, with the reason."""
        return self._shards.not_loaded

    async def ensure_topic(self) -> None:
        """Create the offsets topic, once."""
        async with self._creating:
            if self._partition_count() == 0:
                await self._create_topic()

    async def join(self, request: JoinGroup) -> JoinGroupAnswer:
        """Join a group; answer once the group has rebalanced."""
        shard = self._shard(request.group_id)
        check_available(shard.partition)
        return await shard.join(request)  # type: ignore[no-any-return]

    async def sync(self, request: SyncGroup) -> SyncGroupAnswer:
        """Return a member's assignment, once the group's leader has sent it."""
        return await self._change(request.group_id, request, GroupShard.sync)  # type: ignore[no-any-return]

    async def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        """Extend a member's session, at once."""
        return await self._ask(request.group_id, request, GroupShard.heartbeat)  # type: ignore[no-any-return]

    async def leave(self, request: LeaveGroup) -> LeaveGroupAnswer:
        """Remove members; answer once the change is committed."""
        return await self._change(request.group_id, request, GroupShard.leave)  # type: ignore[no-any-return]

    async def commit(self, request: OffsetCommit) -> OffsetCommitAnswer:
        """Commit offsets; answer once they are committed."""
        return await self._change(request.group_id, request, GroupShard.commit)  # type: ignore[no-any-return]

    async def fetch_offsets(self, request: OffsetFetch) -> OffsetFetchAnswer:
        """Return committed offsets at once, with every earlier commit."""
        return await self._shard(request.group_id).fetch_offsets(request)

    def commit_in_transaction(
        self, request: OffsetCommit, producer: tuple[int, int]
    ) -> "asyncio.Future[OffsetCommitAnswer]":
        """Add offsets to the transaction of a producer (id, epoch); answer once they are in the log.

        Raises Rejected(UNKNOWN_TOPIC_OR_PARTITION) where a topic was deleted while the coordinator of the transaction
        was asked: nothing would forget its offset later.
        """
        for topic in request.topics:
            if self._is_gone(topic.name, topic.topic_id):
                raise Rejected(ErrorCode.unknown_topic_or_partition, f"{topic.name} was deleted")
        return self._shard(request.group_id).ask_in_transaction(request, producer)

    def end_transaction(self, partition: int, ended: Ended) -> Awaitable[None]:
        """End a transaction in a partition of the offsets topic: append its marker. Raises Rejected."""
        return self._shard_at(partition).end_transaction(ended)

    async def delete(self, request: DeleteGroup) -> DeleteGroupAnswer:
        """Delete a group; answer once its deletion is committed."""
        return await self._change(request.group_id, request, GroupShard.delete)  # type: ignore[no-any-return]

    async def delete_offsets(self, request: OffsetDelete) -> OffsetDeleteAnswer:
        """Delete offsets of a group; answer once the deletion is committed."""
        return await self._change(request.group_id, request, GroupShard.delete_offsets)  # type: ignore[no-any-return]

    async def describe(self, group_id: str) -> GroupDescription:
        """Return one group's state, with every earlier decision."""
        return await self._shard(group_id).look(lambda shard: shard.describe(group_id))

    async def list_groups(self, states: Collection[str]) -> list[ListedGroup]:
        """Return all groups that this broker coordinates.

        Raises Rejected(COORDINATOR_LOAD_IN_PROGRESS) while some are not known yet.
        """
        if self._shards.is_loading:
            raise Rejected(ErrorCode.coordinator_load_in_progress, "groups are being loaded")
        answers = [
            shard.look(lambda shard: shard.list_groups(states))
            for shard in self._shards.by_index.values()
        ]
        return [group for groups in answers for group in await groups]

    @property
    def is_loading(self) -> bool:
        """Whether this broker still loads some of its groups."""
        return self._shards.is_loading

    @property
    def coordinated(self) -> AbstractSet[int]:
        """The partitions of the offsets topic whose groups `committed` gives."""
        return self._shards.by_index.keys()

    def committed(self) -> Iterator[tuple[str, list[tuple[str, int, KeptOffset]]]]:
        """Yield each group that this broker coordinates with its offsets, as `GroupShard.committed`.

        The offsets are committed once a later `all_committed` has returned. Works after `close`, too.
        """
        for shard in list(self._shards.by_index.values()):
            yield from shard.committed()

    async def all_committed(self) -> None:
        """Wait until every decision made so far is committed. Raises Rejected(NOT_COORDINATOR) where one never will
        be.
        """
        for shard in list(self._shards.by_index.values()):
            await shard.look(lambda _shard: None)

    async def forget_topics(self, deleted: Mapping[str, UUID]) -> None:
        """Delete the offsets of deleted topics (name -> id) from all groups, in several turns of the event loop."""

        def is_gone(topic: str, topic_id: UUID) -> bool:
            return topic in deleted and topic_id in (deleted[topic], NO_TOPIC_ID)

        for shard in list(self._shards.by_index.values()):
            await shard.forget(is_gone)

    def _is_gone(self, topic: str, topic_id: UUID) -> bool:
        """Return whether a topic (name, id) was deleted, before a crash or while a request waited."""
        now = self._topic_id(topic)
        return now is None or topic_id not in (now, NO_TOPIC_ID)

    async def _change(self, group_id: str, request: Any, step: Callable[..., GroupDecision]) -> Any:
        """Ask for what may write records. A rebalance below min ISR would only wait, so it does not begin."""
        check_available(self._shard(group_id).partition)
        return await self._ask(group_id, request, step)

    async def _ask(self, group_id: str, request: Any, step: Callable[..., GroupDecision]) -> Any:
        return await self._shard(group_id).ask(request, step)

    def _shard(self, group_id: str) -> "_Shard":
        count = self._partition_count()
        if count == 0:
            raise Rejected(ErrorCode.not_coordinator, f"{OFFSETS_TOPIC} does not exist yet")
        return self._shard_at(partition_for(group_id, count))

    def _shard_at(self, index: int) -> "_Shard":
        return self._shards.at(index, OFFSETS_TOPIC)


class _Shard:
    """One partition's groups: state machine, log and one timer. It is the runtime's `Machine`."""

    lost = ErrorCode.not_coordinator
    flush = False

    def __init__(  # noqa: PLR0913 - the parts of its owner
        self,
        partition: HostedPartition,
        settings: GroupSettings,
        clock: Clock,
        entropy: Entropy,
        fell: Callable[[BaseException], None],
        *,
        is_gone: Callable[[str, UUID], bool],
        note_taken_back: Callable[[int], None],
    ) -> None:
        self.partition = partition
        self._machine = GroupShard(settings, entropy)
        self._clock = clock
        self._runtime: Runtime[OffsetRecord] = Runtime(
            partition, clock, self, limit_ms=settings.commit_timeout_ms, fell=fell
        )
        self._is_gone = is_gone
        self._note_taken_back = note_taken_back
        self._tokens: set[Token] = set()
        """Requests without an answer; some wait until their group has rebalanced."""
        self._producer: tuple[int, int] | None = None
        """Id and epoch of the producer in whose transaction the present decision is."""
        self._ended: Ended | None = None
        """The transaction that the present decision ends."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._log = structlog.get_logger()

    async def load(self) -> None:
        def replay(header: BatchHeader, record: Record) -> None:
            producer_id = header.producer_id if header.is_transactional else -1
            if header.is_control:
                marker = marker_of(record)
                if marker is not None:
                    self._machine.end_transaction(producer_id, commit=marker.is_commit)
                return
            if record.key is None:
                raise Corrupt(f"{self.partition.name}: offset {record.offset} has no key")
            self._machine.replay(record.offset, record.key, record.value, producer_id)

        def replay_batch(header: BatchHeader, batch: memoryview) -> bool:
            if header.is_control or header.is_transactional:
                return False
            body = decompress(header.codec, batch[HEADER_SIZE:])
            return self._machine.replay_batch(body, header.record_count)

        plain = self._machine.replay_plain
        await load(self.partition, replay, replay_batch=replay_batch, replay_plain=plain)
        # Else offsets could be answered that the next leader lacks.
        await self.partition.all_committed()
        now = Now(self._clock.steady_ms(), self._clock.now_ms())
        await in_turns(self._machine.load_complete(now))
        self._set_timer()

    async def start(self) -> None:
        """Forget topics that were deleted while no broker coordinated these groups."""
        await self.forget(self._is_gone)

    def resign(self) -> None:
        """Stop coordinating: decisions that are not committed fail."""
        self._runtime.resign()
        self.close()

    def close(self) -> None:
        """Answer every request with NOT_COORDINATOR; records that were decided are still appended."""
        self._runtime.append_open()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for token in self._tokens:
            if not token.done():
                token.set_exception(Rejected(ErrorCode.not_coordinator, "it is stopping"))

    def ask(self, request: Any, step: Callable[..., GroupDecision]) -> Token:
        """Decide on a request; the future gets its answer, perhaps from a later decision."""
        token: Token = self._loop.create_future()
        self._tokens.add(token)
        token.add_done_callback(self._tokens.discard)
        self._run(lambda shard, now: step(shard, request, token, now), token)
        return token

    def join(self, request: JoinGroup) -> Token:
        """Decide as `ask`; a new member whose client goes before its answer goes, too."""
        token = self.ask(request, GroupShard.join)
        member_id = self._machine.new_member(request.group_id, token)
        if member_id is not None:
            token.add_done_callback(partial(self._abandon, request.group_id, member_id))
        return token

    def _abandon(self, group_id: str, member_id: str, token: Token) -> None:
        if token.cancelled() and not self._closed:
            self._run(lambda shard, now: shard.abandon(group_id, member_id, token, now), None)

    def ask_in_transaction(self, request: OffsetCommit, producer: tuple[int, int]) -> Token:
        """Decide as `ask` on offsets of a producer's transaction: they are a batch of their own."""
        check_available(self.partition)
        state = self.partition.log.producers.get(producer[0])
        if state is not None and producer[1] < state.epoch:
            message = (
                f"producer {producer[0]} of epoch {producer[1]} where {state.epoch} has written"
            )
            raise Rejected(ErrorCode.invalid_producer_epoch, message)
        self._runtime.append_open()
        self._producer = producer
        try:
            token = self.ask(request, GroupShard.commit)
            self._runtime.append_open()
        finally:
            self._producer = None
        return token

    def end_transaction(self, ended: Ended) -> "asyncio.Future[None]":
        """Append a marker, which is a batch of its own. Its future fails with Rejected, also where it is outdated."""
        self.partition.replica.check_min_isr()
        batch = memoryview(ended.batch(self._clock.now_ms()))

        def decide(_now: Now) -> Decision[OffsetRecord, None]:
            producers = self.partition.log.producers
            producers.check_marker(parse_header(batch), batch)
            if ended.raises_epoch:
                producers.check_raised(ended.producer_id, ended.producer_epoch)
            return Decision(((b"", None),), None)

        self._runtime.append_open()
        self._ended = ended
        try:
            # No client waits, and a coordinator that gave up would send the marker again.
            answer: asyncio.Future[None] = self._runtime.submit(decide, limited=False)
            self._runtime.append_open()
        finally:
            self._ended = None
        return answer

    def _run(self, step: Callable[[GroupShard, Now], GroupDecision], asker: Token | None) -> None:
        """Decide; every answer that the decision completes is sent once the records are committed."""
        decided: Outcome | None = None

        def decide(now: Now) -> GroupDecision:
            nonlocal decided
            self._machine.batch_bytes_max = self.partition.log.config.segment_bytes - _BATCH_HEADER
            decision = step(self._machine, now)
            decided = decision.answer
            return decision

        def late(error: Rejected) -> None:
            waiting = [] if decided is None else [token for token, _ in decided.answers]
            for token in (*waiting, *([] if asker is None else [asker])):
                if not token.done():
                    token.set_exception(again(error))

        def then(outcome: Outcome | None, error: Failure) -> None:
            if error is not None:
                self._refused(error, asker)
                return
            assert outcome is not None
            for token, reply in outcome.answers:
                if not token.done():
                    token.set_result(reply)
            self._log_news(outcome)

        self._runtime.run(decide, then, late)
        self._set_timer()

    def _refused(self, error: BaseException, asker: Token | None) -> None:
        """Fail the request behind a decision; where leadership is lost, fail every request."""
        if not isinstance(error, Rejected):
            name = str(self.partition.name)
            self._log.error("group request failed", partition=name, exc_info=error)
        elif error.code is self.lost and not self._closed:
            self.close()
        if asker is not None and not asker.done():
            asker.set_exception(error)

    def _log_news(self, outcome: Outcome) -> None:
        for news in outcome.news:
            match news:
                case Rebalanced(group, generation, members, reason):
                    self._log.info(
                        "group rebalanced",
                        group=group,
                        generation=generation,
                        members=members,
                        reason=reason,
                    )
                case IdsTakenBack(count):
                    self._note_taken_back(count)
                case MemberExpired(group, member, reason):
                    self._log.warning("member expired", group=group, member=member, reason=reason)

    def committed(self) -> Iterator[tuple[str, list[tuple[str, int, KeptOffset]]]]:
        return self._machine.committed()

    def pending_id_count(self) -> int:
        return self._machine.pending_id_count()

    def fetch_offsets(self, request: OffsetFetch) -> "asyncio.Future[OffsetFetchAnswer]":
        return self.look(lambda shard: shard.fetch_offsets(request))

    async def forget(self, is_gone: Callable[[str, UUID], bool]) -> None:
        """Delete every offset whose topic (name, id) was deleted, also those of open transactions."""

        def forget_group(group_id: str) -> None:
            self._run(lambda shard, now: shard.forget_offsets(group_id, is_gone, now), None)

        def steps() -> Iterator[object]:
            for group_id, topics in self._machine.topics():
                if any(is_gone(*topic) for topic in topics):
                    forget_group(group_id)
                yield from topics

        await in_turns(steps())

    def look(self, ask: Callable[[GroupShard], A]) -> "asyncio.Future[A]":
        """Return the result of `read` now, once every decision that it may have seen is committed."""

        def decide(_now: Now) -> Decision[OffsetRecord, A]:
            return Decision((), ask(self._machine))

        return self._runtime.submit(decide)

    # The runtime's machine

    def apply(self, base_offset: int, records: Sequence[OffsetRecord]) -> None:
        if self._ended is not None:
            commit = self._ended.marker.is_commit
            self._machine.end_transaction(self._ended.producer_id, commit=commit)
            return
        producer_id = -1 if self._producer is None else self._producer[0]
        for index, (key, value) in enumerate(records):
            self._machine.replay(base_offset + index, key, value, producer_id)

    def publish(self, change: None) -> None:
        """Do nothing: a commit of group records has no effect but answers."""

    def encode(self, records: Sequence[OffsetRecord], wall_ms: int) -> bytearray:
        if self._ended is not None:
            return self._ended.batch(wall_ms)
        producer_id, epoch = self._producer or (-1, -1)
        return build_batch(
            (Record(0, wall_ms, key, value, ()) for key, value in records),
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=self._producer is not None,
        )

    def bytes_of(self, records: Sequence[OffsetRecord]) -> int:
        return records_bytes(records)

    # The timer

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is None or self._closed:
            return
        delay_s = max(0, deadline_ms - self._clock.steady_ms()) / 1000
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._closed:
            self._run(lambda shard, now: shard.tick(now), None)
