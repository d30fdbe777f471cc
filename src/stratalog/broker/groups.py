"""The group coordinators of this broker: one state machine for each partition of `__consumer_offsets` it leads.

In: what group handlers ask. Out: answers, once what they decided is committed. It decides nothing about groups:
`coordinators` does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from stratalog.broker.partition import HostedPartition
from stratalog.broker.runtime import Runtime, load
from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.placement import partition_for
from stratalog.coordinators.messages import (
    HeartbeatAnswer,
    JoinGroup,
    JoinGroupAnswer,
    Heartbeat,
    LeaveGroup,
    LeaveGroupAnswer,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetFetch,
    OffsetFetchAnswer,
    OffsetRecord,
    Step,
    SyncGroup,
    SyncGroupAnswer,
)
from stratalog.coordinators.turn import GroupSettings
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Clock, Entropy
from stratalog.statemachine import Decision
from stratalog.wire.batch import BatchHeader
from stratalog.wire.records import Record, build_batch

OFFSETS_TOPIC: Final = "__consumer_offsets"
Token = asyncio.Future[Any]


class Groups:
    """Finds the shard of a group and runs its steps."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        entropy: Entropy,
        *,
        partition_count: Callable[[], int],
        create_topic: Callable[[], Awaitable[None]],
        spawn: Callable[[Any], None],
    ) -> None:
        """`partition_count` is 0 until the offsets topic exists; `spawn` starts a coroutine of the broker's."""
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._partition_count = partition_count
        self._create_topic = create_topic
        self._creating = asyncio.Lock()
        self._spawn = spawn
        self._shards: dict[int, _Shard] = {}

    async def lead(self, partition: HostedPartition) -> None:
        """Load a partition of the offsets topic that this broker leads now, then coordinate its groups."""
        shard = _Shard(partition, self._settings, self._clock, self._entropy, self._spawn)
        await shard.load()
        self._shards[partition.identity.index] = shard

    def close(self) -> None:
        """Set no timer any more."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    async def ensure_topic(self) -> None:
        """Create the offsets topic, once."""
        async with self._creating:
            if self._partition_count() == 0:
                await self._create_topic()

    async def join(self, request: JoinGroup) -> JoinGroupAnswer:
        """Waits until the group has rebalanced."""
        return await self._ask(request.group_id, request, GroupShard.join)  # type: ignore[no-any-return]

    async def sync(self, request: SyncGroup) -> SyncGroupAnswer:
        """Waits until the group's leader has assigned."""
        return await self._ask(request.group_id, request, GroupShard.sync)  # type: ignore[no-any-return]

    async def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        """Answers at once."""
        return await self._ask(request.group_id, request, GroupShard.heartbeat)  # type: ignore[no-any-return]

    async def leave(self, request: LeaveGroup) -> LeaveGroupAnswer:
        """Answers once the group has changed."""
        return await self._ask(request.group_id, request, GroupShard.leave)  # type: ignore[no-any-return]

    async def commit(self, request: OffsetCommit) -> OffsetCommitAnswer:
        """Answers once the offsets are committed."""
        return await self._ask(request.group_id, request, GroupShard.commit)  # type: ignore[no-any-return]

    async def fetch_offsets(self, request: OffsetFetch) -> OffsetFetchAnswer:
        """Answers at once, after all earlier commits."""
        return await self._shard(request.group_id).fetch_offsets(request)

    async def _ask(self, group_id: str, request: Any, step: Callable[..., Step]) -> Any:
        token: Token = asyncio.get_running_loop().create_future()
        await self._shard(group_id).run(lambda shard, now_ms: step(shard, request, token, now_ms))
        return await token

    def _shard(self, group_id: str) -> "_Shard":
        count = self._partition_count()
        if count == 0:
            raise Rejected(
                ErrorCode.coordinator_not_available, "the offsets topic is not there yet"
            )
        shard = self._shards.get(partition_for(group_id, count))
        if shard is None:
            raise Rejected(ErrorCode.coordinator_load_in_progress, f"group {group_id}")
        return shard


class _Shard:
    """One partition's groups: state machine, log and one timer."""

    def __init__(
        self,
        partition: HostedPartition,
        settings: GroupSettings,
        clock: Clock,
        entropy: Entropy,
        spawn: Callable[[Any], None],
    ) -> None:
        self._machine = GroupShard(settings, entropy)
        self._runtime: Runtime[OffsetRecord] = Runtime(
            partition, clock, encode=_encode, replay=self._replay
        )
        self._spawn = spawn
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._epoch_ms = clock.now_ms() - int(self._loop.time() * 1000)

    async def load(self) -> None:
        def replay(header: BatchHeader, record: Record) -> None:
            if not header.is_control:
                assert record.key is not None
                self._machine.replay(record.offset, record.key, record.value)

        await load(self._runtime.partition, replay)
        self._machine.load_complete(self._now_ms())
        self._set_timer()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, step: Callable[[GroupShard, int], Step]) -> None:
        """Run one step; every answer it frees leaves once its records are committed."""
        decided = Step()

        def decide(_wall_ms: int) -> Decision[OffsetRecord, None]:
            nonlocal decided
            decided = step(self._machine, self._now_ms())
            return Decision(decided.records, None)

        try:
            await self._runtime.submit(decide)
        except Rejected as error:
            decided = self._machine.not_committed(decided, error.code, self._now_ms())
        for token, answer in decided.answers:
            if not token.done():
                token.set_result(answer)
        self._set_timer()

    async def fetch_offsets(self, request: OffsetFetch) -> OffsetFetchAnswer:
        def decide(_now_ms: int) -> Decision[OffsetRecord, OffsetFetchAnswer]:
            return Decision((), self._machine.fetch_offsets(request))

        return await self._runtime.submit(decide)

    def _replay(self, base_offset: int, records: Sequence[OffsetRecord]) -> None:
        for index, (key, value) in enumerate(records):
            self._machine.replay(base_offset + index, key, value)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is None or self._closed:
            return
        delay_s = max(0, deadline_ms - self._now_ms()) / 1000
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _now_ms(self) -> int:
        """Epoch time that never jumps: sessions must not end because somebody set the clock."""
        return self._epoch_ms + int(self._loop.time() * 1000)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._closed:
            self._spawn(self.run(lambda shard, now_ms: shard.tick(now_ms)))


def _encode(records: Sequence[OffsetRecord], now_ms: int) -> bytearray:
    return build_batch(Record(0, now_ms, key, value, ()) for key, value in records)
