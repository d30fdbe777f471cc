"""Every API this broker serves: one module each, which begins with its versions and their changes.

In: a `Call`. Out: the answer's body. Handlers translate between the protocol and the broker's parts; they decide
nothing.

Each module has `handle`, and `Needs`: the parts of the broker that a call carries, by the names and types they have in
`Broker`.

The table imports no module: the first request of an API imports its handler, its messages and their codec.
"""

from functools import partial
from importlib import import_module

import msgspec

from stratalog.broker.network.authorizer import Operation, Resource, Right
from stratalog.broker.network.dispatch import Api, Handler
from stratalog.broker.telemetry import is_configured
from stratalog.config import BrokerConfig
from stratalog.wire.apis import APIS as NAMES
from stratalog.wire.apis import FETCH, ListenerKind


def _api(
    name: str,
    key: int,
    advertised: tuple[int, int],
    *rights: str,
    served_from: int = -1,
) -> Api:
    load = partial(_handler, NAMES[key].name)
    needed = tuple(map(_right, rights))
    is_forwarded = name in _FORWARDED
    return Api(
        name,
        key,
        advertised,
        load,
        NAMES[key].listeners,
        needed,
        served_from,
        is_forwarded,
        is_of_tokens=name.endswith("DelegationToken"),
    )


def _right(text: str) -> Right:
    operation, resource = text.split()
    return Right(Operation[operation], Resource[resource])


def _handler(name: str) -> Handler:
    module = import_module(f"{__name__}.{name}")
    return Handler(module.handle, module.Needs)


_INIT_PRODUCER_ID = 22
_DESCRIBE_CLUSTER = 60
_GET_TELEMETRY_SUBSCRIPTIONS = 71
_PUSH_TELEMETRY = 72
_FORWARDED = {
    "AddRaftVoter",
    "AlterClientQuotas",
    "AlterConfigs",
    "AlterPartitionReassignments",
    "AlterUserScramCredentials",
    "CreateAcls",
    "CreateDelegationToken",
    "CreatePartitions",
    "CreateTopics",
    "DeleteAcls",
    "DeleteTopics",
    "DescribeQuorum",
    "ElectLeaders",
    "ExpireDelegationToken",
    "IncrementalAlterConfigs",
    "ListPartitionReassignments",
    "RemoveRaftVoter",
    "RenewDelegationToken",
    "UnregisterBroker",
    "UpdateFeatures",
}
"""The controller decides their requests (Kafka: `KafkaApis`)."""

