"""Stories: short series of requests for both brokers.

In: a `Broker`. Out: its trace. A story names its topics and groups through `broker.name`, so that each pass has its
own. It checks nothing, and uses an answer only for ids that later requests must name.
"""

from collections.abc import Callable
from time import time
from typing import Any
from uuid import UUID

from tests.compat.differential import GONE, NO_ID, Broker, Connection
from tests.integration.waiting import wait_for

Story = Callable[[Broker], None]
STORIES: list[Story] = []
TIMESTAMP_MS = int(time() * 1000)
"""Both brokers get the same record time, recent enough that neither deletes the record for its age."""
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def story(function: Story) -> Story:
    STORIES.append(function)
    return function


def topic(connection: Connection, name: str, partitions: int = 1, **configs: str) -> UUID | None:
    """Create a topic of this pass; return its id, which the trace shows as the topic's name."""
    broker = connection.broker
    full = broker.name(name)
    settings = [{"name": key.replace("__", "."), "value": value} for key, value in configs.items()]
    connection.send(
        "CreateTopics",
        topics=[
            {
                "name": full,
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": settings,
            }
        ],
        timeout=10_000,
    )
    connection.receive(traced=False)
    depth, broker.depth = broker.depth, 0
    asked = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
        for index in range(partitions)
    ]
    topic_id = NO_ID

    def is_led() -> bool:
        nonlocal topic_id
        connection.send("Metadata", topics=[{"name": full, "topic_id": NO_ID}])
        (found,) = connection.receive(traced=False).topics
        connection.send("ListOffsets", replica_id=-1, topics=[{"name": full, "partitions": asked}])
        (led,) = connection.receive(traced=False).topics
        topic_id = found.topic_id
        return not any(one.error_code for one in (found, *led.partitions))

    wait_for(is_led, f"topic {full}: Kafka answers its creation before it has a leader")
    broker.note_id(topic_id, name)
    broker.depth = depth
    return topic_id


# --- topics ---


@story
def topics_are_created(broker: Broker) -> None:
    ask = broker.connect()

    def create(
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        assignments: Any = (),
        configs: Any = (),
        **more: Any,
    ) -> None:
        asked = {
            "name": name if more.get("raw") else broker.name(name),
            "num_partitions": partitions,
            "replication_factor": replicas,
            "assignments": [{"partition_index": i, "broker_ids": b} for i, b in assignments],
            "configs": [{"name": n, "value": v} for n, v in configs],
        }
        ask.ask(
            "CreateTopics",
            topics=[asked] * more.get("times", 1),
            timeout=10_000,
            validate_only=more.get("validate", False),
        )

    create("one")
    create("one")
    create("checked", validate=True)
    create("one", validate=True)
    create("none", partitions=0)
    create("minus", partitions=-2)
    create("wide", replicas=3)
    create("thin", replicas=0)
    create("", raw=True)
    create(".", raw=True)
    create("..", raw=True)
    create("a/b", raw=True)
    create("x" * 250, raw=True)
    create("given", -1, -1, [(0, [1]), (1, [1])])
    create("both", 2, 1, [(0, [1])])
    create("gap", -1, -1, [(1, [1])])
    create("stranger", -1, -1, [(0, [9])])
    create("doubled", -1, -1, [(0, [1, 1])])
    create("unassigned", -1, -1, [(0, [])])
    create(
        "tuned", configs=[("retention.ms", "1000"), ("cleanup.policy", "compact")], validate=True
    )
    create("odd", configs=[("no.such.setting", "1")])
    create("unset", configs=[("retention.ms", "1000"), ("cleanup.policy", None)])
    create("empty-items", configs=[("cleanup.policy", "delete,,compact")])
    create("no-policy", configs=[("cleanup.policy", "")])
    create("wrong", configs=[("retention.ms", "soon")])
    create("below", configs=[("segment.bytes", "1")])
    create("policy", configs=[("cleanup.policy", "shred")])
    create("twice", times=2)
    create("in_sync", configs=[("min.insync.replicas", "2")], validate=True)
    ask.ask("CreateTopics", topics=[], timeout=1000)


@story
def topics_whose_names_collide(broker: Broker) -> None:
    ask = broker.connect()
    for name in ("a.b", "a_b"):
        ask.ask(
            "CreateTopics",
            topics=[{"name": broker.name(name), "num_partitions": 1, "replication_factor": 1}],
            timeout=10_000,
        )


