"""Read the topics of a consumer's subscription.

In: a member's metadata for the chosen protocol (version int16, topics, then fields that later versions added). Out:
topic names, or None for bytes that cannot be read. It never reads the other fields: they are between consumers.

Kafka: `ConsumerProtocolSubscription`, `ClassicGroup.computeSubscribedTopics`.
"""

from collections.abc import Iterable

from stratalog.wire.budget import TRUSTED
from stratalog.wire.primitives import ENDED, I16, read_array_length, read_string

CONSUMER = "consumer"
"""The protocol type of groups whose members tell their subscription."""


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Topics that any of these members subscribes to; None where one of them cannot be read."""
    topics: set[str] = set()
    for one in metadata:
        try:
            topics.update(_topics(one))
        except ENDED:
            return None
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str]:
    count, position = read_array_length(metadata, I16.size, False)  # noqa: FBT003
    topics = []
    for _ in range(count):
        topic, position = read_string(metadata, position, False, TRUSTED)  # noqa: FBT003
        topics.append(topic or "")
    return topics
