"""The registry of topics under several brokers: no older copy replaces a newer one, whatever the store does."""

from threading import Barrier, Thread
from uuid import UUID

import pytest
from msgspec.json import encode as json_encode
from msgspec.structs import replace
from tests.faulty_store import Fault, FaultyStore
from tests.unit.tier.writing.test_tier_writer import archive, segments, tier_of

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt, Unavailable
from stratalog.tier.bucket.cluster_state import ClusterState
from stratalog.tier.bucket.identity import (
    Claim,
    DeletedTopic,
    TierTopic,
    claim_bucket,
    decode,
    delete_topic,
    list_deleted,
    list_topics,
    register_topic,
    remove_deleted_topics,
)
from stratalog.tier.bucket.leases import Lease
from stratalog.tier.formats.envelope import seal
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.formats.manifest import decode as decode_manifest
from stratalog.tier.formats.manifest import encode as encode_manifest
from stratalog.tier.formats.paths import partition_prefix, topic_path, topics_prefix
from stratalog.wire.ids import topic_id_text

CLUSTER = "a-cluster"
TOPIC = UUID(int=7)


def register(store, partitions):
    return register_topic(store, CLUSTER, TOPIC, "t", partitions, {}, 1)


def partitions_of(store, *, probe=True):
    (topic,) = list_topics(store, CLUSTER, probe=probe)
    return topic.partitions


def owned():
    store = MemoryStore("memory://registry")
    claim_bucket(store, CLUSTER, 0)
    return store


def entries(store):
    return sorted(info.path for info in store.list(topics_prefix(CLUSTER)))


def at_call(number, act):
    """Return the hook of a `FaultyStore` that acts before call `number` (from 0)."""
    left = [number]

    def hook(_operation, _path):
        left[0] -= 1
        if left[0] == -1:
            return act()
        return None

    return hook


@pytest.mark.parametrize("before", [0, 2])
def test_a_broker_that_is_paused_before_any_call_replaces_no_newer_entry(before):
    number, calls = 0, 1
    while number < calls:
        store = owned()
        if before:
            register(store, before)
        paused = FaultyStore(store, at_call(number, lambda: register(store, 6) and None))  # noqa: B023
        register(paused, 3)
        register(store, 6)  # the newer broker's next registration changes nothing
        assert partitions_of(store) == 6, f"paused before call {number}"
        calls, number = len(paused.calls), number + 1
    assert number > 2, "too few calls: nothing was tried"


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE])
def test_a_put_without_an_answer_neither_loses_nor_repeats_an_entry(fault):
    store = owned()
    register(store, 2)
    unlucky = FaultyStore(store, lambda call, _path: fault if call == "put_if_absent" else None)
    with pytest.raises(Unavailable):
        register(unlucky, 3)
    register(store, 6)
    unlucky.arrive()  # the request that timed out takes effect only now
    unlucky.fault = lambda _call, _path: None
    assert register(unlucky, 3).partitions == 6
    assert partitions_of(store) == 6
    assert len(entries(store)) == (3 if fault is Fault.AFTER else 2)


def test_a_stale_list_hides_no_newer_entry():
    store = FaultyStore(owned())
    for partitions in (1, 3, 6):
        register(store, partitions)
    store.fault = lambda call, _path: Fault.STALE if call == "list" else None
    store._written.popleft()
    assert entries(store) == [topic_path(CLUSTER, TOPIC)]
    assert partitions_of(store, probe=False) == 1, "the list is not stale enough to prove anything"
    assert partitions_of(store) == 6
    assert register(store, 4).partitions == 6
    store.fault = lambda _call, _path: None
    assert len(entries(store)) == 3


