"""The log equals a list of batches after any appends, crashes, retention and truncation.

The model is a list. The log runs on a simulated disk, and appends are decided ahead of their effects. After every
crash the log must be a prefix of the list: all performed appends if only the process died, at least all flushed ones
after a loss of power. Everything that the log then returns must be of that prefix, byte for byte.
"""

from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from tests.log_steps import Steps, batch

from stratalog.config import LogConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.effects import Effect, Rename, perform, run
from stratalog.log.partition_log import PartitionLog
from stratalog.log.reading import NotLocal
from stratalog.wire.batch import crc_holds, parse_header, scan
from stratalog.wire.records import read_records

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Written:
    """One batch of the model."""

    base_offset: int
    next_offset: int
    data: bytes
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1

    @property
    def identity(self):
        return self.producer_id, self.epoch, self.sequence, self.next_offset - self.base_offset


class LogAgainstList(RuleBasedStateMachine):
    """`self.list` has the decided batches; a crash truncates it."""

    @initialize(
        segment_bytes=st.sampled_from([600, 2000, 100_000]),
        interval=st.sampled_from([0, 100, 4096]),
        flush_messages=st.sampled_from([1, 7, 1 << 62]),
        tail=st.sampled_from([0, 1500, 1 << 20]),
        segment_ms=st.sampled_from([50, 1 << 60]),
        agree=st.booleans(),
    )
    def begin(self, segment_bytes, interval, flush_messages, tail, segment_ms, agree):
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            flush_messages=flush_messages,
            segment_ms=segment_ms,
            retention_ms=-1,
            file_delete_delay_ms=100,
        )
        self.steps = Steps(config, tail_cache_bytes=tail, checkpoints_agree=agree)
        self.list: list[Written] = []
        self.has_lost = False
        self.epoch = 0
        self.syncing: tuple[PartitionLog, int, list[Effect]] | None = None

    # Appending

    def _append(self, data, **identity):
        try:
            appended = self.steps.decide(data, leader_epoch=self.epoch)
        except Rejected as refused:
            assert refused.code is ErrorCode.record_list_too_large
            assert len(data) > self.steps.config.segment_bytes
            return
        assert not appended.duplicate
        at = appended.base_offset
        assert at == (self.list[-1].next_offset if self.list else appended.log_start_offset)
        header = parse_header(data)
        assert (header.base_offset, header.last_offset) == (at, appended.last_offset)
        assert header.leader_epoch == self.epoch
        self.list.append(Written(at, header.next_offset, bytes(data), **identity))

    @rule(
        count=st.integers(1, 6),
        codec=st.sampled_from(CODECS),
        size=st.integers(0, 120),
        late=st.integers(0, 60),
        times=st.sampled_from([1, 1, 2, 9]),
    )
    def append(self, count, codec, size, late, times):
        for _ in range(times):
            self.steps.now_ms += 1
            self._append(batch(count, codec=codec, size=size, timestamp=self.steps.now_ms - late))

    def _last_of(self, producer_id):
        mine = [written for written in self.list if written.producer_id == producer_id]
        return mine[-1] if mine else None

    @rule(producer_id=st.integers(1, 2), count=st.integers(1, 4), bump=st.booleans())
    def append_idempotent(self, producer_id, count, bump):
        last = self._last_of(producer_id)
        epoch, sequence = 0, 0
        if last is not None:
            epoch = last.epoch + bump
            if not bump:
                sequence = last.sequence + last.next_offset - last.base_offset
        data = batch(
            count,
            timestamp=self.steps.now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        self._append(data, producer_id=producer_id, epoch=epoch, sequence=sequence)

    @rule(producer_id=st.integers(1, 2), back=st.integers(0, 4))
    def repeat(self, producer_id, back):
        mine = [written for written in self.list if written.producer_id == producer_id]
        if len(mine) <= back:
            return
        again = mine[-1 - back]
        before = self.steps.log.next_offset
        try:
            appended = self.steps.decide(bytearray(again.data), leader_epoch=self.epoch)
        except Rejected as refused:
            # Only the newest batch outlives a restart in a snapshot.
            assert back > 0
            assert refused.code in (
                ErrorCode.out_of_order_sequence_number,
                ErrorCode.invalid_producer_epoch,
            )
        else:
            assert appended.duplicate
            assert (appended.base_offset, appended.last_offset + 1) == (
                again.base_offset,
                again.next_offset,
            )
            assert appended.effects == ()
        assert self.steps.log.next_offset == before

    @rule(producer_id=st.integers(1, 2), skip=st.integers(1, 3))
    def skip_sequences(self, producer_id, skip):
        last = self._last_of(producer_id)
        if last is None:
            return
        sequence = last.sequence + last.next_offset - last.base_offset + skip
        data = batch(producer_id=producer_id, producer_epoch=last.epoch, base_sequence=sequence)
        try:
            self.steps.decide(data)
        except Rejected as refused:
            assert refused.code is ErrorCode.out_of_order_sequence_number
        else:
            raise AssertionError("a gap in the sequences was accepted")

    # Time passes

    @rule(effects=st.sampled_from([1, 2, 5, 1000]))
    def perform(self, effects):
        for _ in range(effects):
            if self.steps.queue:
                self.steps.perform_effect()

    @rule(ms=st.integers(1, 200), roll=st.booleans())
    def wait(self, ms, roll):
        self.steps.now_ms += ms
        if roll:
            self.steps.roll()
        else:
            self.steps.flush()

    @rule(
        keep_bytes=st.sampled_from([-1, 0, 500, 3000]),
        keep_ms=st.sampled_from([-1, 100]),
        below=st.integers(0, 40),
    )
    def retain(self, keep_bytes, keep_ms, below):
        log = self.steps.log
        log.config = replace(log.config, retention_bytes=keep_bytes, retention_ms=keep_ms)
        kept_before = log.size if log.log_start_offset == log.segments[0].base_offset else 0
        limit = max(log.log_end_offset - below, log.log_start_offset)
        start = log.log_start_offset
        self._due(limit)
        assert log.log_start_offset <= max(limit, start)
        if keep_ms < 0 and kept_before:
            assert log.size >= min(keep_bytes, kept_before) if keep_bytes >= 0 else True
            if keep_bytes < 0:
                assert log.log_start_offset == start
        log.config = self.steps.config

    @rule(chance=st.randoms(use_true_random=False))
    def raise_log_start(self, chance):
        log = self.steps.log
        log.raise_log_start(chance.randint(log.log_start_offset, log.log_end_offset))
        self._due()

    def _due(self, limit=None):
        now_ms = self.steps.now_ms
        removable = self.steps.log.removable(now_ms)
        due = self.steps.log.due(now_ms, wall_ms=now_ms, limit_offset=limit)
        self.steps.decided((*removable, *due))

    @rule()
    def begin_to_sync(self):
        """Sync closed segments on another thread, while other work continues."""
        log = self.steps.log
        end, first, syncs = log.unsynced()

        def ready():
            self.syncing = (log, end, syncs)

        self.steps.decided(first, ready)

    @rule(effects=st.integers(1, 9))
    def go_on_syncing(self, effects):
        log, end, syncs = self.syncing or (None, 0, [])
        if log is not self.steps.log:
            return  # the log died, or was truncated
        try:
            for effect in syncs[:effects]:
                perform(self.steps.disk, effect)
        except FileNotFoundError:
            self.syncing = None  # retention was quicker
            return
        del syncs[:effects]
        if not syncs:
            self.syncing = None
            log.synced(end)
            self.steps.decided(())  # the next checkpoint says so

    @rule()
    def new_leader(self):
        self.epoch += 1
        self.steps.log.assign_epoch(self.epoch)

    # Reading

    @rule(
        chance=st.randoms(use_true_random=False), max_bytes=st.integers(0, 2000), cold=st.booleans()
    )
    def read(self, chance, max_bytes, cold):
        log = self.steps.log
        if cold:
            log.tail.clear()
        start, end = log.local_start_offset, log.log_end_offset
        offset = chance.randint(start, end)
        visible = [w.next_offset for w in self.list if start < w.next_offset <= end]
        limit = chance.choice([*visible, start, end])
        one = chance.random() < 0.5
        try:
            found = self.steps.read(offset, max_bytes, end_offset=limit, minimum_one_batch=one)
        except FileNotFoundError:
            assert self._going(), "a file is missing, and no rename is in progress"
            return
        expected = [w for w in self.list if w.next_offset > offset and w.next_offset <= limit]
        data = b"".join(found.buffers)
        assert b"".join(w.data for w in expected).startswith(data)
        if not data:
            assert found.first_offset == found.next_offset == offset
            assert not expected or (len(expected[0].data) > max_bytes and not one)
            return
        assert found.first_offset == expected[0].base_offset
        assert found.next_offset in [w.next_offset for w in expected]
        assert len(data) <= max_bytes or (one and len(data) == len(expected[0].data))

    def _going(self):
        return any(isinstance(e, Rename) for effects, _ in self.steps.queue for e in effects)

    @rule(chance=st.randoms(use_true_random=False), offset=st.sampled_from([-1, 1]))
    def read_outside(self, chance, offset):
        log = self.steps.log
        wrong = log.log_start_offset - 1 if offset < 0 else log.log_end_offset + 1
        try:
            self.steps.read(wrong)
        except Rejected as refused:
            assert refused.code is ErrorCode.offset_out_of_range
        except NotLocal:
            raise AssertionError("there is no tier here") from None
        else:
            raise AssertionError(f"offset {wrong} was read")

    @rule(back=st.integers(-50, 2000))
    def find_timestamp(self, back):
        self.steps.perform_all()
        log = self.steps.log
        timestamp = self.steps.now_ms - back
        start = log.local_start_offset
        records = [
            (record.offset, record.timestamp, parse_header(w.data).leader_epoch)
            for w in self.list
            if w.next_offset > start
            for record in read_records(w.data)
            if record.offset >= start and record.timestamp >= timestamp
        ]
        found = run(self.steps.disk, log.offset_for_timestamp(timestamp))
        assert found == (records[0] if records else None), log.segments[-1].next_offset

    # Ends

    def _cut(self, end):
        while self.list and self.list[-1].next_offset > end:
            self.list.pop()
        if self.list and self.list[-1].next_offset < end:
            if end == self.steps.log.log_start_offset:
                # Records below a raised log start were lost: the log restarted there, and knows no producer.
                self.list.clear()
            else:
                assert self.steps.log.segments[-1].size == 0, (
                    "the gap must begin where records were lost"
                )

    def _leave_gaps(self, flushed, start):
        """A segment that was not flushed may be lost whole, or from a batch on, and the next one be there.

        The log then starts at that next one, if the lost segment was the first, at `start`.
        """
        log = self.steps.log
        kept = {header.base_offset for _, header in scan(self.steps.read_all())}
        gone = [w for w in self.list if w.next_offset > start and w.base_offset not in kept]
        assert all(w.next_offset > flushed for w in gone)
        ends = {log.local_start_offset, *(one.next_offset for one in log.segments[:-1])}
        assert all(w.next_offset in ends or self._after(w) in gone for w in gone), (
            "a gap lies within a segment"
        )
        self.has_lost |= bool(gone)
        if gone:
            assert log.recovered.damage
        else:  # a later start reports again what an earlier loss of power took
            assert self.has_lost or not log.recovered.damage
        self.list = [w for w in self.list if w not in gone]

    def _after(self, written):
        return next((w for w in self.list if w.base_offset == written.next_offset), None)

    @rule()
    def restart(self):
        self.steps.perform_all()
        producers = {p: s.batches[-1] for p, s in self.steps.log.producers.items() if s.batches}
        epochs = self.steps.log.epochs.entries()
        end, start = self.steps.log.log_end_offset, self.steps.log.log_start_offset
        log = self.steps.restart()
        assert (log.log_end_offset, log.log_start_offset) == (end, start)
        assert log.recovered.segments_scanned == 0
        assert {p: s.batches[-1] for p, s in log.producers.items() if s.batches} == producers
        assert [e for e in epochs if e[1] < end] == log.epochs.entries()

    @rule()
    def kill_process(self):
        """Every performed append is in the log; those that were only decided are not."""
        performed = self.steps.log.log_end_offset
        self.steps.disk.end_process()
        log = self.steps.load()
        assert log.log_end_offset >= performed
        self._cut(log.log_end_offset)

    @rule(chance=st.randoms(use_true_random=False))
    def lose_power(self, chance: Random):
        flushed = max(self.steps.recovery_point, self.steps.log_start_offset)
        start = self.steps.log.local_start_offset
        self.steps.disk.crash(chance)
        log = self.steps.load()
        assert log.log_end_offset >= flushed, "flushed records are lost"
        self._cut(log.log_end_offset)
        self._leave_gaps(flushed, min(start, log.local_start_offset))

    @precondition(lambda self: self.list)
    @rule(chance=st.randoms(use_true_random=False))
    def truncate(self, chance):
        self.steps.perform_all()
        log = self.steps.log
        self.syncing = None
        offset = chance.randint(log.local_start_offset, log.log_end_offset)
        self.steps.truncate(offset)
        end = log.log_end_offset
        assert end <= offset
        kept = [w.next_offset for w in self.list if w.next_offset <= offset]
        local = log.segments[0].base_offset
        assert end == max([local, *[k for k in kept if k >= local]])
        self.list = [w for w in self.list if w.next_offset <= end]

    # Always

    @invariant()
    def holds_together(self):
        if not hasattr(self, "steps"):
            return
        log = self.steps.log
        assert log.log_start_offset <= log.log_end_offset <= log.next_offset
        assert log.next_offset == log.segments[-1].next_offset
        for one, other in zip(log.segments, log.segments[1:], strict=False):
            assert one.next_offset == other.base_offset
            assert one.size > 0
        assert log.tail.bytes_held <= self.steps.tail_cache_bytes
        if self.list and self.list[-1].next_offset > log.log_start_offset:
            assert log.next_offset == self.list[-1].next_offset or log.segments[-1].size == 0

    def teardown(self):
        if not hasattr(self, "steps"):
            return
        self.steps.perform_all()
        log = self.steps.log
        data = self.steps.read_all()
        start = log.local_start_offset
        assert data == b"".join(w.data for w in self.list if w.next_offset > start)
        assert all(crc_holds(data, at, header) for at, header in scan(data))


LogAgainstList.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogAgainstList = LogAgainstList.TestCase
