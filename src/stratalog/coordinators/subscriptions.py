"""Read the topics of a consumer's subscription.

In: a member's metadata for the chosen protocol (version int16, topics, then fields that later versions added). Out:
topic names, or None for bytes that cannot be read. It never reads the other fields, which only consumers use.

Kafka: `ConsumerProtocolSubscription`, `ClassicGroup.computeSubscribedTopics`.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from stratalog.wire.budget import TRUSTED
from stratalog.wire.message_fields import UNREADABLE, past_end, read_strings

_VERSION_BYTES: Final = 2
_COUNT: Final = Struct(">i")

CONSUMER = "consumer"
"""The protocol type of groups whose members send subscriptions."""


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return topics that any of these members subscribes to; None where one of them cannot be read."""
    topics: set[str] = set()
    for one in metadata:
        try:
            topics.update(_topics(one))
        except UNREADABLE:
            return None
    return frozenset(topics)


def _topics(metadata: bytes) -> tuple[str, ...]:
    (count,) = _COUNT.unpack_from(metadata, _VERSION_BYTES)
    begin = _VERSION_BYTES + _COUNT.size
    topics, end = read_strings(metadata, begin, count, TRUSTED, "topics")
    if end > len(metadata):
        raise past_end(end, len(metadata))
    return topics
