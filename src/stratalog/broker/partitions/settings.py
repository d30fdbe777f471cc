"""Derive the settings of partitions' logs from the metadata image, and find topics whose settings changed.

In: an image and its delta, the broker's settings. Out: log settings by topic. It changes no log: `hosting.py` does.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from stratalog.config import BrokerConfig, DynamicConfigs, LogConfig, log_config
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Image, ResourceType, Topic

_STATE_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


def configured_topics(image: Image, delta: Delta, node_id: int) -> list[Topic]:
    """Return the existing topics whose settings changed."""
    found: set[UUID] = set()
    for kind, name in delta.changed_configs:
        if kind == ResourceType.BROKER and name in ("", str(node_id)):
            found.update(image.topics_by_id)
        topic = image.topic(name) if kind == ResourceType.TOPIC else None
        if topic is not None:
            found.add(topic.id)
    return [image.topics_by_id[topic_id] for topic_id in found - delta.created_topics]


def log_configs(image: Image, node_id: int, config: BrokerConfig) -> Callable[[Topic], LogConfig]:
    """Return a function from a topic to its log settings; topics with equal settings share one object."""
    broker = DynamicConfigs.of(image.configs, node_id).over(config)
    made: dict[tuple[frozenset[tuple[str, str]], bool], LogConfig] = {}

    def config_of(topic: Topic) -> LogConfig:
        own = image.topic_configs(topic.name)
        is_state = topic.name in _STATE_TOPICS
        key = frozenset(own.items()), is_state
        if key not in made:
            made[key] = replace(log_config(broker, own), is_state=is_state)
        return made[key]

    return config_of
