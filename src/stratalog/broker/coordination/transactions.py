"""The transaction coordinators of this broker: a state machine for each partition of `__transaction_state` it leads.

In: requests of the transaction APIs. Out: answers, once the decided records are committed; then markers. It decides
nothing about transactions: `coordinators/transactions.py` does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from stratalog.broker.coordination.led_shards import LedShards
from stratalog.broker.coordination.markers import Markers
from stratalog.broker.coordination.producer_ids import ProducerIds
from stratalog.broker.coordination.runtime import Runtime, check_available, in_turns, load
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.coordinators.placement import partition_for
from stratalog.coordinators.transaction import bytes_max, decode_record, encode_record
from stratalog.coordinators.transactions import (
    Initialised,
    State,
    Transaction,
    TransactionRecord,
    TransactionSettings,
    TransactionShard,
)
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable
from stratalog.ports import Clock
from stratalog.statemachine import Decision, Now
from stratalog.wire.batch import BatchHeader
from stratalog.wire.ids import TopicPartition
from stratalog.wire.markers import Ended, Marker
from stratalog.wire.records import Record, build_batch
from stratalog.wire.sift import LastValues, plain_values

TRANSACTIONS_TOPIC: Final = "__transaction_state"
A = TypeVar("A")
Prepared = list[tuple[str, Transaction]]


class Transactions:
    """The transaction coordinators of one broker: find the shard of a transactional id, and run requests on it."""

    def __init__(
        self,
        settings: TransactionSettings,
        clock: Clock,
        markers: Markers,
        producer_ids: ProducerIds,
        *,
        partition_count: Callable[[], int],
        create_topic: Callable[[], Awaitable[None]],
    ) -> None:
        """`partition_count` is 0 until the topic exists."""
        self._settings = settings
        self._clock = clock
        self._markers = markers
        self._producer_ids = producer_ids
        self._partition_count = partition_count
        self._create_topic = create_topic
        self._creating = asyncio.Lock()
        self._shards: LedShards[_Shard] = LedShards(self._shard_of)

    def _shard_of(
        self, partition: HostedPartition, fell: Callable[[BaseException], None]
    ) -> "_Shard":
        return _Shard(
            partition, self._settings, self._clock, self._markers, self._producer_ids, fell
        )

    async def lead(self, partition: HostedPartition) -> None:
        """Load a partition that this broker now leads, then coordinate its transactional ids, as `LedShards.lead`."""
        await self._shards.lead(partition)

    def resign(self, partition: HostedPartition) -> None:
        """Coordinate no transactional ids of this partition any more."""
        self._shards.resign(partition)

    def close(self) -> None:
        """Answer no more requests, and write no more markers."""
        self._shards.close()
        self._markers.close()

    async def ensure_topic(self) -> None:
        """Create the topic of the transactions' states, once."""
        async with self._creating:
            if self._partition_count() == 0:
                await self._create_topic()

    async def initialise(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        *,
        two_phase: bool = False,
        keep: bool = False,
    ) -> Initialised:
        """Give a producer its id and epoch, as `TransactionShard.initialise`."""
        shard = self._shard(transactional_id)
        fresh_id = None
        if shard.machine.wants_producer_id(transactional_id):
            fresh_id = await self._producer_ids.next()
            shard = self._shard(transactional_id)  # leadership may have moved meanwhile
        return await shard.change(
            lambda machine, now: machine.initialise(
                transactional_id,
                timeout_ms,
                expected,
                fresh_id,
                now,
                two_phase=two_phase,
                keep=keep,
            )
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[TopicPartition],
        *,
        implicitly: bool = False,
    ) -> None:
        """Add partitions to a transaction, as `TransactionShard.add_partitions`."""
        await self._shard(transactional_id).change(
            lambda machine, now: machine.add_partitions(
                transactional_id, producer, partitions, now, implicitly=implicitly
            )
        )

    async def verify(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition
    ) -> bool:
        """Return whether an open transaction has a partition, as `TransactionShard.verify`."""
        return await self._shard(transactional_id).ask(
            lambda machine, _now: machine.verify(transactional_id, producer, partition)
        )

    def has_added(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition
    ) -> bool:
        """Return whether this broker's coordinator knows now that the open transaction has the partition.

        False may also mean that another broker coordinates, or that a decision is not committed yet: ask `verify`.
        """
        try:
            return self._shard(transactional_id).has_added(transactional_id, producer, partition)
        except Rejected:
            return False

    async def end(self, transactional_id: str, producer: tuple[int, int], *, commit: bool) -> None:
        """Decide the end of a transaction, as `TransactionShard.end`. Its markers follow."""
        await self._shard(transactional_id).change(
            lambda machine, now: machine.end(transactional_id, producer, now, commit=commit)
        )

    async def end_raised(
        self, transactional_id: str, producer: tuple[int, int], *, commit: bool
    ) -> tuple[int, int]:
        """Decide the end of a transaction, as `TransactionShard.end_raised`; return the next producer id and epoch."""
        shard = self._shard(transactional_id)
        fresh_id = None
        if shard.machine.is_exhausted(transactional_id):
            fresh_id = await self._producer_ids.next()
            shard = self._shard(transactional_id)  # leadership may have moved meanwhile
        return await shard.change(
            lambda machine, now: machine.end_raised(
                transactional_id, producer, fresh_id, now, commit=commit
            )
        )

    async def describe(self, transactional_id: str) -> Transaction:
        """Return an id's last transaction, as `TransactionShard.describe`."""
        return await self._shard(transactional_id).ask(
            lambda machine, _now: machine.describe(transactional_id)
        )

    async def listed(self) -> list[tuple[str, Transaction]]:
        """Return every id that this broker coordinates with its last transaction.

        Raises Rejected: COORDINATOR_LOAD_IN_PROGRESS while some are not known yet.
        """
        if self._shards.is_loading:
            raise Rejected(ErrorCode.coordinator_load_in_progress, "transactions are being loaded")
        shards = self._shards.by_index.values()
        answers = [one.ask(lambda machine, _now: machine.listed()) for one in shards]
        return [found for one in answers for found in await one]

    async def oldest_open_ms(self, pause: Callable[[], Awaitable[None]]) -> int:
        """Return the age of the oldest transaction here that is open or lacks a marker; 0 without one."""
        now_ms = oldest_ms = self._clock.now_ms()
        for shard in list(self._shards.by_index.values()):
            began_ms = shard.machine.oldest_ms()
            oldest_ms = oldest_ms if began_ms is None else min(oldest_ms, began_ms)
            await pause()
        return now_ms - oldest_ms

    def _shard(self, transactional_id: str) -> "_Shard":
        count = self._partition_count()
        if count == 0:
            raise Rejected(ErrorCode.not_coordinator, f"{TRANSACTIONS_TOPIC} does not exist yet")
        return self._shards.at(partition_for(transactional_id, count), TRANSACTIONS_TOPIC)


