"""`verify` finds and names every fault of a bucket; a sweep removes only orphans."""

import dataclasses

import pytest
from msgspec.structs import replace
from tests.unit.tier.segments import CountingEntropy, closed, log_bytes

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt, UserError
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import (
    claim_bucket,
    delete_topic,
    list_topics,
    register_topic,
    remove_deleted_topics,
)
from stratalog.tier.checking.verify import ORPHAN_GRACE_MS, sweep, verify
from stratalog.tier.formats.envelope import seal
from stratalog.tier.formats.manifest import encode
from stratalog.tier.formats.paths import deleted_path, topic_path
from stratalog.tier.reading.reader import open_bucket
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import Retention, TierWriter, WriterContext
from stratalog.wire.ids import topic_id_text

CLUSTER = "a-cluster-of-22-chars_"
NOW = 1 << 50  # so all objects are older than any grace


def registered(store, name="events", partitions=2, number=7):
    topic_id = CountingEntropy(number).uuid()
    claim_bucket(store, CLUSTER, 1)
    register_topic(store, CLUSTER, topic_id, name, partitions, {"retention.ms": "-1"}, 2)
    return topic_id


def filled(store, segments=2, partitions=2, **topic):
    """A bucket of one topic: its id and the partitions' tiers."""
    topic_id = registered(store, partitions=partitions, **topic)
    tiers = []
    for partition in range(partitions):
        entropy = CountingEntropy(100 * partition)
        folder = PartitionFolder(CLUSTER, topic_id, partition)
        context = WriterContext(store, entropy, index_interval_bytes=100)
        tier = TierWriter.activate(context, folder, "events", Writer(1, 1), now_ms=3)
        made = []
        base = 0
        for _ in range(segments):
            data, end = log_bytes(base, [2, 1])
            made.append(closed(data, base, end))
            base = end
        tier.archive(made, last_stable_offset=base, log_start_offset=0, now_ms=4)
        tiers.append(tier)
    return topic_id, tiers


@pytest.fixture
def store():
    return MemoryStore("memory://unit")


def found(store, **options):
    return [(problem.path, problem.orphan) for problem in verify(store, now_ms=NOW, **options)]


def test_a_sound_bucket_has_no_problems_and_is_read_completely(store):
    filled(store)
    seen = []
    assert verify(store, now_ms=NOW, grace_ms=0, progress=lambda *at: seen.append(at)) == []
    total = sum(info.size for info in store.list(f"{CLUSTER}/"))
    assert seen[-1] == (total, total)
    assert sorted(seen) == seen


def test_every_flipped_lost_or_added_byte_is_found_and_its_object_named(store):
    filled(store, segments=1, partitions=1)
    for info in list(store.list("")):
        sound = store.get(info.path)
        for at in range(len(sound)):
            damaged = bytearray(sound)
            damaged[at] ^= 1 << (at % 8)
            store.put(info.path, [damaged])
            problems = verify(store, now_ms=NOW)
            assert info.path in {problem.path for problem in problems}, (info.path, at)
        for other in (sound + b"\n", sound[:-1]):
            store.put(info.path, [other])
            assert info.path in {problem.path for problem in verify(store, now_ms=NOW)}
        store.put(info.path, [sound])
    assert verify(store, now_ms=NOW, grace_ms=0) == []


def test_a_changed_byte_of_a_key_filter_is_found(store):
    _, (tier,) = filled(store, segments=1, partitions=1)
    data, end = log_bytes(3, [2])
    made = dataclasses.replace(closed(data, 3, end), has_key_filter=True)
    tier.archive([made], last_stable_offset=end, log_start_offset=0, now_ms=5)
    entry = tier.manifest.segments[-1]
    path, sound = tier.manifest.path_of(entry), store.get(tier.manifest.path_of(entry))
    assert verify(store, now_ms=NOW, grace_ms=0) == []
    for at in range(entry.data_size, entry.tail_start, 97):
        damaged = bytearray(sound)
        damaged[at] ^= 1
        store.put(path, [damaged])
        (problem,) = verify(store, now_ms=NOW)
        assert problem.what.endswith("its key filter fails its checksum")
        assert problem.path == path


