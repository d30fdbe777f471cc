"""The controller's other decisions: registration, activation, configuration, producer ids, first records."""

from dataclasses import replace

import pytest
from tests.unit.quorum.metadata_log import MetadataLog, configure, started

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.metadata.image import EMPTY, FeatureRange, ResourceType
from stratalog.quorum.controller import BrokerRegistration, Controller, NewTopic
from stratalog.wire.internal.metadata_records import FeatureLevelRecord, PartitionChangeRecord


def refusal(call, *args):
    with pytest.raises(Rejected) as refused:
        call(*args)
    return refused.value.code


def registration(log, broker_id=1, **changes):
    return replace(BrokerRegistration(broker_id, log.entropy.uuid(), ()), **changes)


def with_topics(*topics):
    log = started()
    log.run(log.controller.create_topics(topics, log.entropy))
    return log


def test_a_log_begins_with_its_metadata_version_once():
    log = MetadataLog()
    decision = log.controller.bootstrap()
    assert decision.records == [FeatureLevelRecord(name="metadata.version", feature_level=30)]
    assert log.run(decision) == 30
    assert log.controller.bootstrap().records == []


def test_a_log_of_another_level_is_left_alone():
    image = replace(EMPTY, features={"metadata.version": 31})
    with pytest.raises(Corrupt, match="31"):
        Controller(image=image).bootstrap()


def test_a_new_incarnation_gets_a_higher_epoch_and_starts_fenced():
    log = started()
    first = log.image.brokers[1]
    epoch = log.run(log.controller.register_broker(registration(log, rack="r2")))
    assert epoch > first.epoch
    assert (log.image.brokers[1].fenced, log.image.brokers[1].rack) == (True, "r2")


def test_asking_again_in_the_same_incarnation_changes_nothing():
    log = started()
    asked = registration(log)
    epoch = log.run(log.controller.register_broker(asked))
    log.run(log.controller.unfence_broker(1, epoch))
    decision = log.controller.register_broker(asked)
    assert (list(decision.records), decision.answer) == ([], epoch)


def test_a_directory_belongs_to_one_broker():
    log = started()
    taken = registration(log, 2, directories=log.image.brokers[1].directories)
    assert refusal(log.controller.register_broker, taken) is ErrorCode.invalid_registration
    log.run(log.controller.register_broker(replace(taken, id=1)))


def test_a_broker_must_know_the_clusters_features():
    log = started()
    old = registration(log, features=(FeatureRange("metadata.version", 7, 29),))
    assert refusal(log.controller.register_broker, old) is ErrorCode.unsupported_version
    none = registration(log, features=())
    assert refusal(log.controller.register_broker, none) is ErrorCode.unsupported_version


def test_an_earlier_incarnation_may_do_nothing():
    log = started()
    stale = log.image.brokers[1].epoch
    log.broker(1, fenced=True)
    controller = log.controller
    assert refusal(controller.unfence_broker, 1, stale) is ErrorCode.stale_broker_epoch
    assert refusal(controller.allocate_producer_ids, 1, stale) is ErrorCode.stale_broker_epoch
    assert refusal(controller.unfence_broker, 2, 0) is ErrorCode.broker_id_not_registered


def test_unfencing_twice_writes_once():
    log = started()
    assert log.controller.unfence_broker(1, log.image.brokers[1].epoch).records == []


def test_activation_starts_an_epoch_for_what_the_broker_leads():
    log = with_topics(NewTopic("a", 2), NewTopic("b"))
    log.broker(2)
    (created,) = log.run(
        log.controller.create_topics([NewTopic("c", assignments={0: (2,)})], log.entropy)
    )
    assert log.run(log.controller.activate_leaders(1)) == 3
    for name in ("a", "b"):
        for partition in log.image.topic(name).partitions.values():
            assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 1, (1,))
    assert log.image.partition(created.topic_id, 0).leader_epoch == 0
    assert log.run(log.controller.activate_leaders(1)) == 3
    assert log.image.topic("a").partitions[1].leader_epoch == 2


def test_activation_takes_a_partition_that_lost_its_leader():
    log = with_topics(NewTopic("a"))
    topic = log.image.topic("a")
    lost = PartitionChangeRecord(partition_id=0, topic_id=topic.id, leader=-1)
    log.controller.replay_batch(log.next_offset, [lost])
    log.next_offset += 1
    assert log.run(log.controller.activate_leaders(1)) == 1
    assert log.image.partition(topic.id, 0).leader == 1


def test_configuration_is_changed_value_by_value():
    log = with_topics(NewTopic("a", configs={"x": "1", "y": "2"}))
    decision = configure(log.controller, 2, "a", {"x": None, "y": "2", "z": "3"})
    assert len(decision.records) == 2, "what is so already needs no record"
    log.run(decision)
    assert log.image.topic_configs("a") == {"y": "2", "z": "3"}
    log.run(configure(log.controller, ResourceType.BROKER, "1", {"b": "1"}))
    log.run(configure(log.controller, ResourceType.BROKER, "", {"b": "0"}))
    assert log.image.configs[4, "1"] == {"b": "1"}
    assert log.image.configs[4, ""] == {"b": "0"}


def test_producer_ids_are_given_out_once():
    log = started()
    epoch = log.image.brokers[1].epoch
    first = log.run(log.controller.allocate_producer_ids(1, epoch))
    second = log.run(log.controller.allocate_producer_ids(1, epoch, 10))
    assert (first, second) == (range(1000), range(1000, 1010))
    again = Controller(image=log.replayed().image()).allocate_producer_ids(1, epoch)
    assert again.answer == range(1010, 2010), "not given out again after a restart"


def test_replaying_the_log_gives_the_same_controller():
    log = with_topics(NewTopic("a.b", 3), NewTopic("c"))
    log.run(log.controller.delete_topics(["c"]))
    replayed = log.replayed()
    assert replayed.image() == log.image
    assert replayed.voters == log.voters
    assert replayed.image().epoch == log.epoch == 1


def test_a_batch_tells_what_it_changed():
    log = started()
    decision = log.controller.create_topics([NewTopic("a", 2)], log.entropy)
    delta = log.controller.replay_batch(log.next_offset, decision.records)
    (topic_id,) = delta.created_topics
    assert delta.changed_partitions == {topic_id: {0, 1}}
    unchanged = log.controller.replay_batch(log.next_offset + 3, [])
    assert (unchanged.created_topics, unchanged.changed_partitions) == (set(), {})