class _Shard:
    """One partition's transactional ids: state machine, log and markers. It is the runtime's `Machine`."""

    lost = ErrorCode.not_coordinator
    flush = False

    def __init__(
        self,
        partition: HostedPartition,
        settings: TransactionSettings,
        clock: Clock,
        markers: Markers,
        producer_ids: ProducerIds,
        fell: Callable[[BaseException], None],
    ) -> None:
        self.partition = partition
        self.machine = TransactionShard(settings)
        self._runtime: Runtime[TransactionRecord] = Runtime(
            partition, clock, self, limit_ms=settings.commit_timeout_ms, fell=fell
        )
        self._clock = clock
        self._markers = markers
        self._producer_ids = producer_ids
        self._tick_s = settings.cleanup_interval_ms / 1000
        self._working: set[asyncio.Task[None]] = set()
        """Tasks that write markers, or get the producer ids of a tick."""
        self._timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger()

    async def load(self) -> None:
        """Replay the log: only the last record of each transactional id is decoded."""
        values = LastValues()

        def replay(header: BatchHeader, record: Record) -> None:
            if header.is_control:
                return
            if record.key is None:
                raise Corrupt(f"{self.partition.name}: offset {record.offset} has no key")
            if record.value is None:
                values.drop(record.key)
            else:
                values.put(record.key, record.value)

        def replay_plain(data: bytes, position: int, stop: int) -> int:
            return plain_values(data, position, stop, values)

        await load(self.partition, replay, replay_plain=replay_plain)
        await (
            self.partition.all_committed()
        )  # else an end could be announced that the next leader lacks
        await in_turns(self._replayed(values))

    def _replayed(self, values: LastValues) -> Iterator[None]:
        for key, value in values.take():
            decoded = decode_record(key, value)
            if decoded is not None:
                self.machine.replay(*decoded)
            yield

    async def start(self) -> None:
        """Write the markers that an earlier leader may not have written, and watch the time limits."""
        self.publish(list(self.machine.prepared()))
        self._on_timer()

    def resign(self) -> None:
        """Stop coordinating: decisions that are not committed fail."""
        self._runtime.resign()
        self.close()

    def close(self) -> None:
        self._runtime.append_open()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._working:
            task.cancel()

    def ask(
        self, decide: Callable[[TransactionShard, Now], Decision[TransactionRecord, A]]
    ) -> "asyncio.Future[A]":
        """Decide on a request; the future gets its answer once it is committed."""
        return self._runtime.submit(partial(decide, self.machine))

    def change(
        self, decide: Callable[[TransactionShard, Now], Decision[TransactionRecord, A]]
    ) -> "asyncio.Future[A]":
        """Do as `ask`, where the state's change can be committed. Raises Rejected."""
        check_available(self.partition)
        return self.ask(decide)

    def has_added(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition
    ) -> bool:
        """See `Transactions`. Raises Rejected."""
        if not self._runtime.is_committed:
            return False
        return self.machine.verify(transactional_id, producer, partition).answer

    def _on_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._on_timer)
        now = Now(self._clock.steady_ms(), self._clock.now_ms())
        wanted = self.machine.wanted_by_tick(now)
        if wanted:
            self._spawn(self._tick_with_ids(wanted))
        else:
            self._tick(())

    async def _tick_with_ids(self, wanted: int) -> None:
        try:
            fresh_ids = [await self._producer_ids.next() for _ in range(wanted)]
        except (Rejected, Unavailable):
            return  # the controller gives no ids now: the next tick tries again
        self._tick(fresh_ids)

    def _tick(self, fresh_ids: Sequence[int]) -> None:
        self._runtime.run(lambda now: self.machine.tick(fresh_ids, now), self._note_failure)

    def _note_failure(self, _answer: None, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Rejected):
            name = str(self.partition.name)
            self._log.error("transactions failed", partition=name, exc_info=error)

    async def _finish(self, transactional_id: str, ended: Transaction) -> None:
        """Write the markers of a decided end, and note that they are written."""
        epoch = self.partition.replica.leader_epoch
        marker = Marker(ended.state is State.PREPARE_COMMIT, epoch)
        await self._markers.write_everywhere(
            Ended(ended.producer_id, ended.producer_epoch, marker, ended.version), ended.partitions
        )
        self._runtime.run(
            lambda now: self.machine.complete(transactional_id, ended, now), self._note_failure
        )

    # The runtime's machine

    def apply(self, base_offset: int, records: Sequence[TransactionRecord]) -> Prepared:  # noqa: ARG002
        found = [self.machine.replay(*one) for one in records]
        return [one for one in found if one is not None]

    def publish(self, change: Prepared) -> None:
        """Write the markers of each end that is decided and committed."""
        for transactional_id, ended in change:
            self._spawn(self._finish(transactional_id, ended))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note_failure(None, error)

    def encode(self, records: Sequence[TransactionRecord], wall_ms: int) -> bytearray:
        return build_batch(Record(0, wall_ms, *encode_record(one)) for one in records)

    def bytes_of(self, records: Sequence[TransactionRecord]) -> int:
        return sum(map(bytes_max, records))
