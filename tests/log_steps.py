"""A partition's log on a simulated disk, driven step by step as a broker drives it.

In: records to append. Out: effects performed in order, on request. It performs no effect without a request, so that a
test can stop between a decision and its effect.
"""

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.disk import SimDisk, paths

from stratalog.config import LogConfig
from stratalog.log.cleaning.choosing import cleanable, plan_cleaning
from stratalog.log.cleaning.cleaner import clean
from stratalog.log.creating import create
from stratalog.log.effects import Effect, Rename, perform, run
from stratalog.log.partition_log import PartitionLog
from stratalog.log.reading import ReadPlan, Slices
from stratalog.log.recovery import load
from stratalog.log.tail import TailBudget
from stratalog.log.values import Appended
from stratalog.wire.batch import check_produced
from stratalog.wire.records import Record, build_batch

DIRECTORY = "topic-0"
TOPIC_ID = uuid.UUID(int=0x1234)


def batch(count: int = 1, *, timestamp: int = 1000, size: int = 20, **fields: object) -> bytearray:
    """A batch of `count` records of `size` bytes, one millisecond apart."""
    records = [
        Record(0, timestamp + at, b"%d" % at, bytes([65 + at % 26]) * size) for at in range(count)
    ]
    return build_batch(records, **fields)


@dataclass
class Steps:
    """The log, its disk, and decided effects that are not performed yet."""

    config: LogConfig
    disk: SimDisk = field(default_factory=SimDisk)
    now_ms: int = 1_000_000
    """The time of the wall clock and of the steady clock."""
    tail_cache_bytes: int = 1 << 20
    queue: "deque[tuple[list[Effect], Callable[[], None]]]" = field(default_factory=deque)
    recovery_point: int = 0
    log_start_offset: int = 0
    checkpoints_agree: bool = False
    """Whether the checkpoint of high watermarks says the same as that of recovery points, or nothing."""
    replicated: bool = False

    def __post_init__(self) -> None:
        self.log, effects = create(
            DIRECTORY,
            TOPIC_ID,
            self.config,
            now_ms=self.now_ms,
            tails=TailBudget(tail_bytes_max=self.tail_cache_bytes),
        )
        self.decided(effects)
        self.perform_all()

    def decided(self, effects: tuple[Effect, ...], done: Callable[[], None] = lambda: None) -> None:
        """Queue effects; the checkpoints that came with them count once they are performed."""
        recovery_point, log_start = self.log.recovery_point, self.log.log_start_offset

        def finish() -> None:
            done()
            self.recovery_point, self.log_start_offset = recovery_point, log_start

        self.queue.append((list(effects), finish))

    def perform_effect(self) -> None:
        """Perform one effect of the oldest decision, or finish it."""
        effects, finish = self.queue[0]
        if effects:
            perform(self.disk, effects[0])
            del effects[0]
        if not effects:
            self.queue.popleft()
            finish()

    def perform_all(self) -> None:
        while self.queue:
            self.perform_effect()

    def decide(self, data: bytearray, *, leader_epoch: int = 0) -> Appended:
        """Decide an append of one batch, as the leader."""
        view = memoryview(data)
        (header,) = check_produced(view, max_batch_bytes=1 << 30)
        appended = self.log.append_as_leader(
            view, header, leader_epoch=leader_epoch, now_ms=self.now_ms, wall_ms=self.now_ms
        )
        log = self.log
        self.decided(appended.effects, lambda: log.performed(appended))
        return appended

    def append(self, data: bytearray, *, leader_epoch: int = 0) -> Appended:
        appended = self.decide(data, leader_epoch=leader_epoch)
        self.perform_all()
        return appended

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        end_offset: int = 1 << 60,
        minimum_one_batch: bool = True,
    ) -> Slices:
        found = self.log.read(
            offset, max_bytes, end_offset=end_offset, minimum_one_batch=minimum_one_batch
        )
        while isinstance(found, ReadPlan):
            data = self.disk.read(found.path, found.position, found.size)
            found = self.log.finish_read(found, data)
        return found

    def read_all(self, *, cold: bool = True) -> bytes:
        """Everything from the first local offset on, as one piece."""
        if cold:
            self.log.tail.clear()
        offset = self.log.local_start_offset
        pieces = []
        while offset < self.log.log_end_offset:
            found = self.read(offset, 1000)
            if not found.buffers:
                break  # the last offsets were lost
            assert found.next_offset > offset
            pieces += found.buffers
            offset = found.next_offset
        return b"".join(pieces)

    def sync_closed(self) -> None:
        """Make closed segments durable, as a broker does in the background after each roll."""
        end, first, syncs = self.log.unsynced()
        self.decided((*first, *syncs))
        self.perform_all()
        self.log.synced(end)
        self.recovery_point = self.log.recovery_point

    def due(self, *, limit_offset: int | None = None, tier: bool = False) -> None:
        self.sync_closed()
        removable = self.log.removable(self.now_ms)
        due = self.log.due(self.now_ms, wall_ms=self.now_ms, limit_offset=limit_offset, tier=tier)
        self.decided((*removable, *due))

    def flush(self) -> None:
        self.decided(self.log.flush())

    def roll(self) -> None:
        self.decided(self.log.roll(self.now_ms))

    def load(self, *, clean: bool = False) -> PartitionLog:
        """Drop the log and load it from the disk with the values of the checkpoints."""
        self.queue.clear()
        self.log = run(
            self.disk,
            load(
                DIRECTORY,
                self.config,
                clean=clean,
                recovery_point=self.recovery_point,
                log_start_offset=self.log_start_offset,
                high_watermark=self.recovery_point if self.checkpoints_agree else 0,
                now_ms=self.now_ms,
                replicated=self.replicated,
                tails=TailBudget(tail_bytes_max=self.tail_cache_bytes),
            ),
        )
        self.recovery_point = self.log.recovery_point
        self.log_start_offset = self.log.log_start_offset
        return self.log

    def restart(self) -> PartitionLog:
        """Shut down cleanly and start again."""
        self.perform_all()
        self.decided(self.log.close())
        self.perform_all()
        return self.load(clean=True)

    def truncate(self, offset: int) -> None:
        self.perform_all()
        run(self.disk, self.log.truncate_to(offset, self.now_ms))
        self.recovery_point = self.log.recovery_point
        self.log_start_offset = self.log.log_start_offset


def clean_once(steps: Steps, memory: int = 24_000) -> None:
    """Clean what may be cleaned, and swap it in."""
    found = cleanable(steps.log, steps.log.log_end_offset, steps.now_ms)
    done = run(steps.disk, clean(plan_cleaning(found, steps.now_ms, memory, 0.9)))
    originals = {one.base_offset: one for one in found.segments}
    for one in done.rewritten:
        old = [originals[base] for base in one.replaced]
        for effect in steps.log.swaps.begin(one.segment, old, steps.now_ms):
            if isinstance(effect, Rename):
                assert effect.target not in paths(steps.disk, DIRECTORY), "it frees a file's bytes"
            perform(steps.disk, effect)
        steps.log.swaps.end(is_done=True)
    steps.log.cleaned_end = done.end_offset
