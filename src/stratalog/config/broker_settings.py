"""The settings of a broker, by Kafka's names and, where Kafka has none, ours.

In: nothing. Out: `BROKER_SETTINGS`, with and without effect. Data only: it decides nothing.

Names, types and limits are those of Apache Kafka 4.3's `AbstractKafkaConfig`; the wording is ours. The log
defaults that a topic may override are in `log_settings.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from stratalog.config.authorizer_settings import AUTHORIZER
from stratalog.config.kafka_only import INERT_SETTINGS
from stratalog.config.kinds import INT_MAX, Between, Dynamic, Kind, OneOf, Setting, Shaped
from stratalog.config.listeners import (
    check_address,
    check_address_limits,
    check_directories,
    check_listeners,
    check_protocols,
)
from stratalog.config.log_settings import LOG_SETTINGS
from stratalog.config.quorum_settings import QUORUM
from stratalog.config.quota_settings import QUOTAS
from stratalog.config.replication_settings import REPLICATION
from stratalog.config.security_settings import (
    JAAS_OF_MECHANISM,
    OF_ONE_LISTENER,
    SASL,
    SECURITY,
    is_jaas,
)
from stratalog.config.telemetry_settings import TELEMETRY
from stratalog.config.tier_settings import TIER
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.config.transaction_settings import TRANSACTIONS

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

LISTENERS = Shaped(
    check_listeners,
    "NAME://host:port, several separated by commas, each name and each port once",
)

NODE = (
    Setting(
        "process.roles",
        Kind.LIST,
        ("broker", "controller"),
        "Roles of this process. By default both: one process is a whole cluster.",
        OneOf(("broker", "controller")),
        kafka_default="none",
    ),
    Setting(
        "node.id",
        Kind.INT,
        1,
        "The node's number in the cluster. A directory remembers it and refuses another.",
        Between(0),
        kafka_default="none",
    ),
    Setting(
        "broker.id",
        Kind.INT,
        -1,
        "The older name of `node.id`. Where one of the two is set, both have its value; different values are refused.",
    ),
    Setting(
        "broker.rack",
        Kind.STRING,
        "",
        "The rack of the machine; replicas of a partition are placed in different racks.",
        kafka_default="null",
    ),
    Setting(
        "listeners",
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on. An empty host is every address of the machine, port 0 a free port. By default "
        "only this machine; where `advertised.listeners` is set, every address, as in Kafka.",
        LISTENERS,
        kafka_default="PLAINTEXT://:9092",
    ),
    Setting(
        "advertised.listeners",
        Kind.LIST,
        (),
        "Addresses that the broker gives to clients; by default those of `listeners`.",
        LISTENERS,
        kafka_default="null",
    ),
    Setting(
        "listener.security.protocol.map",
        Kind.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener name; all four of Kafka's are served.",
        Shaped(check_protocols, "NAME:PROTOCOL, several separated by commas"),
    ),
    Setting(
        "controller.listener.names",
        Kind.LIST,
        (),
        "Listeners that serve controllers instead of clients.",
        kafka_default="none",
    ),
    Setting(
        "log.dirs",
        Kind.LIST,
        (),
        "Directories that hold partitions; by default the one of `log.dir`.",
        Shaped(check_directories, "directories separated by commas"),
        kafka_default="null",
    ),
    Setting(
        "log.dir",
        Kind.LIST,
        ("strata-data",),
        "Used where `log.dirs` is not set. Ours is below the working directory: data must not "
        "vanish with a temporary one.",
        Shaped(check_directories, "directories separated by commas"),
        kafka_default="a directory for temporary files",
    ),
    Setting(
        "metadata.log.dir",
        Kind.STRING,
        "",
        "The directory of the metadata log; by default the first of `log.dirs`.",
        kafka_default="null",
    ),
    Setting(
        "cordoned.log.dirs",
        Kind.LIST,
        (),
        "Directories of `log.dirs` that take no new replicas, or `*` for all; what they hold stays. "
        "Where all are cordoned, the broker gets no new replica.",
        dynamic=Dynamic.PER_BROKER,
    ),
)

TOPICS = (
    Setting(
        "num.partitions",
        Kind.INT,
        1,
        "Partitions of a topic created without a number.",
        Between(1),
    ),
    Setting(
        "default.replication.factor",
        Kind.INT,
        1,
        "Replicas of a topic created without a number.",
        Between(1),
    ),
    Setting(
        "auto.create.topics.enable",
        Kind.BOOLEAN,
        True,
        "Whether naming a topic that does not exist creates it.",
    ),
    Setting(
        "delete.topic.enable",
        Kind.BOOLEAN,
        True,
        "Whether topics may be deleted.",
    ),
    Setting(
        "max.request.partition.size.limit",
        Kind.INT,
        2000,
        "Most partitions in one answer to DescribeTopicPartitions; a cursor in the answer leads to the next ones.",
        Between(1),
    ),
)

CONNECTIONS = (
    Setting(
        "socket.request.max.bytes",
        Kind.INT,
        100 * MIB,
        "Largest request; a longer one closes its connection, and so does one that would take more memory "
        "than that once decoded, records aside.",
        Between(1),
    ),
    Setting(
        "socket.send.buffer.bytes",
        Kind.INT,
        524_288,
        "Size of the system's send buffer of a connection; -1: the system decides. Five times Kafka's: a large answer "
        "takes fewer wakeups. What the system decides lets clients that read nothing hold far more memory.",
        Between(-1, INT_MAX),
        kafka_default="102400",
    ),
    Setting(
        "socket.receive.buffer.bytes",
        Kind.INT,
        524_288,
        "Size of the system's receive buffer of a connection; -1: the system decides. Five times Kafka's, for the same "
        "reasons.",
        Between(-1, INT_MAX),
        kafka_default="102400",
    ),
    Setting(
        "max.connections",
        Kind.INT,
        INT_MAX,
        "Most connections at a time; one more is closed at once, unless an older one has not logged in or its address "
        "has more. File descriptors set a limit, too: `ulimit -n` less 4,096, at least half of it. "
        "`listener.name.NAME.max.connections`: those of one listener.",
        Between(0),
        Dynamic.CLUSTER_WIDE,
    ),
    Setting(
        "max.connections.per.ip",
        Kind.INT,
        INT_MAX,
        "Most connections of one address at a time; one more is closed at once.",
        Between(0),
        Dynamic.CLUSTER_WIDE,
    ),
    Setting(
        "max.connections.per.ip.overrides",
        Kind.STRING,
        "",
        "Other limits than `max.connections.per.ip` for some addresses. Names are not looked up.",
        Shaped(check_address_limits, "address:count, several separated by commas"),
        Dynamic.CLUSTER_WIDE,
    ),
    Setting(
        "max.connection.creation.rate",
        Kind.INT,
        INT_MAX,
        "New connections a second, a second's worth of them at once; more are accepted and wait for "
        "their turn. 0: none. `listener.name.NAME.max.connection.creation.rate`: those of one listener.",
        Between(0),
        Dynamic.CLUSTER_WIDE,
    ),
    Setting(
        "fetch.max.bytes",
        Kind.INT,
        8 * MIB,
        "Most bytes of one answer to a fetch, whatever the client allows; one batch comes whole in "
        "any case. Less than Kafka's: the answer is in the broker's memory until the client has received it.",
        Between(1024),
        kafka_default="57671680",
    ),
    Setting(
        "queued.max.request.bytes",
        Kind.LONG,
        256 * MIB,
        "Bytes of requests that were received and are not yet answered, of all connections "
        "together. At the limit connections that hold more than a little stop reading and go on "
        "in turn; one request larger than it is served. Small requests pass in an eighth beyond it, and half requests "
        "of the client that holds most end for them. Clients before their login have a sixteenth of it beside it, "
        "from 1 to 16 MiB. -1: no limit, as in Kafka, where many clients can fill the memory.",
        Between(-1),
        kafka_default="-1",
    ),
    Setting(
        "queued.max.response.bytes",
        Kind.LONG,
        128 * MIB,
        "Bytes of answers that clients have not received yet, of all connections together. Beyond "
        "it each fetch is answered with one batch; -1: no limit.",
        Between(-1),
        ours=True,
    ),
    Setting(
        "small.requests.compiled",
        Kind.BOOLEAN,
        True,
        "Whether compiled code reads and answers produce requests of one small batch and fetches at the tail, where "
        "the installation has it (Linux with cargo). Clients see no difference.",
        ours=True,
    ),
    Setting(
        "connections.max.idle.ms",
        Kind.LONG,
        10 * 60 * 1000,
        "A connection without a request for this long is closed; negative: never.",
    ),
)

GROUPS = (
    Setting(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        3000,
        "How long an empty group waits for more members before its first assignment.",
    ),
    Setting(
        "group.min.session.timeout.ms",
        Kind.INT,
        6000,
        "Shortest session time-out that a member may ask for.",
    ),
    Setting(
        "group.max.session.timeout.ms",
        Kind.INT,
        30 * MINUTE_MS,
        "Longest session time-out that a member may ask for.",
    ),
    Setting(
        "group.max.size",
        Kind.INT,
        2**31 - 1,
        "Members of one group.",
        Between(1),
    ),
    Setting(
        "offset.metadata.max.bytes",
        Kind.INT,
        4096,
        "Most bytes of the text that may go with a committed offset.",
    ),
    Setting(
        "offsets.commit.timeout.ms",
        Kind.INT,
        5000,
        "How long a request of a consumer group waits until its offsets, or its group, are committed. After that it is "
        "refused with COORDINATOR_NOT_AVAILABLE, and the client repeats it.",
        Between(1),
    ),
    Setting(
        "request.timeout.ms",
        Kind.INT,
        30_000,
        "How long a request of a transaction waits until its coordinator's decision is committed.",
        Between(1),
    ),
    Setting(
        "offsets.retention.minutes",
        Kind.INT,
        10080,
        "How long an empty group's offsets are kept.",
        Between(1),
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        10 * MINUTE_MS,
        "How often the coordinator looks for expired offsets and empty groups, and deletes them.",
        Between(1),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        Kind.INT,
        1000,
        "Most fetch sessions at a time; 0: none.",
        Between(0),
    ),
    Setting(
        "offsets.topic.num.partitions",
        Kind.INT,
        50,
        "Partitions of `__consumer_offsets`, fixed when it is created.",
        Between(1),
    ),
    Setting(
        "offsets.topic.replication.factor",
        Kind.SHORT,
        3,
        "Replicas of each partition of `__consumer_offsets`. Where it is not set, a cluster of fewer nodes has one on "
        "each; where it is set, the topic waits for so many brokers.",
        Between(1),
    ),
    Setting(
        "offsets.topic.segment.bytes",
        Kind.INT,
        100 * MIB,
        "Segment size of `__consumer_offsets`. As for every topic, at least a mebibyte.",
        Between(MIB),
    ),
)

SESSIONS = (
    Setting(
        "broker.heartbeat.interval.ms",
        Kind.INT,
        2 * SECOND_MS,
        "How often a broker sends a heartbeat to the controller.",
        Between(1),
    ),
    Setting(
        "broker.session.timeout.ms",
        Kind.INT,
        9 * SECOND_MS,
        "The controller fences a broker without a heartbeat for so long.",
        Between(1),
    ),
    Setting(
        "initial.broker.registration.timeout.ms",
        Kind.INT,
        MINUTE_MS,
        "A broker that the controller has not registered within this time does not start.",
        Between(1),
    ),
    Setting(
        "controlled.shutdown.enable",
        Kind.BOOLEAN,
        True,
        "Whether a broker gives its leaderships to others before it stops.",
    ),
    Setting(
        "controller.socket.timeout.ms",
        Kind.INT,
        30 * SECOND_MS,
        "Time for a request of a broker to the controller, its repetitions included.",
        Between(1),
    ),
    Setting(
        "log.dir.failure.timeout.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "A broker stops if it cannot report a failed log directory to the controller in this time.",
        Between(1),
    ),
)

MONITOR = (
    Setting(
        "monitor.listener",
        Kind.STRING,
        "",
        "Where `/metrics` (for Prometheus), `/healthz` and `/readyz` are served; empty: nowhere. Any client that "
        "reaches it may read topic and group names: open it to monitoring hosts only.",
        Shaped(check_address, "host:port or nothing; port 0 is a free port"),
        ours=True,
    ),
    Setting(
        "monitor.allowed.hosts",
        Kind.LIST,
        (),
        "Further names by which clients may address the monitor. Without them it answers to IP addresses, localhost, "
        "the name of the machine, and the hosts of `monitor.listener` and `advertised.listeners`; it refuses a request "
        "with another Host.",
        ours=True,
    ),
)

METADATA = (
    Setting(
        "metadata.log.max.record.bytes.between.snapshots",
        Kind.LONG,
        20 * MIB,
        "Bytes of metadata records after which a snapshot is written.",
        Between(1),
    ),
    Setting(
        "metadata.log.max.snapshot.interval.ms",
        Kind.LONG,
        3_600_000,
        "The longest time from one snapshot of the metadata log to the next, where the log has changed; 0: no limit.",
        Between(0),
    ),
)

_TOPIC_DEFAULTS = {topic.synonyms[0].name for topic in TOPIC_SETTINGS.values() if topic.synonyms}
"""Settings that a running broker can change: the first synonym of each topic setting (Kafka: DynamicLogConfig)."""


def _table(*groups: tuple[Setting, ...]) -> Mapping[str, Setting]:
    table = {
        setting.name: replace(setting, dynamic=Dynamic.CLUSTER_WIDE)
        if setting.name in _TOPIC_DEFAULTS
        else setting
        for group in groups
        for setting in group
    }
    assert len(table) == sum(map(len, groups)), "a setting is given twice"
    return MappingProxyType(table)


BROKER_SETTINGS = _table(
    NODE,
    QUORUM,
    TOPICS,
    CONNECTIONS,
    LOG_SETTINGS,
    REPLICATION,
    GROUPS,
    TRANSACTIONS,
    AUTHORIZER,
    QUOTAS,
    SESSIONS,
    MONITOR,
    TELEMETRY,
    METADATA,
    TIER,
    SASL,
    SECURITY,
    INERT_SETTINGS,
)
_OF_LISTENER = "listener.name."
_LISTENER_LIMITS = ("max.connections", "max.connection.creation.rate")


def is_secret(name: str) -> bool:
    """Return whether a setting's value must be shown nowhere; a listener's own counts like the one for all."""
    setting = setting_of(name)
    return setting is not None and setting.kind is Kind.PASSWORD


def setting_of(name: str) -> Setting | None:
    """Return the setting of that name, None for none.

    `listener.name.NAME.` before a limit of connections is that limit for one listener (KIP-402, KIP-612), beside the
    one for all of them; before a setting of TLS it is that of one listener.
    """
    listener, _, own = name.removeprefix(_OF_LISTENER).partition(".")
    if name.startswith(_OF_LISTENER) and listener and own in {*_LISTENER_LIMITS, *OF_ONE_LISTENER}:
        setting = BROKER_SETTINGS[own]
        is_fixed = setting.dynamic is Dynamic.READ_ONLY and own not in _LISTENER_LIMITS
        return replace(
            setting, name=name, dynamic=Dynamic.READ_ONLY if is_fixed else Dynamic.PER_BROKER
        )
    if name.startswith(_OF_LISTENER) and listener and is_jaas(own):
        return replace(JAAS_OF_MECHANISM, name=name)
    return BROKER_SETTINGS.get(name)
