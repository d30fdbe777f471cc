"""What differs between two images, as a delta.

In: an image, and a later one that did not come from it record by record: from a snapshot. Out: a delta on which a
broker acts as on any other. It never changes an image.
"""

from collections.abc import Mapping
from typing import Any

from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Image

__all__ = ["difference"]


def difference(before: Image, after: Image) -> Delta:
    """Return the delta that lists all that a broker must act on to get from `before` to `after`."""
    delta = Delta(before)
    delta.offset, delta.epoch = after.offset, after.epoch
    old, new = before.topics_by_id, after.topics_by_id
    delta.deleted_topics = {one: old[one] for one in old if one not in new}
    delta.created_topics = {one for one in new if one not in old}
    for topic_id, topic in new.items():
        was = old[topic_id].partitions if topic_id in old else {}
        if topic.partitions is not was:
            changed = _changed(was, topic.partitions)
            if changed:
                delta.changed_partitions[topic_id] = changed
    delta.changed_configs = _changed(before.configs, after.configs)
    delta.changed_brokers = _changed(before.brokers, after.brokers)
    delta.changed_features = _changed(before.features, after.features)
    return delta


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> set[Any]:
    return {one for one in {**before, **after} if before.get(one) != after.get(one)}
