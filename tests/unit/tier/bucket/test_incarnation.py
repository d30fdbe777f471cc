"""Takeovers of a cluster: exactly one of many wins for any answers of the store, and the old node is fenced."""

from threading import Barrier, Thread

import pytest
from tests.faulty_store import Fault, FaultyStore
from tests.unit.tier.segments import CountingEntropy
from tests.unit.tier.writing.test_tier_writer import archive, segments

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Fenced, Unavailable, UserError
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import list_topics, register_topic
from stratalog.tier.bucket.incarnation import (
    check_incarnation,
    claim_incarnation,
    mark_strays,
    newest_incarnation,
)
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import Retention, TierWriter, WriterContext

CLUSTER = "a-cluster"


def claim(store, write_id="mine", node_id=2):
    return claim_incarnation(store, CLUSTER, node_id=node_id, write_id=write_id, now_ms=1000)


def test_each_takeover_starts_the_next_incarnation_and_fences_earlier_ones():
    store = MemoryStore("memory://bucket")
    check_incarnation(store, CLUSTER, 0)
    assert claim(store).incarnation == 1
    assert claim(store, "again", node_id=3).incarnation == 2
    assert newest_incarnation(store, CLUSTER) == 2
    for mine in (0, 1):
        with pytest.raises(Fenced, match=f"node {mine + 2}: its incarnation is {mine + 1}"):
            check_incarnation(store, CLUSTER, mine)
    check_incarnation(store, CLUSTER, 2)


def test_one_of_several_concurrent_takeovers_wins():
    store = MemoryStore("memory://bucket")
    together = Barrier(8)
    won, lost = [], []

    class Meeting:
        """A store that delays each put until all takeovers have listed the newest incarnation."""

        url = store.url
        size = staticmethod(store.size)
        get = staticmethod(store.get)

        @staticmethod
        def put_if_absent(path, data):
            together.wait(10)
            store.put_if_absent(path, data)

    def race(name):
        try:
            won.append(claim(Meeting, name))
        except UserError as error:
            lost.append(str(error))

    racers = [Thread(target=race, args=(f"racer {n}",)) for n in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(20)
    assert (len(won), len(lost)) == (1, 7)
    assert "another takeover, by node 2, has just begun incarnation 1" in lost[0]
    assert newest_incarnation(store, CLUSTER) == 1


def test_a_claim_with_a_lost_answer_is_recognised_as_ours():
    faults = iter([Fault.AFTER])
    store = FaultyStore(
        MemoryStore("memory://bucket"),
        lambda operation, _path: next(faults, None) if operation == "put_if_absent" else None,
    )
    assert claim(store).incarnation == 1
    assert newest_incarnation(store, CLUSTER) == 1


def test_a_store_without_an_answer_is_no_successful_claim():
    store = FaultyStore(
        MemoryStore("memory://bucket"),
        lambda operation, _path: Fault.BEFORE if operation == "put_if_absent" else None,
    )
    with pytest.raises(Unavailable):
        claim(store)
    assert newest_incarnation(store, CLUSTER) == 0


def test_only_an_unknown_and_empty_topic_is_a_stray():
    store, ids = MemoryStore("memory://bucket"), CountingEntropy()
    known, registered, begun, filled = (ids.uuid() for _ in range(4))
    for topic_id in (known, registered, begun, filled):
        register_topic(store, CLUSTER, topic_id, "t", 2, {}, 0)
    for topic_id in (begun, filled):
        folder = PartitionFolder(CLUSTER, topic_id, 1)
        tier = TierWriter.activate(WriterContext(store, ids), folder, "t", Writer(1, 1), now_ms=1)
        if topic_id == filled:
            made, end = segments(1)
            archive(tier, made, end)
            tier.expire(1 << 40, Retention(0, -1, 0, 0, grace_ms=1 << 50))
    found = mark_strays(store, CLUSTER, lambda: {known}, 5)
    assert {one.topic_uuid for one in found} == {registered, begun}
    left = {one.topic_uuid for one in list_topics(store, CLUSTER)}
    assert left == {known, filled}, "readers may still read the expired segment"
    assert mark_strays(store, CLUSTER, lambda: {known}, 6) == []