def test_a_missing_object_of_any_kind_is_found(store):
    filled(store, segments=1, partitions=1)
    for info in list(store.list("")):
        if info.path.endswith("manifest/00000000000000000001"):
            continue  # an old version, which no reader needs
        kept = store.get(info.path)
        store.delete([info.path])
        assert verify(store, now_ms=NOW), info.path
        if info.path.endswith(".seg"):
            assert found(store) == [(info.path, False)]
        store.put(info.path, [kept])


def test_old_orphans_are_found_and_swept(store):
    _, (tier, _) = filled(store)
    stray = tier.lookup.at(0).path.replace("-1-", "-0-")
    store.put(stray, [b"uploaded, never committed"])
    modified = next(info.modified_ms for info in store.list(stray))
    assert verify(store, now_ms=modified + ORPHAN_GRACE_MS - 1) == []
    problems = verify(store, now_ms=modified + ORPHAN_GRACE_MS)
    assert [(problem.path, problem.orphan) for problem in problems] == [(stray, True)]
    before = {info.path for info in store.list("")}
    assert sweep(store, now_ms=modified) == []
    assert [problem.path for problem in sweep(store, now_ms=NOW)] == [stray]
    assert before - {info.path for info in store.list("")} == {stray}
    assert verify(store, now_ms=NOW, grace_ms=0) == []


def test_no_object_is_swept_if_a_manifest_is_damaged(store):
    _, (tier, _) = filled(store)
    store.put(tier.lookup.at(0).path.replace("-1-", "-0-"), [b"x"])
    newest = max(info.path for info in store.list("") if "/manifest/" in info.path)
    store.put(newest, [store.get(newest)[:-3]])
    before = [info.path for info in store.list("")]
    with pytest.raises(Corrupt, match="nothing was removed"):
        sweep(store, now_ms=NOW, grace_ms=0)
    assert [info.path for info in store.list("")] == before


def test_no_object_of_a_topic_lost_from_the_registry_is_swept(store):
    filled(store)
    (topic,) = [info.path for info in store.list(f"{CLUSTER}/cluster/topics/")]
    store.delete([topic])
    assert any("does not know topic" in problem.what for problem in verify(store, now_ms=NOW))
    with pytest.raises(Corrupt):
        sweep(store, now_ms=NOW, grace_ms=0)


def test_a_manifest_put_under_another_number_or_partition_is_found(store):
    _, tiers = filled(store)
    version = next(
        info.path for info in store.list("") if info.path.endswith("manifest/" + "2".zfill(20))
    )
    wrong = version[:-1] + "3"
    store.put(wrong, [store.get(version)])
    assert (wrong, False) in found(store)
    store.delete([wrong])
    store.put(wrong, [encode(replace(tiers[1].manifest, version=3))])
    assert (wrong, False) in found(store)


def test_the_object_of_an_expired_entry_may_be_missing(store):
    _, (tier, _) = filled(store)
    path = tier.lookup.at(0).path
    tier.expire(10, Retention(-1, -1, 3, 0, 1000))
    assert verify(store, now_ms=NOW, grace_ms=0) == []
    store.delete([path])
    assert verify(store, now_ms=NOW, grace_ms=0) == []


def test_versions_below_the_boundary_are_orphans(store):
    _, (tier, _) = filled(store)
    first = store.get(f"{tier.manifest.prefix}manifest/{1:020d}")
    for epoch in range(2, 100):
        writer, hint = Writer(1, epoch), tier.manifest_bytes()
        tier = TierWriter.activate(
            tier.context, tier.folder, "events", writer, local_manifest=hint, now_ms=5
        )
    zombie = f"{tier.manifest.prefix}manifest/{1:020d}"
    assert verify(store, now_ms=NOW, grace_ms=0) == []
    store.put(zombie, [first])
    assert found(store) == [(zombie, True)]
    sweep(store, now_ms=NOW)
    assert verify(store, now_ms=NOW, grace_ms=0) == []


