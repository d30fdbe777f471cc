"""Every metric by name, with its meaning, unit and labels.

In: nothing. Out: `METRICS`, the source of `/metrics`' heads and of docs/metrics.md; `QUERIES`, those that the web
console serves. Data only.

Names follow Prometheus' conventions (base units, `_total` for counters). A metric's text names Kafka's metric of the
same meaning, where there is one.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from stratalog.table.progress import QUERY_METRICS

__all__ = ["METRICS", "QUERIES", "Kind", "Metric"]


class Kind(Enum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `labels` in the order in which samples give them."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


METRICS: Final[list[Metric]] = []
QUERIES: Final = [
    Metric(name, Kind.GAUGE, ("query", "name"), meaning)
    for name, (_, meaning) in QUERY_METRICS.items()
]
"""Metrics of streaming queries, which the console serves at `/pipelines.prom`."""


def _metric(name: str, kind: Kind, labels: str, meaning: str) -> Metric:
    metric = Metric(f"stratalog_{name}", kind, tuple(labels.split()), meaning)
    METRICS.append(metric)
    return metric


_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_PARTITION: Final = "topic partition"

TOPIC_BYTES_IN = _metric(
    "topic_bytes_in_total",
    _COUNTER,
    "topic",
    "Bytes of record batches appended (Kafka: BytesInPerSec).",
)
TOPIC_MESSAGES_IN = _metric(
    "topic_messages_in_total",
    _COUNTER,
    "topic",
    "Records appended (Kafka: MessagesInPerSec).",
)
TOPIC_BYTES_OUT = _metric(
    "topic_bytes_out_total",
    _COUNTER,
    "topic",
    "Bytes of record batches in answers to fetches (Kafka: BytesOutPerSec).",
)
TOPIC_MESSAGES_OUT = _metric(
    "topic_messages_out_total",
    _COUNTER,
    "topic",
    "Offsets that the batches of those answers cover. This exceeds the records that consumers get where a batch has "
    "gaps or begins before the requested offset: the broker decodes nothing to count them.",
)
TOPIC_UNREADABLE_READS = _metric(
    "topic_unreadable_reads_total",
    _COUNTER,
    "topic",
    "Reads that met damaged bytes, on this disk or in the bucket (Kafka: FailedFetchRequestsPerSec). The log has one "
    "error for each damaged place, and no more before its 10,000th read.",
)
TOPIC_REPLICATION_BYTES_IN = _metric(
    "topic_replication_bytes_in_total",
    _COUNTER,
    "topic",
    "Bytes of record batches that this broker appended as a follower (Kafka: ReplicationBytesInPerSec).",
)
TOPIC_REPLICATION_BYTES_OUT = _metric(
    "topic_replication_bytes_out_total",
    _COUNTER,
    "topic",
    "Bytes of record batches in answers to followers (Kafka: ReplicationBytesOutPerSec).",
)
TOPIC_CORRUPT_FETCHES = _metric(
    "topic_corrupt_fetches_total",
    _COUNTER,
    "topic",
    "Damaged batches that this broker, a follower, received from a leader; it fetches again. The log has one error "
    "for each partition.",
)
REQUEST_DURATION = _metric(
    "request_duration_seconds",
    _HISTOGRAM,
    "api",
    "From the start of work on a request until its answer is encoded, with the wait for data or group members. Its "
    "count is the number of requests (Kafka: TotalTimeMs, RequestsPerSec).",
)
REQUEST_ERRORS = _metric(
    "request_errors_total",
    _COUNTER,
    "api error",
    "Error codes in answers, one for each partition or group that has one (Kafka: "
    "ErrorsPerSec without NONE). `api` is empty for a frame that is no served request.",
)
CONNECTIONS = _metric("connections", _GAUGE, "", "Client connections that are open.")
CONNECTIONS_ACCEPTED = _metric(
    "connections_accepted_total", _COUNTER, "", "Client connections accepted since the start."
)
CONNECTIONS_REFUSED = _metric(
    "connections_refused_total",
    _COUNTER,
    "",
    "Client connections refused at a limit of connections.",
)
MONITOR_ENDED = _metric(
    "monitor_connections_ended_total",
    _COUNTER,
    "reason",
    "Connections that the monitor ended. `displaced`: another client needed the place, or found none; `late`: a "
    "request did not come, or an answer was not taken, in time.",
)
CONNECTIONS_BEFORE_LOGIN = _metric(
    "connections_before_login",
    _GAUGE,
    "",
    "Client connections, among the open ones, whose client has not logged in or not completed its handshake.",
)
CONNECTIONS_ENDED = _metric(
    "connections_ended_total",
    _COUNTER,
    "reason",
    "Client connections that the broker ended to serve others. `before_login`: they held most before a login; "
    "`half_request`: their request did not come while memory was short; `displaced`: their place was needed.",
)
CLIENT_MEMORY = _metric(
    "client_memory_bytes",
    _GAUGE,
    "of",
    "Memory of clients' requests and answers. `requests`: received and not answered; `answers`: not sent; "
    "`before_login`: requests and handshakes of clients before their login, which have a limit of their own.",
)
THROTTLED = _metric(
    "client_throttles_total",
    _COUNTER,
    "quota",
    "Requests, and connections, that a client quota throttled.",
)
THROTTLED_SECONDS = _metric(
    "client_throttle_seconds_total",
    _COUNTER,
    "quota",
    "Throttle times that a client quota gave.",
)
CLIENT_INSTANCES = _metric(
    "client_metrics_instances",
    _GAUGE,
    "",
    "Client instances that ask for subscriptions or push metrics (Kafka: instance-count). This one and the next four "
    "exist where clients push (KIP-714); the clients' own series are `kafka_client_…`.",
)
CLIENT_SERIES = _metric(
    "client_metrics_series", _GAUGE, "", "Series of clients' metrics, 10,000 at most."
)
CLIENT_POINTS_DROPPED = _metric(
    "client_metrics_dropped_points_total",
    _COUNTER,
    "reason",
    "Values that clients pushed and that have no series: `broker` has 10,000 series already, `instance` 1,000; a "
    "`name` or `labels` too long; a `value` that is no number; a `kind` other than gauge and sum.",
)
CLIENT_PUSHES_PASSED = _metric(
    "client_metrics_otlp_pushes_total",
    _COUNTER,
    "result",
    "Pushes for `telemetry.otlp.url`: `sent`, `refused` by the receiver, `dropped` because too many waited.",
)
CLIENT_PUSHES_WAITING = _metric(
    "client_metrics_otlp_waiting_bytes",
    _GAUGE,
    "",
    "Bytes that wait for that receiver, 16 MiB at most.",
)
PARTITION_BYTES = _metric(
    "partition_log_bytes", _GAUGE, _PARTITION, "Bytes of local log (Kafka: Size)."
)
PARTITION_START = _metric(
    "partition_log_start_offset",
    _GAUGE,
    _PARTITION,
    "First offset that can be read (Kafka: LogStartOffset).",
)
PARTITION_LOCAL_START = _metric(
    "partition_local_start_offset",
    _GAUGE,
    _PARTITION,
    "First offset on this disk; the bucket has what is below it.",
)
PARTITION_HIGH_WATERMARK = _metric(
    "partition_high_watermark", _GAUGE, _PARTITION, "Offset below which consumers may read."
)
PARTITION_END = _metric(
    "partition_log_end_offset",
    _GAUGE,
    _PARTITION,
    "Offset of the next record (Kafka: LogEndOffset).",
)
PARTITIONS = _metric("partitions", _GAUGE, "", "Partitions hosted (Kafka: PartitionCount).")
PARTITIONS_OFFLINE = _metric(
    "partitions_offline",
    _GAUGE,
    "",
    "Partitions that should be served here and are not (Kafka: OfflineReplicaCount).",
)
PARTITIONS_LED = _metric(
    "partitions_led", _GAUGE, "", "Partitions that this broker leads (Kafka: LeaderCount)."
)
UNDER_REPLICATED = _metric(
    "partitions_under_replicated",
    _GAUGE,
    "",
    "Of those led here: partitions with a replica that is not in sync (Kafka: UnderReplicatedPartitions).",
)
UNDER_MIN_ISR = _metric(
    "partitions_under_min_isr",
    _GAUGE,
    "",
    "Of those led here: partitions that refuse acks=all (Kafka: UnderMinIsrPartitionCount).",
)
REPLICA_LAG_MAX = _metric(
    "replica_lag_max_records",
    _GAUGE,
    "",
    "Offsets by which the slowest in-sync follower of a partition led here is behind (Kafka: MaxLag, at the follower).",
)
REASSIGNING = _metric(
    "partitions_reassigning",
    _GAUGE,
    "",
    "Of those led here: partitions that move to other brokers (Kafka: ReassigningPartitions).",
)
BYTES_TO_REASSIGN = _metric(
    "reassignment_bytes_left",
    _GAUGE,
    "",
    "Bytes of local log that the new replicas of those partitions lack.",
)
THROTTLE_RATE = _metric(
    "replication_throttle_bytes_per_second",
    _GAUGE,
    "side",
    "Limit of replicas that catch up, as `leader` or `follower`; +Inf without one.",
)
THROTTLED_BYTES = _metric(
    "replication_throttled_bytes_total",
    _COUNTER,
    "side",
    "Bytes of replicas to which that limit applied (Kafka: byte-rate of LeaderReplication, FollowerReplication).",
)
ISR_SHRINKS = _metric(
    "isr_shrinks_total",
    _COUNTER,
    "",
    "Replicas that lagged and left the in-sync replicas, as this leader asked (Kafka: IsrShrinksPerSec).",
)
ISR_EXPANSIONS = _metric(
    "isr_expansions_total",
    _COUNTER,
    "",
    "Replicas that caught up and joined the in-sync replicas, as this leader asked (Kafka: IsrExpandsPerSec).",
)
ACTIVE_CONTROLLER = _metric(
    "active_controller",
    _GAUGE,
    "",
    "1 on the node that is the active controller, else 0 (Kafka: ActiveControllerCount).",
)
QUORUM_LEADER = _metric(
    "quorum_leader",
    _GAUGE,
    "",
    "Node id of the metadata quorum's leader, -1 while none is known (Kafka: current-leader).",
)
QUORUM_EPOCH = _metric(
    "quorum_epoch",
    _GAUGE,
    "",
    "Epoch of the metadata quorum: it grows with every election (Kafka: current-epoch).",
)
QUORUM_STATE = _metric(
    "quorum_state",
    _GAUGE,
    "state",
    "1 for this node's state in the metadata quorum, 0 for the others: leader, follower, observer (no voter), "
    "unattached (it knows no leader), prospective and candidate (it collects votes), resigned (Kafka: current-state).",
)
QUORUM_HIGH_WATERMARK = _metric(
    "quorum_high_watermark",
    _GAUGE,
    "",
    "Offset below which the metadata log is committed, as this node knows it (Kafka: high-watermark).",
)
DAMAGED_ANSWERS = _metric(
    "damaged_answers_total",
    _COUNTER,
    "api",
    "Answers of other nodes that this node discarded, because they could not be read or made no sense; it asks again. "
    "The log names the node and the reason. Batches of partitions: topic_corrupt_fetches.",
)
BROKERS = _metric(
    "brokers",
    _GAUGE,
    "state",
    "Registered brokers by state, active or fenced; the active controller has it "
    "(Kafka: ActiveBrokerCount, FencedBrokerCount).",
)
LEADERLESS = _metric(
    "cluster_partitions_offline",
    _GAUGE,
    "",
    "Partitions of the cluster without a leader; the active controller has it (Kafka: OfflinePartitionsCount).",
)
NOT_PREFERRED = _metric(
    "cluster_partitions_not_preferred",
    _GAUGE,
    "",
    "Partitions of the cluster without a leader, or with another leader than the first replica; the active controller "
    "has it (Kafka: PreferredReplicaImbalanceCount).",
)
ELECTIONS = _metric(
    "leader_elections_total",
    _COUNTER,
    "kind",
    "New leaders of partitions since the active controller became active; it has them. `in_sync`: of the ISR; "
    "`eligible`: of the eligible leader replicas; `unclean`: of neither, so acknowledged records may be lost (Kafka: "
    "ElectionFromEligibleLeaderReplicasPerSec, UncleanLeaderElectionsPerSec).",
)
PENDING_MEMBER_IDS = _metric(
    "group_pending_member_ids",
    _GAUGE,
    "",
    "Member ids that clients of this broker's groups have received, and have not joined with yet.",
)
MEMBER_IDS_TAKEN_BACK = _metric(
    "group_member_ids_taken_back_total",
    _COUNTER,
    "",
    "Member ids that became unknown before their client joined, because a partition of groups had 1,000 of them, or a "
    "group `group.max.size`: the oldest of the principal with most.",
)
PRODUCER_IDS = _metric(
    "producer_ids", _GAUGE, "", "Idempotent producers remembered, each in each partition it wrote."
)
OLDEST_TRANSACTION = _metric(
    "transaction_oldest_open_seconds",
    _GAUGE,
    "",
    "Age of the oldest transaction that this broker coordinates and that has no end, or no marker yet in some "
    "partition; 0 without one. It holds back readers of committed records, and the tier.",
)
LATE_TRANSACTIONS = _metric(
    "partitions_with_late_transactions",
    _GAUGE,
    "",
    "Partitions that this broker leads with an open transaction that got no record for transaction.max.timeout.ms and "
    "five minutes: `strata txn find-hanging` names them (Kafka: PartitionsWithLateTransactionsCount).",
)
FETCH_SESSIONS = _metric(
    "fetch_sessions", _GAUGE, "", "Fetch sessions held (Kafka: NumIncrementalFetchSessions)."
)
DELEGATION_TOKENS = _metric(
    "delegation_tokens", _GAUGE, "", "Delegation tokens of the cluster; 1,000 at most of one owner."
)
QUOTA_RATES = _metric(
    "client_quota_rates",
    _GAUGE,
    "",
    "Users, client ids and addresses whose use counts for a quota; at most 20,000 and one more of each user.",
)
AUDIT_DROPPED = _metric(
    "audit_lines_dropped_total",
    _COUNTER,
    "",
    "Lines of the audit that came faster than the disk takes them; 0 without `audit.log.path`.",
)
FETCH_SESSION_PARTITIONS = _metric(
    "fetch_session_partitions",
    _GAUGE,
    "",
    "Partitions that fetch sessions remember (Kafka: NumIncrementalFetchPartitionsCached).",
)
FETCH_SESSION_EVICTIONS = _metric(
    "fetch_session_evictions_total",
    _COUNTER,
    "",
    "Fetch sessions that ended for the room of others (Kafka: IncrementalFetchSessionEvictionsPerSec).",
)
GROUP_PARTITION_LAG = _metric(
    "group_partition_lag_records",
    _GAUGE,
    "group topic partition",
    "High watermark less committed offset. At most 10,000 of them: see group_lag_left_out.",
)
GROUP_LAG_LEFT_OUT = _metric(
    "group_lag_left_out",
    _GAUGE,
    "",
    "Committed offsets that group_partition_lag_records leaves out; in the sums by topic they are counted.",
)
GROUP_LAG_RECORDS = _metric(
    "group_lag_records", _GAUGE, "group topic", "Sum of a topic's partitions' lags."
)
GROUP_LAG_SECONDS = _metric(
    "group_lag_seconds",
    _GAUGE,
    "group topic",
    "Timestamp of the newest record minus that of the batch at the committed offset, for the partition where this is "
    "most; 0 if nothing is left to read. Where only the bucket has that batch, the value is exact to one segment.",
)
GROUP_HEADROOM_SECONDS = _metric(
    "group_retention_headroom_seconds",
    _GAUGE,
    "group topic",
    "Time until retention may delete records that the group has not read, of the partition "
    "where that is soonest: by retention.ms and the batch at the committed offset, and by "
    "retention.bytes at the rate since the last scrape. 0: it may have done so; +Inf: never, "
    "or nothing is left to read.",
)
GROUP_HEADROOM_BYTES = _metric(
    "group_retention_headroom_bytes",
    _GAUGE,
    "group topic",
    "Bytes that may be appended until retention.bytes deletes records that the group has not read, for the partition "
    "where these are fewest; +Inf: never, or nothing is left to read.",
)
GROUP_LOOKUPS_LEFT = _metric(
    "group_lookups_left",
    _GAUGE,
    "",
    "Committed offsets whose batch this scrape did not look up: a scrape looks up at most 500 of those that "
    "have moved. The seconds and headroom of the others are from an earlier scrape, or missing.",
)
COPY_LAG_BYTES = _metric(
    "remote_copy_lag_bytes",
    _GAUGE,
    "topic",
    "Bytes of log that are not in the bucket yet, active segments included (Kafka: RemoteCopyLagBytes).",
)
COPY_LAG_SEGMENTS = _metric(
    "remote_copy_lag_segments",
    _GAUGE,
    "topic",
    "Closed segments that are not in the bucket yet (Kafka: RemoteCopyLagSegments).",
)
COPY_LAG_SECONDS = _metric(
    "remote_copy_lag_seconds",
    _GAUGE,
    "topic",
    "Age of the oldest batch that is not in the bucket yet, by its timestamp.",
)
COPIED_BYTES = _metric(
    "remote_copy_bytes_total",
    _COUNTER,
    "topic",
    "Bytes of log copied to the bucket (Kafka: RemoteCopyBytesPerSec).",
)
COPIED_SEGMENTS = _metric(
    "remote_copy_segments_total", _COUNTER, "topic", "Segments copied to the bucket."
)
COPY_ERRORS = _metric(
    "remote_copy_errors_total",
    _COUNTER,
    "topic",
    "Copies to the bucket that failed; each is tried again (Kafka: RemoteCopyErrorsPerSec).",
)
DELETE_ERRORS = _metric(
    "remote_delete_errors_total",
    _COUNTER,
    "topic",
    "Removals from the bucket that failed, and archive manifests found damaged (Kafka: RemoteDeleteErrorsPerSec).",
)
REMOTE_READS = _metric(
    "remote_fetch_requests_total",
    _COUNTER,
    "topic",
    "Reads that the bucket, or its cache, has served (Kafka: RemoteFetchRequestsPerSec).",
)
REMOTE_BYTES = _metric(
    "remote_fetch_bytes_total",
    _COUNTER,
    "topic",
    "Bytes that those reads returned (Kafka: RemoteFetchBytesPerSec).",
)
REMOTE_ERRORS = _metric(
    "remote_fetch_errors_total",
    _COUNTER,
    "topic",
    "Reads that the bucket has failed (Kafka: RemoteFetchErrorsPerSec).",
)
DISK_DURATION = _metric(
    "disk_duration_seconds",
    _HISTOGRAM,
    "directory operation",
    "Calls to a log directory's drive: write (page cache), read (where the page cache did not have it at once), sync.",
)
DIRECTORY_ONLINE = _metric(
    "log_directory_online",
    _GAUGE,
    "directory",
    "1, or 0 once the directory has failed (Kafka: OfflineLogDirectoryCount).",
)
CLEANER_UNCLEANABLE = _metric(
    "log_cleaner_uncleanable_partitions",
    _GAUGE,
    "",
    "Compacted partitions that could not be cleaned and are set aside until a restart or a change of "
    "the cleaners' memory; the log says why (Kafka: uncleanable-partitions-count).",
)
CLEANER_DIRTIEST = _metric(
    "log_cleaner_max_dirty_ratio",
    _GAUGE,
    "",
    "Share of dirty bytes in the dirtiest compacted log, when a cleaner last looked (Kafka: max-dirty-percent).",
)
CLEANER_PASSES = _metric(
    "log_cleaner_passes_total", _COUNTER, "", "Passes of cleaners over a log that were swapped in."
)
CLEANER_BYTES_READ = _metric(
    "log_cleaner_read_bytes_total", _COUNTER, "", "Bytes of log that these passes read."
)
CLEANER_BYTES_WRITTEN = _metric(
    "log_cleaner_written_bytes_total",
    _COUNTER,
    "",
    "Bytes of log that stayed (Kafka: cleaner-recopy-percent is their share of those read).",
)
LOOP_DELAY = _metric(
    "event_loop_delay_seconds",
    _HISTOGRAM,
    "",
    "How late the event loop is for a call that is due ten times a second; a millisecond is its timers' own.",
)
READY = _metric("ready", _GAUGE, "", "The answer of `/readyz`: 1 ready, 0 not.")
