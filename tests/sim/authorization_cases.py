"""Requests of each API, with the error that Apache Kafka gives a client without any right.

In: the topics and groups that a request names. Out: bodies. It sends nothing. Kafka: `KafkaApis`, `ControllerApis`.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.produce import produce_body
from tests.sim.authorization_acls import ACL_CASES
from tests.sim.authorization_case import (
    CLUSTER,
    GROUP,
    NONE,
    TOPIC,
    TRANSACTIONAL_ID,
    Case,
    Named,
    case,
)
from tests.sim.authorization_telemetry import TELEMETRY_CASES
from tests.sim.authorization_voters import VOTER_CASES
from tests.sim.records import batch
from tests.sim.world import START_MS

from stratalog.wire.messages.produce import ProduceRequest
from stratalog.wire.records import Record, build_batch


def _produce(topics: Sequence[str | UUID], transactional_id: str | None = None) -> ProduceRequest:
    records: bytes | bytearray = batch([b"x"], START_MS)
    if transactional_id is not None:
        one = Record(0, START_MS, None, b"x", ())
        records = build_batch(
            [one], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0
        )
    data = [topic for name in topics for topic in produce_body(name, records).topic_data]
    return ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=data
    )


def _fetch(name: str, named: Named, **more: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics: list[Any] = [{"topic": one} for one in named.topics]
    if name == "topic_id":
        topics = [{"topic_id": str(one)} for one in named.topics.values()]
    asked = [{**one, "partitions": [partition]} for one in topics]
    return {"max_wait_ms": 0, "min_bytes": 0, "topics": asked, **more}


def _settings(named: Named, kind: int, **config: Any) -> list[dict[str, Any]]:
    names = {2: list(named.topics), 32: list(named.groups), 4: [""]}[kind]
    return [{"resource_type": kind, "resource_name": name, **config} for name in names]


def _describe_configs(kind: int, denied: int) -> Case:
    return case(
        "describe_configs",
        4,
        denied,
        lambda n: {"resources": _settings(n, kind, configuration_keys=None)},
    )


def _alter_configs(module: str, config: dict[str, Any], kind: int, denied: int) -> Case:
    return case(
        module,
        1,
        denied,
        lambda n: {"resources": _settings(n, kind, configs=[config]), "validate_only": False},
    )


def _init_producer_id(version: int, denied: int, name: str | None, **more: bool) -> Case:
    fields = {"transactional_id": name, "transaction_timeout_ms": 1, **more}
    return case("init_producer_id", version, denied, lambda _: fields)


def _offset_commit(version: int) -> Case:
    def ask(named: Named) -> Any:
        each = named.ids if version >= 10 else named.each
        topics = each(partitions=[_COMMITTED])
        return {"group_id": named.groups[-1], "member_id": "", "topics": topics}

    return case("offset_commit", version, GROUP, ask)


def _offset_fetch(version: int) -> Case:
    def ask(named: Named) -> Any:
        topics = (named.ids if version >= 10 else named.each)(partition_indexes=[0])
        return {"groups": [{"group_id": group, "topics": topics} for group in named.groups]}

    return case("offset_fetch", version, GROUP, ask)


_SETTINGS = ((2, TOPIC), (32, GROUP), (4, CLUSTER))
"""Types of resources that have settings, and the error without a right to them."""
_COMMITTED = {"partition_index": 0, "committed_offset": 3, "committed_metadata": None}
_RETENTION = {"name": "retention.ms", "value": "1000"}
_PRODUCER = {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0}
_CONSUMER = {"name": "range", "metadata": b""}

CASES: Mapping[str, Sequence[Case]] = {
    "Produce": [
        Case(9, lambda n: _produce([*n.topics]), TOPIC),
        Case(13, lambda n: _produce([*n.topics.values()]), TOPIC, hides=True),
        Case(9, lambda n: _produce([*n.topics], "tx"), TOPIC),
    ],
    "Fetch": [
        case("fetch", 12, TOPIC, lambda n: _fetch("topic", n)),
        case("fetch", 17, TOPIC, lambda n: _fetch("topic_id", n), hides=True),
        case("fetch", 12, TOPIC, lambda n: _fetch("topic", n, replica_id=2)),
        case("fetch", 17, TOPIC, lambda n: _fetch("topic_id", n, replica_state={"replica_id": 2})),
    ],
    "ListOffsets": [
        case(
            "list_offsets",
            7,
            TOPIC,
            lambda n: {
                "replica_id": -1,
                "topics": n.each(partitions=[{"partition_index": 0, "timestamp": -1}]),
            },
        )
    ],
    "Metadata": [
        case("metadata", 9, TOPIC, lambda n: {"topics": n.each()}),
        case("metadata", 12, TOPIC, lambda n: {"topics": n.ids(name=None)}, hides=True),
        case("metadata", 9, NONE, lambda _: {"topics": None}, hides=True),
        case("metadata", 9, TOPIC, lambda _: {"topics": [{"name": "no-such-topic"}]}),
        case(
            "metadata",
            9,
            NONE,
            lambda _: {"topics": [], "include_cluster_authorized_operations": True},
        ),
    ],
    "OffsetCommit": [_offset_commit(8), _offset_commit(10)],
    "OffsetFetch": [
        *[
            case(
                "offset_fetch",
                version,
                GROUP,
                lambda n: {"group_id": n.groups[-1], "topics": n.each(partition_indexes=[0])},
            )
            for version in (1, 7)
        ],
        case(
            "offset_fetch",
            7,
            GROUP,
            lambda n: {"group_id": n.groups[-1], "topics": None},
            hides=True,
        ),
        _offset_fetch(8),
        _offset_fetch(10),
    ],
    "FindCoordinator": [
        case("find_coordinator", 3, GROUP, lambda n: {"key": n.groups[-1]}),
        case("find_coordinator", 4, GROUP, lambda n: {"coordinator_keys": n.groups}),
        case(
            "find_coordinator",
            4,
            TRANSACTIONAL_ID,
            lambda _: {"coordinator_keys": ["tx"], "key_type": 1},
        ),
        case("find_coordinator", 6, CLUSTER, lambda _: {"coordinator_keys": ["s"], "key_type": 2}),
    ],
    "JoinGroup": [
        case(
            "join_group",
            2,
            GROUP,
            lambda n: {
                "group_id": n.groups[-1],
                "member_id": "",
                "session_timeout_ms": 10_000,
                "protocol_type": "consumer",
                "protocols": [_CONSUMER],
            },
        )
    ],
    "Heartbeat": [
        case(
            "heartbeat",
            3,
            GROUP,
            lambda n: {"group_id": n.groups[-1], "generation_id": 1, "member_id": "m"},
        )
    ],
    "LeaveGroup": [
        case("leave_group", 2, GROUP, lambda n: {"group_id": n.groups[-1], "member_id": "m"}),
        case(
            "leave_group",
            4,
            GROUP,
            lambda n: {"group_id": n.groups[-1], "members": [{"member_id": "m"}]},
        ),
    ],
    "SyncGroup": [
        case(
            "sync_group",
            3,
            GROUP,
            lambda n: {
                "group_id": n.groups[-1],
                "generation_id": 1,
                "member_id": "m",
                "assignments": [],
            },
        )
    ],
    "ApiVersions": [case("api_versions", 2, NONE, lambda _: {})],
    "CreateTopics": [
        case(
            "create_topics",
            5,
            TOPIC,
            lambda _: {
                "topics": [
                    {
                        "name": "new",
                        "num_partitions": 1,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ]
            },
        )
    ],
    "DeleteTopics": [
        case("delete_topics", 5, TOPIC, lambda n: {"topic_names": [*n.topics], "timeout_ms": 1}),
        case("delete_topics", 6, TOPIC, lambda n: {"topics": n.ids(), "timeout_ms": 1}, hides=True),
        case("delete_topics", 5, TOPIC, lambda _: {"topic_names": ["gone"], "timeout_ms": 1}),
    ],
    "InitProducerId": [
        _init_producer_id(4, CLUSTER, None),
        _init_producer_id(4, TRANSACTIONAL_ID, "tx"),
        _init_producer_id(6, TRANSACTIONAL_ID, "tx", enable2_pc=True),
    ],
    "AddPartitionsToTxn": [
        case(
            "add_partitions_to_txn",
            3,
            TRANSACTIONAL_ID,
            lambda n: {
                "v3_and_below_transactional_id": "tx",
                "v3_and_below_topics": n.each(partitions=[0]),
            },
        ),
        case("add_partitions_to_txn", 4, CLUSTER, lambda _: {"transactions": []}),
    ],
    "AddOffsetsToTxn": [
        case(
            "add_offsets_to_txn",
            3,
            TRANSACTIONAL_ID,
            lambda n: {**_PRODUCER, "group_id": n.groups[-1]},
        )
    ],
    "TxnOffsetCommit": [
        case(
            "txn_offset_commit",
            3,
            TRANSACTIONAL_ID,
            lambda n: {
                **_PRODUCER,
                "group_id": n.groups[-1],
                "topics": n.each(partitions=[_COMMITTED]),
            },
        )
    ],
    "EndTxn": [
        case(
            "end_txn",
            3,
            TRANSACTIONAL_ID,
            lambda _: {**_PRODUCER, "committed": True},
        )
    ],
    "DescribeTransactions": [
        case(
            "describe_transactions",
            0,
            TRANSACTIONAL_ID,
            lambda _: {"transactional_ids": ["open"]},
            hides=True,
        )
    ],
    "ListTransactions": [
        case(
            "list_transactions",
            1,
            NONE,
            lambda _: {"state_filters": [], "producer_id_filters": []},
        )
    ],
    "WriteTxnMarkers": [
        case(
            "write_txn_markers",
            1,
            CLUSTER,
            lambda n: {
                "markers": [
                    {
                        "producer_id": 1,
                        "producer_epoch": 0,
                        "transaction_result": True,
                        "topics": n.each(partition_indexes=[0]),
                        "coordinator_epoch": 0,
                    }
                ]
            },
        )
    ],
    "DescribeConfigs": [_describe_configs(*one) for one in _SETTINGS],
    "DescribeCluster": [
        case("describe_cluster", 1, NONE, lambda _: {"include_cluster_authorized_operations": True})
    ],
    "DescribeGroups": [case("describe_groups", 5, GROUP, lambda n: {"groups": n.groups})],
    "ListGroups": [case("list_groups", 4, NONE, lambda _: {}, hides=True)],
    "DeleteGroups": [case("delete_groups", 2, GROUP, lambda n: {"groups_names": n.groups})],
    "OffsetDelete": [
        case(
            "offset_delete",
            0,
            GROUP,
            lambda n: {
                "group_id": n.groups[-1],
                "topics": n.each(partitions=[{"partition_index": 0}]),
            },
        )
    ],
    "AlterConfigs": [_alter_configs("alter_configs", _RETENTION, *one) for one in _SETTINGS],
    "IncrementalAlterConfigs": [
        _alter_configs("incremental_alter_configs", {**_RETENTION, "config_operation": 0}, *one)
        for one in _SETTINGS
    ],
    "AlterReplicaLogDirs": [
        case(
            "alter_replica_log_dirs",
            2,
            CLUSTER,
            lambda n: {"dirs": [{"path": "/data", "topics": n.each(partitions=[0])}]},
        )
    ],
    "CreatePartitions": [
        case(
            "create_partitions",
            2,
            TOPIC,
            lambda n: {
                "topics": n.each(count=3, assignments=None),
                "timeout_ms": 1,
                "validate_only": False,
            },
        )
    ],
    "DeleteRecords": [
        case(
            "delete_records",
            2,
            TOPIC,
            lambda n: {
                "topics": n.each(partitions=[{"partition_index": 0, "offset": 1}]),
                "timeout_ms": 1,
            },
        )
    ],
    "DescribeLogDirs": [
        case("describe_log_dirs", 3, CLUSTER, lambda _: {"topics": None}, hides=True)
    ],
    "DescribeProducers": [
        case("describe_producers", 0, TOPIC, lambda n: {"topics": n.each(partition_indexes=[0])})
    ],
    "DescribeQuorum": [
        case(
            "describe_quorum",
            1,
            CLUSTER,
            lambda _: {
                "topics": [
                    {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
                ]
            },
        )
    ],
    "DescribeTopicPartitions": [
        case("describe_topic_partitions", 0, TOPIC, lambda n: {"topics": n.each()}),
        case("describe_topic_partitions", 0, NONE, lambda _: {"topics": []}, hides=True),
    ],
    "ListConfigResources": [case("list_config_resources", 1, CLUSTER, lambda _: {}, hides=True)],
    "OffsetForLeaderEpoch": [
        case(
            "offset_for_leader_epoch",
            4,
            TOPIC,
            lambda n: {
                "topics": [
                    {"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}
                    for topic in n.topics
                ]
            },
        )
    ],
    "UpdateFeatures": [case("update_features", 1, CLUSTER, lambda _: {"feature_updates": []})],
    "ElectLeaders": [
        case(
            "elect_leaders",
            2,
            CLUSTER,
            lambda n: {
                "topic_partitions": [{"topic": topic, "partitions": [0]} for topic in n.topics]
            },
        ),
        case("elect_leaders", 2, CLUSTER, lambda _: {"topic_partitions": None}, hides=True),
    ],
    "AlterPartitionReassignments": [
        case(
            "alter_partition_reassignments",
            0,
            CLUSTER,
            lambda n: {"topics": n.each(partitions=[{"partition_index": 0, "replicas": [1]}])},
        )
    ],
    "ListPartitionReassignments": [
        case("list_partition_reassignments", 0, CLUSTER, lambda _: {}, hides=True)
    ],
    "AlterPartition": [
        case("alter_partition", 3, CLUSTER, lambda _: {"broker_id": 1, "topics": []})
    ],
    "BrokerRegistration": [
        case(
            "broker_registration",
            4,
            CLUSTER,
            lambda _: {
                "broker_id": 2,
                "cluster_id": "",
                "incarnation_id": str(UUID(int=7)),
                "listeners": [],
                "features": [],
                "rack": None,
            },
        )
    ],
    "BrokerHeartbeat": [
        case(
            "broker_heartbeat",
            2,
            CLUSTER,
            lambda _: {
                "broker_id": 1,
                "current_metadata_offset": 0,
                "want_fence": False,
                "want_shut_down": False,
            },
        )
    ],
    "Envelope": [
        case(
            "envelope",
            0,
            CLUSTER,
            lambda _: {"request_data": "", "request_principal": "", "client_host_address": ""},
        )
    ],
    "UnregisterBroker": [case("unregister_broker", 0, CLUSTER, lambda _: {"broker_id": 1})],
    "AllocateProducerIds": [
        case("allocate_producer_ids", 0, CLUSTER, lambda _: {"broker_id": 1, "broker_epoch": 0})
    ],
    "AssignReplicasToDirs": [
        case("assign_replicas_to_dirs", 0, CLUSTER, lambda _: {"broker_id": 1, "directories": []})
    ],
    "ControllerRegistration": [
        case(
            "controller_registration",
            0,
            CLUSTER,
            lambda _: {
                "controller_id": 2,
                "incarnation_id": str(UUID(int=7)),
                "zk_migration_ready": False,
                "listeners": [],
                "features": [],
            },
        )
    ],
    "Vote": [case("vote", 2, CLUSTER, lambda _: {"topics": []})],
    "BeginQuorumEpoch": [case("begin_quorum_epoch", 1, CLUSTER, lambda _: {"topics": []})],
    "EndQuorumEpoch": [case("end_quorum_epoch", 1, CLUSTER, lambda _: {"topics": []})],
    "FetchSnapshot": [case("fetch_snapshot", 1, CLUSTER, lambda _: {"topics": []})],
    **TELEMETRY_CASES,
    **VOTER_CASES,
    **ACL_CASES,
}
