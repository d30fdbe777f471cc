"""Parse the options of a query, once.

In: Spark's options, all text. Out: `Options`, or a BadOption of one line that names the option, the value and the
accepted values. It never connects to anything.

Names and JSON are those of Spark's Kafka source, so that a job moves by changing one word. `tier.url` and a few
others are our own. Names are case-insensitive, as everywhere in Spark. Credentials are no options: they come from the
environment or files of driver and executors, and never enter a plan, a log or a checkpoint (`secured.py`).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stratalog.client.calls import READ_COMMITTED, READ_UNCOMMITTED
from stratalog.client.cluster import parse_bootstrap
from stratalog.config.named_options import refuse_idle
from stratalog.config.shown import shown
from stratalog.errors import BadOption
from stratalog.kernels.columns import COLUMNS, HEADERS, ORIGIN
from stratalog.table.secured import Secured, is_about_security, security_options
from stratalog.tier.bucket.leases import LEASE_MS, LEASE_MS_MAX

T = TypeVar("T")

EARLIEST, LATEST = -2, -1
"""Special offsets for the log's start and end, as in Spark's JSON."""


_UNITS_S = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class Selection(Enum):
    """The ways to choose topics."""

    SUBSCRIBE = "subscribe"
    PATTERN = "subscribePattern"
    ASSIGN = "assign"


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or the end of a read.

    Exactly one of: `everywhere` (EARLIEST or LATEST), `offsets` (topic -> partition -> offset, EARLIEST or LATEST),
    `timestamp` (epoch ms, everywhere), `timestamps` (topic -> partition -> epoch ms).
    """

    everywhere: int | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None
    timestamp: int | None = None
    timestamps: Mapping[str, Mapping[int, int]] | None = None

    def has(self, place: int) -> bool:
        """Return whether some partition's bound is `place` (EARLIEST or LATEST)."""
        given = (self.offsets or {}).values()
        return self.everywhere == place or any(place in offsets.values() for offsets in given)


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options of a query. `topics` are names for SUBSCRIBE and ASSIGN, one pattern for PATTERN."""

    bootstrap: str | None
    tier_url: str | None
    selection: Selection
    topics: tuple[str, ...]
    assigned: Mapping[str, tuple[int, ...]]
    """Topic -> partitions, for ASSIGN."""
    starting: Bound | None
    """None: earliest for a batch, latest for a stream."""
    ending: Bound | None
    """None: latest."""
    late_timestamp_is_error: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    """How long a trigger may wait for `min_offsets_per_trigger`."""
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    """The columns of a row, in order; other fields are not decoded."""
    pushdown: bool
    """Spark's filters narrow the read; a plain session refuses the option."""
    latest_by_key: bool
    """Only the last record of each key is a row, and none where its value is null."""
    isolation: int
    client_id: str
    request_timeout_s: float
    api_timeout_s: float
    """How long a call to brokers is tried again."""
    lease_ms: int
    """How long the bucket keeps pinned objects after the lease's last renewal."""
    secured: Secured = field(default=(), repr=False)
    """The security of connections to brokers, without secrets."""


