"""A compacted log equals a dictionary after any appends, cleanings, crashes, truncations and deletions.

The model is the list of all records. Each record that is left in the log must be in the list, at the same offset. The
last value of each key must be the dictionary's. A second cleaning changes nothing.
"""

from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.log_steps import DIRECTORY, Steps
from tests.sim.disk import PowerLoss

from stratalog.config import LogConfig
from stratalog.log.cleaning.choosing import cleanable, plan_cleaning
from stratalog.log.cleaning.cleaner import clean
from stratalog.log.effects import run
from stratalog.log.recovery import load
from stratalog.wire.batch import crc_holds, scan
from stratalog.wire.records import Record, build_batch, read_records

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RETENTION_MS = 500


class Entry(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp: int
    headers: tuple


class CompactedLog(RuleBasedStateMachine):
    """`self.records` has the appended records by offset. No record below `self.committed` is truncated."""

    @initialize(
        segment_bytes=st.sampled_from([400, 1500, 100_000]),
        interval=st.sampled_from([0, 300]),
        keys_max=st.sampled_from([3, 8, 1000]),
        agree=st.booleans(),
    )
    def begin(self, segment_bytes, interval, keys_max, agree):
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            retention_ms=-1,
            cleanup_policy=("compact",),
            delete_retention_ms=RETENTION_MS,
            file_delete_delay_ms=100,
        )
        self.steps = Steps(config, checkpoints_agree=agree)
        self.records: dict[int, Entry] = {}
        self.committed = 0
        self.keys_max = keys_max
        self.sequences = [0, 0]
        self.cleaned_ms: dict[int, int] = {}
        """By the offset of a tombstone: when a cleaning first looked at it."""

    # Operations

    @rule(
        keys=st.lists(st.integers(0, 9), min_size=1, max_size=6),
        codec=st.sampled_from(CODECS),
        deleted=st.sets(st.integers(0, 5)),
        producer=st.sampled_from([-1, -1, 0, 1]),
        times=st.sampled_from([1, 1, 4]),
    )
    def append(self, keys, codec, deleted, producer, times):
        for _ in range(times):
            self.steps.now_ms += 1
            now_ms = self.steps.now_ms
            entries = [
                Entry(
                    b"k%d" % key,
                    None if at in deleted else b"%d %d" % (now_ms, at),
                    now_ms - at * 7,
                    (("h", b"%d" % at),) if at % 2 else (),
                )
                for at, key in enumerate(keys)
            ]
            identity = {}
            if producer >= 0:
                identity = {
                    "producer_id": producer,
                    "producer_epoch": 0,
                    "base_sequence": self.sequences[producer],
                }
            data = build_batch(
                [Record(0, one.timestamp, *one[:2], one.headers) for one in entries],
                codec=codec,
                **identity,
            )
            if len(data) > self.steps.config.segment_bytes:
                return
            base = self.steps.decide(data).base_offset
            if producer >= 0:
                self.sequences[producer] += len(keys)
            self.records |= {base + at: entry for at, entry in enumerate(entries)}

    @rule(ms=st.sampled_from([1, 100, RETENTION_MS]), roll=st.booleans())
    def wait(self, ms, roll):
        self.steps.now_ms += ms
        if roll:
            self.steps.roll()
        self.steps.perform_all()
        self.steps.sync_closed()

    @rule(back=st.integers(0, 10))
    def commit(self, back):
        self.steps.perform_all()
        self.committed = max(self.committed, self.steps.log.log_end_offset - back)

    def _plan(self):
        log, now_ms = self.steps.log, self.steps.now_ms
        found = cleanable(log, min(self.committed, log.log_end_offset), now_ms)
        if not found.dirty_bytes:
            return None
        return plan_cleaning(found, now_ms, 24 * (self.keys_max + 6) * 2, 0.5)

    def _clean(self):
        """Run one pass; return whether there were bytes to clean."""
        self.steps.perform_all()
        plan = self._plan()
        if plan is None:
            return False
        cleaned = run(self.steps.disk, clean(plan))
        for one in cleaned.rewritten:
            self._swap(one)
            self.steps.perform_all()
        self.steps.log.cleaned_end = cleaned.end_offset
        self._check_tombstones(cleaned.end_offset)
        return True

    def _check_tombstones(self, end):
        """A tombstone stays for readers with a lag, and is removed by the first cleaning after that time.

        It may go at once where the key has a record behind the cleaned part: a table of keys that became full within a
        batch knows the keys before that place.
        """
        now_ms, start = self.steps.now_ms, self.steps.log.log_start_offset
        newer = {one.key for offset, one in self.records.items() if offset >= end}
        last = {one.key: offset for offset, one in sorted(self.records.items()) if offset < end}
        there = {record.offset for record in self._read()}
        for offset in last.values():
            entry = self.records[offset]
            if entry.value is None and offset >= start and entry.key not in newer:
                since = self.cleaned_ms.setdefault(offset, now_ms)
                assert offset in there or now_ms >= since + RETENTION_MS, (
                    "a tombstone was removed too early"
                )
                assert offset not in there or now_ms < since + RETENTION_MS, (
                    "a tombstone stayed too long"
                )

    def _swap(self, one):
        swaps = self.steps.log.swaps
        old = [each for each in self.steps.log.segments if each.base_offset in one.replaced]
        effects = swaps.begin(one.segment, old, self.steps.now_ms + 100)
        assert effects
        self.steps.decided(effects, lambda: swaps.end(is_done=True))

    @rule()
    def clean(self):
        while self._clean():
            pass
        log = self.steps.log
        seen = [record.key for record in self._read() if record.offset < log.cleaned_end]
        assert len(seen) == len(set(seen)), "the log has two records of one key"

    @precondition(lambda self: self.keys_max == 1000)
    @rule()
    def clean_again(self):
        """Mark the whole log dirty and clean it, twice: the second time no record moves."""
        found = []
        for _ in range(2):
            log = self.steps.log
            log.cleaned_end = log.log_start_offset
            while self._clean():
                pass
            found.append((log.cleaned_end, self._read()))
        assert found[0] == found[1]

    @rule(changes=st.integers(0, 40), chance=st.randoms(use_true_random=False), power=st.booleans())
    def crash_while_cleaning(self, changes, chance, power):
        """The disk stops at any change that a cleaning makes."""
        left = changes

        def stop(_operation, _path):
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss(_path)

        self.steps.perform_all()
        plan = self._plan()
        if plan is None:
            return
        self.steps.disk.before = stop
        try:
            cleaned = run(self.steps.disk, clean(plan))
            for one in cleaned.rewritten:
                self._swap(one)
                self.steps.perform_all()
        except PowerLoss:
            pass
        self.steps.disk.before = lambda _operation, _path: None
        self._end(chance, power=power)

    @rule(chance=st.randoms(use_true_random=False), power=st.booleans())
    def crash(self, chance, power):
        self._end(chance, power=power)

    def _end(self, chance: Random, *, power: bool):
        """The process or the machine dies: all durable records remain."""
        flushed, cleaned_end = self.steps.recovery_point, self.steps.log.cleaned_end
        if power:
            self.steps.disk.crash(chance)
        else:
            self.steps.disk.end_process()
        log = self.steps.load()
        log.cleaned_end = cleaned_end
        assert log.log_end_offset >= flushed
        there = {record.offset for record in self._read()}
        self.records = {
            offset: entry
            for offset, entry in self.records.items()
            if offset < flushed or offset in there
        }
        self._go_on()

    def _go_on(self):
        """Producers continue with the sequence that the log has."""
        self.committed = min(self.committed, self.steps.log.log_end_offset)
        for producer in (0, 1):
            state = self.steps.log.producers.get(producer)
            batches = [] if state is None else state.batches
            self.sequences[producer] = batches[-1][1] + 1 if batches else 0

    @rule()
    def restart(self):
        self.steps.perform_all()
        cleaned_end = self.steps.log.cleaned_end
        producers = {p: s.batches[-1] for p, s in self.steps.log.producers.items()}
        log = self.steps.restart()
        log.cleaned_end = cleaned_end
        assert {p: s.batches[-1] for p, s in log.producers.items()} == producers
        assert log.recovered.segments_scanned == 0

    @rule(chance=st.randoms(use_true_random=False))
    def truncate(self, chance):
        self.steps.perform_all()
        log = self.steps.log
        least = max(self.committed, log.local_start_offset)
        self.steps.truncate(chance.randint(least, max(log.log_end_offset, least)))
        end = log.log_end_offset
        self.records = {offset: one for offset, one in self.records.items() if offset < end}
        self._go_on()

    @precondition(lambda self: self.records)
    @rule(chance=st.randoms(use_true_random=False))
    def delete(self, chance):
        self.steps.perform_all()
        log = self.steps.log
        log.raise_log_start(
            chance.randint(log.log_start_offset, max(self.committed, log.log_start_offset))
        )
        self.steps.due()
        self.steps.perform_all()

    @rule()
    def rebuild_producers(self):
        """Without its snapshots, a log knows each producer's last sequence from the batches that were kept."""
        self.steps.perform_all()
        expected = {p: s.batches[-1][1] for p, s in self.steps.log.producers.items()}
        start = self.steps.log.segments[0].base_offset
        last = {p: s.batches[-1][3] for p, s in self.steps.log.producers.items()}
        disk = self.steps.disk.copy()
        for entry in disk.list(DIRECTORY):
            if entry.name.endswith(".snapshot"):
                disk.unlink(f"{DIRECTORY}/{entry.name}")
        log = run(
            disk,
            load(
                DIRECTORY,
                self.steps.config,
                clean=False,
                recovery_point=0,
                now_ms=self.steps.now_ms,
            ),
        )
        found = {p: s.batches[-1][1] for p, s in log.producers.items()}
        assert found == {p: one for p, one in expected.items() if last[p] >= start}

    # Reading the log back

    def _read(self):
        log = self.steps.log
        data = self.steps.read_all()
        start = log.log_start_offset
        records = []
        for at, header in scan(data):
            assert crc_holds(data, at, header)
            records += read_records(data[at : at + header.size])
        assert [one.offset for one in records] == sorted({one.offset for one in records})
        return [one for one in records if one.offset >= start]

    @invariant()
    def equals_the_dictionary(self):
        if not hasattr(self, "steps"):
            return
        self.steps.perform_all()
        log = self.steps.log
        found: dict[bytes, bytes] = {}
        for record in self._read():
            entry = Entry(record.key, record.value, record.timestamp, record.headers)
            assert self.records.get(record.offset) == entry
            found[record.key] = record.value
        expected = {
            one.key: one.value
            for offset, one in sorted(self.records.items())
            if offset >= log.log_start_offset
        }
        assert _values(found) == _values(expected)

    @invariant()
    def holds_together(self):
        if not hasattr(self, "steps"):
            return
        log = self.steps.log
        for one, other in zip(log.segments, log.segments[1:], strict=False):
            assert one.next_offset == other.base_offset
            assert one.size > 0


def _values(found):
    return {key: value for key, value in found.items() if value is not None}


CompactedLog.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCompactedLog = CompactedLog.TestCase
