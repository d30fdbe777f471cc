"""Requests of each API, with the error that Apache Kafka gives a client without any right.

In: the topics and groups that a request names. Out: bodies. It sends nothing. Kafka: `KafkaApis`, `ControllerApis`.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from tests.produce import produce_body
from tests.sim.records import batch
from tests.sim.world import START_MS

from stratalog.wire.messages.produce import ProduceRequest
from stratalog.wire.records import Record, build_batch

VOTER = {"cluster_id": None, "voter_id": 1, "voter_directory_id": str(UUID(int=7))}
VERSIONS = {"min_supported_version": 0, "max_supported_version": 1}
NONE, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 0, 29, 30, 31, 53
Ask = Callable[["Named"], Any]


class Named(NamedTuple):
    """The resources that a request names: topics with their ids, and groups."""

    topics: Mapping[str, UUID]
    groups: Sequence[str]

    def each(self, **fields: Any) -> list[dict[str, Any]]:
        """Return `fields` with the name of each topic."""
        return [{"name": topic, **fields} for topic in self.topics]

    def ids(self, **fields: Any) -> list[dict[str, Any]]:
        """Return `fields` with the id of each topic."""
        return [{"topic_id": str(topic), **fields} for topic in self.topics.values()]


class Case(NamedTuple):
    """`denied` is the error without any right; with `hides` that answer shows no name of a topic or group."""

    version: int
    ask: Ask
    denied: int
    hides: bool = False


def _case(module: str, version: int, denied: int, ask: Ask, *, hides: bool = False) -> Case:
    name = "".join(word.title() for word in module.split("_"))
    cls = getattr(import_module(f"stratalog.wire.messages.{module}"), f"{name}Request")
    return Case(version, lambda named: msgspec.convert(ask(named), cls), denied, hides)


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
    return _case(
        "describe_configs",
        4,
        denied,
        lambda n: {"resources": _settings(n, kind, configuration_keys=None)},
    )


def _alter_configs(module: str, config: dict[str, Any], kind: int, denied: int) -> Case:
    return _case(
        module,
        1,
        denied,
        lambda n: {"resources": _settings(n, kind, configs=[config]), "validate_only": False},
    )


def _offset_commit(version: int) -> Case:
    def ask(named: Named) -> Any:
        each = named.ids if version >= 10 else named.each
        topics = each(partitions=[_COMMITTED])
        return {"group_id": named.groups[-1], "member_id": "", "topics": topics}

    return _case("offset_commit", version, GROUP, ask)


def _offset_fetch(version: int) -> Case:
    def ask(named: Named) -> Any:
        topics = (named.ids if version >= 10 else named.each)(partition_indexes=[0])
        return {"groups": [{"group_id": group, "topics": topics} for group in named.groups]}

    return _case("offset_fetch", version, GROUP, ask)


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
        _case("fetch", 12, TOPIC, lambda n: _fetch("topic", n)),
        _case("fetch", 17, TOPIC, lambda n: _fetch("topic_id", n), hides=True),
        _case("fetch", 12, TOPIC, lambda n: _fetch("topic", n, replica_id=2)),
        _case("fetch", 17, TOPIC, lambda n: _fetch("topic_id", n, replica_state={"replica_id": 2})),
    ],
    "ListOffsets": [
        _case(
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
        _case("metadata", 9, TOPIC, lambda n: {"topics": n.each()}),
        _case("metadata", 12, TOPIC, lambda n: {"topics": n.ids(name=None)}, hides=True),
        _case("metadata", 9, NONE, lambda _: {"topics": None}, hides=True),
        _case("metadata", 9, TOPIC, lambda _: {"topics": [{"name": "no-such-topic"}]}),
        _case(
            "metadata",
            9,
            NONE,
            lambda _: {"topics": [], "include_cluster_authorized_operations": True},
        ),
    ],
    "OffsetCommit": [_offset_commit(8), _offset_commit(10)],
    "OffsetFetch": [
        *[
            _case(
                "offset_fetch",
                version,
                GROUP,
                lambda n: {"group_id": n.groups[-1], "topics": n.each(partition_indexes=[0])},
            )
            for version in (1, 7)
        ],
        _case(
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
        _case("find_coordinator", 3, GROUP, lambda n: {"key": n.groups[-1]}),
        _case("find_coordinator", 4, GROUP, lambda n: {"coordinator_keys": n.groups}),
        _case(
            "find_coordinator",
            4,
            TRANSACTIONAL_ID,
            lambda _: {"coordinator_keys": ["tx"], "key_type": 1},
        ),
        _case("find_coordinator", 6, CLUSTER, lambda _: {"coordinator_keys": ["s"], "key_type": 2}),
    ],
    "JoinGroup": [
        _case(
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
        _case(
            "heartbeat",
            3,
            GROUP,
            lambda n: {"group_id": n.groups[-1], "generation_id": 1, "member_id": "m"},
        )
    ],
    "LeaveGroup": [
        _case("leave_group", 2, GROUP, lambda n: {"group_id": n.groups[-1], "member_id": "m"}),
        _case(
            "leave_group",
            4,
            GROUP,
            lambda n: {"group_id": n.groups[-1], "members": [{"member_id": "m"}]},
        ),
    ],
    "SyncGroup": [
        _case(
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
    "ApiVersions": [_case("api_versions", 2, NONE, lambda _: {})],
    "CreateTopics": [
        _case(
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
        _case("delete_topics", 5, TOPIC, lambda n: {"topic_names": [*n.topics], "timeout_ms": 1}),
        _case(
            "delete_topics", 6, TOPIC, lambda n: {"topics": n.ids(), "timeout_ms": 1}, hides=True
        ),
        _case("delete_topics", 5, TOPIC, lambda _: {"topic_names": ["gone"], "timeout_ms": 1}),
    ],
    "InitProducerId": [
        _case(
            "init_producer_id",
            4,
            CLUSTER,
            lambda _: {"transactional_id": None, "transaction_timeout_ms": 1},
        ),
        _case(
            "init_producer_id",
            4,
            TRANSACTIONAL_ID,
            lambda _: {"transactional_id": "tx", "transaction_timeout_ms": 1},
        ),
    ],
    "AddPartitionsToTxn": [
        _case(
            "add_partitions_to_txn",
            3,
            TRANSACTIONAL_ID,
            lambda n: {
                "v3_and_below_transactional_id": "tx",
                "v3_and_below_topics": n.each(partitions=[0]),
            },
        ),
        _case("add_partitions_to_txn", 4, CLUSTER, lambda _: {"transactions": []}),
    ],
    "AddOffsetsToTxn": [
        _case(
            "add_offsets_to_txn",
            3,
            TRANSACTIONAL_ID,
            lambda n: {**_PRODUCER, "group_id": n.groups[-1]},
        )
    ],
    "TxnOffsetCommit": [
        _case(
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
        _case(
            "end_txn",
            3,
            TRANSACTIONAL_ID,
            lambda _: {**_PRODUCER, "committed": True},
        )
    ],
    "WriteTxnMarkers": [
        _case(
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
        _case(
            "describe_cluster", 1, NONE, lambda _: {"include_cluster_authorized_operations": True}
        )
    ],
    "DescribeGroups": [_case("describe_groups", 5, GROUP, lambda n: {"groups": n.groups})],
    "ListGroups": [_case("list_groups", 4, NONE, lambda _: {}, hides=True)],
    "DeleteGroups": [_case("delete_groups", 2, GROUP, lambda n: {"groups_names": n.groups})],
    "OffsetDelete": [
        _case(
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
        _case(
            "alter_replica_log_dirs",
            2,
            CLUSTER,
            lambda n: {"dirs": [{"path": "/data", "topics": n.each(partitions=[0])}]},
        )
    ],
    "CreatePartitions": [
        _case(
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
        _case(
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
        _case("describe_log_dirs", 3, CLUSTER, lambda _: {"topics": None}, hides=True)
    ],
    "DescribeProducers": [
        _case("describe_producers", 0, TOPIC, lambda n: {"topics": n.each(partition_indexes=[0])})
    ],
    "DescribeQuorum": [
        _case(
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
        _case("describe_topic_partitions", 0, TOPIC, lambda n: {"topics": n.each()}),
        _case("describe_topic_partitions", 0, NONE, lambda _: {"topics": []}, hides=True),
    ],
    "ListConfigResources": [_case("list_config_resources", 1, CLUSTER, lambda _: {}, hides=True)],
    "OffsetForLeaderEpoch": [
        _case(
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
    "UpdateFeatures": [_case("update_features", 1, CLUSTER, lambda _: {"feature_updates": []})],
    "ElectLeaders": [
        _case(
            "elect_leaders",
            2,
            CLUSTER,
            lambda n: {
                "topic_partitions": [{"topic": topic, "partitions": [0]} for topic in n.topics]
            },
        ),
        _case("elect_leaders", 2, CLUSTER, lambda _: {"topic_partitions": None}, hides=True),
    ],
    "AlterPartitionReassignments": [
        _case(
            "alter_partition_reassignments",
            0,
            CLUSTER,
            lambda n: {"topics": n.each(partitions=[{"partition_index": 0, "replicas": [1]}])},
        )
    ],
    "ListPartitionReassignments": [
        _case("list_partition_reassignments", 0, CLUSTER, lambda _: {}, hides=True)
    ],
    "AlterPartition": [
        _case("alter_partition", 3, CLUSTER, lambda _: {"broker_id": 1, "topics": []})
    ],
    "BrokerRegistration": [
        _case(
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
        _case(
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
        _case(
            "envelope",
            0,
            CLUSTER,
            lambda _: {"request_data": "", "request_principal": "", "client_host_address": ""},
        )
    ],
    "UnregisterBroker": [_case("unregister_broker", 0, CLUSTER, lambda _: {"broker_id": 1})],
    "AllocateProducerIds": [
        _case("allocate_producer_ids", 0, CLUSTER, lambda _: {"broker_id": 1, "broker_epoch": 0})
    ],
    "AssignReplicasToDirs": [
        _case("assign_replicas_to_dirs", 0, CLUSTER, lambda _: {"broker_id": 1, "directories": []})
    ],
    "Vote": [_case("vote", 2, CLUSTER, lambda _: {"topics": []})],
    "BeginQuorumEpoch": [_case("begin_quorum_epoch", 1, CLUSTER, lambda _: {"topics": []})],
    "EndQuorumEpoch": [_case("end_quorum_epoch", 1, CLUSTER, lambda _: {"topics": []})],
    "AddRaftVoter": [
        _case("add_raft_voter", 0, CLUSTER, lambda _: {**VOTER, "timeout_ms": 9, "listeners": []})
    ],
    "RemoveRaftVoter": [_case("remove_raft_voter", 0, CLUSTER, lambda _: VOTER)],
    "UpdateRaftVoter": [
        _case(
            "update_raft_voter",
            0,
            CLUSTER,
            lambda _: {
                **VOTER,
                "current_leader_epoch": 1,
                "listeners": [],
                "kraft_version_feature": VERSIONS,
            },
        )
    ],
    "FetchSnapshot": [_case("fetch_snapshot", 1, CLUSTER, lambda _: {"topics": []})],
}
