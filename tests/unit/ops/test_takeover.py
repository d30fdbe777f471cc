"""Goal: a takeover is complete or can be repeated, after any interruption and beside any other process.

Method: an old node's tier, a bucket and a simulated disk. The test acts before the n-th call of the store or the disk,
for every n.
"""

from random import Random

import pytest
from tests.faulty_store import FITTING, Fault, FaultyStore, no_fault
from tests.sim.disk import SimDisk
from tests.unit.tier.segments import CountingEntropy, closed, log_bytes

from stratalog.adapters.object_store import MemoryStore
from stratalog.broker.storage.claim import read_meta
from stratalog.broker.storage.survey import METADATA_DIRECTORY, TIER_MANIFEST, survey_directory
from stratalog.errors import Fenced, Unavailable, UserError
from stratalog.log.effects import run
from stratalog.metadata.snapshot import decode_snapshot, image_of, parse_file_name
from stratalog.ops.restore import look
from stratalog.ops.takeover import RESTORING, prepare, take_over
from stratalog.tier.bucket.cluster_state import (
    ClusterState,
    StateOffset,
    StatePartition,
    StateTopic,
    put_state,
)
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import claim_bucket, delete_topic, register_topic
from stratalog.tier.bucket.incarnation import check_incarnation
from stratalog.tier.formats.manifest import decode
from stratalog.tier.reading.reader import open_bucket
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext
from stratalog.wire.ids import topic_id_text

CLUSTER = "a-cluster-of-22-chars_"
IDS = CountingEntropy(7000)
TOPIC_ID, OFFSETS_ID = IDS.uuid(), IDS.uuid()
OFFSETS = "__consumer_offsets"
NOW_MS = 1_700_000_000_000


class Died(Exception):
    """The process ends before this call."""


class OldNode:
    """The old node's tier: two partitions with a segment each, and an empty one."""

    def __init__(self):
        self.store = FaultyStore(MemoryStore("memory://bucket"))
        self.before = lambda: None
        self.store.fault = self._called
        claim_bucket(self.store, CLUSTER, 1)
        register_topic(self.store, CLUSTER, TOPIC_ID, "events", 3, {"retention.ms": "-1"}, 1)
        self.tiers = []
        for index in range(3):
            context = WriterContext(self.store, CountingEntropy(100 * index))
            folder, writer = PartitionFolder(CLUSTER, TOPIC_ID, index), Writer(1, 4)
            self.tiers.append(TierWriter.activate(context, folder, "events", writer, now_ms=2))
        for tier in self.tiers[:2]:
            self.archive(tier)
        put_state(self.store, state(), 0)

    def _called(self, _operation, _path):
        self.before()

    def archive(self, tier):
        """Archive one more segment."""
        base = tier.tiered_end
        data, end = log_bytes(base, [5, 5])
        segments = [closed(data, base, end, snapshot=b"")]
        tier.archive(segments, last_stable_offset=end, log_start_offset=0, now_ms=3)


def state(**changes):
    topics = (
        StateTopic(
            name="events",
            topic_id=topic_id_text(TOPIC_ID),
            configs={"retention.ms": "-1"},
            partitions=tuple(StatePartition(4, 0, end) for end in (12, 10, 3)),
        ),
        StateTopic(
            name=OFFSETS,
            topic_id=topic_id_text(OFFSETS_ID),
            partitions=(StatePartition(9, 0, 100),) * 2,
        ),
    )
    offset = StateOffset("events", topic_id_text(TOPIC_ID), 0, 12, 4, "", NOW_MS, -1)
    fields = {"topics": topics, "groups": {"readers": (offset,)}, **changes}
    return ClusterState(
        cluster_id=CLUSTER, incarnation=0, node_id=1, written_ms=NOW_MS - 5000, **fields
    )


def one_by_one(calls):
    return (call() for call in calls)


def take(store, disk, entropy=None, node_id=None):
    return take_over(
        store,
        "/new",
        disk,
        node_id,
        entropy=entropy or CountingEntropy(500),
        now_ms=NOW_MS,
        in_order=one_by_one,
    )


def incarnation_of(disk):
    """Return the incarnation that each broker of the restored cluster learns from its metadata."""
    (snapshot,) = disk.list(METADATA_DIRECTORY)
    data = disk.read(f"{METADATA_DIRECTORY}/{snapshot.name}", 0, 1 << 20)
    return image_of(decode_snapshot(data), parse_file_name(snapshot.name)).incarnation


