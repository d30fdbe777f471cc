"""Collect one scrape: every metric of a node.

In: a node. Out: pieces of Prometheus text, each made in about two milliseconds, with the event loop free between
them. Cheap counts are kept by the broker as it works; the rest is computed now.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from stratalog.broker.broker import Broker
from stratalog.broker.metrics import NOT_DECODED, Histogram
from stratalog.broker.network.connections import Connections
from stratalog.broker.partitions.cleaning import Cleaners
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.errors import ErrorCode
from stratalog.metadata.delegation_tokens import tokens_of
from stratalog.monitor import metrics as m
from stratalog.monitor.exposition import head, histogram, labelled, sample, untyped
from stratalog.monitor.health import health
from stratalog.monitor.lag import GroupLags, Lag
from stratalog.monitor.metrics import Metric
from stratalog.monitor.pause import Pause
from stratalog.monitor.replicas import Family, ReplicaCounts, cluster_families
from stratalog.monitor.watched import Watched

if TYPE_CHECKING:
    from stratalog.broker.telemetry.telemetry import Telemetry
    from stratalog.broker.tier.bucket_cleaner import BucketCleaner

_LINES: Final = 400
_PIECE: Final = 32 * 1024
_GROUP_PARTITIONS_MAX: Final = 10_000
"""Limit of samples by group and partition; further ones count only in the sums by topic."""
_LATE_MS: Final = 300_000
"""Kafka: `ProducerStateManager.LATE_TRANSACTION_BUFFER_MS`."""
_PER_PARTITION: Final = (
    m.PARTITION_BYTES,
    m.PARTITION_START,
    m.PARTITION_LOCAL_START,
    m.PARTITION_HIGH_WATERMARK,
    m.PARTITION_END,
)
_PER_TOPIC: Final = (
    (m.TOPIC_BYTES_IN, "bytes_in"),
    (m.TOPIC_MESSAGES_IN, "messages_in"),
    (m.TOPIC_BYTES_OUT, "bytes_out"),
    (m.TOPIC_MESSAGES_OUT, "messages_out"),
    (m.TOPIC_UNREADABLE_READS, "unreadable_reads"),
    (m.TOPIC_REPLICATION_BYTES_IN, "replication_bytes_in"),
    (m.TOPIC_REPLICATION_BYTES_OUT, "replication_bytes_out"),
    (m.TOPIC_CORRUPT_FETCHES, "corrupt_fetches"),
)
_PER_TIERED_TOPIC: Final = (
    (m.COPY_LAG_BYTES, "lag_bytes"),
    (m.COPY_LAG_SEGMENTS, "lag_segments"),
    (m.COPY_LAG_SECONDS, "lag_seconds"),
    (m.COPIED_BYTES, "copied_bytes"),
    (m.COPIED_SEGMENTS, "copied_segments"),
    (m.COPY_ERRORS, "copy_errors"),
    (m.DELETE_ERRORS, "delete_errors"),
    (m.REMOTE_READS, "remote_reads"),
    (m.REMOTE_BYTES, "remote_bytes"),
    (m.REMOTE_ERRORS, "remote_errors"),
)
_Sample = tuple[str, float]


@dataclass(slots=True)
class _Topic:
    """Sums over a topic's partitions, and for `lag_seconds` the greatest."""

    tiered: bool = False
    bytes_in: int = 0
    messages_in: int = 0
    bytes_out: int = 0
    messages_out: int = 0
    unreadable_reads: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    corrupt_fetches: int = 0
    lag_bytes: int = 0
    lag_segments: int = 0
    lag_seconds: float = 0.0
    copied_bytes: int = 0
    copied_segments: int = 0
    copy_errors: int = 0
    delete_errors: int = 0
    remote_reads: int = 0
    remote_bytes: int = 0
    remote_errors: int = 0

    def add(self, hosted: HostedPartition, now_ms: int) -> None:
        """Take in one partition."""
        metrics, log = hosted.metrics, hosted.log
        self.bytes_in += metrics.bytes_in
        self.messages_in += log.log_end_offset - hosted.hosted_from
        self.bytes_out += metrics.bytes_out
        self.messages_out += metrics.messages_out
        self.unreadable_reads += metrics.unreadable_reads
        self.replication_bytes_in += metrics.replication_bytes_in
        self.replication_bytes_out += metrics.replication_bytes_out
        self.corrupt_fetches += metrics.corrupt_fetches
        if not log.config.remote_storage_enable:
            return
        self.tiered = True
        self.copied_bytes += metrics.copied_bytes
        self.copied_segments += metrics.copied_segments
        self.copy_errors += metrics.copy_errors
        self.delete_errors += metrics.delete_errors
        self.remote_reads += metrics.remote_reads
        self.remote_bytes += metrics.remote_bytes
        self.remote_errors += metrics.remote_errors
        waiting = [one for one in log.segments if one.next_offset > log.tiered_end and one.size]
        self.lag_bytes += sum(one.size for one in waiting)
        self.lag_segments += sum(one is not log.segments[-1] for one in waiting)
        if waiting:
            since = waiting[0].first_timestamp
            age_ms = now_ms - (since if since >= 0 else waiting[0].created_ms)
            self.lag_seconds = max(self.lag_seconds, age_ms / 1000)


