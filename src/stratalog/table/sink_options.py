"""Parse the options of a write, once, and check the columns.

In: Spark's options, all text, and the names and types of columns. Out: `SinkOptions`, or a BadOption of one line. It
never connects to anything. Names are those of Spark's Kafka sink and Kafka's producer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.client.cluster import parse_bootstrap
from stratalog.config.named_options import named_options, positive, refuse_idle
from stratalog.errors import BadOption
from stratalog.table.exactly_once import Guarantee
from stratalog.table.options import parsed
from stratalog.table.secured import Secured, is_about_security, security_options
from stratalog.wire.compression import CODEC_NAMES

_DEFAULTS = {
    "kafka.bootstrap.servers": "",
    "topic": "",
    "kafka.acks": "all",
    "kafka.compression.type": "none",
    "kafka.batch.size": str(256 << 10),
    "kafka.client.id": "stratalog-spark",
    "kafka.delivery.timeout.ms": "120000",
    "kafka.max.block.ms": "60000",
    "kafka.request.timeout.ms": "30000",
    "kafka.security.protocol": "PLAINTEXT",
    "kafka.transaction.timeout.ms": "900000",
    "includeHeaders": "false",
    "deliveryGuarantee": "at-least-once",
    "transactionalIdPrefix": "stratalog",
    "decisionsTopic": "stratalog-decisions",
    "failOnHalfCommitted": "true",
}
_PRODUCER_SETTINGS = (
    "buffer.memory client.dns.lookup compression.gzip.level compression.lz4.level compression.zstd.level "
    "connections.max.idle.ms enable.idempotence enable.metrics.push linger.ms "
    "max.in.flight.requests.per.connection max.request.size metadata.max.age.ms metadata.max.idle.ms "
    "metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples "
    "metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms "
    "reconnect.backoff.ms retries retry.backoff.max.ms retry.backoff.ms send.buffer.bytes "
    "socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms"
)
_WRITTEN = "keys and values are written as the bytes they are"
REFUSED = {
    "kafka.key.serializer": f"option 'kafka.key.serializer' is not for Spark: {_WRITTEN}",
    "kafka.value.serializer": f"option 'kafka.value.serializer' is not for Spark: {_WRITTEN}",
    "kafka.interceptor.classes": "option 'kafka.interceptor.classes' is not for Spark: no Java producer runs here",
    "kafka.partitioner.class": "option 'kafka.partitioner.class': keys go where murmur2 says, or a column 'partition'",
    "kafka.transactional.id": "option 'kafka.transactional.id': each task has an id of its own; set "
    "deliveryGuarantee=exactly-once and transactionalIdPrefix",
}
IDLE = {f"kafka.{name}" for name in _PRODUCER_SETTINGS.split()}
"""Settings of Kafka's producer that would have no effect here: there is no Java producer."""
SINK_OPTIONS = tuple(_DEFAULTS)

_AT_LEAST_ONCE, _EXACTLY_ONCE = _GUARANTEES = ("at-least-once", "exactly-once")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_ACKS = {"all": -1, "-1": -1, "1": 1}
_COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`topic`: the topic of all rows; None: each row's column names its topic.

    `exactly_once`: None asks for at least once.
    """

    bootstrap: str
    topic: str | None
    acks: int
    codec: str
    batch_bytes: int
    client_id: str
    request_timeout_s: float
    block_s: float
    """How long a task waits for brokers before it writes."""
    delivery_s: float
    """How long a batch is sent again."""
    exactly_once: Guarantee | None = None
    secured: Secured = field(default=(), repr=False)
    """The security of connections to brokers, without secrets."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check everything. Raises BadOption."""
    for name in given:
        why = REFUSED.get(name.lower())
        if why is not None:
            raise BadOption(why)
    refuse_idle(given, IDLE, "it tunes a Java producer, and none runs here")
    other = {name: text for name, text in given.items() if not is_about_security(name)}
    options = named_options(other, _DEFAULTS, page="docs/spark.md")
    if not options["kafka.bootstrap.servers"]:
        raise BadOption("option 'kafka.bootstrap.servers' must say where to write")
    servers = options["kafka.bootstrap.servers"]
    parsed("option 'kafka.bootstrap.servers'", servers, parse_bootstrap)
    acks = options["kafka.acks"].lower()
    if acks not in _ACKS:
        raise BadOption(f"option 'kafka.acks' is {acks!r}: 'all' or '1' is needed")
    codec = options["kafka.compression.type"].lower()
    if codec not in CODEC_NAMES:
        raise BadOption(
            f"option 'kafka.compression.type' is {codec!r}: one of {', '.join(CODEC_NAMES)} is needed"
        )
    return SinkOptions(
        servers,
        options["topic"] or None,
        _ACKS[acks],
        codec,
        positive(options, "kafka.batch.size"),
        options["kafka.client.id"],
        positive(options, "kafka.request.timeout.ms") / 1000,
        positive(options, "kafka.max.block.ms") / 1000,
        positive(options, "kafka.delivery.timeout.ms") / 1000,
        _exactly_once(options, acks),
        security_options(given),
    )


def _exactly_once(options: Mapping[str, str], acks: str) -> Guarantee | None:
    guarantee = options["deliveryGuarantee"].lower()
    if guarantee not in _GUARANTEES:
        raise BadOption(
            f"option 'deliveryGuarantee' is {guarantee!r}: one of {', '.join(_GUARANTEES)} is needed"
        )
    prefix, topic = options["transactionalIdPrefix"], options["decisionsTopic"]
    for name, text in (("transactionalIdPrefix", prefix), ("decisionsTopic", topic)):
        if _NAME.fullmatch(text) is None:
            raise BadOption(
                f"option '{name}' is {text!r}: 1 to 200 letters, digits, '.', '_' and '-' are needed"
            )
    fail = options["failOnHalfCommitted"].lower()
    if fail not in ("true", "false"):
        raise BadOption(f"option 'failOnHalfCommitted' is {fail!r}: true or false is needed")
    timeout_ms = positive(options, "kafka.transaction.timeout.ms")
    if guarantee == _AT_LEAST_ONCE:
        return None
    if _ACKS[acks] != -1:
        raise BadOption("option 'kafka.acks': exactly once needs 'all'")
    return Guarantee(prefix, topic, timeout_ms, fail == "true")


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check that columns of these names and Spark's simple types can be written. Raises BadOption."""
    for name, kind in columns.items():
        kinds = _COLUMNS.get(name)
        if kinds is None:
            raise BadOption(f"column '{name}' cannot be written; there are {', '.join(_COLUMNS)}")
        if kind not in kinds:
            raise BadOption(f"column '{name}' is {kind}, not {' or '.join(kinds)}")
    if "value" not in columns:
        raise BadOption("a column 'value' is needed")
    if options.topic is None and "topic" not in columns:
        raise BadOption("option 'topic' or a column 'topic' must say where rows go")
