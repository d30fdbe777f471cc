"""Goal: objects in a bucket stay readable, and their format never changes. Method: compare files that were written once
with the output of today's code, byte for byte, and read them back.

These files never change. A format that changes gets a new version, a new file, and readers for both.
"""

import struct
from dataclasses import replace as replace_dataclass
from itertools import islice
from pathlib import Path

import pytest
from crc32c import crc32c
from msgspec.structs import replace
from tests.transactional_log import ABORT, Step, transactional_log
from tests.unit.tier.segments import CountingEntropy, closed

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt
from stratalog.table.decisions import Decision, Prepared, decode_decision, encode_decision
from stratalog.tier.bucket.cluster_state import (
    ClusterState,
    StateOffset,
    StatePartition,
    StateTopic,
    newest_state,
    put_state,
)
from stratalog.tier.bucket.commit import FAN_OUT, is_pruned, prune, run
from stratalog.tier.bucket.identity import (
    claim_bucket,
    delete_topic,
    list_deleted,
    list_topics,
    read_claim,
    register_topic,
)
from stratalog.tier.bucket.identity import decode as decode_document
from stratalog.tier.bucket.identity import encode as encode_document
from stratalog.tier.bucket.incarnation import claim_incarnation, newest_incarnation
from stratalog.tier.bucket.leases import Lease
from stratalog.tier.formats.archive_manifest import Archive, decode_archive, encode_archive
from stratalog.tier.formats.envelope import seal, unseal
from stratalog.tier.formats.key_filter import PAGE_BYTES, may_hold, page_of
from stratalog.tier.formats.manifest import (
    Manifest,
    RemoteSegment,
    SegmentState,
    decode,
    encode,
    given_up,
)
from stratalog.tier.formats.paths import SegmentName, manifest_path
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.reading.reader import read_entries
from stratalog.tier.writing.archiver import PartitionFolder, archive
from stratalog.tier.writing.spilling import Spill, spilled
from stratalog.wire.ids import topic_id_text
from stratalog.wire.records import Record, build_batch

FILES = Path(__file__).parent / "formats"
CLUSTER = "golden-cluster-0000000"
TOPIC_ID = CountingEntropy(100).uuid()
OBJECT_ID = CountingEntropy(200).uuid()
KEY = PartitionFolder(CLUSTER, TOPIC_ID, 3)


def golden(name):
    return (FILES / name).read_bytes()


def segment():
    """Batches of one and of several records, the last one compressed; small enough to be read in a hex dump."""
    return closed(golden("segment.v1.log"), 40, 49, epochs=((2, 0), (3, 42)))


def archived():
    store = MemoryStore("memory://golden")
    made = segment()
    name = SegmentName(40, made.next_offset - 1, 3, OBJECT_ID)
    entry = archive(store, KEY, made, name, now_ms=1_700_000_000_000, index_interval_bytes=200)
    (info,) = store.list("")
    return store, info.path, entry


def manifest():
    _, _, entry = archived()
    going = replace(
        entry,
        base_offset=20,
        last_offset=39,
        state=SegmentState.DELETE_STARTED,
        state_ms=1_700_000_000_001,
    )
    return Manifest(
        cluster_id=CLUSTER,
        topic_id=topic_id_text(TOPIC_ID),
        topic="a.topic-of_ours",
        partition=3,
        version=7,
        node_id=1,
        leader_epoch=3,
        write_id=topic_id_text(CountingEntropy(300).uuid()),
        written_ms=1_700_000_000_002,
        log_start_offset=40,
        last_stable_offset=60,
        tiered_end=49,
        boundary=0,
        segments=(going, entry),
    )


def archived_entries():
    """Three entries, no two columns alike."""
    _, _, entry = archived()
    return [
        replace(
            entry,
            id=topic_id_text(CountingEntropy(400 + number).uuid()),
            base_offset=base,
            last_offset=last,
            leader_epoch=3 + number,
            size=entry.size + 1000 * number,
            data_size=entry.data_size + 990 * number,
            records=entry.records + number,
            min_timestamp=1_600_000_000_000 + 3_600_000 * number,
            max_timestamp=1_600_000_000_000 + 3_600_000 * (number + 1),
            min_timestamp_exact=number != 1,
            data_crc=entry.data_crc ^ number,
            footer_crc=0xFFFFFFFF - number,
            leader_epochs=((2, 0), (3, 42))[:number],
            state_ms=1_700_000_000_000 + number,
        )
        for number, (base, last) in enumerate([(0, 99), (100, 999), (1000, 1399)])
    ]