@dataclass(slots=True)
class _GroupTopic:
    """A group's lag in one topic: the sum of records, the worst of the rest."""

    records: int = 0
    seconds: list[float] = field(default_factory=list)
    headroom_seconds: list[float] = field(default_factory=list)
    headroom_bytes: list[float] = field(default_factory=list)

    def add(self, lag: Lag) -> None:
        """Take in one partition."""
        self.records += lag.records
        for values, value in (
            (self.seconds, lag.seconds),
            (self.headroom_seconds, lag.headroom_seconds),
            (self.headroom_bytes, lag.headroom_bytes),
        ):
            if value is not None:
                values.append(value)


class Scraper:
    """Answers scrapes of one node. Scrapes measure groups one at a time, and do the rest concurrently."""

    def __init__(
        self, watched: Watched, loop_delay: Histogram, http_ended: Mapping[str, int]
    ) -> None:
        """`http_ended`: the monitor's own connections that it ended, by reason."""
        self._watched = watched
        self._http_ended = http_ended
        self._loop_delay = loop_delay
        self._lags: GroupLags | None = None
        self._measuring = asyncio.Lock()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the whole exposition, piece by piece."""
        pause = Pause(self._watched.clock.elapsed_ns)
        held: list[str] = []
        size = 0
        async for text in self._texts(pause):
            held.append(text)
            size += len(text)
            if size >= _PIECE:
                yield "".join(held).encode()
                held, size = [], 0
            await pause()
        yield "".join(held).encode()
        yield generate_latest(self._process)

    async def _texts(self, pause: Pause) -> AsyncIterator[str]:
        for text in self._of_node():
            yield text
        broker = self._watched.broker()
        found = await health(self._watched, pause)
        for text in _family(m.READY, [("", int(not found.reasons))]):
            yield text
        for text in _family(m.PARTITIONS_OFFLINE, [("", found.offline)]):
            yield text
        if broker is None:
            return
        tiering = broker.tiering
        bucket_cleaner = None if tiering is None else tiering.cleaner
        for text in chain(_of_requests(broker), _of_cleaners(broker.cleaners, bucket_cleaner)):
            yield text
        async for text in _of_clients(broker.telemetry, pause):
            yield text
        oldest_s = await broker.transactions.oldest_open_ms(pause) / 1000
        for text in _family(m.OLDEST_TRANSACTION, [("", oldest_s)]):
            yield text
        async for text in self._of_partitions(broker, pause):
            yield text
        for metric, samples in cluster_families(broker):
            for text in _family(metric, samples):
                yield text
        async for text in self._of_groups(broker, pause):
            yield text

    def _of_node(self) -> Iterator[str]:
        yield head(m.LOOP_DELAY)
        yield from histogram(m.LOOP_DELAY, self._loop_delay)
        yield head(m.DISK_DURATION)
        for disk in self._watched.disks():
            for operation, durations in disk.durations.items():
                yield from histogram(m.DISK_DURATION, durations, disk.path, operation)
        online = [
            (labelled(m.DIRECTORY_ONLINE, one.path), int(one.failure is None))
            for one in self._watched.directories()
        ]
        yield from _family(m.DIRECTORY_ONLINE, online)
        yield from _of_connections(self._watched.connections())
        yield from _family(m.MONITOR_ENDED, _by_label(m.MONITOR_ENDED, self._http_ended))

    async def _of_partitions(self, broker: Broker, pause: Pause) -> AsyncIterator[str]:
        now_ms = broker.clock.now_ms()
        topics: dict[str, _Topic] = {}
        # Texts and numbers alone: the collector would look at an object for each row, again and again.
        all_labels: list[str] = []
        columns = [array("q") for _ in _PER_PARTITION]
        producers = 0
        late_ms = broker.config.int("transaction.max.timeout.ms") + _LATE_MS
        replicas = ReplicaCounts(broker.metadata.image, broker.clock.steady_ms(), late_ms)
        for hosted in broker.hosting.all():
            await pause()
            partition, log = hosted.name, hosted.log
            topics.setdefault(partition.topic, _Topic()).add(hosted, now_ms)
            producers += len(log.producers)
            replicas.add(hosted)
            offsets = log.log_start_offset, log.local_start_offset, hosted.high_watermark
            all_labels.append(labelled(m.PARTITION_BYTES, *partition))
            for column, value in zip(
                columns, (log.size, *offsets, log.log_end_offset), strict=True
            ):
                column.append(value)
        for metric, column in zip(_PER_PARTITION, columns, strict=True):
            for text in _family(metric, zip(all_labels, column, strict=True)):
                yield text
        for metric, name in _PER_TOPIC:
            for text in _family(metric, _by_topic(metric, topics, name)):
                yield text
        tiered = {name: topic for name, topic in topics.items() if topic.tiered}
        for metric, name in _PER_TIERED_TOPIC:
            for text in _family(metric, _by_topic(metric, tiered, name)):
                yield text
        counts: list[Family] = [
            (m.PARTITIONS, [("", len(all_labels))]),
            (m.PRODUCER_IDS, [("", producers)]),
        ]
        for metric, samples in [*counts, *replicas.families()]:
            for text in _family(metric, samples):
                yield text

    async def _of_groups(self, broker: Broker, pause: Pause) -> AsyncIterator[str]:
        """Measure all groups before the first line: a slow reader of the answer must not delay another scrape."""
        sums: dict[tuple[str, str], _GroupTopic] = {}
        each: list[_Sample] = []
        left_out = 0
        async with self._measuring:
            if self._lags is None:
                self._lags = GroupLags(broker)
            async for lag in self._lags.measure(pause):
                sums.setdefault((lag.group, lag.topic), _GroupTopic()).add(lag)
                if len(each) < _GROUP_PARTITIONS_MAX:
                    where = (lag.group, lag.topic, lag.partition)
                    each.append((labelled(m.GROUP_PARTITION_LAG, *where), lag.records))
                else:
                    left_out += 1
            lookups_left = self._lags.lookups_left
        for metric, samples in (
            (m.GROUP_PARTITION_LAG, each),
            (m.GROUP_LAG_LEFT_OUT, [("", left_out)]),
            (m.GROUP_LOOKUPS_LEFT, [("", lookups_left)]),
            (m.GROUP_LAG_RECORDS, _by_group(sums, lambda one: [one.records])),
            (m.GROUP_LAG_SECONDS, _by_group(sums, lambda one: sorted(one.seconds)[-1:])),
            (
                m.GROUP_HEADROOM_SECONDS,
                _by_group(sums, lambda one: sorted(one.headroom_seconds)[:1]),
            ),
            (m.GROUP_HEADROOM_BYTES, _by_group(sums, lambda one: sorted(one.headroom_bytes)[:1])),
        ):
            for text in _family(metric, samples):
                yield text


def _of_cleaners(cleaners: Cleaners, bucket: "BucketCleaner | None") -> Iterator[str]:
    """Yield the numbers of both cleaners together: of disks, and of the bucket."""
    every: list[Cleaners | BucketCleaner] = [cleaners]
    if bucket is not None:
        every.append(bucket)
    uncleanable = sum(len(one.uncleanable) for one in every)
    yield from _family(m.CLEANER_UNCLEANABLE, [("", uncleanable)])
    yield from _family(m.CLEANER_DIRTIEST, [("", cleaners.dirtiest_ratio)])
    yield from _family(m.CLEANER_PASSES, [("", sum(one.passes for one in every))])
    yield from _family(m.CLEANER_BYTES_READ, [("", sum(one.bytes_read for one in every))])
    yield from _family(m.CLEANER_BYTES_WRITTEN, [("", sum(one.bytes_written for one in every))])


def _of_connections(connections: Connections) -> Iterator[str]:
    memory = connections.memory
    yield from _family(m.CONNECTIONS, [("", len(connections))])
    yield from _family(m.CONNECTIONS_BEFORE_LOGIN, [("", len(memory.unknown))])
    held = {
        "requests": memory.requests,
        "answers": memory.answers,
        "before_login": memory.unknown_bytes,
    }
    yield from _family(m.CLIENT_MEMORY, _by_label(m.CLIENT_MEMORY, held))
    yield from _family(m.CONNECTIONS_ENDED, _by_label(m.CONNECTIONS_ENDED, memory.ended))


def _of_requests(broker: Broker) -> Iterator[str]:
    metrics = broker.metrics
    names = {key: api.name for key, api in broker.apis.items()} | {NOT_DECODED: ""}
    yield head(m.REQUEST_DURATION)
    for key, durations in metrics.requests.durations.items():
        if any(durations.counts):
            yield from histogram(m.REQUEST_DURATION, durations, names[key])
    errors = [
        (labelled(m.REQUEST_ERRORS, names[key], ErrorCode(code).name.upper()), count)
        for (key, code), count in metrics.requests.errors.items()
    ]
    yield from _family(m.REQUEST_ERRORS, errors)
    yield from _family(m.CONNECTIONS_ACCEPTED, [("", metrics.connections_accepted)])
    yield from _family(m.CONNECTIONS_REFUSED, [("", metrics.connections_refused)])
    throttled, throttled_ms = broker.throttling.throttled, broker.throttling.throttled_ms
    yield from _family(m.THROTTLED, _by_label(m.THROTTLED, throttled))
    seconds = [(labelled(m.THROTTLED, key), throttled_ms[key] / 1000) for key in throttled_ms]
    yield from _family(m.THROTTLED_SECONDS, seconds)
    yield from _family(m.QUOTA_RATES, [("", broker.throttling.counted)])
    dropped = 0 if broker.audit is None else broker.audit.lines_dropped
    yield from _family(m.AUDIT_DROPPED, [("", dropped)])
    tokens = sum(1 for _ in tokens_of(broker.metadata.image))
    yield from _family(m.DELEGATION_TOKENS, [("", tokens)])
    sessions = broker.fetch_sessions
    groups = broker.groups
    yield from _family(m.PENDING_MEMBER_IDS, [("", groups.pending_id_count())])
    yield from _family(m.MEMBER_IDS_TAKEN_BACK, [("", groups.ids_taken_back)])
    yield from _family(m.FETCH_SESSIONS, [("", len(sessions))])
    yield from _family(m.FETCH_SESSION_PARTITIONS, [("", sessions.partitions)])
    yield from _family(m.FETCH_SESSION_EVICTIONS, [("", sessions.evictions)])


async def _of_clients(telemetry: "Telemetry", pause: Pause) -> AsyncIterator[str]:
    """Yield what clients pushed, and the counts of it."""
    if not telemetry.is_on:
        return
    now_ms = telemetry.clock.steady_ms()
    counts: list[Family] = [(m.CLIENT_INSTANCES, [("", telemetry.instances.count(now_ms))])]
    series, exporter = telemetry.series, telemetry.exporter
    if series is not None:
        series.expire(now_ms)
        dropped = _by_label(m.CLIENT_POINTS_DROPPED, series.dropped)
        counts += [(m.CLIENT_SERIES, [("", len(series))]), (m.CLIENT_POINTS_DROPPED, dropped)]
    if exporter is not None:
        passed = _by_label(m.CLIENT_PUSHES_PASSED, exporter.counts)
        counts.append((m.CLIENT_PUSHES_PASSED, passed))
        counts.append((m.CLIENT_PUSHES_WAITING, [("", exporter.queued_bytes)]))
    for metric, samples in counts:
        for text in _family(metric, samples):
            yield text
    if series is not None:
        for name, found in (await series.families(pause)).items():
            for text in untyped(name, found):
                yield text


def _by_label(metric: Metric, counts: Mapping[str, int]) -> list[_Sample]:
    return [(labelled(metric, name), count) for name, count in counts.items()]


def _family(metric: Metric, samples: Iterable[_Sample]) -> Iterator[str]:
    """Yield a metric's head and samples, many lines at a time."""
    lines = [head(metric)]
    for labels, value in samples:
        lines.append(sample(metric, labels, value))
        if len(lines) >= _LINES:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)


def _by_topic(metric: Metric, topics: dict[str, _Topic], name: str) -> Iterator[_Sample]:
    for topic, sums in topics.items():
        yield labelled(metric, topic), getattr(sums, name)


def _by_group(
    sums: dict[tuple[str, str], _GroupTopic], values: Callable[[_GroupTopic], list[float]]
) -> Iterator[_Sample]:
    for (group, topic), one in sums.items():
        for value in values(one):
            yield labelled(m.GROUP_LAG_RECORDS, group, topic), value