_TABLE = (
    _api("Produce", 0, (0, 13), "WRITE TOPIC", "WRITE TRANSACTIONAL_ID", served_from=3),
    _api("Fetch", 1, (4, 18), "READ TOPIC", "CLUSTER_ACTION CLUSTER"),
    _api("ListOffsets", 2, (1, 11), "DESCRIBE TOPIC"),
    _api(
        "Metadata",
        3,
        (0, 13),
        "DESCRIBE TOPIC",
        "CREATE TOPIC",
        "CREATE CLUSTER",
        "DESCRIBE CLUSTER",
    ),
    _api("OffsetCommit", 8, (2, 10), "READ GROUP", "READ TOPIC"),
    _api("OffsetFetch", 9, (1, 10), "DESCRIBE GROUP", "DESCRIBE TOPIC"),
    _api(
        "FindCoordinator",
        10,
        (0, 6),
        "DESCRIBE GROUP",
        "DESCRIBE TRANSACTIONAL_ID",
        "CLUSTER_ACTION CLUSTER",
    ),
    _api("JoinGroup", 11, (0, 9), "READ GROUP"),
    _api("Heartbeat", 12, (0, 4), "READ GROUP"),
    _api("LeaveGroup", 13, (0, 5), "READ GROUP"),
    _api("SyncGroup", 14, (0, 5), "READ GROUP"),
    _api("SaslHandshake", 17, (0, 1)),
    _api("ApiVersions", 18, (0, 4)),
    _api("SaslAuthenticate", 36, (0, 2)),
    _api("DescribeClientQuotas", 48, (0, 1), "DESCRIBE_CONFIGS CLUSTER"),
    _api("AlterClientQuotas", 49, (0, 1), "ALTER_CONFIGS CLUSTER"),
    _api("DescribeUserScramCredentials", 50, (0, 0), "DESCRIBE CLUSTER"),
    _api("AlterUserScramCredentials", 51, (0, 0), "ALTER CLUSTER"),
    _api("CreateTopics", 19, (2, 7), "CREATE CLUSTER", "CREATE TOPIC", "DESCRIBE_CONFIGS TOPIC"),
    _api("DeleteTopics", 20, (1, 6), "DELETE TOPIC", "DESCRIBE TOPIC", "DELETE CLUSTER"),
    _api(
        "InitProducerId",
        22,
        (0, 5),
        "WRITE TRANSACTIONAL_ID",
        "TWO_PHASE_COMMIT TRANSACTIONAL_ID",
        "IDEMPOTENT_WRITE CLUSTER",
        "WRITE TOPIC",
    ),
    _api(
        "AddPartitionsToTxn",
        24,
        (0, 5),
        "WRITE TRANSACTIONAL_ID",
        "WRITE TOPIC",
        "CLUSTER_ACTION CLUSTER",
    ),
    _api("AddOffsetsToTxn", 25, (0, 4), "WRITE TRANSACTIONAL_ID", "READ GROUP"),
    _api("TxnOffsetCommit", 28, (0, 5), "WRITE TRANSACTIONAL_ID", "READ GROUP", "READ TOPIC"),
    _api("EndTxn", 26, (0, 5), "WRITE TRANSACTIONAL_ID"),
    _api("WriteTxnMarkers", 27, (1, 2), "CLUSTER_ACTION CLUSTER"),
    _api("DescribeTransactions", 65, (0, 0), "DESCRIBE TRANSACTIONAL_ID", "DESCRIBE TOPIC"),
    _api("ListTransactions", 66, (0, 2), "DESCRIBE TRANSACTIONAL_ID"),
    _api(
        "DescribeConfigs",
        32,
        (1, 4),
        "DESCRIBE_CONFIGS TOPIC",
        "DESCRIBE_CONFIGS GROUP",
        "DESCRIBE_CONFIGS CLUSTER",
    ),
    _api("DescribeCluster", 60, (0, 2), "DESCRIBE CLUSTER"),
    _api("DescribeGroups", 15, (0, 6), "DESCRIBE GROUP"),
    _api("ListGroups", 16, (0, 5), "DESCRIBE CLUSTER", "DESCRIBE GROUP"),
    _api("DescribeAcls", 29, (1, 3), "DESCRIBE CLUSTER"),
    _api("CreateAcls", 30, (1, 3), "ALTER CLUSTER"),
    _api("DeleteAcls", 31, (1, 3), "ALTER CLUSTER"),
    _api("CreateDelegationToken", 38, (1, 3), "CREATE_TOKENS USER"),
    _api("RenewDelegationToken", 39, (1, 2)),
    _api("ExpireDelegationToken", 40, (1, 2)),
    _api(
        "DescribeDelegationToken",
        41,
        (1, 3),
        "DESCRIBE DELEGATION_TOKEN",
        "DESCRIBE_TOKENS USER",
    ),
    _api("DeleteGroups", 42, (0, 2), "DELETE GROUP"),
    _api("OffsetDelete", 47, (0, 0), "DELETE GROUP", "READ TOPIC"),
    _api(
        "AlterConfigs",
        33,
        (0, 2),
        "ALTER_CONFIGS TOPIC",
        "ALTER_CONFIGS GROUP",
        "ALTER_CONFIGS CLUSTER",
    ),
    _api("AlterReplicaLogDirs", 34, (1, 2), "ALTER CLUSTER"),
    _api("CreatePartitions", 37, (0, 3), "ALTER TOPIC"),
    _api("DeleteRecords", 21, (0, 2), "DELETE TOPIC"),
    _api("DescribeLogDirs", 35, (1, 5), "DESCRIBE CLUSTER"),
    _api("DescribeProducers", 61, (0, 0), "READ TOPIC"),
    _api("DescribeQuorum", 55, (0, 2), "DESCRIBE CLUSTER"),
    _api("DescribeTopicPartitions", 75, (0, 0), "DESCRIBE TOPIC"),
    _api(
        "IncrementalAlterConfigs",
        44,
        (0, 1),
        "ALTER_CONFIGS TOPIC",
        "ALTER_CONFIGS GROUP",
        "ALTER_CONFIGS CLUSTER",
    ),
    _api("GetTelemetrySubscriptions", 71, (0, 0)),
    _api("PushTelemetry", 72, (0, 0)),
    _api("ListConfigResources", 74, (0, 1), "DESCRIBE_CONFIGS CLUSTER"),
    _api("OffsetForLeaderEpoch", 23, (2, 4), "DESCRIBE TOPIC", "CLUSTER_ACTION CLUSTER"),
    _api("Envelope", 58, (0, 0), "CLUSTER_ACTION CLUSTER"),
    _api("UpdateFeatures", 57, (0, 2), "ALTER CLUSTER"),
    _api("ElectLeaders", 43, (0, 2), "ALTER CLUSTER"),
    _api("AlterPartitionReassignments", 45, (0, 1), "ALTER CLUSTER"),
    _api("ListPartitionReassignments", 46, (0, 0), "DESCRIBE CLUSTER"),
    _api("AlterPartition", 56, (2, 3), "CLUSTER_ACTION CLUSTER"),
    _api("BrokerRegistration", 62, (0, 4), "CLUSTER_ACTION CLUSTER"),
    _api("BrokerHeartbeat", 63, (0, 2), "CLUSTER_ACTION CLUSTER"),
    _api("UnregisterBroker", 64, (0, 0), "ALTER CLUSTER"),
    _api("AllocateProducerIds", 67, (0, 0), "CLUSTER_ACTION CLUSTER"),
    _api("ControllerRegistration", 70, (0, 0), "CLUSTER_ACTION CLUSTER"),
    _api("AssignReplicasToDirs", 73, (0, 0), "CLUSTER_ACTION CLUSTER"),
    _api("Vote", 52, (0, 2), "CLUSTER_ACTION CLUSTER"),
    _api("BeginQuorumEpoch", 53, (0, 1), "CLUSTER_ACTION CLUSTER"),
    _api("EndQuorumEpoch", 54, (0, 1), "CLUSTER_ACTION CLUSTER"),
    _api("AddRaftVoter", 80, (0, 1), "ALTER CLUSTER"),
    _api("RemoveRaftVoter", 81, (0, 0), "ALTER CLUSTER"),
    _api("UpdateRaftVoter", 82, (0, 0), "CLUSTER_ACTION CLUSTER"),
    _api("FetchSnapshot", 59, (0, 1), "CLUSTER_ACTION CLUSTER"),
)

