"""Stories of requests from Apache Kafka's own tests that the other stories leave out; see `differential_stories`.

In: a `Broker`. Out: its trace. The first story runs before all others: no client has used a group yet.
"""

import re
from typing import Any

from msgspec.structs import replace
from tests.compat.differential import GONE, KEYS, NO_ID, Broker, Connection
from tests.compat.differential_groups import Member, find
from tests.compat.differential_records import batch, produce
from tests.compat.differential_stories import (
    BROKER_RESOURCE,
    DELETE,
    SET,
    TIMESTAMP_MS,
    TOPIC_RESOURCE,
    Story,
    configs,
    topic,
)

from stratalog.broker.coordination.groups import OFFSETS_TOPIC
from stratalog.wire.batch import scan
from stratalog.wire.internal.offsets import GroupMetadataKey, decode_key, decode_value
from stratalog.wire.records import Record, build_batch, read_records

RULE_STORIES: list[Story] = []


def story(function: Story) -> Story:
    RULE_STORIES.append(function)
    return function


def ask_in(connection: Connection, version: int, api: str, **values: Any) -> Any:
    """Send a request in one version, whatever the pass; leave the answer out of the trace."""
    broker = connection.broker
    depth, newest = broker.depth, broker.common[KEYS[api].key][1]
    broker.depth = newest - version
    connection.send(api, **values)
    broker.depth = depth
    return connection.receive(traced=False)


@story
def groups_before_their_offsets_have_a_topic(broker: Broker) -> None:
    ask = broker.connect()
    wanted = [{"name": broker.name("absent"), "partition_indexes": [0, 3]}]
    for version in (1, 2, 7):
        for group in (broker.name("early"), ""):
            answer = ask_in(ask, version, "OffsetFetch", group_id=group, topics=wanted)
            broker.add(f"OffsetFetch v{version}", answer)
    early = broker.name("early")
    ask.ask("Heartbeat", group_id=early, generation_id=1, member_id="x")
    ask.ask(
        "SyncGroup",
        group_id=early,
        generation_id=1,
        member_id="x",
        protocol_type="consumer",
        protocol_name="range",
    )
    ask.ask("DescribeGroups", groups=[early])
    ask.ask("DeleteGroups", groups_names=[early])
    ask.ask("OffsetDelete", group_id=early, topics=[])


@story
def client_software_is_named(broker: Broker) -> None:
    ask = broker.connect()
    for name, version in (
        ("ok", "1.0"),
        ("a", "1"),
        ("", "1"),
        ("ok", ""),
        ("two words", "1"),
        ("ok", "-1"),
        ("ok", "1."),
        ("é", "1"),
    ):
        ask.send("ApiVersions", client_software_name=name, client_software_version=version)
        answer = ask.receive(traced=False)
        broker.add(f"ApiVersions {name}/{version}", [answer.error_code, bool(answer.api_keys)])


@story
def a_group_without_a_name_has_no_offsets_to_delete(broker: Broker) -> None:
    ask = broker.connect()
    find(ask, "")
    ask.ask("OffsetDelete", group_id="", topics=[])


@story
def unknown_topics_come_last(broker: Broker) -> None:
    if broker.version(9) < 10:
        return
    ask = broker.connect()
    find(ask, broker.name("ordered"))
    one, two = topic(ask, "first"), topic(ask, "second")
    for ids in ((one, GONE, two), (GONE, two, one), (GONE, GONE)):
        topics = [{"topic_id": each, "partition_indexes": [0]} for each in ids]
        group = {"group_id": broker.name("ordered"), "topics": topics, "member_epoch": -1}
        ask.send("OffsetFetch", groups=[group])
        (answer,) = ask.receive(traced=False).groups
        order = [[each.topic_id, each.partitions[0].error_code] for each in answer.topics]
        broker.add("OffsetFetch order", order)


