"""Settings: Kafka's names and types, parsed once at the edge.

In: the text of properties, overrides and the environment; a topic's own settings. Out: typed, immutable values. Nothing
here reads a file, an environment or a clock, and no later layer sees a setting's text.
"""

from stratalog.config.aliases import our_topic_setting
from stratalog.config.broker import BrokerConfig, parse_properties
from stratalog.config.client_metrics import (
    Subscription,
    describe_client_metrics,
    parse_subscription,
)
from stratalog.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_every_broker,
    describe_topic,
)
from stratalog.config.dynamic import DynamicConfigs
from stratalog.config.kinds import Kind
from stratalog.config.listeners import Listener
from stratalog.config.log import LogConfig, check_topic_configs, log_config
from stratalog.config.rules import ClusterRules

__all__ = [
    "BrokerConfig",
    "ClusterRules",
    "ConfigEntry",
    "ConfigSource",
    "DynamicConfigs",
    "Kind",
    "Listener",
    "LogConfig",
    "Subscription",
    "check_topic_configs",
    "describe_broker",
    "describe_client_metrics",
    "describe_every_broker",
    "describe_topic",
    "log_config",
    "our_topic_setting",
    "parse_properties",
    "parse_subscription",
]
