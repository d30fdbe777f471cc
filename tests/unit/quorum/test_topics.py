"""Creating and deleting topics: every refusal has Kafka's code, and refuses that topic only."""

from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.unit.quorum.metadata_log import SeededEntropy, started

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, EMPTY
from stratalog.metadata.snapshot import broker_record
from stratalog.quorum.controller import (
    BrokerRegistration,
    Controller,
    Created,
    NewTopic,
    TopicRules,
    check_topic_name,
)
from stratalog.quorum.topics import PARTITIONS_PER_REQUEST_MAX, fresh_topic_id
from stratalog.statemachine import Decision
from stratalog.wire.ids import ZERO_ID, topic_id_text
from stratalog.wire.internal.metadata_records import ConfigRecord, PartitionRecord, TopicRecord


def refuse(configs):
    if "bad" in configs:
        raise Rejected(ErrorCode.invalid_config, "bad")


RULES = TopicRules(partitions_default=4, replication_factor_default=1, check_configs=refuse)


def create(log, *topics, validate_only=False):
    return log.run(log.controller.create_topics(topics, log.entropy, validate_only=validate_only))


def codes(results):
    return [(result.name, result.error.name) for result in results]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names_are_accepted(name):
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "é", "a\n", "a:b", "*"])
def test_illegal_names_are_refused(name):
    with pytest.raises(Rejected) as refusal:
        check_topic_name(name)
    assert refusal.value.code is ErrorCode.invalid_topic_exception


def test_a_topic_is_created_in_one_batch_in_kafkas_order():
    log = started(RULES)
    topic = NewTopic("a", 2, 1, {}, {"retention.ms": "5"})
    decision = log.controller.create_topics([topic], log.entropy)
    assert [type(r) for r in decision.records] == [
        TopicRecord,
        ConfigRecord,
        PartitionRecord,
        PartitionRecord,
    ]
    assert log.image.topic("a") is None, "a decision changed the image before its commit"
    (created,) = log.run(decision)
    topic_id = log.image.topic_ids_by_name["a"]
    assert created == Created(
        "a", topic_id, partitions=2, replication_factor=1, configs={"retention.ms": "5"}
    )
    partition = log.image.partition(topic_id, 1)
    assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), 1)
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert partition.directories == log.image.brokers[1].directories


def test_defaults_are_taken_from_the_rules():
    log = started(RULES)
    (created,) = create(log, NewTopic("a"))
    assert (created.partitions, created.replication_factor) == (4, 1)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad name"), "invalid_topic_exception"),
        (NewTopic("old"), "topic_already_exists"),
        (NewTopic("o.ld_"), "invalid_topic_exception"),
        (NewTopic("__cluster_metadata"), "invalid_request"),
        (NewTopic("n", 0), "invalid_partitions"),
        (NewTopic("n", -2), "invalid_partitions"),
        (NewTopic("n", 1, 0), "invalid_replication_factor"),
        (NewTopic("n", 1, -2), "invalid_replication_factor"),
        (NewTopic("n", 1, 3), "invalid_replication_factor"),
        (NewTopic("n", configs={"bad": "1"}), "invalid_config"),
        (NewTopic("n", 1, -1, {0: (1,)}), "invalid_request"),
        (NewTopic("n", -1, 1, {0: (1,)}), "invalid_request"),
        (NewTopic("n", assignments={1: (1,)}), "invalid_replica_assignment"),
        (NewTopic("n", assignments={0: ()}), "invalid_replica_assignment"),
        (NewTopic("n", assignments={0: (1, 1)}), "invalid_replica_assignment"),
        (NewTopic("n", assignments={0: (7,)}), "invalid_replica_assignment"),
        (NewTopic("n", assignments={0: (2,)}), "invalid_replica_assignment"),
        (NewTopic("n", assignments={0: (1,), 1: (1, 2)}), "invalid_replica_assignment"),
    ],
)
def test_a_refused_topic_does_not_hold_up_the_others(topic, code):
    log = started(RULES)
    log.broker(2, fenced=True)
    create(log, NewTopic("old"), NewTopic("o_ld."))
    before = log.image
    results = create(log, topic, NewTopic("fine"))
    assert codes(results) == [(topic.name, code), ("fine", "none")]
    assert results[0].message
    assert results[0].topic_id == ZERO_ID
    assert set(log.image.topic_ids_by_name) == {*before.topic_ids_by_name, "fine"}


def test_colliding_names_in_one_request_are_refused():
    assert codes(create(started(), NewTopic("a.b"), NewTopic("a_b"))) == [
        ("a.b", "none"),
        ("a_b", "invalid_topic_exception"),
    ]


def test_a_collision_ends_with_its_topic():
    log = started()
    create(log, NewTopic("a.b"))
    log.run(log.controller.delete_topics(["a.b"]))
    assert codes(create(log, NewTopic("a_b"))) == [("a_b", "none")]
    reloaded = Controller(image=log.replayed().image())
    decision = reloaded.create_topics([NewTopic("a.b")], log.entropy)
    assert codes(decision.answer) == [("a.b", "invalid_topic_exception")], (
        "the collision is unknown after a restart"
    )


def test_a_name_that_is_in_a_request_twice_is_refused_once():
    assert codes(create(started(), NewTopic("a"), NewTopic("a"), NewTopic("b"))) == [
        ("a", "invalid_request"),
        ("b", "none"),
    ]


