"""Goal: leaderships go back to preferred leaders, and elections are counted by the place of the new leader.

Method: the real controller on a log in memory. `tests/properties/test_elections.py` holds both against any history.
"""

from tests.unit.quorum.metadata_log import MetadataLog, started

from stratalog.quorum.controller import NewTopic
from stratalog.quorum.isr import ANY_EPOCH, IsrChange
from stratalog.quorum.partition_index import Origin
from stratalog.wire.ids import TopicIdPartition


def cluster(**configs: str) -> MetadataLog:
    log = started()
    log.broker(2)
    log.broker(3)
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topics = [NewTopic("t", assignments={0: (1, 2), 1: (3, 2)}, configs=named)]
    log.run(log.controller.create_topics(topics, log.entropy))
    return log


def leaders(log: MetadataLog) -> list[int]:
    topic = log.image.topic("t")
    assert topic is not None
    return [topic.partitions[index].leader for index in (0, 1)]


def balance(log: MetadataLog) -> None:
    log.run(log.controller.balance(list(log.controller.index.imbalanced)))


def back_in_sync(log: MetadataLog) -> None:
    topic = log.image.topic("t")
    assert topic is not None
    partition = topic.partitions[0]
    change = IsrChange(
        TopicIdPartition(topic.id, 0),
        partition.leader_epoch,
        partition.partition_epoch,
        ((2, ANY_EPOCH), (1, ANY_EPOCH)),
    )
    log.run(log.controller.alter_isrs(2, log.image.brokers[2].epoch, [change]))


def test_a_preferred_leader_leads_again_once_it_is_in_sync() -> None:
    log = cluster()
    log.heartbeat(1, want_fence=True)
    log.heartbeat(1)
    assert leaders(log) == [2, 3]
    balance(log)
    assert leaders(log) == [2, 3], "it is not in sync yet"
    back_in_sync(log)
    balance(log)
    assert leaders(log) == [1, 3]
    assert not log.controller.index.imbalanced


def test_a_fenced_preferred_leader_stays_without_leadership() -> None:
    log = cluster()
    log.heartbeat(1, want_fence=True)
    log.heartbeat(1)
    back_in_sync(log)
    log.heartbeat(1, want_fence=True)
    balance(log)
    assert leaders(log) == [2, 3]


def test_elections_are_counted_by_the_place_of_the_new_leader() -> None:
    log = cluster(unclean_leader_election_enable="true")
    counts = log.controller.index.elections
    assert not counts, "first leaders are none of them"
    log.heartbeat(1, want_fence=True)
    assert (leaders(log)[0], counts) == (2, {Origin.IN_SYNC: 1})
    log.heartbeat(3, want_fence=True)
    assert counts == {Origin.IN_SYNC: 2}
    log.heartbeat(2, want_fence=True)
    assert leaders(log) == [-1, -1]
    log.heartbeat(1)
    assert (leaders(log)[0], counts) == (1, {Origin.IN_SYNC: 2, Origin.UNCLEAN: 1})
