"""Adding partitions: every refusal has Kafka's code and refuses that topic only."""

import pytest
from tests.unit.quorum.metadata_log import started

from stratalog.quorum.controller import MorePartitions, NewTopic


def with_topic(partitions=2):
    log = started()
    log.run(log.controller.create_topics([NewTopic("a", partitions, 1)], log.entropy))
    return log


def extend(log, *asked, validate_only=False):
    decision = log.controller.create_partitions(asked, log.entropy, validate_only=validate_only)
    return [one.error.name for one in log.run(decision)]


def test_partitions_are_added_after_the_existing_ones():
    log = with_topic()
    before = log.image.topic("a").partitions
    assert extend(log, MorePartitions("a", 5)) == ["none"]
    after = log.image.topic("a").partitions
    assert sorted(after) == [0, 1, 2, 3, 4]
    assert {index: after[index] for index in before} == before
    assert (after[4].leader, after[4].isr, after[4].leader_epoch) == (1, (1,), 0)
    assert after[4].directories == log.image.brokers[1].directories


def test_a_dry_run_changes_nothing():
    log = with_topic()
    assert extend(log, MorePartitions("a", 5), validate_only=True) == ["none"]
    assert len(log.image.topic("a").partitions) == 2


def test_the_clients_choice_of_replicas_is_used():
    log = with_topic()
    log.broker(2)
    assert extend(log, MorePartitions("a", 3, ((2,),))) == ["none"]
    assert log.image.topic("a").partitions[2].replicas == (2,)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (MorePartitions("b", 5), "unknown_topic_or_partition"),
        (MorePartitions("a", 2), "invalid_partitions"),
        (MorePartitions("a", 1), "invalid_partitions"),
        (MorePartitions("a", -1), "invalid_partitions"),
        (MorePartitions("a", 20_000), "policy_violation"),
        (MorePartitions("a", 20_000, ((1,),)), "invalid_replica_assignment"),
        (MorePartitions("a", 4, ((1,),)), "invalid_replica_assignment"),
        (MorePartitions("a", 3, ((7,),)), "invalid_replica_assignment"),
        (MorePartitions("a", 3, ((),)), "invalid_replica_assignment"),
        (MorePartitions("a", 3, ((1, 1),)), "invalid_replica_assignment"),
    ],
)
def test_each_wrong_request_gets_its_error(asked, code):
    log = with_topic()
    assert extend(log, asked) == [code]
    assert len(log.image.topic("a").partitions) == 2


def test_one_refused_topic_does_not_affect_the_others():
    log = with_topic()
    assert extend(log, MorePartitions("b", 1), MorePartitions("a", 3)) == [
        "unknown_topic_or_partition",
        "none",
    ]
    assert extend(log, MorePartitions("a", 4), MorePartitions("a", 5)) == ["invalid_request"]
    assert len(log.image.topic("a").partitions) == 3


def test_a_refusal_does_not_repeat_a_hundred_thousand_replicas():
    log = with_topic()
    asked = MorePartitions("a", 3, (tuple(range(100_000)),))
    (refused,) = log.run(log.controller.create_partitions([asked], log.entropy))
    assert refused.error.name == "invalid_replica_assignment"
    assert refused.message == "100000 replicas: there are 1 brokers"


def test_the_topics_of_one_request_share_a_bounded_batch():
    log = with_topic()
    log.run(log.controller.create_topics([NewTopic("b", 2, 1)], log.entropy))
    more = [MorePartitions("a", 9_002), MorePartitions("b", 1_003), MorePartitions("b2", 3)]
    assert extend(log, *more) == ["none", "policy_violation", "unknown_topic_or_partition"]
    assert [len(log.image.topic(name).partitions) for name in ("a", "b")] == [9_002, 2]
    assert extend(log, MorePartitions("b", 10_002)) == ["none"], (
        "a batch of ten thousand records must be accepted"
    )
