"""Format a metadata change as log lines: topics and settings that were created, changed or deleted.

In: an image and the delta that led to it. Out: log lines. It acts on nothing.
"""

from collections.abc import Mapping

import structlog

from stratalog.config.broker_settings import is_secret
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Image, ResourceType
from stratalog.wire.ids import topic_id_text

__all__ = ["log_changes"]


def log_changes(image: Image, delta: Delta) -> None:
    """Log one line for each changed topic, and one for each resource whose settings changed."""
    log = structlog.get_logger()
    before = delta.base
    for topic in delta.deleted_topics.values():
        log.info("topic deleted", topic=topic.name, id=topic_id_text(topic.id))
    for topic_id in delta.created_topics:
        topic = image.topics_by_id[topic_id]
        log.info(
            "topic created",
            topic=topic.name,
            id=topic_id_text(topic_id),
            partitions=len(topic.partitions),
            settings=dict(image.topic_configs(topic.name)),
        )
    for topic_id in delta.changed_partitions:
        topic_before = before.topics_by_id.get(topic_id)
        topic = image.topics_by_id[topic_id]
        if topic_before is not None and len(topic.partitions) > len(topic_before.partitions):
            log.info("partitions added", topic=topic.name, partitions=len(topic.partitions))
    created = {image.topics_by_id[topic_id].name for topic_id in delta.created_topics}
    for kind, name in delta.changed_configs:
        is_topic = kind == ResourceType.TOPIC
        if is_topic and (name in created or image.topic(name) is None):
            continue  # reported above
        old, new = before.configs.get((kind, name), {}), image.configs.get((kind, name), {})
        log.info("config changed", resource=_resource(kind, name), settings=_difference(old, new))


def _resource(kind: int, name: str) -> str:
    if kind == ResourceType.BROKER:
        return f"broker {name}" if name else "every broker"
    named = {one.value: one.name.lower().replace("_", " ") for one in ResourceType}
    return f"{named.get(kind, kind)} {name}"


def _difference(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changed settings: the new value, or None for a removed one."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {name: _shown(name, new.get(name)) for name in names}


def _shown(name: str, value: str | None) -> str | None:
    return "(hidden)" if value is not None and is_secret(name) else value