def test_of_many_brokers_at_once_the_most_partitions_count():
    store = owned()
    together = Barrier(8)

    def broker(partitions):
        together.wait(10)
        register(store, partitions)

    threads = [Thread(target=broker, args=(partitions,)) for partitions in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert partitions_of(store) == 8


def test_settings_alone_make_no_new_entry():
    store = owned()
    register(store, 2)
    changed = register_topic(store, CLUSTER, TOPIC, "t", 2, {"retention.ms": "5"}, 9)
    assert (changed.configs, entries(store)) == ({}, [topic_path(CLUSTER, TOPIC)])
    grown = register_topic(store, CLUSTER, TOPIC, "t", 3, {"retention.ms": "5"}, 9)
    assert (grown.configs, grown.created_ms) == ({"retention.ms": "5"}, 1)


def test_a_damaged_entry_gets_a_successor_that_knows_the_partitions_of_those_before():
    store = owned()
    for partitions in (2, 5):
        register(store, partitions)
    newest = topic_path(CLUSTER, TOPIC, 2)
    store.put(newest, [b"?"])
    with pytest.raises(Corrupt, match=newest):
        list_topics(store, CLUSTER)
    assert register(store, 1).partitions == 2
    assert partitions_of(store) == 2
    assert entries(store)[-1] == topic_path(CLUSTER, TOPIC, 3)


def test_a_removal_that_is_interrupted_anywhere_leaves_nothing_in_the_end():
    number, calls = 0, 1
    while number < calls:
        store = owned()
        for partitions in (1, 2, 3):
            register(store, partitions)
        late = f"{partition_prefix(CLUSTER, TOPIC, 3)}an-object"
        store.put(late, [b"of a partition that the mark does not know"])
        delete_topic(store, CLUSTER, TOPIC, 5)
        # A leader that looked for the mark just before puts its entry now.
        store.put_if_absent(topic_path(CLUSTER, TOPIC, 4), store.get(topic_path(CLUSTER, TOPIC, 3)))
        failing = FaultyStore(store, at_call(number, lambda: Fault.PARTIAL))
        due = [topic_id_text(TOPIC)]
        try:
            remove_deleted_topics(failing, CLUSTER, due)
        except Unavailable:
            assert list_topics(store, CLUSTER, probe=True) == [], f"call {number} shows the topic"
        remove_deleted_topics(store, CLUSTER, due)
        assert (entries(store), list_deleted(store, CLUSTER)) == ([], [])
        calls, number = len(failing.calls), number + 1
    assert number > 4, "too few calls: nothing was tried"


ODD_NAMES = ["", ".", "..", "../outside/x", "/etc/x", "a/b", "a\0", "x" * 250, "__cluster_metadata"]
ODD_IDS = ["", "..", "../../x", "a" * 21, "a" * 23, "not/an+id=============="]


def forged(kind, fields):
    """Return a sealed document as any writer to the bucket can make it."""
    whole = {"cluster_id": CLUSTER, "name": "t", "topic_id": topic_id_text(TOPIC), "partitions": 1}
    whole |= {"topic": "t", "partition": 0, "created_ms": 0, "deleted_ms": 0}
    if kind is ClusterState:
        topic = {**whole, "partitions": []}
        whole = {"cluster_id": CLUSTER, "incarnation": 0, "node_id": 1, "written_ms": 0}
        return seal(json_encode({**whole, "topics": [{**topic, **fields}]}))
    if kind is Lease:
        whole |= {"id": "lease", "holder": "h", "versions": {}}
    return seal(json_encode({**whole, **fields}))


@pytest.mark.parametrize(
    ("kind", "field", "odd"),
    [
        (Claim, "cluster_id", ODD_NAMES),
        (TierTopic, "name", ODD_NAMES),
        (TierTopic, "topic_id", ODD_IDS),
        (DeletedTopic, "topic_id", ODD_IDS),
        (ClusterState, "name", ODD_NAMES),
        (ClusterState, "topic_id", ODD_IDS),
        (Lease, "id", ODD_NAMES),
        (Lease, "cluster_id", ODD_NAMES),
        (Manifest, "topic", ODD_NAMES),
        (Manifest, "cluster_id", ODD_NAMES),
        (Manifest, "topic_id", ODD_IDS),
    ],
)
def test_a_name_in_the_bucket_is_checked_before_it_becomes_a_part_of_a_path(kind, field, odd):
    def read(data):
        return decode_manifest(data, "p") if kind is Manifest else decode(data, kind, "p")

    assert read(forged(kind, {}))
    for name in odd:
        with pytest.raises(Corrupt, match=r"^p: not a "):
            read(forged(kind, {field: name}))


def test_settings_in_the_state_are_those_of_a_number():
    brokers = {"": {}, "7": {}}
    fields = {"cluster_id": CLUSTER, "incarnation": 0, "node_id": 1, "written_ms": 0}
    assert decode(seal(json_encode({**fields, "brokers": brokers})), ClusterState, "p")
    with pytest.raises(Corrupt, match="node id"):
        decode(seal(json_encode({**fields, "brokers": {"../7": {}}})), ClusterState, "p")


def test_an_object_with_an_odd_id_is_none_of_a_manifest():
    store = MemoryStore("memory://odd")
    made, end = segments(1)
    tier = tier_of(store)
    manifest = archive(tier, made, end)
    odd = replace(manifest, segments=(replace(manifest.segments[0], id="../../x"),))
    with pytest.raises(Corrupt, match=r"^p: not a manifest"):
        decode_manifest(encode_manifest(odd), "p")