@story
def directories_are_changed(broker: Broker) -> None:
    ask = broker.connect()
    topic(ask, "here")
    ask.send("DescribeLogDirs", topics=None)
    here = ask.receive(traced=False).results[0].log_dir
    names = ("x" * 214, "x" * 213, "a/b", "", broker.name("absent"), broker.name("here"))
    for path in (here, "/nowhere", "relative"):
        for name in names:
            topics = [{"name": name, "partitions": [0]}]
            ask.ask("AlterReplicaLogDirs", dirs=[{"path": path, "topics": topics}])


@story
def a_request_is_one_bounded_batch(broker: Broker) -> None:
    ask = broker.connect()
    for counts in ((10_001,), (10_000,), (5_000, 5_001), (-5, 10_001)):
        topics = [
            {
                "name": broker.name(f"large-{place}"),
                "num_partitions": count,
                "replication_factor": 1,
            }
            for place, count in enumerate(counts)
        ]
        answer = ask.ask("CreateTopics", topics=topics, timeout=10_000)
        broker.add("CreateTopics text", [one.error_message for one in answer.topics])


@story
def one_replica_is_enough_where_there_is_one(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "strict", min__insync__replicas="3")
    for acks in (-1, 1):
        produce(ask, "strict", batch(b"a"), topic_id=topic_id, acks=acks)


@story
def a_broker_is_described(broker: Broker) -> None:
    """Trace only names and sources of values: the two nodes have different settings."""
    ask = broker.connect()
    name = "leader.replication.throttled.rate"

    def describe() -> list[str]:
        resource = {"resource_type": BROKER_RESOURCE, "resource_name": "1"}
        ask.send("DescribeConfigs", resources=[{**resource, "configuration_keys": None}])
        return sorted(one.name for one in ask.receive(traced=False).results[0].configs)

    broker.add("DescribeConfigs throttled", [one for one in describe() if "throttled" in one])
    for value, operation in (("123456", SET), (None, DELETE)):
        resource = {"resource_type": BROKER_RESOURCE, "resource_name": "1"}
        change = configs((name, value, operation))
        ask.ask("IncrementalAlterConfigs", resources=[{**resource, "configs": change}])
        wanted = operation == SET
        seen = next(True for _ in range(10_000) if (name in describe()) is wanted)
        broker.add("DescribeConfigs throttled", seen)


@story
def a_broker_takes_no_keys_for_all_listeners(broker: Broker) -> None:
    ask = broker.connect()
    for name, value in (
        ("ssl.truststore.type", "JKS"),
        ("ssl.truststore.location", "/x"),
        ("ssl.keystore.type", "JKS"),
        ("ssl.key.password", "x"),
        ("ssl.protocol", "TLSv1.3"),
        ("listener.name.plaintext.ssl.truststore.type", "JKS"),
    ):
        for resource in ("1", ""):
            for change in configs((name, value, SET), (name, None, DELETE)):
                whole = {"resource_type": BROKER_RESOURCE, "resource_name": resource}
                ask.ask("IncrementalAlterConfigs", resources=[{**whole, "configs": [change]}])


@story
def segments_may_be_small_for_tests(broker: Broker) -> None:
    ask = broker.connect()

    def create(name: str, *settings: tuple[str, str]) -> None:
        asked = {
            "name": broker.name(name),
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in settings],
        }
        ask.ask("CreateTopics", topics=[asked], timeout=10_000, validate_only=True)

    create("plain")
    for value in ("100", "0", "-1", "x"):
        create("small", ("internal.segment.bytes", value))
    topic_id = topic(ask, "small", internal__segment__bytes="200")
    for size in (50, 50, 300):
        produce(ask, "small", batch(b"x" * size), topic_id=topic_id)
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": broker.name("small")}
    ask.ask("DescribeConfigs", resources=[{**resource, "configuration_keys": None}])


