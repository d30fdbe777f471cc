"""A compacted log with a part in a bucket equals a dictionary, wherever a reader crosses from the bucket to the disk.

Goal: after any appends, tombstones, transactions, rolls, uploads, cleanings of the disk and of the bucket, merges,
local deletions and new leaders, the last committed value of each key is the dictionary's. It is so for the disk behind
the bucket at every seam that a reader may have, and for the bucket alone below its end. No offset ever changes its
record. Readers of an older version of the manifest go on. A second cleaning of the bucket changes nothing.

The topic's policy switches between compact and delete, with a retention that keeps all: no record goes then, and the
manifest's oldest entries spill into archives. A manifest that admits no gaps has none.

Method: a list of all records is the model. `Steps` drives the log on a simulated disk, `TierWriter` the bucket. Steps
are drawn from a seed, and everything is read back after each one.

`python -m tests.properties.test_compacted_tier 1000` runs so many seeds.
"""

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_dataclass
from functools import partial
from random import Random

import pytest
from msgspec import structs
from msgspec.structs import replace
from tests.faulty_store import Fault, FaultyStore
from tests.log_steps import Steps
from tests.properties.tiered_readings import END, Readings, Transaction, values_of
from tests.unit.tier.segments import CountingEntropy

from stratalog.adapters.object_store import MemoryStore
from stratalog.config import LogConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.errors import Corrupt, Unavailable
from stratalog.log.archiving import closed_segments, segment_parts
from stratalog.log.cleaning.choosing import cleanable, plan_cleaning
from stratalog.log.cleaning.cleaner import clean, places_for
from stratalog.log.cleaning.filtering import Horizons
from stratalog.log.effects import run
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import claim_bucket, register_topic
from stratalog.tier.checking.verify import verify
from stratalog.tier.writing.archiver import ClosedSegment, PartitionFolder
from stratalog.tier.writing.cleaning import CleaningPlan, CleanLimits, clean_objects, dirty_objects
from stratalog.tier.writing.merging import MergeLimits
from stratalog.tier.writing.spilling import SpillLimits
from stratalog.tier.writing.tier_writer import Retention, TierWriter, WriterContext
from stratalog.wire.batch import parse_header
from stratalog.wire.markers import Ended, Marker
from stratalog.wire.records import Record, build_batch

CLUSTER = "cluster"
RETENTION_MS = 500
GRACE_MS = 50


@dataclass
class Reader:
    """A consumer that began at the log's start: where it is, what it found, and when it began."""

    began_ms: int
    position: int = 0
    found: dict[bytes, bytes | None] = field(default_factory=dict)


