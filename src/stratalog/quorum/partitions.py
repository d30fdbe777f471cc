"""Add partitions to topics: refuse, or return records.

In: requests, the image. Out: records and one result per topic. It never changes an image, and never removes a
partition.

Refusals and their codes are Kafka's (ReplicationControlManager.createPartitions); the messages are this project's.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Image, Topic
from stratalog.metadata.snapshot import partition_record
from stratalog.ports import Entropy
from stratalog.quorum.placement import Replicas, place
from stratalog.quorum.topics import (
    RECORDS_PER_REQUEST_MAX,
    TOO_MANY_RECORDS,
    Charge,
    check_replicas,
    free,
    new_partitions,
)


class MorePartitions(Struct, frozen=True):
    """A topic and its requested number of partitions; `assignments` are the new ones' replicas, None for the
    controller's choice.
    """

    topic: str
    count: int
    assignments: tuple[Replicas, ...] | None = None


class Extended(Struct, frozen=True):
    """The answer for one topic."""

    topic: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


def extend_records(
    image: Image,
    additions: Sequence[MorePartitions],
    entropy: Entropy,
    charge: Charge = free,
) -> tuple[list[Any], list[Extended]]:
    """Return records that add partitions, and one result per requested topic, in order.

    `charge` counts the partitions that each valid addition adds.
    """
    counts = Counter(more.topic for more in additions)
    records: list[Any] = []
    results: list[Extended] = []
    for more in {more.topic: more for more in additions}.values():
        try:
            if counts[more.topic] > 1:
                raise Rejected(ErrorCode.invalid_request, f"topic {more.topic} is asked for twice")
            added = _extend(image, more, entropy, RECORDS_PER_REQUEST_MAX - len(records))
            charge(len(added))
            records += added
        except Rejected as refusal:
            results.append(Extended(more.topic, refusal.code, refusal.message))
            continue
        results.append(Extended(more.topic))
    return records, results


def _extend(image: Image, more: MorePartitions, entropy: Entropy, room: int) -> list[Any]:
    topic = image.topic(more.topic)
    if topic is None:
        raise Rejected(ErrorCode.unknown_topic_or_partition, f"there is no topic {more.topic}")
    present = len(topic.partitions)
    added = more.count - present
    if added <= 0:
        raise Rejected(
            ErrorCode.invalid_partitions,
            f"topic {topic.name} has {present} partitions: {more.count} is not accepted; "
            f"accepted: {present + 1} or more",
        )
    if more.assignments is not None and len(more.assignments) != added:
        raise Rejected(
            ErrorCode.invalid_replica_assignment,
            f"{added} partitions more, but replicas for {len(more.assignments)}",
        )
    if added > room:
        # Kafka adds the partitions that fit, and answers UNKNOWN_SERVER_ERROR.
        raise Rejected(ErrorCode.policy_violation, TOO_MANY_RECORDS)
    if more.assignments is None:
        placed = _placed(image, topic, added, entropy)
    else:
        for replicas in more.assignments:
            check_replicas(image, replicas, _factor(topic))
        placed = list(more.assignments)
    return [
        partition_record(topic, index, partition)
        for index, partition in enumerate(new_partitions(image.brokers, placed), present)
    ]


def _placed(image: Image, topic: Topic, added: int, entropy: Entropy) -> list[Replicas]:
    brokers = list(image.brokers.values())
    start = int(entropy.uniform(0, len(brokers))) if len(brokers) > 1 else 0
    return place(brokers, added, _factor(topic), start)


def _factor(topic: Topic) -> int:
    """Return the number of replicas of the topic's first partition."""
    return len(topic.partitions[min(topic.partitions)].replicas)