def manifest_with_archives():
    """The first entry of the archive has expired; the other two, and one outside of the archive, are live."""
    entries = archived_entries()
    data = golden("archive.v1")
    base = replace(manifest(), segments=tuple(entries), tiered_end=1400)
    spill = Spill(tuple(entries), None)
    named, _ = spilled(base, spill, None, topic_id_text(CountingEntropy(500).uuid()))
    named = replace(named, size=len(data), crc=crc32c(data))
    archive = decode_archive(data, TOPIC_ID, 3, "archive")
    gone = given_up(archive.named(0, 1, named), 1_700_000_000_004)
    live = archive.named(1, 3, named)
    _, _, entry = archived()
    last = replace(entry, base_offset=1400, last_offset=1499)
    return replace(base, version=8, archives=(gone, live), segments=(last,), tiered_end=1500)


def test_the_segment_object_is_written_as_ever():
    store, path, _ = archived()
    assert path.removeprefix(KEY.prefix) == golden("segment.path").decode().strip()
    assert store.get(path) == golden("segment.v1.seg")


def test_the_segment_object_is_read_as_ever():
    _, path, entry = archived()
    store = MemoryStore("memory://golden")
    store.put(path, [golden("segment.v1.seg")])
    found = RemoteSegment(path, entry)
    index = load_index(store, found)
    assert index.summary.topic_id == TOPIC_ID
    assert index.leader_epochs == ((2, 0), (3, 42))
    assert index.producer_snapshot == b"a snapshot"
    assert index.aborted_transactions == b""
    assert len(index.entries) == 3
    assert read_entries(store, found, index, 0, 3) == golden("segment.v1.log")


def transactions():
    """Two producers' transactions: one aborted, one committed, the segment's last batch in one that ends later."""
    log = transactional_log(
        [Step(1, 2), Step(2, 1), Step(1, 0, kind=ABORT), Step(2, 0), Step(1, 1)]
    )
    data = b"".join(log.batches[:-1])
    return replace_dataclass(closed(data, 0, 6), aborted=tuple(log.aborted)), log


def test_a_segment_with_transactions_is_written_and_read_as_ever():
    store = MemoryStore("memory://golden")
    made, log = transactions()
    name = SegmentName(0, made.next_offset - 1, 3, OBJECT_ID)
    entry = archive(store, KEY, made, name, now_ms=1_700_000_000_000, index_interval_bytes=200)
    (info,) = store.list("")
    assert store.get(info.path) == golden("segment.transactions.v1.seg")
    index = load_index(store, RemoteSegment(info.path, entry))
    assert index.aborted == tuple(log.aborted) == ((1, 0, 3), (1, 5, 6))


def with_key_filter():
    """A segment of 3,000 keys, so of two pages."""
    keys = [Record(0, 1000 + n, b"key %d" % n, b"") for n in range(3000)]
    data = bytes(build_batch(keys, codec="zstd"))
    store = MemoryStore("memory://golden")
    made = replace_dataclass(closed(data, 0, 3000), has_key_filter=True)
    entry = archive(store, KEY, made, SegmentName(0, 2999, 3, OBJECT_ID), now_ms=1_700_000_000_000)
    (info,) = store.list("")
    pages = store.get_range(info.path, entry.data_size, PAGE_BYTES * entry.key_pages)
    return entry, bytes(pages)


def buckets(pages):
    """Return each page's head without its CRC, and the sorted fingerprints of each bucket."""
    found = []
    for start in range(0, len(pages), PAGE_BYTES):
        page = pages[start : start + PAGE_BYTES]
        assert crc32c(page[4:]) == int.from_bytes(page[:4], "big")
        prints = iter(struct.unpack(">1916H", page[264:]))
        found.append((page[4:264], [sorted(islice(prints, held)) for held in page[8:264]]))
        assert not any(prints)
    return found


