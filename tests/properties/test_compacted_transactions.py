"""A cleaning changes nothing that a reader of committed records finds as the last value of a key.

Method: Hypothesis chooses appends of three producers inside and outside transactions, their ends, rolls, cleanings with
tables of keys of several sizes, crashes at any change of the disk, and restarts. A model knows each record, the
transaction that it belongs to, and how that ended. The reader filters by the log's index of aborted transactions, as a
consumer does.

A cleaning takes the records of aborted transactions out. A marker leaves only when no record of its transaction was
left before that cleaning, and no earlier than `delete.retention.ms` after the first cleaning that found none.
"""

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.log_steps import Steps
from tests.sim.disk import PowerLoss

from stratalog.config import LogConfig
from stratalog.log.cleaning.choosing import cleanable, plan_cleaning
from stratalog.log.cleaning.cleaner import clean
from stratalog.log.effects import run
from stratalog.log.transaction_index import overlapping
from stratalog.wire.batch import parse_header, scan
from stratalog.wire.markers import Ended, Marker, read_marker
from stratalog.wire.records import Record, build_batch, read_records
from stratalog.wire.transactions import Aborted

RETENTION_MS = 500
PRODUCERS = (1, 2, 3)
END = 1 << 60


@dataclass
class Transaction:
    """`offsets` of its records; `marker` is the offset of its marker, -1 while it is open."""

    offsets: list[int] = field(default_factory=list)
    marker: int = -1
    is_committed: bool = False
    idle_ms: int = -1
    """When a cleaning first found no batch of it."""


