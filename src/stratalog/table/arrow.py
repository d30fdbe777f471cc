"""Read a topic as Arrow record batches, without Spark: for pandas, DuckDB, Polars and every other reader of Arrow.

In: a topic's name, the location of its log, a span of time, keys, partitions, offsets. Out: a
`pyarrow.RecordBatchReader`, which reads a few MiB at a time during the iteration. It never holds the whole topic, and
never commits an offset.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from logging import getLogger
from operator import index
from typing import SupportsIndex

import pyarrow as pa

from stratalog.adapters.system import SystemClock
from stratalog.errors import BadOption, DataLoss, Error, UserError
from stratalog.kernels.rows import arrow_schema
from stratalog.table.leasing import released
from stratalog.table.metrics import ReadMetrics
from stratalog.table.options import (
    EARLIEST,
    LATEST,
    Options,
    bootstrap_of,
    column_names_of,
    isolation_of,
    parse_options,
    parsed,
    tier_url_of,
)
from stratalog.table.partitioners import misplaced
from stratalog.table.places import store_at
from stratalog.table.plan import Task
from stratalog.table.pruning import Pruning
from stratalog.table.query import batch_tasks, shared_of
from stratalog.table.secured import is_about_security, security_options
from stratalog.table.tasks import read_task

Moment = datetime | timedelta | int | str
"""A time with a zone, a timedelta before now, milliseconds since 1970, or ISO 8601."""
Key = bytes | str
"""A record's key; a text means its UTF-8."""
Span = tuple[int | None, int | None]
"""Offsets [first, end) of a partition; None means the log's start or end."""

PLANNING_S = 5.0
"""How long the plan of a read waits for brokers."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS_MAX = (1 << 63) - 1


def read_topic(  # noqa: PLR0913 - as `stratalog.read`
    topic: str,
    *,
    bootstrap_servers: str | None,
    tier_url: str | None,
    since: Moment | None,
    until: Moment | None,
    offsets: Mapping[int, Span] | None,
    partitions: Sequence[int] | None,
    key: Key | Sequence[Key] | None,
    partitioner: str | None,
    columns: Sequence[str] | None,
    isolation: str,
    fail_on_data_loss: bool,
    metrics: ReadMetrics | None,
    security: Mapping[str, str] | None,
) -> pa.RecordBatchReader:
    """Implement `stratalog.read`."""
    given = _chosen(_topic(topic), partitions, offsets) | {
        "kafka.isolation.level": _text("isolation", isolation, isolation_of),
        "failOnDataLoss": str(_flag("fail_on_data_loss", fail_on_data_loss)),
    }
    if bootstrap_servers is None and tier_url is None:
        raise BadOption("bootstrap_servers or tier_url (or both) must say where the log is")
    if bootstrap_servers is not None:
        given["kafka.bootstrap.servers"] = _text(
            "bootstrap_servers", bootstrap_servers, bootstrap_of
        )
    if tier_url is not None:
        given["tier.url"] = _text("tier_url", tier_url, tier_url_of)
    if columns is not None:
        given["columns"] = _columns(columns)
    if metrics is not None and not isinstance(metrics, ReadMetrics):
        raise BadOption(f"metrics is {metrics!r}: a stratalog.ReadMetrics() is needed")
    given |= _security(security)
    with _as_documented():
        options = parse_options(given, literal_secrets=True)
        pruning = replace(
            _times(since, until), keys=_keys(key), by_murmur2=by_murmur2(partitioner, key)
        )
        # A wrong address is an error soon; once there is something to read, brokers may be away for longer.
        tasks = batch_tasks(replace(options, api_timeout_s=PLANNING_S), pruning, metrics)
    return pa.RecordBatchReader.from_batches(
        arrow_schema(options.columns),
        _batches(tasks, options, metrics, by_murmur2=pruning.by_murmur2),
    )


@contextmanager
def _as_documented() -> Iterator[None]:
    """Raise errors without their causes, of the kinds and with the arguments that `stratalog.read` documents."""
    try:
        yield
    except DataLoss as error:
        named = str(error).replace("failOnDataLoss=false", "fail_on_data_loss=False")
        raise DataLoss(named) from None
    except UserError as error:
        raise (error if isinstance(error, BadOption) else BadOption(str(error))) from None
    except Error as error:
        raise error from None


def _batches(
    tasks: Sequence[Task], options: Options, metrics: ReadMetrics | None, *, by_murmur2: bool
) -> Iterator[pa.RecordBatch]:
    shared = shared_of(options)
    rows = 0
    with _as_documented():
        try:
            for task in tasks:
                for batch in read_task(task, shared, metrics):
                    rows += batch.num_rows
                    yield batch
        finally:
            if shared.tier_url is not None:
                released(tasks, store_at(shared.tier_url))
        if by_murmur2 and not rows and (doubt := misplaced(options)) is not None:
            getLogger("stratalog.table").warning("no row: %s", doubt)


def _topic(name: object) -> str:
    """Return the topic's name. A list of names is refused: rows of one topic are one table."""
    if not isinstance(name, str) or not name.strip() or "," in name:
        raise BadOption(f"topic is {name!r}: the name of one topic is needed")
    return name


