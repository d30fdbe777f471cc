"""Add replicas to internal topics once there are brokers for them.

In: an image, the wanted number of replicas of each topic by name. Out: reassignments that add replicas. It never takes
a replica away, changes no preferred leader, and leaves a partition alone that is being reassigned.

A node that begins alone creates its internal topics with one replica, where Kafka refuses to create them. This rule is
the other half: as brokers join, each partition gets replicas up to the wanted number.
"""

from collections import Counter
from collections.abc import Mapping

from stratalog.metadata.image import Image
from stratalog.quorum.placement import Replicas
from stratalog.quorum.reassignment import Reassignment
from stratalog.wire.ids import TopicPartition

__all__ = ["growths"]


def growths(image: Image, wanted: Mapping[str, int]) -> list[Reassignment]:
    """Return a reassignment for each partition with fewer replicas than wanted, as far as active brokers permit.

    A new replica goes to a rack without one of the partition, then to the broker with the fewest of the topic.
    """
    racks = {
        one.id: one.rack for one in image.brokers.values() if one.is_active and not one.is_cordoned
    }
    changes = []
    for name, factor in wanted.items():
        topic = image.topic(name)
        partitions = {} if topic is None else topic.partitions
        load = Counter(node for one in partitions.values() for node in one.replicas)
        for index, before in sorted(partitions.items()):
            if before.adding_replicas or before.removing_replicas:
                continue
            after = _grown(before.replicas, factor, racks, load)
            if after != before.replicas:
                load.update(after[len(before.replicas) :])
                changes.append(Reassignment(TopicPartition(name, index), after))
    return changes


def _grown(
    replicas: Replicas, factor: int, racks: Mapping[int, str | None], load: Mapping[int, int]
) -> Replicas:
    while len(replicas) < factor:
        used = {racks.get(one) for one in replicas}
        free = [one for one in racks if one not in replicas]
        if not free:
            break
        replicas = (*replicas, min(free, key=lambda one: (racks[one] in used, load[one], one)))
    return replicas
