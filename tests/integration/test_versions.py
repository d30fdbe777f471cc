"""Goal: the broker serves the versions that current clients use, and every version that it advertises.

Method: the tests compare our ApiVersions answer with the versions that clients send, and then send each version of each
API once, over its own connection. The APIs are those of brokers' listeners: the node has no other listener.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.differential import KEYS, NO_ID, Broker, api_versions

from stratalog.broker.apis import APIS
from stratalog.client.calls import error_of
from stratalog.wire.apis import ListenerKind
from stratalog.wire.records import Record, build_batch

TOPIC = "versions"
BATCH = bytes(build_batch([Record(0, 1_700_000_000_000, b"k", b"v")]))

# API -> the range of Java's client 4.2 (None: not a client's), that of librdkafka 2.15, and the versions observed from
# librdkafka, franz-go, kafka-python 3.0.12 and kafkajs 2.2.4 against a broker of the 4.1 line. Versions of the topic
# ids, and what brokers and transactions alone use, are in it where clients send them without.
SPOKEN: dict[str, tuple[tuple[int, int], tuple[int, int] | None, set[int]]] = {
    "Produce": ((3, 13), (0, 10), {7, 9, 10, 13}),
    "Fetch": ((4, 18), (0, 16), {11, 12, 16, 18}),
    "ListOffsets": ((1, 11), (0, 7), {3, 7, 10}),
    "Metadata": ((0, 13), (0, 13), {0, 6, 13}),
    "OffsetCommit": ((2, 10), (0, 9), {5, 8, 9, 10}),
    "OffsetFetch": ((1, 10), (0, 9), {4, 8, 9, 10}),
    "FindCoordinator": ((0, 6), (0, 2), {2, 6}),
    "JoinGroup": ((0, 9), (0, 5), {5, 7, 9}),
    "Heartbeat": ((0, 4), (0, 3), {3, 4}),
    "LeaveGroup": ((0, 5), (0, 1), {1, 3, 5}),
    "SyncGroup": ((0, 5), (0, 3), {3, 5}),
    "DescribeGroups": ((0, 6), (0, 5), {0, 2, 6}),
    "ListGroups": ((0, 5), (0, 5), {0, 2, 5}),
    "ApiVersions": ((0, 4), (0, 3), {1, 2, 3, 4}),
    "CreateTopics": ((2, 7), (0, 4), {3, 4, 7}),
    "DeleteTopics": ((1, 6), (0, 4), {1, 4, 6}),
    "DeleteRecords": ((0, 2), (0, 2), {1, 2}),
    # Version 6 is unstable in Apache Kafka 4.3 (KIP-939): it does not advertise it either.
    "InitProducerId": ((0, 5), (0, 4), {1, 4, 5}),
    "OffsetForLeaderEpoch": ((2, 4), (2, 2), {4}),
    "DescribeConfigs": ((1, 4), (0, 1), {1, 2, 4}),
    "AlterConfigs": ((0, 2), (0, 2), {1, 2}),
    "AlterReplicaLogDirs": ((1, 2), None, {2}),
    "DescribeLogDirs": ((1, 4), None, {4}),
    "CreatePartitions": ((0, 3), (0, 2), {0, 1, 2, 3}),
    "DeleteGroups": ((0, 2), (0, 2), {1, 2}),
    "SaslHandshake": ((0, 1), (0, 1), set()),
    "SaslAuthenticate": ((0, 2), (0, 1), set()),
    "DescribeUserScramCredentials": ((0, 0), (0, 0), set()),
    "AlterUserScramCredentials": ((0, 0), (0, 0), set()),
    "DescribeClientQuotas": ((0, 1), None, set()),
    "AlterClientQuotas": ((0, 1), None, set()),
    "DescribeAcls": ((1, 3), None, set()),
    "CreateAcls": ((1, 3), None, set()),
    "DeleteAcls": ((1, 3), None, set()),
    "CreateDelegationToken": ((1, 3), None, set()),
    "RenewDelegationToken": ((1, 2), None, set()),
    "ExpireDelegationToken": ((1, 2), None, set()),
    "DescribeDelegationToken": ((1, 3), None, set()),
    "GetTelemetrySubscriptions": ((0, 0), (0, 0), {0}),
    "PushTelemetry": ((0, 0), (0, 0), {0}),
    "IncrementalAlterConfigs": ((0, 1), (0, 1), {1}),
    "OffsetDelete": ((0, 0), (0, 0), set()),
    "DescribeQuorum": ((0, 2), None, set()),
    "UpdateFeatures": ((0, 2), None, set()),
    "DescribeCluster": ((0, 2), None, set()),
    "DescribeProducers": ((0, 0), None, set()),
    "ListConfigResources": ((0, 1), None, {1}),
    "DescribeTopicPartitions": ((0, 0), None, {0}),
    "ElectLeaders": ((0, 2), None, {2}),
    "AlterPartitionReassignments": ((0, 1), None, {1}),
    "ListPartitionReassignments": ((0, 0), None, {0}),
    "UnregisterBroker": ((0, 0), None, set()),
    "AddPartitionsToTxn": ((0, 3), (0, 0), set()),
    "AddOffsetsToTxn": ((0, 4), (0, 0), set()),
    # EndTxn 5 and TxnOffsetCommit 5 belong to transactions of KIP-890, which the broker does not serve yet.
    "EndTxn": ((0, 4), (0, 1), set()),
    "TxnOffsetCommit": ((0, 4), (0, 3), set()),
    "WriteTxnMarkers": ((1, 1), None, set()),
    "DescribeTransactions": ((0, 0), None, set()),
    "ListTransactions": ((0, 1), None, set()),
    "AddRaftVoter": ((0, 1), None, set()),
    "RemoveRaftVoter": ((0, 0), None, set()),
}
# Versions that older clients need: kafkajs, aiokafka 0.14, kcat with librdkafka 2.0.
OLDEST_NEEDED = {"Produce": 3, "Fetch": 4, "ListOffsets": 1, "Metadata": 0, "JoinGroup": 0}


KNOWN = UUID(int=1)
"""The placeholder of the topic's id."""
RESOURCE = {"resource_type": 2, "resource_name": TOPIC}
SETTING = {"name": "retention.ms", "value": "-1"}
LOG_DIR = {"path": "/nowhere", "topics": [{"name": TOPIC, "partitions": [0]}]}
COMMIT = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1}
WANTED = {"name": TOPIC, "partition_indexes": [0]}
READ = {
    "current_leader_epoch": -1,
    "fetch_offset": 5,
    "last_fetched_epoch": -1,
    "log_start_offset": -1,
    "partition_max_bytes": 1 << 20,
}
ACL = {
    "resource_type": 2,
    "resource_name": TOPIC,
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
LATEST = {"current_leader_epoch": -1, "timestamp": -1}
OF_GROUP = {"group_id": "g"}
UNKNOWN_MEMBER = {"group_id": "g", "member_id": "unknown"}

# The fields of a request that succeeds, or that names something without existence.
REQUESTS: dict[str, dict[str, Any]] = {
    "Produce": {"topics": [{"name": TOPIC, "topic_id": KNOWN, "partitions": [(0, BATCH)]}]},
    "Fetch": {
        "replica_id": -1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "rack_id": "",
        "topics": [{"topic": TOPIC, "topic_id": KNOWN, "partitions": [READ]}],
    },
    "ListOffsets": {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [LATEST]}]},
    "Metadata": {"topics": [{"name": TOPIC, "topic_id": KNOWN}]},
    "OffsetCommit": {
        **OF_GROUP,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": TOPIC, "topic_id": KNOWN, "partitions": [COMMIT]}],
    },
    "OffsetFetch": {
        **OF_GROUP,
        "topics": [WANTED],
        "groups": [
            {
                "group_id": "g",
                "member_epoch": -1,
                "topics": [{**WANTED, "topic_id": KNOWN}],
            }
        ],
    },
    "FindCoordinator": {"key": "g", "coordinator_keys": ["g"], "key_type": 0},
    "JoinGroup": {
        "group_id": "joined by {version}",
        "session_timeout": 6_000,
        "rebalance_timeout": 6_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    },
    "ApiVersions": {"client_software_name": "test", "client_software_version": "1"},
    "Heartbeat": UNKNOWN_MEMBER,
    "LeaveGroup": {**UNKNOWN_MEMBER, "members": [{"member_id": "unknown"}]},
    "SyncGroup": UNKNOWN_MEMBER,
    "DescribeGroups": {"groups": ["g"]},
    "DeleteGroups": {"groups_names": ["none such"]},
    "SaslHandshake": {"mechanism": "PLAIN"},
    "SaslAuthenticate": {"auth_bytes": b"x"},
    "DescribeUserScramCredentials": {"users": [{"name": "none such"}]},
    "AlterUserScramCredentials": {"deletions": [{"name": "none such", "mechanism": 1}]},
    "DescribeClientQuotas": {"components": [], "strict": False},
    "AlterClientQuotas": {
        "entries": [{"entity": [], "ops": []}],
        "validate_only": False,
    },
    "DescribeAcls": ANY_ACL,
    "CreateAcls": {"creations": [ACL]},
    "DeleteAcls": {"filters": [ANY_ACL]},
    "OffsetDelete": {"group_id": "none such", "topics": []},
    "CreateTopics": {
        "topics": [{"name": "made-{version}", "num_partitions": 1, "replication_factor": 1}],
        "timeout": 1000,
    },
    "DeleteTopics": {
        "topic_names": ["none such"],
        "topics": [{"name": "none such", "topic_id": None}],
    },
    "DeleteRecords": {
        "topics": [{"name": TOPIC, "partitions": [{"offset": 3}]}],
        "timeout": 1000,
    },
    "InitProducerId": {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    "OffsetForLeaderEpoch": {
        "replica_id": -1,
        "topics": [{"topic": TOPIC, "partitions": [{"current_leader_epoch": -1}]}],
    },
    "DescribeConfigs": {"resources": [{**RESOURCE, "configuration_keys": None}]},
    "AlterConfigs": {"resources": [{**RESOURCE, "configs": [SETTING]}]},
    "IncrementalAlterConfigs": {"resources": [{**RESOURCE, "configs": [SETTING]}]},
    "AlterReplicaLogDirs": {"dirs": [LOG_DIR]},
    "DescribeLogDirs": {"topics": [{"topic": TOPIC, "partitions": [0]}]},
    "CreatePartitions": {
        "topics": [{"name": TOPIC, "count": 2, "assignments": None}],
        "timeout": 1000,
        "validate_only": True,
    },
    "DescribeQuorum": {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    "UpdateFeatures": {
        "timeout": 1000,
        "feature_updates": [
            {"feature": "metadata.version", "max_version_level": 30, "upgrade_type": 1}
        ],
    },
    "DescribeCluster": {"endpoint_type": 1},
    "DescribeProducers": {"topics": [WANTED]},
    "DescribeTopicPartitions": {"topics": [{"name": TOPIC}], "cursor": None},
    "ElectLeaders": {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}]},
    "AlterPartitionReassignments": {
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    },
    "ListPartitionReassignments": {"topics": None},
    "TxnOffsetCommit": {
        **OF_GROUP,
        "transactional_id": "t",
        "topics": [{"name": TOPIC, "partitions": [COMMIT]}],
    },
    "DescribeTransactions": {"transactional_ids": ["none such"]},
    "ListTransactions": {"duration_filter": -1},
    "WriteTxnMarkers": {"markers": [{"topics": [{"name": "none such", "partition_indexes": [0]}]}]},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Without a receiver of clients' metrics their two APIs are not served.
    place = tmp_path_factory.mktemp("broker")
    with broker_process(place, telemetry__series__enable="true") as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
        produce(running, 10)
        ask(running, "FindCoordinator", 6, key_type=0, coordinator_keys=["g"])
        yield running


