"""List settings for DescribeConfigs.

In: the broker's settings and a topic's own. Out: one `ConfigEntry` per setting. It knows no wire format and no topic.
"""

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

from stratalog.config.broker import BrokerConfig
from stratalog.config.broker_settings import BROKER_SETTINGS, setting_of
from stratalog.config.dynamic import DynamicConfigs
from stratalog.config.kinds import Dynamic, Kind, Setting, Value
from stratalog.config.log import broker_default, synonym_value
from stratalog.config.topic_settings import TOPIC_SETTINGS, TopicSetting

_NOTHING = DynamicConfigs()


class ConfigSource(IntEnum):
    """The source of a value; the numbers are the protocol's (KIP-226, `DescribeConfigsResponse.ConfigSource`)."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    CLIENT_METRICS_CONFIG = 7


class Synonym(Struct, frozen=True):
    """One possible source of a value, strongest first."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(Struct, frozen=True):
    """One setting with its effective value. `value` is None where nothing is set or the value is secret."""

    name: str
    value: str | None
    source: ConfigSource
    is_default: bool
    type: Kind
    doc: str
    synonyms: tuple[Synonym, ...]
    read_only: bool
    sensitive: bool


def describe_topic(
    broker: BrokerConfig, overrides: Mapping[str, str], dynamic: DynamicConfigs = _NOTHING
) -> list[ConfigEntry]:
    """Return every topic setting, in order of name. `overrides` are the topic's own, `dynamic` the running brokers'."""
    return [
        _topic_entry(broker, TOPIC_SETTINGS[name], overrides.get(name), dynamic)
        for name in sorted(TOPIC_SETTINGS)
        if name in overrides or not TOPIC_SETTINGS[name].setting.unlisted
    ]


def _topic_entry(
    broker: BrokerConfig, topic: TopicSetting, override: str | None, dynamic: DynamicConfigs
) -> ConfigEntry:
    setting = topic.setting
    synonyms = []
    own = None if override is None else setting.stored(override)
    if own is not None:
        synonyms.append(Synonym(setting.name, setting.text(own), ConfigSource.TOPIC_CONFIG))
    for synonym in topic.synonyms:
        if synonym.name in BROKER_SETTINGS:
            synonyms += _dynamic_synonyms(BROKER_SETTINGS[synonym.name], dynamic)
        if broker.is_set(synonym.name):
            text = setting.text(synonym_value(broker, synonym))
            synonyms.append(Synonym(synonym.name, text, ConfigSource.STATIC_BROKER_CONFIG))
    # As in Kafka, the default is listed where a broker setting of the same meaning has one. It is not listed where only
    # a setting in a larger unit applies (`log.roll.hours` for `segment.ms`), or none.
    if topic.synonyms:
        name = topic.synonyms[0].name
        value = setting.default if len(topic.synonyms) == 1 else None
        if name in BROKER_SETTINGS:
            value = BROKER_SETTINGS[name].default
        if value is not None:
            synonyms.append(Synonym(name, setting.text(value), ConfigSource.DEFAULT_CONFIG))
    default = setting.text(broker_default(broker, setting.name))
    return _entry(
        setting, tuple(synonyms), default=default, is_default=own is None, read_only=False
    )


def describe_broker(broker: BrokerConfig, dynamic: DynamicConfigs) -> list[ConfigEntry]:
    """Return every broker setting, in order of name, listeners' own where set. `dynamic`: set at work (KIP-226)."""
    entries = []
    for name in sorted({*BROKER_SETTINGS, *broker.values, *dynamic.own}):
        setting = setting_of(name)
        if setting is None:
            continue
        synonyms = _dynamic_synonyms(setting, dynamic)
        if broker.is_set(name):
            synonyms.append(_synonym(setting, broker.get(name), ConfigSource.STATIC_BROKER_CONFIG))
        if setting.unlisted and not synonyms:
            continue
        synonyms.append(_synonym(setting, setting.default, ConfigSource.DEFAULT_CONFIG))
        entries.append(
            _entry(
                setting,
                tuple(synonyms),
                is_default=len(synonyms) == 1,
                read_only=setting.dynamic is Dynamic.READ_ONLY,
            )
        )
    return entries


def describe_every_broker(every: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the settings that were set for all brokers together, in order of name."""
    dynamic = DynamicConfigs(every=every)
    return [
        _entry(
            BROKER_SETTINGS[name],
            tuple(_dynamic_synonyms(BROKER_SETTINGS[name], dynamic)),
            is_default=False,
            read_only=False,
        )
        for name in sorted(every)
        if name in BROKER_SETTINGS
    ]


def _dynamic_synonyms(setting: Setting, dynamic: DynamicConfigs) -> list[Synonym]:
    sources = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    return [
        _synonym(setting, value, source)
        for value, source in zip(dynamic.values_of(setting), sources, strict=True)
        if value is not None
    ]


def _synonym(setting: Setting, value: Value, source: ConfigSource) -> Synonym:
    secret = setting.kind is Kind.PASSWORD
    return Synonym(setting.name, None if secret else setting.text(value), source)


def _entry(
    setting: Setting,
    synonyms: tuple[Synonym, ...],
    *,
    is_default: bool,
    read_only: bool,
    default: str | None = None,
) -> ConfigEntry:
    """Return one entry; `default` is the value where there are no synonyms."""
    return ConfigEntry(
        name=setting.name,
        value=synonyms[0].value if synonyms else default,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_default=is_default,
        type=setting.kind,
        doc=setting.doc,
        synonyms=synonyms,
        read_only=read_only,
        sensitive=setting.kind is Kind.PASSWORD,
    )