@story
def topics_are_described(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "shown", 2)
    none = NO_ID
    # Before version 4 a Metadata request creates its topics, and Kafka answers that they are not there yet.
    absent = [(broker.name("absent"), none)] if broker.version(3) >= 4 else []
    for name, one in (
        (broker.name("shown"), none),
        *absent,
        ("a/b", none),
        ("", none),
        (None, topic_id),
        (None, GONE),
    ):
        if name is not None or broker.version(3) >= 12:
            ask.ask(
                "Metadata",
                topics=[{"name": name, "topic_id": one}],
                allow_auto_topic_creation=False,
            )
    ask.ask("Metadata", topics=[], allow_auto_topic_creation=False)
    named = [{"name": broker.name("shown"), "topic_id": none}]
    ask.ask(
        "Metadata",
        topics=named,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    ask.ask(
        "DescribeTopicPartitions",
        topics=[{"name": broker.name("shown")}, {"name": broker.name("absent")}],
        response_partition_limit=2000,
    )
    ask.ask(
        "DescribeTopicPartitions",
        topics=[{"name": broker.name("shown")}],
        response_partition_limit=1,
    )
    ask.ask(
        "DescribeTopicPartitions",
        topics=[{"name": broker.name("shown")}],
        response_partition_limit=1,
        cursor={"topic_name": broker.name("shown"), "partition_index": 1},
    )
    ask.ask(
        "DescribeTopicPartitions",
        topics=[{"name": broker.name("shown")}],
        response_partition_limit=10,
        cursor={"topic_name": broker.name("shown"), "partition_index": -1},
    )
    ask.ask("DescribeTopicPartitions", topics=[{"name": "a/b"}], response_partition_limit=10)


@story
def topics_are_created_on_first_use(broker: Broker) -> None:
    ask = broker.connect()
    auto = {"name": broker.name("auto"), "topic_id": NO_ID}
    if broker.version(3) >= 4:
        ask.ask("Metadata", topics=[auto], allow_auto_topic_creation=False)
    ask.send("Metadata", topics=[auto], allow_auto_topic_creation=True)
    ask.receive(traced=False)
    ask.ask(
        "Metadata",
        topics=[{"name": "no/good", "topic_id": NO_ID}],
        allow_auto_topic_creation=True,
    )


@story
def topics_grow(broker: Broker) -> None:
    ask = broker.connect()
    topic(ask, "grows", 2)

    def grow(name: str, count: int, assignments: Any = None, **more: Any) -> None:
        asked = {"name": broker.name(name), "count": count, "assignments": assignments}
        ask.ask(
            "CreatePartitions",
            topics=[asked] * more.get("times", 1),
            timeout=10_000,
            validate_only=more.get("validate", False),
        )

    grow("grows", 3, validate=True)
    grow("grows", 3)
    grow("grows", 3)
    grow("grows", 2)
    grow("grows", 0)
    grow("grows", -1)
    grow("absent", 3)
    grow("grows", 4, [{"broker_ids": [1]}])
    grow("grows", 5, [{"broker_ids": [9]}])
    grow("grows", 5, [{"broker_ids": [1]}, {"broker_ids": [1]}])
    grow("grows", 5, [])
    grow("grows", 6, [{"broker_ids": [1, 1]}, {"broker_ids": [1]}])
    grow("grows", 7, times=2)


@story
def topics_are_deleted(broker: Broker) -> None:
    ask = broker.connect()
    by_id = topic(ask, "by_id")
    topic(ask, "by_name")

    def delete(*names: str, ids: Any = ()) -> None:
        full = [broker.name(name) for name in names]
        topics = [{"name": name, "topic_id": NO_ID} for name in full] + [
            {"name": None, "topic_id": one} for one in ids
        ]
        ask.ask("DeleteTopics", topics=topics, topic_names=full, timeout=10_000)

    delete("by_name")
    delete("by_name")
    delete("absent", "absent")
    if broker.version(20) >= 6:
        delete(ids=[by_id])
        delete(ids=[by_id])
        delete(ids=[GONE])
        topic_id = topic(ask, "both")
        ask.ask(
            "DeleteTopics",
            topics=[{"name": broker.name("both"), "topic_id": topic_id}],
            timeout=10_000,
        )
        delete("both", ids=[topic_id])
        delete("both", ids=[topic_id])
    ask.ask("DeleteTopics", topics=[], topic_names=[], timeout=10_000)


# --- settings ---


def configs(*entries: tuple[str, str | None, int]) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": value, "config_operation": operation}
        for name, value, operation in entries
    ]