def check_whole(store, disk, ends=(10, 10, 0)):
    """Check that a broker can start on the directory, and that it has exactly the bucket's content."""
    names = {entry.name for entry in disk.list("")}
    assert RESTORING not in names
    meta = read_meta("/new", disk)
    assert (meta.cluster_id, meta.node_id) == (CLUSTER, 1)
    check_incarnation(store, CLUSTER, incarnation_of(disk))
    survey = run(disk, survey_directory())
    expected = {("events", 0), ("events", 1), ("events", 2), (OFFSETS, 0), (OFFSETS, 1)}
    assert {(name.rpartition("-")[0], int(name[-1])) for name, _ in survey.partitions} == expected
    bucket = open_bucket(store)
    for index, end in enumerate(ends):
        newest = bucket.manifest(bucket.topic("events"), index)
        kept = disk.read(f"events-{index}/{TIER_MANIFEST}", 0, 1 << 20)
        assert decode(kept, "") == newest
        assert newest.tiered_end == end
        assert disk.size(f"events-{index}/{end:020d}.log") == 0
    offsets = [disk.size(f"{OFFSETS}-{n}/{0:020d}.log") for n in range(2)]
    assert sorted(bool(size) for size in offsets) == [False, True]


def calls_of_a_takeover():
    """Return how many calls of the store and changes of the disk a takeover makes."""
    old, disk, counts = OldNode(), SimDisk(), [0, 0]

    def count(at):
        counts[at] += 1

    old.before = lambda: count(0)
    disk.before = lambda _operation, _path: count(1)
    taken = take(old.store, disk)
    assert taken.moved == 1
    store_calls, disk_changes = counts
    check_whole(old.store, disk)
    return store_calls, disk_changes


STORE_CALLS, DISK_CHANGES = calls_of_a_takeover()


def after(calls, act):
    """Return a hook for each call that calls `act` once, after `calls` calls."""
    left = iter(range(calls, -1, -1))

    def before(*_):
        if next(left, None) == 0:
            act()

    return before


def die():
    raise Died


@pytest.mark.parametrize("cut_power", [False, True], ids=["process", "power"])
def test_an_interrupted_takeover_can_be_repeated(cut_power):
    for where in ("store", "disk"):
        for n in range(STORE_CALLS if where == "store" else DISK_CHANGES):
            old, disk = OldNode(), SimDisk()
            if where == "store":
                old.before = after(n, die)
            else:
                disk.before = after(n, die)
            with pytest.raises(Died):
                take(old.store, disk)
            old.before, disk.before = lambda: None, lambda *_: None
            if cut_power:
                disk.crash(Random(n))
            else:
                disk.end_process()
            names = {entry.name for entry in disk.list("")}
            if "meta.properties" in names:
                assert where == "disk", "only the fsync of the file's name was missing"
                check_whole(old.store, disk)
                continue
            taken = take(old.store, disk, CountingEntropy(900))
            check_whole(old.store, disk)
            assert taken.incarnation <= 2


@pytest.mark.parametrize("seed", range(40))
def test_the_same_command_succeeds_after_failures_of_the_bucket(seed):
    old, disk, chance = OldNode(), SimDisk(), Random(seed)
    kinds = (Fault.BEFORE, Fault.AFTER, Fault.LATE)

    def fault(operation, _path):
        if chance.random() < 0.2:
            old.store.arrive()
        fitting = [kind for kind in kinds if operation in FITTING[kind]]
        return chance.choice(fitting) if fitting and chance.random() < 0.01 else None

    for attempt in range(100):
        old.store.fault = fault
        try:
            taken = take(old.store, disk, CountingEntropy(1000 * (attempt + 1)))
        except (Unavailable, UserError) as error:
            assert "not empty" not in str(error)
            continue
        old.store.fault = no_fault
        old.store.arrive()
        check_incarnation(old.store, CLUSTER, taken.incarnation)
        check_whole(old.store, disk)
        return
    raise AssertionError("never done")


def test_a_concurrent_commit_of_the_old_node_is_restored_or_fenced():
    confirmed = fenced = 0
    for n in range(STORE_CALLS):
        old, disk = OldNode(), SimDisk()

        def commit(old=old):
            nonlocal confirmed, fenced
            old.before = lambda: None
            for tier in old.tiers:
                try:
                    old.archive(tier)
                except Fenced:
                    fenced += 1
                else:
                    confirmed += 1

        old.before = after(n, commit)
        take(old.store, disk)
        check_whole(old.store, disk, tuple(tier.tiered_end for tier in old.tiers))
        for tier in old.tiers:
            with pytest.raises(Fenced):
                old.archive(tier)
    assert confirmed > STORE_CALLS
    assert fenced > STORE_CALLS / 2


