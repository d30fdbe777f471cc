"""Tier and local log together are the log, byte for byte, after any faults and restarts.

Goal: after any appends, rolls, copies, expiries and restarts, with any request going wrong in any way that
`tests/faulty_store.py` knows, every offset from the log's start is read back with exactly the bytes that were
appended; nothing local was dropped before it could be read from the bucket; nothing in retention is gone; a read of a
bucket that tears or alters bytes gives those bytes or an error; and a sweep finds every leftover object. Method: a
list of batches is the model; a Hypothesis state machine drives `TierWriter` over a store with injected faults.

`TIER_EXAMPLES=20000 python -m pytest tests/properties/test_tier_equals_log.py --timeout 36000` is the long run.
"""

import os
from contextlib import contextmanager, suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.faulty_store import FITTING, Fault, FaultyStore
from tests.unit.tier.segments import CountingEntropy, closed, log_bytes

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt, Fenced, Unavailable
from stratalog.tier.bucket.commit import Writer, load_latest, run
from stratalog.tier.bucket.identity import claim_bucket, register_topic
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.merging import MergeLimits
from stratalog.tier.writing.spilling import SpillLimits
from stratalog.tier.writing.tier_writer import Retention, TierWriter, WriterContext
from stratalog.wire.batch import scan

CLUSTER = "cluster"
GRACE_MS = 50
DAMAGE = (Fault.TORN, Fault.WRONG)


