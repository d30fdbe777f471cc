"""Decide whether a node is ready to serve clients, and name the reasons if not.

In: a node. Out: reasons for people; none means ready. It repairs nothing.

A node is ready when it is registered with the cluster, its groups are loaded, and every partition placed here is
recovered, has a leader and is on a directory that works.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.broker.broker import Broker
from stratalog.monitor.pause import Pause
from stratalog.monitor.watched import Watched
from stratalog.wire.ids import TopicIdPartition

__all__ = ["Health", "health"]


@dataclass(frozen=True, slots=True)
class Health:
    """The reasons why a node is not ready, a line each, and the number of partitions that it fails to serve."""

    reasons: list[str]
    offline: int = 0


async def health(watched: Watched, pause: Pause) -> Health:
    """Return the health of a node."""
    if watched.stopping():
        return Health(["it is stopping"])
    broker = watched.broker()
    if broker is None:
        return Health(["it is starting: log directories are being read"])
    found = [
        f"log directory {one.path} has failed: {one.failure}"
        for one in watched.directories()
        if one.failure is not None
    ]
    if not broker.registration.is_complete:
        found.append("it is starting: the broker is not registered")
    count, first = await _offline(broker, pause)
    if count:
        found.append(f"{count} partitions are not served, {first} first")
    found += [f"damaged: {reason}" for reason in broker.hosting.damaged.values()]
    found += [
        f"groups of {partition.name} are not loaded: {reason}"
        for partition, reason in broker.groups.not_loaded.items()
    ]
    if broker.groups.is_loading:
        found.append("consumer groups are being loaded")
    return Health(found, count)


async def _offline(broker: Broker, pause: Pause) -> tuple[int, str]:
    """Return the number of partitions that this node should lead and does not, or not on a working directory, and one
    of them.
    """
    count, first = 0, ""
    for key, name in _placed_here(broker):
        await pause()
        hosted = broker.hosting.by_id.get(key)
        if hosted is None or not hosted.replica.leads or hosted.directory.failure is not None:
            first = first or name
            count += 1
    return count, first


def _placed_here(broker: Broker) -> Iterator[tuple[TopicIdPartition, str]]:
    """Yield key and name of every partition with a replica here. The image is immutable: it may be walked slowly."""
    for topic in broker.metadata.image.topics_by_id.values():
        for index, partition in topic.partitions.items():
            if broker.cluster.node_id in partition.replicas:
                yield TopicIdPartition(topic.id, index), f"{topic.name}-{index}"