@story
def settings_are_changed(broker: Broker) -> None:
    ask = broker.connect()
    topic(ask, "set", retention__ms="5000")

    def alter(
        *entries: tuple[str, str | None, int],
        kind: int = TOPIC_RESOURCE,
        name: str = "set",
        **more: Any,
    ) -> None:
        full = broker.name(name) if kind == TOPIC_RESOURCE else name
        resource = {"resource_type": kind, "resource_name": full, "configs": configs(*entries)}
        ask.ask(
            "IncrementalAlterConfigs",
            resources=[resource] * more.get("times", 1),
            validate_only=more.get("validate", False),
        )

    alter(("retention.ms", "7000", SET))
    alter(("retention.ms", "8000", SET), validate=True)
    alter(("retention.ms", "x", SET))
    alter(("retention.ms", None, SET))
    alter(("retention.ms", None, DELETE))
    alter(("no.such.setting", "1", SET))
    alter(("no.such.setting", None, DELETE))
    alter(("cleanup.policy", "compact", APPEND))
    alter(("cleanup.policy", "compact", APPEND))
    alter(("cleanup.policy", "delete", SUBTRACT))
    alter(("retention.ms", "1", APPEND))
    alter(("retention.ms", "1", SET), ("retention.ms", "2", SET))
    alter(("retention.ms", "1", 9))
    alter(("retention.ms", "1", SET), name="absent")
    alter(("retention.ms", "1", SET), times=2)
    alter(("retention.ms", "1", SET), kind=3)
    alter(("log.retention.ms", "9000000", SET), kind=BROKER_RESOURCE, name="1", validate=True)
    alter(("log.retention.ms", "9000000", SET), kind=BROKER_RESOURCE, name="", validate=True)
    alter(("log.dirs", "/x", SET), kind=BROKER_RESOURCE, name="1")
    alter(("log.retention.ms", "x", SET), kind=BROKER_RESOURCE, name="1")
    alter(("log.retention.ms", "1", SET), kind=BROKER_RESOURCE, name="9")
    alter(("log.retention.ms", "1", SET), kind=BROKER_RESOURCE, name="me")
    alter()
    ask.ask("IncrementalAlterConfigs", resources=[])
    for value in ("6000", "x", None):
        resource = {
            "resource_type": 2,
            "resource_name": broker.name("set"),
            "configs": [{"name": "retention.ms", "value": value}],
        }
        ask.ask("AlterConfigs", resources=[resource])
    for name in ("set", "absent"):
        ask.ask(
            "AlterConfigs",
            resources=[{"resource_type": 2, "resource_name": broker.name(name), "configs": []}],
        )


@story
def settings_are_described(broker: Broker) -> None:
    ask = broker.connect()
    topic(ask, "described", retention__ms="5000", cleanup__policy="compact", flush__ms="9")

    def describe(kind: int, name: str, *keys: str, every: bool = False) -> None:
        resource = {
            "resource_type": kind,
            "resource_name": name,
            "configuration_keys": None if every else list(keys),
        }
        ask.ask("DescribeConfigs", resources=[resource], include_synonyms=True)

    name = broker.name("described")
    describe(2, name, "retention.ms")
    describe(2, name, "cleanup.policy", "segment.bytes")
    describe(2, name, "no.such.setting")
    describe(2, name)
    describe(2, broker.name("absent"), "retention.ms")
    describe(2, "a/b", "retention.ms")
    describe(4, "1", "log.retention.hours", "num.io.threads")
    describe(4, "", "log.retention.ms")
    describe(4, "9", "log.retention.ms")
    describe(4, "me", "log.retention.ms")
    describe(3, "x")
    describe(2, name, every=True)
    ask.ask("DescribeConfigs", resources=[])
    ask.ask("ListConfigResources", resource_types=[99])


@story
def partitions_stay_where_they_are(broker: Broker) -> None:
    """Requests about several nodes, sent to a single node: elections and reassignments."""
    ask = broker.connect()
    topic(ask, "placed", partitions=2)
    name, absent = broker.name("placed"), broker.name("absent")
    both = [
        {"topic": name, "partitions": [0, 1, 7]},
        {"topic": absent, "partitions": [0]},
    ]
    for kind in (0, 1):
        ask.ask("ElectLeaders", election_type=kind, topic_partitions=both)
        ask.ask("ElectLeaders", election_type=kind, topic_partitions=None)
        ask.ask("ElectLeaders", election_type=kind, topic_partitions=[])

    def reassign(of: str, index: int, replicas: list[int] | None) -> None:
        partition = {"partition_index": index, "replicas": replicas}
        ask.ask("AlterPartitionReassignments", topics=[{"name": of, "partitions": [partition]}])

    reassign(name, 0, [1])
    reassign(name, 0, None)
    reassign(name, 7, [1])
    reassign(absent, 0, [1])
    for wrong in ([], [1, 1], [2], [1, 2], [-1]):
        reassign(name, 1, wrong)
    ask.ask("ListPartitionReassignments", topics=None)
    ask.ask(
        "ListPartitionReassignments",
        topics=[
            {"name": name, "partition_indexes": [0, 7]},
            {"name": absent, "partition_indexes": [0]},
        ],
    )