class TierEqualsLog(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.bucket = MemoryStore("memory://property")
        self.faults = []
        self.store = FaultyStore(self.bucket, self.fault)
        self.entropy = CountingEntropy()
        self.topic_id = self.entropy.uuid()
        claim_bucket(self.bucket, CLUSTER, 0)
        register_topic(self.bucket, CLUSTER, self.topic_id, "topic", 1, {}, 0)
        self.log = []  # every batch ever appended
        self.active_start = 0  # closed segments have the offsets below
        self.segments = []  # closed ones still on local disk: (base, end, bytes)
        self.end = 0
        self.log_start = 0
        self.given_up = set()  # base offsets of batches that a requested retention does not keep
        self.now_ms = 1000
        self.epoch = 0
        self.zombies = []
        self.pinned = []
        self.restart(hint=False)

    def fault(self, operation, path):
        """The next fault that this call can have."""
        for at, fault in enumerate(self.faults):
            if fault is None:
                del self.faults[at]
                return None
            if operation in FITTING[fault]:
                return self.faults.pop(at)
        return None

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), size=st.integers(0, 60))
    def append(self, counts, size):
        start = self.now_ms - self.end
        data, self.end = log_bytes(self.end, counts, start_ms=start, value_size=size)
        self.log += [(h, data[at : at + h.size]) for at, h in scan(data)]

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), tiered=st.booleans())
    def append_and_roll(self, counts, tiered):
        self.append(counts, 5)
        data = b"".join(b for h, b in self.log if h.base_offset >= self.active_start)
        self.segments.append((self.active_start, self.end, data))
        self.active_start = self.end
        if tiered:
            self.archive(0)

    @rule(ms=st.integers(1, 100))
    def wait(self, ms):
        self.now_ms += ms

    @rule(faults=st.lists(st.sampled_from([None, *Fault]), max_size=12))
    def fail(self, faults):
        self.faults = faults

    @rule(ms=st.integers(-(10**6), 10**6))
    def the_clock_of_the_store_is_off(self, ms):
        self.store.skew_ms = ms

    @rule()
    def what_was_late_happens(self):
        self.store.arrive()

    @precondition(lambda self: self.tier.tiered_end > self.log_start)
    @rule(data=st.data(), faults=st.lists(st.sampled_from(DAMAGE), min_size=1, max_size=4))
    def read_through_damage(self, data, faults):
        """A read returns the archived bytes, or none; the cache keeps no bytes damaged in transfer."""
        self.faults = faults
        inside = [
            (h.base_offset, batch)
            for h, batch in self.log
            if self.log_start <= h.base_offset and h.last_offset < self.tier.tiered_end
        ]
        if not inside:
            return
        offset, batch = data.draw(st.sampled_from(inside))
        fetcher = Fetcher(self.store, 4000, range_bytes=400)
        with self.no_fault():
            segment = self.tier.lookup.at(offset)
        for _ in range(3):
            with suppress(Corrupt, Unavailable):
                assert b"".join(fetcher.read(segment, offset, 1).buffers) == batch
        self.faults = []
        assert b"".join(fetcher.read(segment, offset, 1).buffers) == batch

    @rule(unstable=st.integers(0, 5))
    def archive(self, unstable):
        made = [closed(data, base, end, piece=177) for base, end, data in self.segments]
        with suppress(Unavailable, Corrupt):
            self.tier.archive(
                made,
                last_stable_offset=self.end - unstable,
                log_start_offset=self.log_start,
                now_ms=self.now_ms,
            )
        self.raise_log_start()  # an expiry of unknown outcome may have been found done

    @rule(merged=st.booleans())
    def a_quiet_hour(self, merged):
        """Small segments, one after another."""
        for count in (1, 2, 1, 2):
            self.append_and_roll([count], tiered=True)
            self.now_ms += 1
        if merged:
            self.merge(1 << 20, 1 << 40)
        else:
            self.spill([])

    @rule(size=st.sampled_from([1000, 1 << 20]), span=st.sampled_from([50, 1 << 40]))
    def merge(self, size, span):
        """Small neighbours in the bucket become one; readers of older versions go on."""
        if run := self.tier.mergeable(MergeLimits(size, span, neighbours=3)):
            with suppress(Unavailable, Corrupt):
                self.tier.merge(run, self.now_ms)
            self.raise_log_start()

    @rule(faults=st.lists(st.sampled_from(list(Fault)), max_size=2))
    def spill(self, faults):
        """The oldest entries of a long manifest go into an archive manifest."""
        self.faults += faults
        with suppress(Unavailable, Corrupt):
            self.tier.spill(self.now_ms)
        self.raise_log_start()

    @rule()
    def expire_locally(self):
        """`local.retention.bytes=0`: segments that are confirmed in the bucket leave the disk."""
        tiered = self.tier.tiered_end
        self.segments = [segment for segment in self.segments if segment[1] > tiered]

    @rule(
        ms=st.sampled_from([-1, -1, 0, 5, 50]),
        size=st.sampled_from([-1, -1, 0, 300, 1000]),
        faults=st.lists(st.sampled_from(list(Fault)), max_size=2),
    )
    def expire(self, ms, size, faults):
        self.faults += faults
        local = sum(len(data) for _, end, data in self.segments if end > self.tier.tiered_end)
        retention = Retention(ms, size, self.log_start, local, GRACE_MS)
        behind = sum(header.size for header, _ in self.log)
        for header, _ in self.log:
            behind -= header.size
            by_time = ms >= 0 and self.now_ms - header.max_timestamp > ms
            if by_time or (size >= 0 and behind >= size):
                self.given_up.add(header.base_offset)
        with suppress(Unavailable, Corrupt):
            self.tier.expire(self.now_ms, retention)
        self.raise_log_start()

    def raise_log_start(self):
        """Only records that some retention did not keep are missing."""
        before = self.log_start
        self.log_start = max(before, self.tier.log_start_offset)
        for header, _ in self.log:
            if before <= header.last_offset < self.log_start:
                assert header.base_offset in self.given_up, header
        self.segments = [segment for segment in self.segments if segment[1] > self.log_start]

    @rule(faults=st.lists(st.sampled_from(list(Fault)), max_size=2))
    def take_the_tier_away_and_bring_it_back(self, faults):
        """Take the tier away (KIP-950): no record may leave the disk before it is uploaded again."""
        start = self.segments[0][0] if self.segments else self.active_start
        self.log_start = max(self.log_start, start)
        self.faults += faults
        with suppress(Unavailable, Corrupt):
            self.tier.withdraw(self.now_ms, self.log_start)
        self.activate(self.tier.manifest_bytes())
        self.raise_log_start()

    @rule(hint=st.booleans())
    def restart(self, hint):
        """A new leader; the old one does not know."""
        local = b""
        if self.epoch:
            self.zombies.append(self.tier)
            local = self.tier.manifest_bytes() if hint else b""
        self.epoch += 1
        self.activate(local)
        self.raise_log_start()

    def activate(self, local):
        """Try until the leader of the present epoch has its writer."""
        context = WriterContext(
            self.store,
            self.entropy,
            index_interval_bytes=150,
            spill_limits=SpillLimits(segments=3, kept=1, archive_segments=5),
        )
        folder = PartitionFolder(CLUSTER, self.topic_id, 0)
        writer = Writer(self.epoch % 3, self.epoch)
        while True:
            with suppress(Unavailable, Corrupt):
                self.tier = TierWriter.activate(
                    context, folder, "topic", writer, local_manifest=local, now_ms=self.now_ms
                )
                break

    @precondition(lambda self: self.zombies)
    @rule()
    def a_zombie_goes_on(self):
        zombie = self.zombies[-1]
        made = [closed(data, base, end) for base, end, data in self.segments]
        end = zombie.tiered_end
        try:
            zombie.archive(
                made, last_stable_offset=self.end, log_start_offset=0, now_ms=self.now_ms
            )
            zombie.expire(self.now_ms, Retention(0, 0, 0, 0, GRACE_MS))
        except (Fenced, Unavailable, Corrupt):
            pass
        assert zombie.tiered_end == end

    @rule()
    def sweep_orphans(self):
        """Sweep with the grace that a running broker needs, in the store's time: no named object is removed."""
        later = max(info.modified_ms for info in self.bucket.list("")) + 1
        sweep(self.bucket, now_ms=later, grace_ms=0)
        # A leader whose commit is still to come may have uploaded the objects that the sweep removed.
        self.tier._uploaded.clear()

    @invariant()
    def all_of_the_log_is_there(self):
        fetcher = Fetcher(self.bucket, 4000, range_bytes=400)
        offset = self.log_start
        for header, batch in self.log:
            if header.last_offset < offset:
                continue
            assert self.read(fetcher, header.base_offset) == batch

    @invariant()
    def a_search_by_time_finds_the_first_segment_that_can_have_it(self):
        tier = self.tier
        live = list(ArchiveManifests(self.bucket).live(tier.manifest, first=tier.start_offset))
        for found in live[len(live) // 3 :: 3]:
            wanted = found.entry.max_timestamp
            first = next(one for one in live if one.entry.max_timestamp >= wanted)
            with self.no_fault():
                assert tier.lookup.at_timestamp(wanted).path == first.path

    @contextmanager
    def no_fault(self):
        """Verify the bucket; the pending faults are left for other calls."""
        faults, self.faults = self.faults, []
        yield
        self.faults = faults

    def read(self, fetcher, offset):
        """Return the batch at an offset, from the place that a broker reads."""
        for base, end, data in [*self.segments, self.active()]:
            if base <= offset < end:
                return next(data[p : p + h.size] for p, h in scan(data) if h.last_offset >= offset)
        with self.no_fault():
            segment = self.tier.lookup.at(offset)
        assert segment is not None, f"offset {offset} is neither on the disk nor in the bucket"
        return b"".join(fetcher.read(segment, offset, 1).buffers)

    def active(self):
        data = b"".join(b for h, b in self.log if h.base_offset >= self.active_start)
        return self.active_start, self.end, data

    @invariant()
    def readers_of_an_older_version_read_on_during_the_grace(self):
        self.pinned = [pin for pin in self.pinned if self.now_ms < pin[0] + GRACE_MS]
        newest = run(self.bucket, load_latest(self.tier.folder.prefix))
        self.pinned.append((self.now_ms, newest))
        fetcher, archives = Fetcher(self.bucket), ArchiveManifests(self.bucket)
        for _, manifest in self.pinned:
            for segment in archives.live(manifest):
                assert fetcher.read(segment, segment.entry.base_offset, 1).size > 0

    def teardown(self):
        if not hasattr(self, "tier"):
            return
        self.faults = []
        self.store.arrive()
        problems = verify(self.bucket, now_ms=1 << 50, grace_ms=0)
        assert all(problem.orphan for problem in problems), problems
        sweep(self.bucket, now_ms=1 << 50, grace_ms=0)
        assert verify(self.bucket, now_ms=1 << 50, grace_ms=0) == []
        self.all_of_the_log_is_there()


TestTierEqualsLog = TierEqualsLog.TestCase
TestTierEqualsLog.settings = settings(
    max_examples=int(os.environ.get("TIER_EXAMPLES", "100")), stateful_step_count=40, deadline=None
)