def _text(name: str, value: object, parse: Callable[[str], object]) -> str:
    """Return an argument that is a text which `parse` accepts."""
    if not isinstance(value, str):
        raise BadOption(f"{name} is {value!r}: a text is needed")
    parsed(name, value, parse)
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadOption(f"{name} is {value!r}: True or False is needed")
    return value


def _columns(value: object) -> str:
    """Return the names of columns as an option's text."""
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(name, str) for name in value)
    ):
        raise BadOption(
            f"columns is {value!r}: a list of names is needed, such as ['key', 'value']"
        )
    return _text("columns", ",".join(value), column_names_of)


def _security(properties: object) -> dict[str, str]:
    """Return the properties of Kafka's clients as options. Raises BadOption for others, and for unusable values."""
    if properties is None:
        return {}
    if not isinstance(properties, Mapping) or not all(
        isinstance(text, str) for item in properties.items() for text in item
    ):
        raise BadOption(
            "security is no mapping of texts: {'security.protocol': 'SSL'} and the like is needed"
        )
    given = {f"kafka.{name}": text for name, text in properties.items()}
    try:
        security_options(given, literal_secrets=True)
    except BadOption as error:
        raise BadOption(f"security: {error}") from None
    for name in given:
        if not is_about_security(name):
            raise BadOption(
                f"security: {name.removeprefix('kafka.')!r} is no property of security; accepted: "
                "security.protocol, ssl.…, sasl.…"
            )
    return given


def _chosen(topic: str, partitions: object, offsets: object) -> dict[str, str]:
    """Return options that choose the topic's partitions and bound their offsets."""
    if partitions is None and offsets is None:
        return {"subscribe": topic}
    if partitions is not None and offsets is not None:
        raise BadOption("partitions and offsets are both given: offsets names its partitions")
    if offsets is None:
        if not isinstance(partitions, Iterable):
            raise BadOption(f"partitions is {partitions!r}: a list such as [0, 1] is needed")
        offsets = dict.fromkeys(partitions, (None, None))
    if not isinstance(offsets, Mapping):
        raise BadOption(f"offsets is {offsets!r}: {{partition: (first, end)}} is needed")
    if not offsets:
        raise BadOption("no partition is named: leave partitions or offsets out to read all")
    spans = {_whole(key, "a partition"): _span(key, span) for key, span in offsets.items()}
    return {
        "assign": json.dumps({topic: list(spans)}),
        "startingOffsets": json.dumps({topic: {key: first for key, (first, _) in spans.items()}}),
        "endingOffsets": json.dumps({topic: {key: end for key, (_, end) in spans.items()}}),
    }


def _span(partition: object, span: object) -> tuple[int, int]:
    if not isinstance(span, tuple | list) or len(span) != 2:
        raise BadOption(f"offsets of partition {partition} are {span!r}: (first, end) is needed")
    first, end = (None if at is None else _whole(at, "an offset") for at in span)
    return EARLIEST if first is None else first, LATEST if end is None else end


def _whole(value: object, what: str) -> int:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and index(value) >= 0:
        return index(value)
    raise BadOption(f"{value!r} is not {what}: a whole number from 0 on is needed")


def _keys(key: object) -> frozenset[bytes] | None:
    if key is None:
        return None
    given = [key] if isinstance(key, bytes | str) else key
    if not isinstance(given, Iterable):
        raise BadOption(f"key is {key!r}: bytes, a text, or a list of them is needed")
    keys = [one.encode() if isinstance(one, str) else one for one in given]
    for one in keys:
        if not isinstance(one, bytes):
            raise BadOption(f"key has {one!r}: bytes or a text is needed")
    return frozenset(keys)


def by_murmur2(partitioner: str | None, key: object) -> bool:
    """Return whether keys choose the partitions that are read. Raises BadOption for an unknown partitioner."""
    if partitioner is None:
        return False
    if partitioner != "murmur2":
        raise BadOption(f"partitioner is {partitioner!r}: murmur2 is known, Java's default")
    if key is None:
        raise BadOption("partitioner chooses partitions by key, and no key is named")
    return True


def _times(since: Moment | None, until: Moment | None) -> Pruning:
    since_ms = None if since is None else _epoch_ms("since", since)
    until_ms = None if until is None else _epoch_ms("until", until)
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise BadOption(f"since ({since}) is later than until ({until})")
    return Pruning(since_ms=since_ms, until_ms=until_ms)


def _epoch_ms(name: str, moment: Moment) -> int:
    """Return the first whole millisecond since 1970 that is not before `moment`.

    Records have whole milliseconds, so as a bound of either side it parts them as `moment` does.
    """
    if isinstance(moment, int) and not isinstance(moment, bool):
        if abs(moment) > _MS_MAX:
            raise BadOption(f"{name} is {moment}: milliseconds since 1970 have 63 bits")
        return moment
    if isinstance(moment, timedelta):
        return SystemClock().now_ms() - moment // timedelta(milliseconds=1)
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise BadOption(
                f"{name} is {moment!r}: write ISO 8601, such as 2026-01-31T12:00:00+00:00"
            ) from None
    if not isinstance(moment, datetime):
        raise BadOption(
            f"{name} is {moment!r}: a datetime, a timedelta, milliseconds or ISO 8601 is needed"
        )
    if moment.tzinfo is None:
        raise BadOption(
            f"{name} is {moment.isoformat()}, without a time zone: add one, such as +00:00"
        )
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