def test_a_deleted_topic_leaves_no_object(store):
    topic_id, _ = filled(store)
    kept = registered(store, name="kept", number=90)
    delete_topic(store, CLUSTER, topic_id, 50)
    delete_topic(store, CLUSTER, topic_id, 60)
    assert [topic.name for topic in list_topics(store)] == ["kept"]
    assert verify(store, now_ms=NOW, grace_ms=0) == []  # the topic is being deleted
    assert remove_deleted_topics(store, CLUSTER, ()) == []
    assert [
        mark.name for mark in remove_deleted_topics(store, CLUSTER, [topic_id_text(topic_id)])
    ] == ["events"]
    left = [info.path for info in store.list("")]
    assert len(left) == 3  # claim, identity, the other topic
    assert register_topic(store, CLUSTER, kept, "kept", 1, {}, 9).partitions == 2  # never fewer


def test_a_damaged_mark_of_deletion_blocks_no_other_and_the_registry_replaces_it(
    store,
):
    hurt, _ = filled(store)
    other = registered(store, name="other", number=90)
    gone = registered(store, name="gone", number=91)
    for topic_id in (hurt, other, gone):
        delete_topic(store, CLUSTER, topic_id, 50)
    for topic_id in (hurt, gone):
        store.put(deleted_path(CLUSTER, topic_id), [b"{}"])
    store.delete(
        [topic_path(CLUSTER, gone)]
    )  # the deletion was interrupted before it removed the mark
    delete_topic(store, CLUSTER, hurt, 60)
    due = [topic_id_text(topic_id) for topic_id in (hurt, other, gone)]
    removed = remove_deleted_topics(store, CLUSTER, due)
    assert {mark.name for mark in removed} == {"events", "other", ""}
    assert len(list(store.list(""))) == 2, "only the claim and the identity may stay"


def test_a_topic_that_is_deleted_is_not_registered_again_by_a_slow_leader(store):
    topic_id = registered(store)
    delete_topic(store, CLUSTER, topic_id, 50)
    register_topic(store, CLUSTER, topic_id, "events", 2, {"retention.ms": "5"}, 60)
    assert list_topics(store) == []


def test_a_topic_damaged_in_the_registry_hides_no_other_and_its_leader_repairs_it():
    store, ids = MemoryStore("memory://registry"), CountingEntropy()
    sound, hurt = ids.uuid(), ids.uuid()
    claim_bucket(store, "cluster", 0)
    register_topic(store, "cluster", sound, "sound", 1, {}, 1)
    register_topic(store, "cluster", hurt, "hurt", 2, {}, 1)
    path = topic_path("cluster", hurt)
    whole = store.get(path)
    store.put(path, [whole[:20] + b"?" + whole[21:]])
    bucket = open_bucket(store)
    assert bucket.topic("sound").topic_uuid == sound
    for ask in (lambda: bucket.topic("hurt"), bucket.topics):
        with pytest.raises(Corrupt, match=path):
            ask()
    register_topic(store, "cluster", hurt, "hurt", 2, {}, 1)
    successor = topic_path("cluster", hurt, 2)
    assert store.get(successor) == whole
    assert bucket.topic("hurt").topic_uuid == hurt
    assert found(store) == []
    later = seal(whole[:-10].replace(b'"format":1', b'"format":2'))
    assert later != whole
    store.put(successor, [later])
    before = [info.path for info in store.list("")]
    with pytest.raises(Corrupt, match="of format 2"):
        register_topic(store, "cluster", hurt, "hurt", 2, {}, 1)
    assert [info.path for info in store.list("")] == before, "a later release's object counts"


def test_a_prefix_has_one_cluster_as_its_owner(store):
    claim_bucket(store, CLUSTER, 1)
    claim_bucket(store, CLUSTER, 2)
    with pytest.raises(UserError, match=f"belongs to cluster {CLUSTER}, not another"):
        claim_bucket(store, "another", 3)
    assert [info.path for info in store.list("")] == [f"{CLUSTER}/cluster/identity", "stratalog"]


def test_topics_and_manifests_are_found_from_the_bucket_alone(store):
    with pytest.raises(UserError, match="holds no bucket"):
        open_bucket(store)
    _, tiers = filled(store)
    bucket = open_bucket(store)
    topic = bucket.topic("events")
    assert (bucket.cluster_id, topic.partitions) == (CLUSTER, 2)
    assert topic.configs == {"retention.ms": "-1"}
    assert bucket.manifests(topic) == {0: tiers[0].manifest, 1: tiers[1].manifest}
    assert bucket.topic("no such") is None