def kept(broker: Broker, *groups: str) -> list[Any]:
    """Return the group records of `__consumer_offsets` for these groups, without times."""
    ask = broker.connect()
    ask.send("Metadata", topics=[{"name": OFFSETS_TOPIC, "topic_id": NO_ID}])
    (found,) = ask.receive(traced=False).topics
    names, found_records = {broker.name(one) for one in groups}, []
    for index in range(len(found.partitions)):
        wanted = {"partition": index, "current_leader_epoch": -1, "last_fetched_epoch": -1}
        wanted |= {"fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
        topics = [{"topic": OFFSETS_TOPIC, "topic_id": found.topic_id, "partitions": [wanted]}]
        limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
        ask.send("Fetch", replica_id=-1, rack_id="", topics=topics, **limits)
        whole = ask.receive(traced=False).responses[0].partitions[0].records
        data = memoryview(whole or b"")
        for position, header in scan(data):
            if header.is_control:
                continue  # the marker of a transaction of another story
            for record in read_records(data[position : position + header.size]):
                key = decode_key(record.key or b"")
                if isinstance(key, GroupMetadataKey) and key.group in names:
                    value = record.value and decode_value(key, record.value)
                    found_records.append(
                        [key.group, value and replace(value, current_state_timestamp=0)]
                    )
    return found_records


@story
def groups_are_written_down(broker: Broker) -> None:
    if broker.version(11) < 4:
        return
    simple = Member(broker, "simple", "simple")
    find(simple.connection, broker.name("simple"))
    topic(simple.connection, "committed")
    simple.commit("committed", generation=-1, member_id="")
    member = Member(broker, "formed", "formed")
    find(member.connection, broker.name("formed"))
    member.join()
    broker.add("records", kept(broker, "simple", "formed"))
    member.join()
    member.sync({member.member_id: b"all"})
    member.leave()
    broker.add("records", kept(broker, "simple", "formed"))


@story
def a_fetch_of_a_log_that_diverged(broker: Broker) -> None:
    if broker.version(1) < 12:
        return
    ask = broker.connect()
    topic_id = topic(ask, "diverged")
    produce(ask, "diverged", batch(b"one"), topic_id=topic_id)
    for offset, epoch in ((1, 0), (5, 0), (0, 1000), (0, -1)):
        wanted = {"partition": 0, "current_leader_epoch": -1, "last_fetched_epoch": epoch}
        wanted |= {"fetch_offset": offset, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
        name = broker.name("diverged")
        topics = [{"topic": name, "topic_id": topic_id, "partitions": [wanted]}]
        limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
        ask.send("Fetch", replica_id=-1, rack_id="", topics=topics, **limits)
        (found,) = ask.receive(traced=False).responses[0].partitions
        diverging = found.diverging_epoch
        broker.add(
            "Fetch", [offset, epoch, found.error_code, diverging.epoch, diverging.end_offset]
        )


@story
def refusals_have_their_texts(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "timed", message__timestamp__after__max__ms="1000")
    late = build_batch([Record(0, TIMESTAMP_MS + 36_000_000, b"k", b"v", ())])
    wanted = {"name": broker.name("timed"), "topic_id": topic_id, "partitions": [(0, bytes(late))]}
    ask.send("Produce", topics=[wanted], acks=-1)
    (part,) = ask.receive(traced=False).responses[0].partition_responses
    texts = [one.batch_index_error_message for one in part.record_errors]
    # Each broker computes the bounds from its own time.
    worded = [re.sub(r"\[-?\d+, \d+\]", "[bounds]", one) for one in texts]
    broker.add("Produce texts", [part.error_code, part.error_message, *worded])
    asked = {"name": "__cluster_metadata", "num_partitions": 1, "replication_factor": 1}
    answer = ask.ask("CreateTopics", topics=[asked], timeout=10_000)
    broker.add("CreateTopics text", answer.topics[0].error_message)
    named = {"name": "__cluster_metadata", "topic_id": NO_ID}
    ask.ask("Metadata", topics=[named], allow_auto_topic_creation=True)
