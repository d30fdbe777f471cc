"""Every API of Kafka's protocol: its key, its name, its versions, and the listeners that serve it.

In: nothing. Out: a table of all APIs that exist, also those that this broker does not serve.

A flexible version (KIP-482) has compact lengths and tagged fields. Its requests carry header version 2, its responses
header version 1. ApiVersions is the exception: its response must be readable before versions are agreed (KIP-511).
Source: the schemas of Apache Kafka 4.3; `scripts/generate_messages.py --check` compares the table with them.
"""

from enum import Enum
from typing import Final, NamedTuple

__all__ = [
    "APIS",
    "API_VERSIONS",
    "FETCH",
    "FLEXIBLE_FROM",
    "NEVER",
    "PRODUCE",
    "Api",
    "ListenerKind",
    "is_flexible",
]

PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS: Final = 18
NEVER: Final = 1 << 15


class ListenerKind(Enum):
    """Which listeners serve an API; the values are the names in Kafka's schemas."""

    BROKER = "broker"
    CONTROLLER = "controller"


class Api(NamedTuple):
    """`oldest` to `newest` have schemas; those from `flexible_from` on are flexible.

    `name` is that of the API's modules in `wire/messages` and `wire/codecs`. `listeners` are those that serve it.
    """

    key: int
    name: str
    oldest: int
    newest: int
    flexible_from: int
    listeners: frozenset[ListenerKind]


