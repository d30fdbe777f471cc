"""Dashboards for Grafana, generated from the table of metrics.

In: `METRICS`, and which metric stands where. Out: dashboards as JSON values of Grafana's schema 39 (Grafana 10 and
newer). Each panel's description is its metric's text in docs/metrics.md. It never asks a server.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stratalog.monitor.metrics import METRICS, QUERIES, Kind, Metric

__all__ = ["DASHBOARDS", "Dashboard", "dashboard_json", "queries_of"]

_SCHEMA: Final = 39
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_BY_NAME: Final = {
    metric.name.removeprefix("stratalog_"): metric for metric in (*METRICS, *QUERIES)
}
_QUANTILES: Final = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard: rows of metrics by their names without `stratalog_`.

    A name that ends in `?` has no series before the first such event: its panel shows 0 until then.
    """

    uid: str
    title: str
    rows: Mapping[str, str]

    def metrics(self) -> Iterable[tuple[str, Metric, bool]]:
        """Yield (row, metric, whether it may have no series)."""
        for row, names in self.rows.items():
            for name in names.split():
                yield row, _BY_NAME[name.removesuffix("?")], name.endswith("?")


DASHBOARDS: Final = (
    Dashboard(
        "stratalog-overview",
        "Stratalog: overview",
        {
            "Is it well?": "ready cluster_partitions_offline partitions_under_replicated "
            "partitions_under_min_isr brokers active_controller",
            "Traffic": "topic_messages_in_total topic_bytes_in_total topic_bytes_out_total "
            "request_duration_seconds request_errors_total? connections",
            "Partitions": "partitions partitions_led partitions_offline "
            "cluster_partitions_not_preferred leader_elections_total? partitions_reassigning",
        },
    ),
    Dashboard(
        "stratalog-broker",
        "Stratalog: brokers",
        {
            "Process": "event_loop_delay_seconds connections_accepted_total connections_refused_total "
            "monitor_connections_ended_total? connections_before_login connections_ended_total? client_memory_bytes "
            "fetch_sessions fetch_session_partitions fetch_session_evictions_total producer_ids "
            "delegation_tokens client_quota_rates audit_lines_dropped_total damaged_answers_total? "
            "client_throttles_total? client_throttle_seconds_total?",
            "Clients' metrics": "client_metrics_instances? client_metrics_series? "
            "client_metrics_dropped_points_total? client_metrics_otlp_pushes_total? "
            "client_metrics_otlp_waiting_bytes?",
            "Disks": "log_directory_online disk_duration_seconds log_cleaner_uncleanable_partitions "
            "log_cleaner_max_dirty_ratio log_cleaner_passes_total log_cleaner_read_bytes_total "
            "log_cleaner_written_bytes_total",
            "Replication": "replica_lag_max_records isr_shrinks_total isr_expansions_total "
            "reassignment_bytes_left replication_throttle_bytes_per_second "
            "replication_throttled_bytes_total?",
            "Quorum": "quorum_leader quorum_epoch quorum_state quorum_high_watermark",
            "Transactions": "transaction_oldest_open_seconds partitions_with_late_transactions",
        },
    ),
    Dashboard(
        "stratalog-topics",
        "Stratalog: topics",
        {
            "Traffic": "topic_messages_out_total topic_replication_bytes_in_total? "
            "topic_replication_bytes_out_total? topic_unreadable_reads_total? "
            "topic_corrupt_fetches_total?",
            "The twenty largest partitions": "partition_log_bytes partition_log_end_offset "
            "partition_high_watermark partition_log_start_offset partition_local_start_offset",
        },
    ),
    Dashboard(
        "stratalog-groups",
        "Stratalog: consumer groups",
        {
            "Lag": "group_lag_records group_lag_seconds group_partition_lag_records "
            "group_lag_left_out group_lookups_left",
            "Until retention deletes what is unread": "group_retention_headroom_seconds "
            "group_retention_headroom_bytes",
            "Members": "group_pending_member_ids group_member_ids_taken_back_total",
        },
    ),
    Dashboard(
        "stratalog-tier",
        "Stratalog: tier",
        {
            "To the bucket": "remote_copy_lag_bytes remote_copy_lag_segments remote_copy_lag_seconds "
            "remote_copy_bytes_total remote_copy_segments_total remote_copy_errors_total?",
            "From the bucket": "remote_fetch_requests_total? remote_fetch_bytes_total? "
            "remote_fetch_errors_total? remote_delete_errors_total?",
        },
    ),
    Dashboard(
        "stratalog-spark",
        "Stratalog: Spark's queries",
        {
            "Streaming queries": "query_running query_lag_records query_lag_seconds "
            "query_rows_in_per_second query_rows_done_per_second query_batch_seconds",
        },
    ),
)