def test_the_key_filter_is_written_and_read_as_ever():
    """The test compares the pages alone: a later zstd may compress the records differently. Any order of the
    fingerprints in a bucket is right."""
    entry, pages = with_key_filter()
    assert entry.key_pages == 2
    assert buckets(pages) == buckets(golden("key-filter.v2"))
    for key in (b"key %d" % n for n in range(3000)):
        at = page_of(key, 2) * PAGE_BYTES
        assert may_hold(pages[at : at + PAGE_BYTES], key, 2, "golden")


def test_a_manifest_and_an_archive_with_key_filters_are_written_and_read_as_ever():
    named = replace(manifest(), segments=(replace(archived()[2], key_pages=2),))
    assert encode(named) == golden("manifest.keys.v1")
    assert decode(golden("manifest.keys.v1"), "manifest") == named
    entries = [replace(one, key_pages=at) for at, one in enumerate(archived_entries())]
    for stored in (golden("archive.v2"), encode_archive(Archive.of(entries), TOPIC_ID, 3)):
        found = decode_archive(stored, TOPIC_ID, 3, "archive")
        assert [found.entry(at) for at in range(len(found))] == entries


def test_the_manifest_is_written_and_read_as_ever():
    stored = golden("manifest.v1")
    assert encode(manifest()) == stored
    assert decode(stored, "manifest") == manifest()


def test_the_archive_manifest_is_written_and_read_as_ever():
    """The test compares the columns: a later zstd may compress them differently."""
    for stored in (
        golden("archive.v1"),
        encode_archive(Archive.of(archived_entries()), TOPIC_ID, 3),
    ):
        archive = decode_archive(stored, TOPIC_ID, 3, "archive")
        assert [archive.entry(at) for at in range(len(archive))] == archived_entries()


def test_the_manifest_that_names_archives_is_written_and_read_as_ever():
    stored = golden("manifest.v2")
    assert encode(manifest_with_archives()) == stored
    read = decode(stored, "manifest")
    assert read == replace(manifest_with_archives(), format=2)
    store = MemoryStore("memory://golden")
    (path,) = {read.archive_path(one) for one in read.archives}
    store.put(path, [golden("archive.v1")])
    offsets = [one.entry.base_offset for one in ArchiveManifests(store).live(read)]
    assert offsets == [100, 1000, 1400]


def test_the_read_lease_is_written_and_read_as_ever():
    versions = {topic_id_text(TOPIC_ID): {"0": 7, "3": 12}}
    lease_id = topic_id_text(CountingEntropy(600).uuid())
    lease = Lease(cluster_id=CLUSTER, id=lease_id, holder="a reader", versions=versions)
    assert encode_document(lease) == golden("lease.v1")
    assert decode_document(golden("lease.v1"), Lease, "lease") == lease
    longer = replace(lease, lasts_ms=3_600_000)
    assert decode_document(encode_document(longer), Lease, "lease").lives_ms == 3_600_000


def test_a_manifest_with_fields_of_the_future_is_read_and_one_of_another_format_is_not():
    document = unseal(golden("manifest.v1"), "")
    later = document.replace(b'{"format":1,', b'{"format":1,"later":[1],')
    assert decode(seal(later), "") == manifest()
    with pytest.raises(Corrupt, match="format 3"):
        decode(seal(document.replace(b'{"format":1,', b'{"format":3,')), "")


def test_the_registry_is_written_and_read_as_ever():
    store = MemoryStore("memory://golden")
    claim_bucket(store, CLUSTER, 1_700_000_000_003)
    configs = {"retention.ms": "-1", "remote.storage.enable": "true"}
    register_topic(store, CLUSTER, TOPIC_ID, "a.topic-of_ours", 4, configs, 1_700_000_000_004)
    delete_topic(store, CLUSTER, TOPIC_ID, 1_700_000_000_005)
    written = "".join(f"{info.path}\n{store.get(info.path).decode()}" for info in store.list(""))
    assert written == golden("registry.v1.txt").decode()

    lines = golden("registry.v1.txt").splitlines(keepends=True)
    kept = MemoryStore("memory://kept")
    for at in range(0, len(lines), 3):
        kept.put(lines[at].decode().strip(), [lines[at + 1] + lines[at + 2]])
    claim = read_claim(kept)
    assert claim is not None
    assert (claim.cluster_id, claim.created_ms) == (CLUSTER, 1_700_000_000_003)
    (mark,) = list_deleted(kept, CLUSTER)
    assert (mark.name, mark.partitions, mark.deleted_ms) == (
        "a.topic-of_ours",
        4,
        1_700_000_000_005,
    )
    assert list_topics(kept) == []
    kept.delete([info.path for info in kept.list(f"{CLUSTER}/cluster/deleted/")])
    (topic,) = list_topics(kept)
    assert (topic.name, topic.partitions, topic.configs) == ("a.topic-of_ours", 4, configs)
    assert topic.topic_uuid == TOPIC_ID


