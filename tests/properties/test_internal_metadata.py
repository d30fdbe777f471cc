"""The image depends only on the log, for any cuts, snapshots and reloads."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.quorum.metadata_log import NOW_MS, MetadataLog, configure, started

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.delta import Delta, apply
from stratalog.metadata.image import EMPTY, NO_LEADER, Image
from stratalog.metadata.snapshot import decode_snapshot, encode_snapshot, image_of, snapshot_id
from stratalog.quorum.controller import NewTopic
from stratalog.quorum.metadata_batches import decode_record
from stratalog.quorum.voters import Voter
from stratalog.statemachine import Decision
from stratalog.wire.batch import scan
from stratalog.wire.internal.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
)
from stratalog.wire.records import read_records

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "c-c", "", "b b"])
SMALL = st.integers(-1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.lists(st.tuples(NAMES, SMALL, SMALL), max_size=3)),
        st.tuples(st.just("delete"), st.lists(NAMES, max_size=3)),
        st.tuples(st.just("configure"), st.tuples(NAMES, st.sampled_from("xy"), st.none() | NAMES)),
        st.tuples(st.just("register"), st.integers(1, 3)),
        st.tuples(st.just("heartbeat"), st.integers(1, 3)),
        st.tuples(st.just("ids"), st.integers(1, 3)),
        st.tuples(st.just("elect"), st.integers(1, 3)),
        st.tuples(st.just("change"), st.tuples(st.integers(0, 5), st.integers(-2, 3))),
        st.tuples(st.just("feature"), st.integers(0, 2)),
        st.tuples(st.just("shutdown"), st.integers(1, 3)),
    ),
    max_size=15,
)


def act(log: MetadataLog, step) -> None:
    """Run one step; a refused request changes nothing."""
    kind, what = step
    controller = log.controller
    match kind:
        case "create":
            topics = [NewTopic(name, n, r, {}, {"x": "1"}) for name, n, r in what]
            log.run(controller.create_topics(topics, log.entropy))
        case "delete":
            log.run(controller.delete_topics(what))
        case "configure":
            name, key, value = what
            log.run(configure(controller, 2, name, {key: value}))
        case "register":
            log.broker(what, rack=str(what % 2))
        case "heartbeat":
            if what in log.image.brokers:
                log.heartbeat(what, want_fence=what == 3)
        case "ids":
            broker = log.image.brokers.get(what)
            log.run(controller.allocate_producer_ids(what, broker.epoch if broker else 0))
        case "elect":
            log.lead(Voter(what, log.entropy.uuid()))
        case _:
            record(log, kind, what)


def record(log: MetadataLog, kind, what) -> None:
    """A record that only a larger cluster's controller decides."""
    made = None
    partitions = [(t, i) for t in log.image.topics_by_id.values() for i in t.partitions]
    if kind == "change" and partitions:
        topic, index = partitions[what[0] % len(partitions)]
        made = PartitionChangeRecord(
            partition_id=index,
            topic_id=topic.id,
            leader=what[1],
            isr=(1, 2) if what[0] % 2 else None,
            eligible_leader_replicas=(3,) if what[0] % 3 else None,
        )
    elif kind == "feature":
        made = FeatureLevelRecord(name="group.version", feature_level=what)
    elif kind == "shutdown" and what in log.image.brokers:
        made = BrokerRegistrationChangeRecord(
            broker_id=what, broker_epoch=log.image.brokers[what].epoch, in_controlled_shutdown=1
        )
    if made is not None:
        log.run(Decision([made], None))


def history(steps) -> MetadataLog:
    log = started()
    for step in steps:
        with suppress(Rejected):
            act(log, step)
        check(log.image)
    return log


def check(image: Image) -> None:
    """Check the invariants of every image."""
    assert {t.name: t.id for t in image.topics_by_id.values()} == image.topic_ids_by_name
    for topic_id, topic in image.topics_by_id.items():
        assert topic.id == topic_id
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
        for partition in topic.partitions.values():
            assert len(partition.directories) == len(partition.replicas) > 0
            assert partition.leader >= NO_LEADER
    for kind, name in image.configs:
        assert kind != 2 or name in image.topic_ids_by_name, "settings outlived their topic"


def records_in(log: MetadataLog):
    for position, header in scan(log.data):
        for found in read_records(memoryview(log.data)[position : position + header.size]):
            yield found.offset, decode_record(found, is_control=header.is_control)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_image_equals_a_replay_of_the_log(steps):
    log = history(steps)
    replayed = log.replayed()
    assert replayed.image() == log.image
    assert replayed.voters == log.voters
    assert log.image.offset == log.next_offset - 1


@settings(max_examples=40, deadline=None)
@given(STEPS, st.data())
def test_a_delta_applied_in_pieces_equals_the_delta_at_once(steps, data):
    log = history(steps)
    entries = list(records_in(log))
    at_once = Delta(EMPTY)
    in_pieces = EMPTY
    one_by_one = EMPTY
    piece = Delta(in_pieces)
    cuts = data.draw(st.sets(st.integers(0, len(entries))))
    for number, (offset, found) in enumerate(entries):
        at_once.replay(offset, found)
        piece.replay(offset, found)
        one_by_one = apply(one_by_one, offset, found)
        if number in cuts:
            in_pieces = piece.image()
            piece = Delta(in_pieces)
    whole = at_once.image()
    assert piece.image() == one_by_one == whole == replace(log.image, epoch=0)
    assert at_once.image() == whole, "a second call must change nothing"
    assert at_once.created_topics == set(whole.topics_by_id)
    assert at_once.deleted_topics == {}


@settings(max_examples=40, deadline=None)
@given(STEPS, STEPS)
def test_a_delta_lists_exactly_the_differences(first, second):
    log = history(first)
    base, start = log.image, log.next_offset
    for step in second:
        with suppress(Rejected):
            act(log, step)
    delta = Delta(base)
    for offset, found in records_in(log):
        if offset >= start:
            delta.replay(offset, found)
    after = delta.image()
    before_ids, after_ids = set(base.topics_by_id), set(after.topics_by_id)
    assert delta.created_topics == after_ids - before_ids
    assert set(delta.deleted_topics) == before_ids - after_ids
    for topic_id in after_ids & before_ids:
        differ = {
            index
            for index, partition in after.topics_by_id[topic_id].partitions.items()
            if partition != base.topics_by_id[topic_id].partitions.get(index)
        }
        assert differ <= delta.changed_partitions.get(topic_id, set())
    keys = set(base.configs) | set(after.configs)
    differ = {key for key in keys if base.configs.get(key) != after.configs.get(key)}
    assert differ <= delta.changed_configs
    assert {
        n for n in after.brokers if after.brokers[n] != base.brokers.get(n)
    } <= delta.changed_brokers


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_a_snapshot_is_read_as_the_same_image(steps):
    log = history(steps)
    data = encode_snapshot(log.image, NOW_MS, NOW_MS)
    assert image_of(decode_snapshot(data), snapshot_id(log.image)) == log.image


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), max_size=20))
def test_a_name_never_gets_an_earlier_id(turns):
    log = started()
    seen = []
    for create in turns:
        if create:
            (created,) = log.run(log.controller.create_topics([NewTopic("again")], log.entropy))
            if created.error is ErrorCode.none:
                seen.append(created.topic_id)
        else:
            log.run(log.controller.delete_topics(["again"]))
        expected = log.image.topic_ids_by_name.get("again")
        assert expected in (None, *seen[-1:])
    assert len(set(seen)) == len(seen)
