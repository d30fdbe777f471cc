"""The controller's other decisions: registration, activation, configuration, producer ids, first records."""

import pytest
from msgspec.structs import replace
from tests.unit.quorum.metadata_log import MetadataLog, configure, started

from stratalog.errors import Corrupt, Rejected
from stratalog.metadata.image import EMPTY, ResourceType
from stratalog.quorum.controller import Controller, NewTopic
from stratalog.statemachine import Decision
from stratalog.wire.internal.marker_records import BeginTransactionRecord
from stratalog.wire.internal.metadata_records import ConfigRecord, FeatureLevelRecord


def refusal(call, *args):
    with pytest.raises(Rejected) as refused:
        call(*args)
    return refused.value.code


def with_topics(*topics):
    log = started()
    log.run(log.controller.create_topics(topics, log.entropy))
    return log


def test_a_log_begins_with_its_metadata_version_once():
    log = MetadataLog()
    decision = log.controller.bootstrap()
    assert decision.records == [
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
        ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="1"),
    ]
    assert log.run(decision) == 30
    assert log.controller.bootstrap().records == []


def test_a_transaction_that_another_controller_left_open_is_aborted_first():
    log = MetadataLog()
    log.run(Decision([BeginTransactionRecord(name="of Kafka"), log_level(29)], None))
    assert log.run(log.controller.bootstrap()) == 30
    assert log.image.open_transaction is None
    assert log.image.features["metadata.version"] == 30


@pytest.mark.parametrize("level", range(25, 30))
def test_a_log_of_an_earlier_level_of_kafka_4_stays_at_it(level):
    controller = Controller(image=replace(EMPTY, features={"metadata.version": level}))
    decision = controller.bootstrap()
    assert (decision.answer, decision.records) == (level, [])


def log_level(level):
    return FeatureLevelRecord(name="metadata.version", feature_level=level)


@pytest.mark.parametrize(
    ("level", "remedy"),
    [(31, "later release"), (24, "kafka-features.sh upgrade --release-version 4.3")],
)
def test_a_log_of_another_level_is_not_changed(level, remedy):
    image = replace(EMPTY, features={"metadata.version": level})
    with pytest.raises(Corrupt, match=f"{level}.*{remedy}"):
        Controller(image=image).bootstrap()


def test_configuration_is_changed_value_by_value():
    log = with_topics(NewTopic("a", configs={"x": "1", "y": "2"}))
    decision = configure(log.controller, 2, "a", {"x": None, "y": "2", "z": "3"})
    assert len(decision.records) == 2, "an unchanged value must write no record"
    log.run(decision)
    assert log.image.topic_configs("a") == {"y": "2", "z": "3"}
    log.run(configure(log.controller, ResourceType.BROKER, "1", {"b": "1"}))
    log.run(configure(log.controller, ResourceType.BROKER, "", {"b": "0"}))
    assert log.image.configs[4, "1"] == {"b": "1"}
    assert log.image.configs[4, ""] == {"min.insync.replicas": "1", "b": "0"}


def test_producer_ids_are_allocated_once():
    log = started()
    epoch = log.image.brokers[1].epoch
    first = log.run(log.controller.allocate_producer_ids(1, epoch))
    second = log.run(log.controller.allocate_producer_ids(1, epoch, 10))
    assert (first, second) == (range(1000), range(1000, 1010))
    again = Controller(image=log.replayed().image()).allocate_producer_ids(1, epoch)
    assert again.answer == range(1010, 2010), "a restart gives the same producer ids again"


def test_replaying_the_log_gives_the_same_controller():
    log = with_topics(NewTopic("a.b", 3), NewTopic("c"))
    log.run(log.controller.delete_topics(["c"]))
    replayed = log.replayed()
    assert replayed.image() == log.image
    assert replayed.voters == log.voters
    assert replayed.image().epoch == log.epoch == 1


def test_replaying_a_batch_returns_its_delta():
    log = started()
    decision = log.controller.create_topics([NewTopic("a", 2)], log.entropy)
    delta = log.controller.replay_batch(log.next_offset, decision.records)
    (topic_id,) = delta.created_topics
    assert delta.changed_partitions == {topic_id: {0, 1}}
    unchanged = log.controller.replay_batch(log.next_offset + 3, [])
    assert (unchanged.created_topics, unchanged.changed_partitions) == (set(), {})