def test_later_versions_of_a_topic_are_written_and_read_as_ever():
    store = MemoryStore("memory://golden")
    for partitions, retention in ((4, "-1"), (6, "5")):
        configs = {"retention.ms": retention}
        register_topic(store, CLUSTER, TOPIC_ID, "a.topic-of_ours", partitions, configs, partitions)
    written = "".join(f"{info.path}\n{store.get(info.path).decode()}" for info in store.list(""))
    assert written == golden("registry.grown.v1.txt").decode()
    (topic,) = list_topics(store, CLUSTER)
    assert (topic.partitions, topic.configs, topic.created_ms) == (6, configs, 4)


def state():
    return ClusterState(
        cluster_id=CLUSTER,
        incarnation=1,
        node_id=2,
        written_ms=1_700_000_000_007,
        next_producer_id=3000,
        brokers={"": {"log.cleaner.threads": "2"}, "2": {}},
        topics=(
            StateTopic(
                name="a.topic-of_ours",
                topic_id=topic_id_text(TOPIC_ID),
                configs={"retention.ms": "-1"},
                partitions=(StatePartition(4, 40, 60), StatePartition(3, -1, -1)),
            ),
        ),
        groups={
            "readers": (
                StateOffset(
                    "a.topic-of_ours",
                    topic_id_text(TOPIC_ID),
                    0,
                    57,
                    4,
                    "où",
                    1_700_000_000_006,
                    -1,
                ),
            )
        },
    )


def test_incarnations_and_the_clusters_state_are_written_and_read_as_ever():
    store = MemoryStore("memory://golden")
    write_id = topic_id_text(CountingEntropy(300).uuid())
    claim_incarnation(store, CLUSTER, node_id=2, write_id=write_id, now_ms=1_700_000_000_006)
    put_state(store, state(), 6)
    written = "".join(f"{info.path}\n{store.get(info.path).decode()}" for info in store.list(""))
    assert written == golden("cluster.v1.txt").decode()

    lines = golden("cluster.v1.txt").splitlines(keepends=True)
    kept = MemoryStore("memory://kept")
    for at in range(0, len(lines), 3):
        kept.put(lines[at].decode().strip(), [lines[at + 1] + lines[at + 2]])
    assert newest_incarnation(kept, CLUSTER) == 1
    assert newest_state(kept, CLUSTER, 1) == (replace(state(), version=7), [])
    assert newest_state(kept, CLUSTER, 2) == (replace(state(), version=7), []), (
        "the object belongs to an earlier incarnation"
    )
    assert newest_state(kept, CLUSTER, 0) == (None, [])


def test_boundary_objects_are_named_as_ever():
    store = MemoryStore("memory://golden")
    tip = replace(manifest(), version=FAN_OUT**2, boundary=FAN_OUT - 2)
    for version in (FAN_OUT**2 - 1, FAN_OUT**2):
        store.put(manifest_path("p/", version), [b""])
    assert run(store, prune("p/", tip, kept=0)) == FAN_OUT
    assert [(info.path, store.get(info.path)) for info in store.list("p/boundary/")] == [
        ("p/boundary/1/00000000000000000000", b"{}\n297bd0aa\n")
    ]
    assert run(store, is_pruned("p/", 1))
    assert run(store, is_pruned("p/", 4095))
    assert not run(store, is_pruned("p/", 4096))


def test_a_decision_of_the_sink_keeps_its_bytes() -> None:
    key, value = (FILES / "decision.v1.txt").read_bytes().splitlines()
    decision = Decision(
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        17,
        "stratalog",
        (Prepared(0, 0, 4000, 3), Prepared(1, 2, 4001, 0)),
    )
    assert encode_decision(decision) == (key, value)
    assert decode_decision(key, value) == decision
