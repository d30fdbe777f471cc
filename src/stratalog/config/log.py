"""The settings of one topic's logs.

In: a topic's own settings as text, and the broker's. Out: `LogConfig`, or a rejection that names the setting, its value
and the accepted values. It never looks up a topic.
"""

from collections.abc import Mapping

from msgspec import Struct

from stratalog.config.broker import BrokerConfig
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.kinds import LONG_MAX, BadValue, Value
from stratalog.config.topic_settings import TOPIC_SETTINGS, Synonym
from stratalog.errors import ErrorCode, Rejected

SAME_AS_TOTAL = -2
UNLIMITED = -1


class LogConfig(Struct, frozen=True):
    """The log settings of one topic's partitions. Names are Kafka's with underscores; units are in the names.

    A limit of -1 means no limit; `local_retention_*` = -2 means the total retention.
    """

    segment_bytes: int = 1024**3
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    preallocate: bool = False
    segment_index_bytes: int = 10 * 1024**2
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    local_retention_ms: int = SAME_AS_TOTAL
    local_retention_bytes: int = SAME_AS_TOTAL
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    max_message_bytes: int = 1_048_588
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_insync_replicas: int = 1
    file_delete_delay_ms: int = 60_000
    tier_max_lag_ms: int = 600_000
    tier_key_filter: bool = False
    producer_id_expiration_ms: int = 86_400_000
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    is_state: bool = False
    """Whether a coordinator loads the whole log at a start. No setting: its topic's name says so."""

    @property
    def is_compacted(self) -> bool:
        """Whether the last record of each key is kept, and older ones need not be.

        Also for a tiered topic, which Apache Kafka refuses (docs/decisions/0037).
        """
        return "compact" in self.cleanup_policy

    @property
    def total_retention(self) -> tuple[int, int]:
        """The limits of the whole log: milliseconds, and bytes. Both are -1 where the policy is compact alone."""
        if "delete" not in self.cleanup_policy:
            return UNLIMITED, UNLIMITED
        return self.retention_ms, self.retention_bytes

    @property
    def local_retention(self) -> tuple[int, int]:
        """The limits of a tiered topic's segments on the disk, once the bucket has them: milliseconds, and bytes."""
        total_ms, total_bytes = self.total_retention
        local_ms, local_bytes = self.local_retention_ms, self.local_retention_bytes
        return (
            total_ms if local_ms == SAME_AS_TOTAL else local_ms,
            total_bytes if local_bytes == SAME_AS_TOTAL else local_bytes,
        )

    @property
    def copies_to_tier(self) -> bool:
        """Whether the archiver uploads closed segments; the broker keeps and reads objects in the bucket either way
        (KIP-950).
        """
        return self.remote_storage_enable and not self.remote_log_copy_disable


def log_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """Return a topic's settings over the broker's defaults.

    `check_topic_configs` checks new `overrides`. Of those in the metadata log, a name or value that this release does
    not accept counts as not set.
    """
    chosen = topic_values(broker, overrides)
    names = LogConfig.__struct_fields__
    fields = {name.replace(".", "_"): value for name, value in chosen.items()}
    fields["producer_id_expiration_ms"] = broker.int("producer.id.expiration.ms")
    if fields["internal_segment_bytes"] is not None:
        fields["segment_bytes"] = fields["internal_segment_bytes"]
    return LogConfig(**{name: value for name, value in fields.items() if name in names})  # type: ignore[arg-type]


def topic_values(broker: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Return every topic setting's effective value."""
    own = {
        name: TOPIC_SETTINGS[name].setting.stored(text)
        for name, text in overrides.items()
        if name in TOPIC_SETTINGS
    }
    return {
        name: broker_default(broker, name) if own.get(name) is None else own[name]
        for name in TOPIC_SETTINGS
    }


def broker_default(broker: BrokerConfig, name: str) -> Value:
    """Return the value of a topic setting that the topic does not set."""
    topic = TOPIC_SETTINGS[name]
    for synonym in topic.synonyms:
        value = synonym_value(broker, synonym)
        if value is not None:
            return value
    return topic.setting.default


def synonym_value(broker: BrokerConfig, synonym: Synonym) -> Value:
    """Return the broker's value behind a topic setting, in the topic setting's unit; None without one."""
    if synonym.name not in BROKER_SETTINGS:
        return None
    value = broker.get(synonym.name)
    if synonym.factor == 1 or not isinstance(value, int):
        return value
    return UNLIMITED if value < 0 else value * synonym.factor


def check_topic_configs(configs: Mapping[str, str], broker: BrokerConfig | None = None) -> None:
    """Raise Rejected(INVALID_CONFIG) naming the setting, its value and the accepted values.

    With the broker's settings, also check combinations: retention with local retention, and tiered topics without a
    tier.
    """
    for name, text in configs.items():
        if name not in TOPIC_SETTINGS:
            raise Rejected(ErrorCode.invalid_config, f"unknown topic setting {name}")
        try:
            TOPIC_SETTINGS[name].setting.parse(text)
        except BadValue as bad:
            raise Rejected(ErrorCode.invalid_config, str(bad)) from None
    if broker is not None:
        _check_together(log_config(broker, configs), configs, broker)


def _check_together(config: LogConfig, configs: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check the rules of Kafka's `LogConfig.validateRemoteStorage…` family (KIP-405)."""
    if not config.remote_storage_enable:
        return
    if not broker.tier_url:
        _reject("remote.storage.enable", configs, "false, for this broker has no tier.url")
    total_ms, total_bytes = config.total_retention
    limits = {
        "local.retention.ms": (config.local_retention_ms, total_ms),
        "local.retention.bytes": (config.local_retention_bytes, total_bytes),
    }
    for name, (local, total) in limits.items():
        if config.remote_log_copy_disable and local not in (SAME_AS_TOTAL, total):
            _reject(
                name,
                {name: str(local)},
                f"{total} or -2, for remote.log.copy.disable leaves all here",
            )
        if total != UNLIMITED and local != SAME_AS_TOTAL and (local == UNLIMITED or local > total):
            _reject(name, {name: str(local)}, f"up to {total}, which is all that is kept, or -2")


def _reject(name: str, configs: Mapping[str, str], accepted: str) -> None:
    value = configs.get(name, "the broker's default")
    message = f"{name}: {value!r} is not accepted; accepted: {accepted}"
    raise Rejected(ErrorCode.invalid_config, message)