_BROKER: Final = frozenset({ListenerKind.BROKER})
_CONTROLLER: Final = frozenset({ListenerKind.CONTROLLER})
_BOTH: Final = _BROKER | _CONTROLLER
_TABLE: Final = (
    (0, "produce", 3, 13, 9, _BROKER),
    (1, "fetch", 4, 18, 12, _BOTH),
    (2, "list_offsets", 1, 11, 6, _BROKER),
    (3, "metadata", 0, 13, 9, _BROKER),
    (8, "offset_commit", 2, 10, 8, _BROKER),
    (9, "offset_fetch", 1, 10, 6, _BROKER),
    (10, "find_coordinator", 0, 6, 3, _BROKER),
    (11, "join_group", 0, 9, 6, _BROKER),
    (12, "heartbeat", 0, 4, 4, _BROKER),
    (13, "leave_group", 0, 5, 4, _BROKER),
    (14, "sync_group", 0, 5, 4, _BROKER),
    (15, "describe_groups", 0, 6, 5, _BROKER),
    (16, "list_groups", 0, 5, 3, _BROKER),
    (17, "sasl_handshake", 0, 1, NEVER, _BOTH),
    (18, "api_versions", 0, 4, 3, _BOTH),
    (19, "create_topics", 2, 7, 5, _BOTH),
    (20, "delete_topics", 1, 6, 4, _BOTH),
    (21, "delete_records", 0, 2, 2, _BROKER),
    (22, "init_producer_id", 0, 6, 2, _BROKER),
    (23, "offset_for_leader_epoch", 2, 4, 4, _BROKER),
    (24, "add_partitions_to_txn", 0, 5, 3, _BROKER),
    (25, "add_offsets_to_txn", 0, 4, 3, _BROKER),
    (26, "end_txn", 0, 5, 3, _BROKER),
    (27, "write_txn_markers", 1, 2, 1, _BROKER),
    (28, "txn_offset_commit", 0, 5, 3, _BROKER),
    (29, "describe_acls", 1, 3, 2, _BOTH),
    (30, "create_acls", 1, 3, 2, _BOTH),
    (31, "delete_acls", 1, 3, 2, _BOTH),
    (32, "describe_configs", 1, 4, 4, _BOTH),
    (33, "alter_configs", 0, 2, 2, _BOTH),
    (34, "alter_replica_log_dirs", 1, 2, 2, _BROKER),
    (35, "describe_log_dirs", 1, 5, 2, _BROKER),
    (36, "sasl_authenticate", 0, 2, 2, _BOTH),
    (37, "create_partitions", 0, 3, 2, _BOTH),
    (38, "create_delegation_token", 1, 3, 2, _BOTH),
    (39, "renew_delegation_token", 1, 2, 2, _BOTH),
    (40, "expire_delegation_token", 1, 2, 2, _BOTH),
    (41, "describe_delegation_token", 1, 3, 2, _BOTH),
    (42, "delete_groups", 0, 2, 2, _BROKER),
    (43, "elect_leaders", 0, 2, 2, _BOTH),
    (44, "incremental_alter_configs", 0, 1, 1, _BOTH),
    (45, "alter_partition_reassignments", 0, 1, 0, _BOTH),
    (46, "list_partition_reassignments", 0, 0, 0, _BOTH),
    (47, "offset_delete", 0, 0, NEVER, _BROKER),
    (48, "describe_client_quotas", 0, 1, 1, _BROKER),
    (49, "alter_client_quotas", 0, 1, 1, _BOTH),
    (50, "describe_user_scram_credentials", 0, 0, 0, _BOTH),
    (51, "alter_user_scram_credentials", 0, 0, 0, _BOTH),
    (52, "vote", 0, 2, 0, _CONTROLLER),
    (53, "begin_quorum_epoch", 0, 1, 1, _CONTROLLER),
    (54, "end_quorum_epoch", 0, 1, 1, _CONTROLLER),
    (55, "describe_quorum", 0, 2, 0, _BOTH),
    (56, "alter_partition", 2, 3, 2, _CONTROLLER),
    (57, "update_features", 0, 2, 0, _BOTH),
    (58, "envelope", 0, 0, 0, _CONTROLLER),
    (59, "fetch_snapshot", 0, 1, 0, _CONTROLLER),
    (60, "describe_cluster", 0, 2, 0, _BOTH),
    (61, "describe_producers", 0, 0, 0, _BROKER),
    (62, "broker_registration", 0, 4, 0, _CONTROLLER),
    (63, "broker_heartbeat", 0, 2, 0, _CONTROLLER),
    (64, "unregister_broker", 0, 0, 0, _BOTH),
    (65, "describe_transactions", 0, 0, 0, _BROKER),
    (66, "list_transactions", 0, 2, 0, _BROKER),
    (67, "allocate_producer_ids", 0, 0, 0, _CONTROLLER),
    (68, "consumer_group_heartbeat", 0, 1, 0, _BROKER),
    (69, "consumer_group_describe", 0, 1, 0, _BROKER),
    (70, "controller_registration", 0, 0, 0, _CONTROLLER),
    (71, "get_telemetry_subscriptions", 0, 0, 0, _BROKER),
    (72, "push_telemetry", 0, 0, 0, _BROKER),
    (73, "assign_replicas_to_dirs", 0, 0, 0, _CONTROLLER),
    (74, "list_config_resources", 0, 1, 0, _BROKER),
    (75, "describe_topic_partitions", 0, 0, 0, _BROKER),
    (76, "share_group_heartbeat", 1, 1, 1, _BROKER),
    (77, "share_group_describe", 1, 1, 1, _BROKER),
    (78, "share_fetch", 1, 2, 1, _BROKER),
    (79, "share_acknowledge", 1, 2, 1, _BROKER),
    (80, "add_raft_voter", 0, 1, 0, _BOTH),
    (81, "remove_raft_voter", 0, 0, 0, _BOTH),
    (82, "update_raft_voter", 0, 0, 0, _CONTROLLER),
    (83, "initialize_share_group_state", 0, 0, 0, _BROKER),
    (84, "read_share_group_state", 0, 0, 0, _BROKER),
    (85, "write_share_group_state", 0, 1, 0, _BROKER),
    (86, "delete_share_group_state", 0, 0, 0, _BROKER),
    (87, "read_share_group_state_summary", 0, 1, 0, _BROKER),
    (88, "streams_group_heartbeat", 0, 0, 0, _BROKER),
    (89, "streams_group_describe", 0, 0, 0, _BROKER),
    (90, "describe_share_group_offsets", 0, 1, 0, _BROKER),
    (91, "alter_share_group_offsets", 0, 0, 0, _BROKER),
    (92, "delete_share_group_offsets", 0, 0, 0, _BROKER),
)

APIS: Final = {row[0]: Api(*row) for row in _TABLE}
"""By key."""


FLEXIBLE_FROM: Final = {api.key: api.flexible_from for api in APIS.values()}


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether this version is flexible; False for a key that does not exist."""
    return version >= FLEXIBLE_FROM.get(api_key, NEVER)
