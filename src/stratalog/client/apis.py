"""The APIs that this client speaks, by Kafka's numbers.

In: nothing. Out: keys, and for each the versions that `calls.py`, `admin.py`,
`cluster_admin.py` and `membership.py` can build and read.
The versions that a broker serves come from its ApiVersions answer.
"""

from collections.abc import Mapping

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 19, 20, 22, 32
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS = 8, 9, 10, 15, 16
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS, CREATE_PARTITIONS, DELETE_GROUPS, INCREMENTAL_ALTER_CONFIGS = 35, 37, 42, 44
ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS = 43, 45, 46
DESCRIBE_QUORUM, DESCRIBE_CLUSTER = 55, 60

SPOKEN: Mapping[int, tuple[int, int]] = {
    PRODUCE: (3, 12),
    FETCH: (4, 17),
    LIST_OFFSETS: (1, 9),
    METADATA: (9, 12),
    API_VERSIONS: (0, 3),
    CREATE_TOPICS: (2, 7),
    DELETE_TOPICS: (1, 6),
    INIT_PRODUCER_ID: (0, 4),
    DESCRIBE_CONFIGS: (1, 4),
    OFFSET_COMMIT: (7, 8),
    OFFSET_FETCH: (8, 9),
    FIND_COORDINATOR: (4, 6),
    JOIN_GROUP: (5, 9),
    HEARTBEAT: (3, 4),
    LEAVE_GROUP: (3, 5),
    SYNC_GROUP: (3, 5),
    DESCRIBE_GROUPS: (1, 5),
    LIST_GROUPS: (1, 5),
    DELETE_GROUPS: (0, 2),
    ALTER_REPLICA_LOG_DIRS: (1, 2),
    DESCRIBE_LOG_DIRS: (1, 4),
    CREATE_PARTITIONS: (1, 3),
    INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ELECT_LEADERS: (1, 2),
    ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    LIST_PARTITION_REASSIGNMENTS: (0, 0),
    DESCRIBE_QUORUM: (1, 2),
    DESCRIBE_CLUSTER: (0, 2),
}
"""Versions that this client can speak, by API key."""