LEASE_MS_MIN = 1000
OPTION_NAMES = (
    "kafka.bootstrap.servers",
    "tier.url",
    "tier.lease.ms",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includeOrigin",
    "columns",
    "pushdown",
    "latest_by_key",
    "kafka.client.id",
    "kafka.default.api.timeout.ms",
    "kafka.isolation.level",
    "kafka.request.timeout.ms",
    "kafka.security.protocol",
)
_CONSUMER_SETTINGS = (
    "allow.auto.create.topics auto.commit.interval.ms check.crcs client.dns.lookup client.rack "
    "connections.max.idle.ms enable.metrics.push exclude.internal.topics fetch.max.bytes "
    "fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor "
    "heartbeat.interval.ms max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms "
    "metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples "
    "metrics.recording.level metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes "
    "reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms send.buffer.bytes "
    "session.timeout.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms"
)
IDLE = {
    name.lower()
    for name in ("groupIdPrefix", *(f"kafka.{name}" for name in _CONSUMER_SETTINGS.split()))
}
"""Options of Spark's Kafka source that would have no effect here: there is no Java consumer."""
_PATIENCE = (
    "here 'kafka.default.api.timeout.ms' says how long a call is tried again: use it instead"
)
_DECODED = "every key and value is bytes: cast or decode the column"
REFUSED = {
    "fetchoffset.numretries": f"option 'fetchOffset.numRetries': {_PATIENCE}",
    "fetchoffset.retryintervalms": f"option 'fetchOffset.retryIntervalMs': {_PATIENCE}",
    "kafkaconsumer.polltimeoutms": f"option 'kafkaConsumer.pollTimeoutMs': {_PATIENCE}",
    "kafka.auto.offset.reset": "option 'kafka.auto.offset.reset' is not for Spark: use 'startingOffsets'",
    "kafka.enable.auto.commit": "option 'kafka.enable.auto.commit' is not for Spark: its checkpoint keeps the offsets",
    "kafka.key.deserializer": f"option 'kafka.key.deserializer' is not for Spark: {_DECODED}",
    "kafka.value.deserializer": f"option 'kafka.value.deserializer' is not for Spark: {_DECODED}",
    "kafka.interceptor.classes": "option 'kafka.interceptor.classes' is not for Spark: no Java consumer runs here",
}
_BY_LOWER = {name.lower(): name for name in OPTION_NAMES}
_LIMITS = ("min", "max")


def parse_options(given: Mapping[str, str], *, literal_secrets: bool = False) -> Options:
    """Parse and check everything; `literal_secrets` as for `security_options`. Raises BadOption."""
    refuse_idle(given, IDLE, "it tunes a Java consumer, and none runs here")
    options = {"maxTriggerDelay": "15m"}  # the one default that is not None, as Spark has it
    for name, value in given.items():
        option_name = _BY_LOWER.get(name.lower())
        if option_name is not None:
            options[option_name] = value
        elif not is_about_security(name):
            raise BadOption(REFUSED.get(name.lower()) or _unknown(name))
    selection, topics, assigned = _selection(options)
    bootstrap = _parsed(options, "kafka.bootstrap.servers", bootstrap_of)
    tier_url = _parsed(options, "tier.url", tier_url_of)
    if bootstrap is None and tier_url is None:
        raise BadOption(
            "option 'kafka.bootstrap.servers' or 'tier.url' (or both) must say where the log is"
        )
    least, most = (_parsed(options, f"{kind}OffsetsPerTrigger", _positive) for kind in _LIMITS)
    if least is not None and most is not None and least > most:
        raise BadOption(
            f"option 'minOffsetsPerTrigger' is {least}: more than 'maxOffsetsPerTrigger', {most}"
        )
    return Options(
        bootstrap=bootstrap,
        tier_url=tier_url,
        selection=selection,
        topics=topics,
        assigned=assigned,
        starting=_bound(options, "starting", refuse=None),
        ending=_bound(options, "ending", refuse=EARLIEST),
        late_timestamp_is_error=_parsed(options, "startingOffsetsByTimestampStrategy", _strategy)
        is not False,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=_parsed(options, "maxTriggerDelay", _delay) or 0.0,
        min_partitions=_parsed(options, "minPartitions", _positive),
        max_records_per_partition=_parsed(options, "maxRecordsPerPartition", _positive),
        fail_on_data_loss=_parsed(options, "failOnDataLoss", _flag) is not False,
        columns=_columns(options),
        pushdown=_parsed(options, "pushdown", _flag) or False,
        latest_by_key=_latest_by_key(options),
        isolation=_parsed(options, "kafka.isolation.level", isolation_of) or READ_UNCOMMITTED,
        client_id=options.get("kafka.client.id", "stratalog-spark"),
        request_timeout_s=(_parsed(options, "kafka.request.timeout.ms", _positive) or 30_000)
        / 1000,
        api_timeout_s=(_parsed(options, "kafka.default.api.timeout.ms", _positive) or 60_000)
        / 1000,
        lease_ms=_parsed(options, "tier.lease.ms", _lease_ms) or LEASE_MS,
        secured=security_options(given, literal_secrets=literal_secrets),
    )