def produce(broker: BrokerProcess, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for _ in range(count):
        producer.produce(TOPIC, b"x")
    assert producer.flush(30) == 0


def ask(broker: BrokerProcess, api: str, version: int, **values: Any) -> Any:
    """Send one request over a new connection; return the answer."""
    asker = Broker(broker.address, "", {KEYS[api].key: (version, version)})
    try:
        return asker.connect().ask(api, **values)
    finally:
        asker.close()


# Answers other than success to the requests above.
ANSWERED = {
    "JoinGroup": {"none", "member_id_required"},
    "Heartbeat": {"unknown_member_id"},
    "LeaveGroup": {"none", "unknown_member_id"},
    "SyncGroup": {"unknown_member_id"},
    "DescribeGroups": {"none", "group_id_not_found"},
    "DeleteGroups": {"group_id_not_found"},
    "SaslHandshake": {"illegal_sasl_state"},  # the listener has no SASL
    "SaslAuthenticate": {"illegal_sasl_state"},
    "DescribeUserScramCredentials": {"none", "resource_not_found"},
    "AlterUserScramCredentials": {"resource_not_found"},
    "AlterClientQuotas": {"invalid_request"},  # of no entity
    "DescribeAcls": {"security_disabled"},
    "CreateAcls": {"security_disabled"},
    "DeleteAcls": {"security_disabled"},
    # The listener has neither TLS nor a login.
    "CreateDelegationToken": {"delegation_token_request_not_allowed"},
    "RenewDelegationToken": {"delegation_token_request_not_allowed"},
    "ExpireDelegationToken": {"delegation_token_request_not_allowed"},
    "DescribeDelegationToken": {"delegation_token_request_not_allowed"},
    "PushTelemetry": {"invalid_request"},  # of no client instance
    "OffsetDelete": {"group_id_not_found"},
    "DeleteTopics": {"unknown_topic_or_partition"},
    "AlterReplicaLogDirs": {"log_dir_not_found"},
    "ElectLeaders": {"none", "election_not_needed"},
    "UnregisterBroker": {"broker_id_not_registered"},
    "AddOffsetsToTxn": {"invalid_request"},  # an empty transactional id
    "EndTxn": {"invalid_request"},
    # Its partition is not in a transaction, and `__transaction_state` may not exist.
    "TxnOffsetCommit": {"coordinator_load_in_progress", "invalid_producer_id_mapping"},
    "DescribeTransactions": {
        "transactional_id_not_found",
        "coordinator_load_in_progress",
        "not_coordinator",
    },
    "WriteTxnMarkers": {"unknown_topic_or_partition"},
    "AddRaftVoter": {"invalid_request"},  # a voter without a directory
    "RemoveRaftVoter": {"invalid_request"},
}


def codes(body: Any) -> list[str]:
    """Return every error code in an answer."""
    if isinstance(body, (tuple, list)):
        return [code for one in body for code in codes(one)]
    found = []
    for name in getattr(body, "__struct_fields__", ()):
        value = getattr(body, name)
        if name == "error_code":
            found.append(error_of(value).name)
        else:
            found += codes(value)
    return found


def filled(value: Any, known: UUID, version: int) -> Any:
    """Return a request's fields with the topic's id filled in."""
    match value:
        case dict():
            return {key: filled(one, known, version) for key, one in value.items()}
        case list() | tuple():
            return type(value)(filled(one, known, version) for one in value)
        case str():
            return value.replace("{version}", str(version))
        case UUID():
            return known
    return value


@pytest.mark.parametrize(
    "name", [api.name for api in APIS.values() if ListenerKind.BROKER in api.listeners]
)
def test_every_version_is_answered(broker: BrokerProcess, name: str) -> None:
    known = ask(broker, "Metadata", 12, topics=[{"name": TOPIC}]).topics[0].topic_id
    oldest, newest = APIS[KEYS[name].key].served
    for version in range(oldest, newest + 1):
        by_id = NO_ID if name == "Metadata" and version < 12 else known
        fields = filled(REQUESTS.get(name, {}), by_id, version)
        answer = ask(broker, name, version, **fields)
        found = codes(answer)
        assert found or name in ("CreateTopics", "Metadata"), "the answer must have an error code"
        assert set(found) <= ANSWERED.get(name, {"none"}), (version, answer)


def test_every_version_that_clients_use_is_advertised(broker: BrokerProcess) -> None:
    advertised = api_versions(broker.address)
    assert {KEYS[name].key for name in SPOKEN} == set(advertised), (
        "the broker must advertise exactly the APIs of the table"
    )
    for name, (java, librdkafka, seen) in SPOKEN.items():
        oldest, newest = advertised[KEYS[name].key]
        assert oldest <= java[0], f"{name}: the oldest that Java's client speaks"
        assert newest >= java[1], f"{name}: the newest that Java's client speaks"
        if librdkafka is not None:
            assert oldest <= librdkafka[1] <= newest, f"{name}: the newest of librdkafka"
        served = APIS[KEYS[name].key].served
        missing = {one for one in seen if not served[0] <= one <= served[1]}
        assert not missing, f"{name}: {missing} are asked for"
        assert served[0] <= OLDEST_NEEDED.get(name, served[1]), name
    assert advertised[0][0] == 0, "or librdkafka before 2.10 leaves compression out (KAFKA-18659)"
    assert APIS[0].served[0] == 3


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_for_leader_epoch_answers_each_epochs_end(tmp_path: Path, version: int) -> None:
    with broker_process(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
        produce(broker, 5)
        broker.stop()
        broker.start()
        produce(broker, 3)

        def epoch(current: int, wanted: int) -> tuple[str, int, int]:
            one = {"partition": 0, "current_leader_epoch": current, "leader_epoch": wanted}
            answer = ask(
                broker,
                "OffsetForLeaderEpoch",
                version,
                replica_id=-1,
                topics=[{"topic": TOPIC, "partitions": [one]}],
            )
            (found,) = answer.topics[0].partitions
            return error_of(found.error_code).name, found.leader_epoch, found.end_offset

        latest = next(now for now in range(10) if epoch(now, 0)[0] == "none")
        assert latest > 0, "a restart must begin an epoch"
        assert epoch(latest, 0) == ("none", 0, 5)
        assert epoch(-1, latest) == ("none", latest, 8)
        assert epoch(latest, latest + 1) == ("none", -1, -1)
        assert epoch(latest - 1, 0)[0] == "fenced_leader_epoch"
        assert epoch(latest + 1, 0)[0] == "unknown_leader_epoch"