def test_one_request_writes_a_bounded_batch():
    log = started()
    half = PARTITIONS_PER_REQUEST_MAX // 2 + 1
    results = create(log, NewTopic("a", half), NewTopic("b", half))
    assert codes(results) == [("a", "policy_violation"), ("b", "policy_violation")]
    assert codes(create(log, NewTopic("huge", 2**31 - 1))) == [("huge", "policy_violation")]
    fewer = create(log, NewTopic("less", -20_000), NewTopic("more", 10_001))
    assert codes(fewer) == [("less", "policy_violation"), ("more", "policy_violation")]
    assert fewer[0].message == "Excessively large number of partitions per request."


def test_the_records_of_one_request_are_bounded_as_in_kafka():
    log = started()
    (refused,) = create(log, NewTopic("a", 10_000))
    assert codes([refused]) == [("a", "policy_violation")], "the topic itself takes one record more"
    assert refused.message == "Unable to perform excessively large batch operation."
    assert log.image.topic("a") is None
    settings = {f"name.{number}": "1" for number in range(900)}
    ten = [NewTopic(f"t{number}", 100, configs=settings) for number in range(10)]
    assert {code for _, code in codes(create(log, *ten))} == {"policy_violation"}
    assert codes(create(log, NewTopic("a", 9_999))) == [("a", "none")]


def test_validation_only_creates_nothing():
    log = started()
    results = create(log, NewTopic("a", 3), NewTopic(""), validate_only=True)
    assert codes(results) == [("a", "none"), ("", "invalid_topic_exception")]
    assert results[0].partitions == 3
    assert log.image.topics_by_id == {}


def test_with_every_broker_fenced_nothing_can_be_placed():
    log = started()
    log.broker(1, fenced=True)
    assert codes(create(log, NewTopic("a"))) == [("a", "invalid_replication_factor")]


def test_chosen_replicas_are_kept_and_only_active_ones_are_in_sync():
    log = started()
    log.broker(2, fenced=True)
    (created,) = create(log, NewTopic("a", assignments={0: (2, 1), 1: (1, 2)}))
    assert (created.partitions, created.replication_factor) == (2, 2)
    first, second = (log.image.partition(created.topic_id, index) for index in (0, 1))
    assert (first.replicas, first.isr, first.leader) == ((2, 1), (1,), 1)
    assert (second.replicas, second.isr, second.leader) == ((1, 2), (1,), 1)


def test_the_directory_is_assigned_only_for_a_broker_with_one_directory():
    log = started()
    log.run(log.controller.register_broker(_with_directories(log, 2, 2), 0))
    # Brokers of Kafka before 3.7 register without directories.
    older = replace(log.image.brokers[2], id=3, directories=())
    log.run(Decision([broker_record(older)], None))
    (created,) = create(log, NewTopic("a", assignments={0: (1, 2, 3)}))
    assert log.image.partition(created.topic_id, 0).directories == (
        log.image.brokers[1].directories[0],
        DIRECTORY_UNASSIGNED,
        DIRECTORY_MIGRATING,
    )


def _with_directories(log, broker_id, count):
    directories = tuple(log.entropy.uuid() for _ in range(count))
    return BrokerRegistration(broker_id, log.entropy.uuid(), (), None, directories)


def test_topic_ids_are_fresh_and_safe_to_type():
    taken = UUID(int=1 << 127)
    dashed = UUID(bytes=b"\xf8" + bytes(15))
    assert topic_id_text(dashed).startswith("-")
    drawn = iter([UUID(int=0), UUID(int=1), taken, dashed, UUID(int=99)])

    class Scripted(SeededEntropy):
        def uuid(self):
            return next(drawn)

    image = replace(EMPTY, topics_by_id={taken: None})
    assert fresh_topic_id(image, Scripted()) == UUID(int=99)


def test_a_topic_is_deleted_by_name_or_by_id():
    log = started()
    a, b = (created.topic_id for created in create(log, NewTopic("a"), NewTopic("b")))
    unknown = UUID(int=99)
    results = log.run(log.controller.delete_topics(["a", b, "c", unknown, ZERO_ID]))
    assert [(r.name, r.topic_id, r.error.name) for r in results] == [
        ("a", a, "none"),
        ("b", b, "none"),
        ("c", ZERO_ID, "unknown_topic_or_partition"),
        (None, unknown, "unknown_topic_id"),
        (None, ZERO_ID, "invalid_request"),
    ]
    assert log.image.topics_by_id == {}


def test_a_topic_named_twice_is_not_deleted():
    log = started()
    (created,) = create(log, NewTopic("a"))
    results = log.run(log.controller.delete_topics(["a", created.topic_id]))
    assert [result.error.name for result in results] == ["invalid_request"]
    assert log.image.topic("a") is not None


def test_create_delete_create_of_one_name_gives_fresh_ids_and_no_leftovers():
    log = started()
    before = log.image.configs
    ids = set()
    for turn in range(50):
        (created,) = create(log, NewTopic("again", 2, 1, {}, {"retention.ms": str(turn)}))
        assert created.error is ErrorCode.none
        assert log.image.topic("again").id == created.topic_id
        assert log.image.topic_configs("again") == {"retention.ms": str(turn)}
        ids.add(created.topic_id)
        log.run(log.controller.delete_topics(["again"]))
        assert log.image.topic("again") is None
        assert log.image.configs == before
    assert len(ids) == 50
    assert log.replayed().image() == log.image