class CompactedTransactions(RuleBasedStateMachine):
    """`self.records` has each record by its offset: key, value, transaction or None."""

    @initialize(
        segment_bytes=st.sampled_from([600, 100_000]),
        keys_max=st.sampled_from([4, 1000]),
    )
    def begin(self, segment_bytes, keys_max):
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=0,
            retention_ms=-1,
            cleanup_policy=("compact",),
            delete_retention_ms=RETENTION_MS,
            file_delete_delay_ms=0,
        )
        self.steps = Steps(config)
        self.keys_max = keys_max
        self.records: dict[int, tuple[bytes, bytes | None, Transaction | None]] = {}
        self.open: dict[int, Transaction] = {}
        self.ended: list[Transaction] = []
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    # Operations

    @rule(
        producer=st.sampled_from(PRODUCERS),
        keys=st.lists(st.integers(0, 4), min_size=1, max_size=4),
        deleted=st.sets(st.integers(0, 3), max_size=1),
        plain=st.booleans(),
    )
    def append(self, producer, keys, deleted, plain):
        """A batch in the producer's transaction, or one of no producer."""
        self.steps.now_ms += 1
        now_ms = self.steps.now_ms
        pairs = [
            (b"k%d" % key, None if at in deleted else b"%d %d" % (now_ms, at))
            for at, key in enumerate(keys)
        ]
        identity = {}
        transaction = None
        if not plain:
            transaction = self.open.setdefault(producer, Transaction())
            identity = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": self.sequences[producer],
                "transactional": True,
            }
            self.sequences[producer] += len(pairs)
        data = build_batch([Record(0, now_ms, *pair) for pair in pairs], **identity)
        base = self.steps.append(data).base_offset
        for at, pair in enumerate(pairs):
            self.records[base + at] = *pair, transaction
            if transaction is not None:
                transaction.offsets.append(base + at)

    @precondition(lambda self: self.open)
    @rule(chance=st.randoms(use_true_random=False), commit=st.booleans())
    def end(self, chance, commit):
        producer = chance.choice(sorted(self.open))
        transaction = self.open.pop(producer)
        now_ms = self.steps.now_ms
        data = Ended(producer, 0, Marker(commit, 0)).batch(now_ms)
        log = self.steps.log
        appended = log.append_as_leader(
            memoryview(data),
            parse_header(data),
            leader_epoch=0,
            now_ms=now_ms,
            wall_ms=now_ms,
            origin="coordinator",
        )
        self.steps.decided(appended.effects, lambda: log.performed(appended))
        self.steps.perform_all()
        transaction.marker, transaction.is_committed = appended.base_offset, commit
        self.ended.append(transaction)

    @rule()
    def roll(self):
        self.steps.roll()
        self.steps.perform_all()
        self.steps.sync_closed()

    @rule(ms=st.sampled_from([1, RETENTION_MS]), whole=st.booleans(), times=st.sampled_from([1, 4]))
    def clean(self, ms, whole, times):
        """Wait, and clean all closed segments: the dirty ones, or the whole log again."""
        for _ in range(times):
            self.steps.now_ms += ms
            self.roll()
            if whole:
                self.steps.log.cleaned_end = self.steps.log.log_start_offset
            while self._clean():
                pass

    @rule(changes=st.integers(0, 30), power=st.booleans(), chance=st.randoms(use_true_random=False))
    def crash_while_cleaning(self, changes, power, chance):
        """The disk stops at a change that a cleaning makes; all appended records are durable."""
        self.steps.flush()
        self.steps.perform_all()
        self.steps.recovery_point = self.steps.log.recovery_point
        cleaned_end, left = self.steps.log.cleaned_end, changes

        def stop(_operation, path):
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss(path)

        self.steps.disk.before = stop
        with suppress(PowerLoss):
            self._clean()
        self.steps.disk.before = lambda _operation, _path: None
        if power:
            self.steps.disk.crash(chance)
        else:
            self.steps.disk.end_process()
        self.steps.load().cleaned_end = cleaned_end

    @rule()
    def restart(self):
        cleaned_end = self.steps.log.cleaned_end
        self.steps.restart().cleaned_end = cleaned_end

    def _clean(self):
        """Run one pass; return whether there were bytes to clean."""
        log, now_ms = self.steps.log, self.steps.now_ms
        found = cleanable(log, self._last_stable_offset(), now_ms)
        if not found.dirty_bytes:
            return False
        before, offsets = self._markers(), self._offsets()
        cleaned = run(
            self.steps.disk,
            clean(plan_cleaning(found, now_ms, 24 * (self.keys_max + 6) * 2, 0.5)),
        )
        for one in cleaned.rewritten:
            old = [each for each in log.segments if each.base_offset in one.replaced]
            effects = log.swaps.begin(one.segment, old, now_ms)
            assert effects
            self.steps.decided(effects, lambda: log.swaps.end(is_done=True))
            self.steps.perform_all()
        log.cleaned_end = cleaned.end_offset
        self._check_markers(before, offsets, cleaned.end_offset)
        return True

    def _check_markers(self, before, offsets, end):
        now_ms, after, left = self.steps.now_ms, self._markers(), self._offsets()
        for one in self.ended:
            if not one.is_committed:
                kept = [at for at in one.offsets if at < end and at in left]
                assert not kept, "a record of an aborted transaction stayed"
            if one.marker not in before:
                continue
            is_idle = not any(at in offsets for at in one.offsets)
            if one.marker not in after:
                assert is_idle, "a marker left before a record of its transaction"
                assert 0 <= one.idle_ms <= now_ms - RETENTION_MS, "a marker left too early"
            elif is_idle and one.idle_ms < 0:
                one.idle_ms = now_ms

    # Reading the log back

    def _last_stable_offset(self):
        end = self.steps.log.log_end_offset
        return min((one.offsets[0] for one in self.open.values()), default=end)

    def _batches(self):
        data = self.steps.read_all()
        return [(header, data[at : at + header.size]) for at, header in scan(data)]

    def _markers(self):
        return {
            header.base_offset
            for header, batch in self._batches()
            if header.is_control and read_marker(memoryview(batch)) is not None
        }

    def _offsets(self):
        """The offsets of all records that are left, markers apart."""
        return {
            record.offset
            for header, batch in self._batches()
            if not header.is_control
            for record in read_records(batch)
        }

    @invariant()
    def committed_readers_find_the_last_values(self):
        if not hasattr(self, "steps"):
            return
        end = self._last_stable_offset()
        listed = overlapping(self.steps.log.segments, 0, END)
        aborted = Aborted([(one.producer_id, one.first_offset) for one in listed])
        found: dict[bytes, bytes | None] = {}
        for header, batch in self._batches():
            if header.base_offset >= end:
                break
            if aborted.has(header) or header.is_control:
                continue
            for record in read_records(batch):
                key, value, transaction = self.records[record.offset]
                assert (record.key, record.value) == (key, value)
                assert transaction is None or transaction.is_committed
                found[key] = value
        expected = {
            key: value
            for offset, (key, value, transaction) in sorted(self.records.items())
            if offset < end and (transaction is None or transaction.is_committed)
        }
        assert _values(found) == _values(expected)


def _values(found):
    return {key: value for key, value in found.items() if value is not None}


CompactedTransactions.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCompactedTransactions = CompactedTransactions.TestCase