def queries_of(metric: Metric, *, may_lack: bool) -> list[tuple[str, str]]:
    """Return the (query, legend) pairs of a metric's panel: rates of counters, percentiles of histograms."""
    labels = ", ".join(metric.labels) or "instance"
    where = ", ".join(
        f'{name}=~"${name}"'
        for name in (
            "job",
            "instance",
            *(one for one in ("topic", "group", "query") if one in metric.labels),
        )
    )
    legend = " ".join(f"{{{{{name}}}}}" for name in metric.labels or ("instance",))
    if metric.kind is Kind.COUNTER:
        query = f"sum by ({labels}) (rate({metric.name}{{{where}}}[$__rate_interval]))"
        found = [(query, legend)]
    elif metric.kind is Kind.GAUGE:
        query = f"{metric.name}{{{where}}}"
        query = f"topk(20, {query})" if "partition" in metric.labels else query
        found = [(query, f"{{{{instance}}}} {legend}" if metric.labels else legend)]
    else:
        rates = f"sum by (le, {labels}) (rate({metric.name}_bucket{{{where}}}[$__rate_interval]))"
        found = [
            (f"histogram_quantile({share}, {rates})", f"p{share * 100:g} {legend}")
            for share in _QUANTILES
        ]
    if may_lack:  # on(): any series of the metric replaces the zero
        found = [(f"{query} or on() vector(0)", text) for query, text in found]
    return found


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top, column, row_before = 0, 0, ""
    for row, metric, may_lack in dashboard.metrics():
        if row != row_before:
            top, column, row_before = top + (_HEIGHT if panels else 0), 0, row
            panels.append(_row(row, top, len(panels) + 1))
            top += 1
        elif column == _COLUMNS:
            top, column = top + _HEIGHT, 0
        panel = _panel(metric, queries_of(metric, may_lack=may_lack), len(panels) + 1)
        panel["gridPos"] = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top}
        panels.append(panel)
        column += 1
    of_labels = tuple(one for one in ("topic", "group", "query") if _has(dashboard, one))
    names = ("job", "instance", *of_labels)
    every = "stratalog_query_running" if "query" in of_labels else "stratalog_ready"
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["stratalog"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_SOURCE_VARIABLE, *(_variable(name, every) for name in names)]},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


_SOURCE_VARIABLE: Final = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "hide": 0,
}


def _has(dashboard: Dashboard, label: str) -> bool:
    return any(label in metric.labels for _, metric, _ in dashboard.metrics())


def _variable(name: str, every: str) -> dict[str, Any]:
    """Return a variable with a label's values: of `every` instance's metric, or of a topic's or a group's."""
    of = {
        "topic": "stratalog_partition_log_bytes",
        "group": "stratalog_group_lag_records",
    }.get(name, every)
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({of}, {name})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _row(title: str, top: int, number: int) -> dict[str, Any]:
    place = {"h": 1, "w": 24, "x": 0, "y": top}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _panel(metric: Metric, queries: list[tuple[str, str]], number: int) -> dict[str, Any]:
    title = metric.name.removeprefix("stratalog_").removesuffix("_total").replace("_", " ")
    return {
        "id": number,
        "type": "timeseries",
        "title": title[0].upper() + title[1:],
        "description": metric.meaning,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": _unit(metric), "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for index, (query, legend) in enumerate(queries)
        ],
    }


def _unit(metric: Metric) -> str:
    """Return Grafana's name of a panel's unit."""
    name = metric.name
    if metric.kind is Kind.COUNTER:
        return "Bps" if name.endswith("_bytes_total") or "_bytes_" in name else "cps"
    if name.endswith("bytes_per_second"):
        return "Bps"
    return "bytes" if "_bytes" in name else "s" if name.endswith("_seconds") else "short"
