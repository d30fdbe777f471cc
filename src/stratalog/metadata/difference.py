"""Return one delta for what lies between two images, or cut a delta into small ones.

In: two images, of which the later one came from a snapshot; or the deltas between two images. Out: deltas on which a
broker acts as on any other. It never changes an image.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Image

__all__ = ["difference", "merged", "parts"]


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


def merged(deltas: Sequence[Delta]) -> Delta:
    """Return one delta for several in order, each of which is on the image that the one before led to."""
    base = deltas[0].base
    result = Delta(base)
    for delta in deltas:
        for topic_id in delta.deleted_topics:
            result.created_topics.discard(topic_id)
            result.changed_partitions.pop(topic_id, None)
            if topic_id in base.topics_by_id:
                result.deleted_topics[topic_id] = base.topics_by_id[topic_id]
        result.created_topics |= delta.created_topics
        for topic_id, indexes in delta.changed_partitions.items():
            result.changed_partitions.setdefault(topic_id, set()).update(indexes)
        result.changed_configs |= delta.changed_configs
        result.changed_brokers |= delta.changed_brokers
        result.changed_features |= delta.changed_features
    result.offset, result.epoch = deltas[-1].offset, deltas[-1].epoch
    return result


def parts(delta: Delta, partitions: int) -> Iterator[Delta]:
    """Yield `delta` as deltas of at most that many changed partitions each, all on its base. The first one has all
    that concerns no partition.
    """
    rest = ((one, index) for one, indexes in delta.changed_partitions.items() for index in indexes)
    part = Delta(delta.base)
    part.created_topics, part.deleted_topics = delta.created_topics, delta.deleted_topics
    part.changed_configs, part.changed_brokers = delta.changed_configs, delta.changed_brokers
    part.changed_features = delta.changed_features
    taken = list(islice(rest, partitions))
    while True:
        part.offset, part.epoch = delta.offset, delta.epoch
        for topic_id, index in taken:
            part.changed_partitions.setdefault(topic_id, set()).add(index)
        yield part
        taken = list(islice(rest, partitions))
        if not taken:
            return
        part = Delta(delta.base)


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> set[Any]:
    return {one for one in {**before, **after} if before.get(one) != after.get(one)}
