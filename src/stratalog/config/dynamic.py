"""Apply settings that change while a broker runs (KIP-226).

In: the settings of brokers in the metadata log, and the settings that the broker started with. Out: the settings in
effect. It never decides which settings may change: `rules.py` does.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from stratalog.config.broker import BrokerConfig
from stratalog.config.broker_settings import setting_of
from stratalog.config.kinds import Setting, Value

BROKER = 4
"""Kafka: ConfigResource.Type.BROKER."""


class DynamicConfigs(Struct, frozen=True):
    """The values set for this broker, and for every broker; this broker's own win."""

    own: Mapping[str, str] = field(default_factory=dict)
    every: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, configs: Mapping[tuple[int, str], Mapping[str, str]], node_id: int
    ) -> "DynamicConfigs":
        """Return the values for one broker, out of those of all resources (type and name)."""
        return cls(configs.get((BROKER, str(node_id)), {}), configs.get((BROKER, ""), {}))

    def over(self, static: BrokerConfig) -> BrokerConfig:
        """Return the settings in effect. Names and values that are no longer accepted are ignored."""
        if not (self.own or self.every):
            return static
        values, sources = dict(static.values), dict(static.sources)
        for name, text in {**self.every, **self.own}.items():
            setting = setting_of(name)
            value = None if setting is None else setting.stored(text)
            if value is not None:
                values[name] = value
                sources[name] = "running cluster"
        return BrokerConfig(MappingProxyType(values), MappingProxyType(sources))

    def values_of(self, setting: Setting) -> tuple[Value, Value]:
        """Return the values set for this broker and for every broker; None where none was set."""
        own, every = self.own.get(setting.name), self.every.get(setting.name)
        return (
            None if own is None else setting.stored(own),
            None if every is None else setting.stored(every),
        )
