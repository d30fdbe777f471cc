"""Every API this broker serves: one module each, opened by its versions and what each changed.

In: a `Call`. Out: the answer's body. Handlers translate between the wire and the parts; they decide nothing.

The table names no module: an API's handler, its messages and their codec are imported when its first request comes.
"""

from functools import partial
from importlib import import_module

from stratalog.broker.network.dispatch import Api, Handler
from stratalog.wire.apis import APIS as NAMES


def _api(name: str, key: int, advertised: tuple[int, int], served_from: int = -1) -> Api:
    return Api(name, key, advertised, partial(_handler, NAMES[key].name), served_from)


def _handler(module: str) -> Handler:
    handle: Handler = import_module(f"{__name__}.{module}").handle
    return handle


_TABLE = (
    _api("Produce", 0, (0, 13), served_from=3),
    _api("Fetch", 1, (4, 18)),
    _api("ListOffsets", 2, (1, 11)),
    _api("Metadata", 3, (0, 13)),
    _api("OffsetCommit", 8, (2, 10)),
    _api("OffsetFetch", 9, (1, 10)),
    _api("FindCoordinator", 10, (0, 6)),
    _api("JoinGroup", 11, (0, 9)),
    _api("Heartbeat", 12, (0, 4)),
    _api("LeaveGroup", 13, (0, 5)),
    _api("SyncGroup", 14, (0, 5)),
    _api("ApiVersions", 18, (0, 4)),
    _api("CreateTopics", 19, (2, 7)),
    _api("DeleteTopics", 20, (1, 6)),
    _api("InitProducerId", 22, (0, 5)),
    _api("DescribeConfigs", 32, (1, 4)),
    _api("DescribeCluster", 60, (0, 2)),
    _api("DescribeGroups", 15, (0, 6)),
    _api("ListGroups", 16, (0, 5)),
    _api("DeleteGroups", 42, (0, 2)),
    _api("OffsetDelete", 47, (0, 0)),
    _api("AlterConfigs", 33, (0, 2)),
    _api("AlterReplicaLogDirs", 34, (1, 2)),
    _api("CreatePartitions", 37, (0, 3)),
    _api("DeleteRecords", 21, (0, 2)),
    _api("DescribeLogDirs", 35, (1, 5)),
    _api("DescribeProducers", 61, (0, 0)),
    _api("DescribeQuorum", 55, (0, 2)),
    _api("DescribeTopicPartitions", 75, (0, 0)),
    _api("IncrementalAlterConfigs", 44, (0, 1)),
    _api("ListConfigResources", 74, (0, 1)),
    _api("OffsetForLeaderEpoch", 23, (2, 4)),
    _api("UpdateFeatures", 57, (0, 2)),
    _api("ElectLeaders", 43, (0, 2)),
    _api("AlterPartitionReassignments", 45, (0, 1)),
    _api("ListPartitionReassignments", 46, (0, 0)),
)

APIS: dict[int, Api] = {api.key: api for api in _TABLE}