APIS: dict[int, Api] = {api.key: api for api in _TABLE}


def apis_of_brokers(config: BrokerConfig) -> dict[int, Api]:
    """Return the APIs of a broker by key, those of client metrics only where something becomes of them.

    Apache Kafka 4.3 marks InitProducerId 6 as unstable (KIP-939).
    """
    found = dict(APIS)
    if not is_configured(config):
        del found[_GET_TELEMETRY_SUBSCRIPTIONS], found[_PUSH_TELEMETRY]
    if config.bool("transaction.two.phase.commit.enable"):
        found[_INIT_PRODUCER_ID] = _changed(APIS[_INIT_PRODUCER_ID], advertised=(0, 6))
    return found


def apis_of_controllers() -> dict[int, Api]:
    """Return the APIs of a controller's listener by key. Its Fetch is of the metadata log, and its DescribeCluster of
    the controllers.
    """
    found = {api.key: api for api in _TABLE if ListenerKind.CONTROLLER in api.listeners}
    for key, load in ((FETCH, _fetch_of_metadata), (_DESCRIBE_CLUSTER, _describe_controllers)):
        found[key] = _changed(found[key], load=load)
    return found


def _changed(api: Api, **fields: object) -> Api:
    """Return a new Api. A copy would have the handler that another listener has loaded already."""
    return Api(**msgspec.structs.asdict(api) | fields)


def _fetch_of_metadata() -> Handler:
    from stratalog.broker.apis import fetch_metadata_log  # noqa: PLC0415 - with the first fetch

    return Handler(fetch_metadata_log.handle, fetch_metadata_log.Needs)


def _describe_controllers() -> Handler:
    from stratalog.broker.apis import describe_controllers  # noqa: PLC0415 - as above

    return Handler(describe_controllers.handle, describe_controllers.Needs)
