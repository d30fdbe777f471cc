"""The identities of partitions, and topic ids as Kafka prints them.

In: topics, by name or by `uuid.UUID`, and partitions. Out: `TopicPartition` and `TopicIdPartition`; a topic id's 22
characters of url-safe base64 without padding, and back. It never makes an id.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

__all__ = [
    "ZERO_ID",
    "TopicIdPartition",
    "TopicPartition",
    "topic_id_of",
    "topic_id_parse",
    "topic_id_text",
]

ZERO_ID = UUID(int=0)
"""The zero id, which means no id in messages."""


class TopicPartition(NamedTuple):
    """A partition by its topic's name, as in requests, checkpoints and directories (Kafka: TopicPartition)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id. A topic that is created again under its name has another id (KIP-516)."""

    topic_id: UUID
    partition: int


@lru_cache(maxsize=4096)
def topic_id_of(raw: bytes) -> UUID:
    """Return the id of 16 bytes in a message.

    Cached: requests name the same few ids, and creating one takes a microsecond.
    """
    return UUID(bytes=raw)


def topic_id_text(topic_id: UUID) -> str:
    """Return the id in 22 characters, as `org.apache.kafka.common.Uuid.toString` prints it."""
    return urlsafe_b64encode(topic_id.bytes)[:22].decode("ascii")


def topic_id_parse(text: str) -> UUID:
    """Return the id printed as `text`; raises ValueError for text that `topic_id_text` cannot print."""
    try:
        raw = urlsafe_b64decode(text + "==")
    except (Base64Error, ValueError) as error:
        raise ValueError(f"not a topic id: {text!r}") from error
    # The last character carries four unused bits, and b64decode skips foreign characters: only an
    # exact round trip is one spelling of one id.
    if len(raw) != 16 or topic_id_text(UUID(bytes=raw)) != text:
        raise ValueError(f"not a topic id: {text!r}")
    return UUID(bytes=raw)