def _unknown(name: str) -> str:
    close = get_close_matches(name.lower(), _BY_LOWER, n=1, cutoff=0.5)
    nearest = (
        f"did you mean '{_BY_LOWER[close[0]]}'?"
        if close
        else f"known are {', '.join(OPTION_NAMES)}"
    )
    return f"unknown option '{name}': {nearest}"


def _parsed(options: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    text = options.get(name)
    return None if text is None else parsed(f"option '{name}'", text, parse)


def parsed(what: str, text: str, parse: Callable[[str], T]) -> T:
    """Return the value in a text; `what` names the option or argument for messages. Raises BadOption."""
    try:
        return parse(text)
    except ValueError as error:
        raise BadOption(f"{what} is {shown(text)!r}: {error}") from None


def _selection(
    options: Mapping[str, str],
) -> tuple[Selection, tuple[str, ...], dict[str, tuple[int, ...]]]:
    chosen = [kind for kind in Selection if kind.value in options]
    if len(chosen) != 1:
        named = " and ".join(f"'{kind.value}'" for kind in chosen) or "none"
        raise BadOption(
            f"exactly one of 'subscribe', 'subscribePattern' and 'assign' is needed, not {named}"
        )
    kind = chosen[0]
    if kind is Selection.ASSIGN:
        assigned = _parsed(options, kind.value, _assignment) or {}
        return kind, tuple(sorted(assigned)), assigned
    if kind is Selection.PATTERN:
        pattern = _parsed(options, kind.value, _pattern) or ""
        return kind, (pattern,), {}
    return kind, _parsed(options, kind.value, _topic_names) or (), {}


def _bound(options: Mapping[str, str], side: str, refuse: int | None) -> Bound | None:
    """Return the bound on one side: one timestamp, else a timestamp per partition, else offsets (Spark's
    precedence).
    """
    one = _parsed(options, f"{side}Timestamp", _timestamp)
    if one is not None:
        return Bound(timestamp=one)
    per_partition = _parsed(options, f"{side}OffsetsByTimestamp", _timestamps)
    if per_partition is not None:
        return Bound(timestamps=per_partition)
    return _parsed(options, f"{side}Offsets", lambda text: _offsets(text, refuse))


def _latest_by_key(options: Mapping[str, str]) -> bool:
    """Return the flag. Raises BadOption for options that divide a partition into several tasks."""
    wanted = _parsed(options, "latest_by_key", _flag) or False
    for name in ("minPartitions", "maxRecordsPerPartition") if wanted else ():
        if name in options:
            raise BadOption(
                f"option '{name}' does not go with 'latest_by_key': one task reads a whole partition"
            )
    return wanted


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the named columns, or Kafka's; then headers and origin, if their own options request them."""
    chosen = _parsed(options, "columns", column_names_of) or COLUMNS
    for option, column in (("includeHeaders", HEADERS), ("includeOrigin", ORIGIN)):
        if _parsed(options, option, _flag) and column not in chosen:
            chosen = (*chosen, column)
    return chosen


def column_names_of(text: str) -> tuple[str, ...]:
    """Return the columns that a text names. Raises ValueError."""
    column_names = {name.lower(): name for name in (*COLUMNS, HEADERS, ORIGIN)}
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name.lower() not in column_names:
            raise ValueError(f"no column {name!r}; there are {', '.join(column_names.values())}")
    if not names:
        raise ValueError("at least one column is needed")
    return tuple(column_names[name.lower()] for name in names)


def bootstrap_of(text: str) -> str:
    """Return a list of brokers. Raises ValueError."""
    parse_bootstrap(text)
    return text


def tier_url_of(text: str) -> str:
    """Return a bucket's URL. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme == "memory":
        raise ValueError(
            "a bucket in one process's memory cannot be read by Spark's tasks; use file:// or s3://"
        )
    if not parts.scheme:
        raise ValueError("a URL such as file:///path or s3://bucket/prefix is needed")
    if parts.username or parts.password:
        raise ValueError(
            "credentials belong in the environment of driver and executors, not in the URL"
        )
    return text


def _topic_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("at least one topic name is needed")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression ({error})") from None
    return text


def _json(text: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"JSON such as {shape} is needed")  # noqa: TRY004 - every option fails alike
    return found


def _assignment(text: str) -> dict[str, tuple[int, ...]]:
    shape = '{"topic":[0,1]}'
    assigned = {}
    for topic, partitions in _json(text, shape).items():
        if not isinstance(partitions, list) or not all(
            _is_partition(index) for index in partitions
        ):
            raise ValueError(f"JSON such as {shape} is needed")
        assigned[topic] = tuple(sorted(set(partitions)))
    if not any(assigned.values()):
        raise ValueError("at least one partition is needed")
    return assigned


def _per_partition(text: str, shape: str, lowest: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _json(text, shape).items():
        if not isinstance(partitions, dict):
            raise ValueError(f"JSON such as {shape} is needed")  # noqa: TRY004
        for index, value in partitions.items():
            if (
                not index.isdigit()
                or not isinstance(value, int)
                or isinstance(value, bool)
                or value < lowest
            ):
                raise ValueError(
                    f"JSON such as {shape} is needed, not {value!r} for partition {index!r}"
                )
            found.setdefault(topic, {})[int(index)] = value
    return found


def _offsets(text: str, refuse: int | None) -> Bound:
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if named is None and not text.strip().startswith("{"):
        raise ValueError("'earliest', 'latest' or JSON such as {\"topic\":{\"0\":23}} is needed")
    if named is not None:
        if named == refuse:
            raise ValueError("reading cannot end there")
        return Bound(everywhere=named)
    offsets = _per_partition(text, '{"topic":{"0":23,"1":-2}}', EARLIEST)
    if any(offset == refuse for partitions in offsets.values() for offset in partitions.values()):
        raise ValueError("reading cannot end at -2 (earliest)")
    return Bound(offsets=offsets)


def _timestamps(text: str) -> dict[str, dict[int, int]]:
    return _per_partition(text, '{"topic":{"0":1700000000000}}', 0)


def _timestamp(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError("milliseconds since 1970 are needed")
    return int(text)


def _positive(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ValueError("a whole number of at least 1 is needed")
    return int(text)


def _lease_ms(text: str) -> int:
    found = _positive(text)
    if not LEASE_MS_MIN <= found <= LEASE_MS_MAX:
        raise ValueError(f"milliseconds from {LEASE_MS_MIN} to {LEASE_MS_MAX} are needed")
    return found


def _flag(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise ValueError("'true' or 'false' is needed")
    return found


def _delay(text: str) -> float:
    """Parse a time as Spark writes it: 500ms, 30s, 15m; return seconds."""
    found = re.fullmatch(r"(\d+)\s*(us|ms|s|m|min|h|d|)", text.strip().lower())
    if found is None:
        raise ValueError("a time such as 500ms, 30s or 15m is needed")
    return int(found[1]) * _UNITS_S[found[2]]


def _strategy(text: str) -> bool:
    """Return whether a timestamp behind the last record is an error."""
    found = {"error": True, "latest": False}.get(text.strip().lower())
    if found is None:
        raise ValueError("'error' or 'latest' is needed")
    return found


def isolation_of(text: str) -> int:
    """Return the isolation level. Raises ValueError."""
    found = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}.get(
        text.strip().lower()
    )
    if found is None:
        raise ValueError("'read_uncommitted' or 'read_committed' is needed")
    return found


def _is_partition(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
