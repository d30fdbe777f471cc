"""Stories of requests that name a thing twice; see `differential_stories`.

In: a `Broker`. Out: its trace.
"""

from itertools import repeat
from typing import Any

from tests.compat.differential import GONE, NO_ID, Broker
from tests.compat.differential_groups import find
from tests.compat.differential_records import batch, produce
from tests.compat.differential_stories import TOPIC_RESOURCE, Story, topic

METADATA, OFFSET_FETCH, DELETE_TOPICS = 3, 9, 20
TWICE_STORIES: list[Story] = []


def story(function: Story) -> Story:
    TWICE_STORIES.append(function)
    return function


def twice(item: Any) -> list[Any]:
    return list(repeat(item, 2))


@story
def topics_are_named_twice(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "twice-doomed", partitions=2)
    here, absent = broker.name("twice-doomed"), broker.name("twice-absent")
    for name in (here, "a/b", *([absent] if broker.version(METADATA) >= 4 else [])):
        asked = twice({"name": name, "topic_id": NO_ID})
        ask.ask("Metadata", topics=asked, allow_auto_topic_creation=False)
        ask.ask("DescribeTopicPartitions", topics=twice({"name": name}))
    for named in (topic_id, GONE) if broker.version(METADATA) >= 12 else ():
        ask.ask("Metadata", topics=twice({"name": None, "topic_id": named}))
    more = {"name": here, "count": 3, "assignments": None}
    ask.ask("CreatePartitions", topics=twice(more), timeout=10_000)
    ask.ask("CreatePartitions", topics=twice({**more, "name": absent}), timeout=10_000)
    for name in (here, absent):
        topics = twice({"name": name, "topic_id": NO_ID})
        ask.ask("DeleteTopics", topics=topics, topic_names=twice(name), timeout=10_000)
    if broker.version(DELETE_TOPICS) >= 6:
        both = [{"name": here, "topic_id": NO_ID}, {"name": None, "topic_id": topic_id}]
        ask.ask("DeleteTopics", topics=both, timeout=10_000)


@story
def partitions_are_named_twice(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "twice-cut", partitions=2)
    here, absent = broker.name("twice-cut"), broker.name("twice-absent")
    produce(ask, "twice-cut", batch(b"a", b"b"), topic_id=topic_id)
    for name in (here, absent):
        # Twice in one topic, and in a topic that is twice in the request.
        one = {"current_leader_epoch": -1}
        for timestamp in (-1, -2):
            asked = {"partition_index": 0, "timestamp": timestamp, **one}
            other = {**asked, "partition_index": 1}
            for partitions in (twice(asked), [asked, other]):
                topics = twice({"name": name, "partitions": partitions})
                ask.ask("ListOffsets", replica_id=-1, topics=topics)
                ask.ask("ListOffsets", replica_id=-1, topics=topics[:1])
        ended = {"partition": 0, "leader_epoch": 0, **one}
        topics = twice({"topic": name, "partitions": twice(ended)})
        ask.ask("OffsetForLeaderEpoch", replica_id=-1, topics=topics)
        topics = twice({"name": name, "partition_indexes": [0, 0]})
        ask.ask("DescribeProducers", topics=topics)
        resources = twice({"resource_type": TOPIC_RESOURCE, "resource_name": name})
        ask.ask(
            "DescribeConfigs", resources=[{**one, "configuration_keys": None} for one in resources]
        )
        topics = twice({"topic": name, "partitions": [0, 0]})
        ask.ask("ElectLeaders", election_type=0, topic_partitions=topics, timeout=10_000)
        ask.ask("DescribeLogDirs", topics=topics)
        topics = twice({"name": name, "partitions": [0, 0]})
        ask.ask("AlterReplicaLogDirs", dirs=twice({"path": "/nowhere", "topics": topics}))
        deleted = [{"partition_index": 0, "offset": offset} for offset in (1, 2, 1)]
        ask.ask("DeleteRecords", topics=twice({"name": name, "partitions": deleted}))


@story
def a_partition_is_produced_to_twice(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "twice-written", partitions=2)
    for name in ("twice-written", "twice-absent"):
        named = {
            "name": broker.name(name),
            "topic_id": topic_id if name == "twice-written" else GONE,
        }
        partitions = [(0, batch(b"one")), (1, batch(b"two")), (0, batch(b"last"))]
        ask.ask("Produce", topics=[{**named, "partitions": partitions}], acks=-1)
        ask.ask("Produce", topics=twice({**named, "partitions": partitions[:1]}), acks=-1)
    ends = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in (0, 1)
    ]
    ask.ask(
        "ListOffsets",
        replica_id=-1,
        topics=[{"name": broker.name("twice-written"), "partitions": ends}],
    )


@story
def groups_and_their_offsets_are_named_twice(broker: Broker) -> None:
    ask = broker.connect()
    group = broker.name("twice-group")
    find(ask, group)
    topic_id = topic(ask, "twice-kept", partitions=2)
    for name, known_id in (("twice-kept", topic_id), ("twice-absent", GONE)):
        named = {"name": broker.name(name), "topic_id": known_id}
        committed = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": "m"}
            for index, offset in ((0, 1), (1, 2), (0, 3))
        ]
        # In these two Kafka answers an absent topic once, because it refuses absent topics separately.
        times = 2 if name == "twice-kept" else 1
        topics = [{**named, "partitions": committed}] * times
        ask.ask("OffsetCommit", group_id=group, topics=topics)
        wanted = twice({**named, "partition_indexes": [0, 1, 0]})
        if broker.version(OFFSET_FETCH) >= 8:
            groups = twice({"group_id": group, "topics": wanted, "member_epoch": -1})
            ask.ask("OffsetFetch", groups=groups)
        else:
            del wanted[0]["topic_id"]  # of both topics: they are one topic
            ask.ask("OffsetFetch", group_id=group, topics=wanted)
        forgotten = {"name": broker.name(name), "partitions": twice({"partition_index": 0})}
        ask.ask("OffsetDelete", group_id=group, topics=[forgotten] * times)
    ask.ask("FindCoordinator", key_type=0, key=group, coordinator_keys=twice(group))
    ask.ask("ListGroups", states_filter=twice("nothing"), types_filter=twice("nothing"))
    for name in (group, broker.name("twice-absent")):
        ask.ask("DescribeGroups", groups=twice(name))
        ask.ask("DeleteGroups", groups_names=twice(name))