class CompactedTier(Readings):
    """One run."""

    def __init__(self, seed):
        chance = Random(seed)
        config = LogConfig(
            segment_bytes=chance.choice((400, 900, 100_000)),
            retention_ms=-1,
            cleanup_policy=("compact",),
            delete_retention_ms=RETENTION_MS,
            file_delete_delay_ms=0,
            remote_storage_enable=True,
            local_retention_ms=-1,
        )
        super().__init__(Steps(config), MemoryStore("memory://property"), chance)
        self.faults: list[Fault] = []
        self.store = FaultyStore(self.bucket, lambda _operation, _path: self._fault())
        self.entropy = CountingEntropy()
        self.topic_id = self.entropy.uuid()
        claim_bucket(self.bucket, CLUSTER, 0)
        register_topic(self.bucket, CLUSTER, self.topic_id, "topic", 1, {}, 0)
        self.sequence = 0
        self.keys_max = chance.choice((3, 1000))
        self.is_compacted = chance.random() < 0.7
        self.epoch = 0
        self.readers: list[Reader] = []
        self.cleanings = 0
        self.lead()

    def step(self):
        """Do one thing, and read everything back."""
        steps = {
            self.append: 8,
            self.read_on: 5,
            self.clean_both: 5,
            self.clean_bucket: 3,
            self.begin_to_read: 1,
            self.roll_and_archive: 1,
            self.clean_bucket_that_fails: 1,
            self.clean_bucket_again: 1,
            self.merge: 1,
            self.remove_dropped_objects: 1,
            self.delete_locally: 1,
            self.switch_policy: 1 if self.is_compacted else 6,
            self.lead: 1,
        }
        self.steps.now_ms += self.chance.choice((1, 1, 1, 100, RETENTION_MS))
        (one,) = self.chance.choices(tuple(steps), tuple(steps.values()))
        one()
        self.equals_the_dictionary()

    def _fault(self):
        return self.faults.pop(0) if self.faults else None

    def lead(self):
        """A new leader of the partition, with the same disk."""
        self.epoch += 1
        context = WriterContext(
            self.bucket,
            self.entropy,
            index_interval_bytes=150,
            spill_limits=SpillLimits(segments=4, kept=2, archive_segments=3),
        )
        folder = PartitionFolder(CLUSTER, self.topic_id, 0)
        now_ms = self.steps.now_ms
        self.tier = TierWriter.activate(
            context, folder, "topic", Writer(1, self.epoch), now_ms=now_ms
        )

    # What clients do

    def append(self):
        """Append a batch; perhaps end the transaction, and close the segment, which goes to the bucket."""
        chance = self.chance
        keys = [chance.randrange(4) for _ in range(chance.randint(1, 3))]
        deleted = {at for at in range(3) if chance.random() < 0.4}
        self._append(
            keys, chance.choice(("none", "lz4")), deleted, in_transaction=chance.random() < 0.3
        )
        if self.open is not None and chance.random() < 0.7:
            self.end_transaction(commit=chance.random() < 0.5)
        if chance.random() < 0.6:
            self.roll_and_archive()

    def _append(self, keys, codec, deleted, *, in_transaction):
        self.steps.now_ms += 1
        now_ms = self.steps.now_ms
        pairs = [
            (b"k%d" % key, None if at in deleted else b"%d %d" % (now_ms, at))
            for at, key in enumerate(keys)
        ]
        identity = {}
        if in_transaction:
            self.open = self.open or Transaction()
            identity = {
                "producer_id": 1,
                "producer_epoch": 0,
                "base_sequence": self.sequence,
                "transactional": True,
            }
            self.sequence += len(pairs)
        data = build_batch([Record(0, now_ms, *pair) for pair in pairs], codec=codec, **identity)
        base = self.steps.append(data).base_offset
        if in_transaction and self.open.first < 0:
            self.open.first = base
        transaction = self.open if in_transaction else None
        self.records |= {base + at: (*pair, transaction) for at, pair in enumerate(pairs)}

    def end_transaction(self, *, commit):
        now_ms, log = self.steps.now_ms, self.steps.log
        data = Ended(1, 0, Marker(commit, 0)).batch(now_ms)
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
        self.open.is_committed, self.open = commit, None

    def begin_to_read(self):
        self.readers.append(Reader(self.steps.now_ms))

    def read_on(self):
        """A consumer reads a batch, from the place that a broker reads; at the end it has the dictionary."""
        if not self.readers:
            return
        reader = self.chance.choice(self.readers)
        end = self.stable_end()
        local = self.steps.log.local_start_offset
        place = self.from_disk if reader.position >= local else self.from_bucket
        batch = next((one for one in place(reader.position) if one[0] < end), None)
        if batch is None or batch[0] >= end:
            reader.position = max(reader.position, local if place == self.from_bucket else end)
        else:
            reader.position = batch[1]
            reader.found |= dict(batch[2])
        if reader.position >= end:
            self.readers.remove(reader)
            if self.steps.now_ms - reader.began_ms < RETENTION_MS:
                assert values_of(reader.found) == values_of(self.expected(end))

    # What brokers do

    def switch_policy(self):
        """Switch between compact and delete."""
        self.is_compacted = not self.is_compacted
        if not self.is_compacted:
            self.tier.spill(self.steps.now_ms)

    def roll_and_archive(self):
        self.steps.roll()
        self.steps.perform_all()
        self.steps.sync_closed()
        log, disk = self.steps.log, self.steps.disk
        made = []
        for info in closed_segments(log, min(self.stable_end(), log.recovery_point)):
            parts = segment_parts(log, info.base_offset)
            read = partial(lambda one: [disk.read(one.path, 0, one.size)], info)
            made.append(
                ClosedSegment(
                    info.base_offset,
                    info.next_offset,
                    read,
                    leader_epochs=tuple(parts.leader_epochs),
                    aborted=parts.aborted,
                    has_key_filter=True,
                )
            )
        self.tier.archive(
            made,
            last_stable_offset=self.stable_end(),
            log_start_offset=0,
            now_ms=self.steps.now_ms,
            may_have_gaps=log.was_cleaned,
        )
        log.mark_tiered(self.tier.tiered_end)

    def clean_both(self):
        """Wait, and clean the disk and the bucket, perhaps several times: the dirty part, or all of it."""
        ms, places = (
            self.chance.choice((1, RETENTION_MS)),
            self.chance.choice(("disk", "bucket", "both")),
        )
        for _ in range(self.chance.randint(1, 3)):
            self.steps.now_ms += ms
            if places != "bucket":
                self.clean_disk(whole=self.chance.random() < 0.5)
            if places != "disk":
                self._clean_bucket(whole=self.chance.random() < 0.5)

    def clean_disk(self, *, whole):
        log, now_ms = self.steps.log, self.steps.now_ms
        if not self.is_compacted:
            return
        if whole:
            log.cleaned_end = log.log_start_offset
        found = cleanable(log, self.stable_end(), now_ms)
        if not found.dirty_bytes:
            return
        plan = plan_cleaning(
            found,
            now_ms,
            24 * (self.keys_max + 6) * 2,
            0.5,
            bucket_cleaned_end=self.tier.manifest.clean_end,
        )
        with suppress(Corrupt):  # too few keys for one batch
            cleaned = run(self.steps.disk, clean(plan))
            for one in cleaned.rewritten:
                old = [each for each in log.segments if each.base_offset in one.replaced]
                effects = log.swaps.begin(one.segment, old, now_ms)
                assert effects
                self.steps.decided(effects, lambda: log.swaps.end(is_done=True))
                self.steps.perform_all()
            log.cleaned_end = cleaned.end_offset

    def _plan(self, written_max=END):
        now_ms, log, tier = self.steps.now_ms, self.steps.log, self.tier
        if not self.is_compacted:
            return None
        if any(tier.manifest.live_archives()):
            tier.unspill(now_ms)
        found = dirty_objects(tier.manifest, CleanLimits(0.0, 0, LONG_MAX), now_ms)
        if found is None:
            return None
        end = found.segments[-1].entry.last_offset + 1
        places, keys_max = places_for(end - found.first_dirty, 24 * (self.keys_max + 6) * 2, 0.5)
        return CleaningPlan(
            folder=tier.folder,
            leader_epoch=self.epoch,
            segments=found.segments,
            first_dirty=found.first_dirty,
            noted_end=end,
            rewrite_from=0,
            places=places,
            keys_max=keys_max,
            segment_bytes=log.config.segment_bytes,
            written_max=written_max,
            horizons=Horizons(
                now_ms, RETENTION_MS, max(log.local_start_offset, log.first_dirty_offset)
            ),
            has_key_filter=True,
            ids=tuple(self.entropy.uuid() for _ in found.segments),
            index_interval_bytes=150,
        )

    def clean_bucket(self):
        """Clean the bucket; perhaps one group a call, and with a merge meanwhile, which has the call repeated."""
        self._clean_bucket(
            in_pieces=self.chance.random() < 0.5,
            merges=self.chance.random() < 0.2,
            whole=self.chance.random() < 0.5,
        )

    def _clean_bucket(self, *, in_pieces=False, merges=False, whole=False):
        written_max = 1 if in_pieces else END
        plan = self._plan_of_all(written_max) if whole else self._plan(written_max=written_max)
        while plan is not None:
            try:
                done = clean_objects(lambda: self.bucket, plan)
            except Corrupt as error:
                assert "too few" in str(error)
                return
            if merges:
                self.merge()
            if not self.tier.replace_cleaned(done, self.steps.now_ms):
                assert merges, "nothing else has changed the manifest"
                return
            self.cleanings += bool(done.replaced)
            if done.is_complete or self.chance.random() < 0.3:  # else the leader ends between calls
                break
            segments = tuple(
                one
                for one in self.tier.manifest.recent()
                if one.entry.base_offset < done.end_offset
            )
            plan = replace_dataclass(
                plan,
                segments=segments,
                noted_end=done.end_offset,
                rewrite_from=done.rewritten_end,
                ids=tuple(self.entropy.uuid() for _ in segments),
            )
        self._check_keys_are_unique()

    def _check_keys_are_unique(self):
        end = self.tier.manifest.clean_end
        keys = [key for _, _, pairs in self.from_bucket(0, end) for key, _ in pairs]
        assert len(keys) == len(set(keys)), "the bucket has two records of one key"

    def clean_bucket_that_fails(self):
        """Requests fail, and answers are damaged: the cleaning ends with an error, or with the right objects."""
        plan = self._plan()
        if plan is None:
            return
        self.faults = [self.chance.choice(list(Fault)) for _ in range(self.chance.randint(1, 6))]
        with suppress(Corrupt, Unavailable):
            done = clean_objects(lambda: self.store, plan)
            self.faults = []
            self.store.arrive()
            self.tier.replace_cleaned(done, self.steps.now_ms)
        self.faults = []
        self.store.arrive()

    def clean_bucket_again(self):
        """Mark all of the bucket dirty and clean it until no objects are joined; one more time no object changes.

        A joined object lacks the header at its first part's end. So a marker behind that may get its horizon next time.
        """
        if self.keys_max < 1000 or self._plan() is None:
            return
        self._clean_bucket()
        joins = True
        while joins:
            done = clean_objects(lambda: self.bucket, self._plan_of_all())
            self.tier.replace_cleaned(done, self.steps.now_ms)
            joins = any(len(run) > 1 for run, _ in done.replaced)
        again = clean_objects(lambda: self.bucket, self._plan_of_all())
        assert not [run for run, _ in again.replaced if len(run) == 1], "an object changed again"

    def _plan_of_all(self, written_max=END):
        if any(self.tier.manifest.live_archives()):
            self.tier.unspill(self.steps.now_ms)
        manifest = self.tier.manifest
        self.tier.manifest = structs.replace(manifest, cleaned_end=0)
        plan = self._plan(written_max=written_max)
        self.tier.manifest = manifest
        return plan

    def merge(self):
        if run_ := self.tier.mergeable(MergeLimits(1 << 20, 1 << 40, neighbours=2)):
            self.tier.merge(run_, self.steps.now_ms)

    def remove_dropped_objects(self):
        self.tier.expire(self.steps.now_ms, Retention(-1, -1, 0, 0, GRACE_MS))

    def delete_locally(self):
        """Local retention takes the oldest segments that the bucket has."""
        log = self.steps.log
        config = log.config
        for _ in range(self.chance.randint(1, 3)):
            if len(log.segments) > 1 and log.segments[0].next_offset <= log.tiered_end:
                size = sum(one.size for one in log.segments) - log.segments[0].size
                log.config = replace(config, local_retention_bytes=size)
                self.steps.due()
                self.steps.perform_all()
                log.config = config

    def end(self):
        problems = verify(self.bucket, now_ms=1 << 50, grace_ms=0)
        assert all(one.orphan for one in problems), problems


def run_of(seed, steps=60):
    one = CompactedTier(seed)
    for _ in range(steps):
        one.step()
    one.end()
    return one


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_a_compacted_log_with_a_bucket_equals_a_dictionary(first):
    runs = [run_of(seed) for seed in range(first, first + 10)]
    assert all(one.cleanings for one in runs), "nothing was cleaned: the run proves nothing"


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        try:
            run_of(number)
        except AssertionError:
            print("seed", number)
            raise