def test_a_topic_created_meanwhile_is_restored_or_the_old_node_is_fenced():
    made = 0
    for n in range(STORE_CALLS):
        old, disk = OldNode(), SimDisk()
        outcome = []

        def make(old=old, outcome=outcome):
            old.before = lambda: None
            register_topic(old.store, CLUSTER, IDS.uuid(), "new", 1, {}, NOW_MS)
            try:
                check_incarnation(old.store, CLUSTER, 0)
            except Fenced:
                outcome.append("fenced")

        old.before = after(n, make)
        taken = take(old.store, disk)
        there = "new" in {topic.name for topic in taken.found.topics}
        assert there or outcome == ["fenced"]
        made += there
    assert made > 1


def test_only_one_of_two_concurrent_takeovers_makes_a_node():
    for n in range(STORE_CALLS):
        old, first, second = OldNode(), SimDisk(), SimDisk()

        def overtake(old=old, second=second):
            old.before = lambda: None
            take(old.store, second, CountingEntropy(900))

        old.before = after(n, overtake)
        try:
            take(old.store, first)
        except (UserError, Fenced):
            assert "meta.properties" not in {entry.name for entry in first.list("")}
            check_whole(old.store, second)
        else:
            check_whole(old.store, first)
            with pytest.raises(Fenced):
                check_incarnation(old.store, CLUSTER, incarnation_of(second))


def test_a_takeover_needs_an_empty_directory():
    disk = SimDisk()
    prepare("/new", disk)
    disk.write_file("mine.txt", b"x")
    with pytest.raises(UserError, match=r"log directory /new is not empty \(mine.txt, …\)"):
        prepare("/new", disk)
    done = SimDisk()
    old = OldNode()
    take(old.store, done)
    with pytest.raises(UserError, match=f"is node 1's of cluster {CLUSTER}"):
        take(old.store, done)


def test_topics_are_restored_from_registry_and_state():
    old = OldNode()
    first, again = IDS.uuid(), IDS.uuid()
    register_topic(old.store, CLUSTER, first, "gone", 1, {}, 1)
    delete_topic(old.store, CLUSTER, first, 2)
    register_topic(old.store, CLUSTER, again, "since", 2, {"retention.ms": "5"}, NOW_MS)
    old_since = StateTopic(
        name="since", topic_id=topic_id_text(first), partitions=(StatePartition(0, 0, 9),)
    )
    gone = StateTopic(name="gone", topic_id=topic_id_text(first), partitions=())
    put_state(old.store, state(topics=(*state().topics, old_since, gone)), 1)
    found = {topic.name: topic for topic in look(old.store, one_by_one).topics}
    assert set(found) == {"events", OFFSETS, "since"}
    assert found["since"].id == again, "created after the state was uploaded"
    assert len(found["since"].partitions) == 2
    assert [one.missing for one in found["events"].partitions] == [2, 0, 3]
    assert [one.manifest is None for one in found[OFFSETS].partitions] == [True, True]


def test_without_a_state_tiered_topics_are_restored_from_the_registry():
    old = OldNode()
    old.store.delete([info.path for info in old.store.list(f"{CLUSTER}/cluster/state/")])
    disk = SimDisk()
    taken = take(old.store, disk)
    assert taken.found.state is None
    assert [topic.name for topic in taken.found.topics] == ["events"]
    assert taken.node_id == 1
    assert read_meta("/new", disk).node_id == 1


def test_a_topic_damaged_in_the_registry_is_restored_from_the_state_and_blocks_no_other():
    old = OldNode()
    lost = IDS.uuid()
    register_topic(old.store, CLUSTER, lost, "not-in-the-state", 1, {}, NOW_MS)
    registered = [info.path for info in old.store.list(f"{CLUSTER}/cluster/topics/")]
    assert len(registered) == 2
    for path in registered:
        old.store.put(path, [old.store.get(path)[:-3]])
    disk = SimDisk()
    taken = take(old.store, disk)
    assert "events" in {topic.name for topic in taken.found.topics}
    assert "not-in-the-state" not in {topic.name for topic in taken.found.topics}
    notes = sorted(line.rpartition("; ")[2] for line in taken.damaged)
    assert notes == ["the topic comes from the cluster's state", "the topic is left out"]
    assert all(any(path in line for line in taken.damaged) for path in registered)
    # The topic's new leader does the same.
    register_topic(old.store, CLUSTER, TOPIC_ID, "events", 3, {}, NOW_MS)
    old.store.delete([path for path in registered if topic_id_text(lost) in path])
    check_whole(old.store, disk)


def test_a_damaged_segment_loses_only_the_memory_of_duplicates():
    old = OldNode()
    for info in list(old.store.list("")):
        if info.path.endswith(".seg"):
            data = old.store.get(info.path)
            old.store.put(info.path, [data[:-1] + b"?"])
    disk = SimDisk()
    taken = take(old.store, disk)
    assert len(taken.damaged) == 2
    assert "repeats of idempotent producers of events-0 are not known" in taken.damaged[0]
    check_whole(old.store, disk)
