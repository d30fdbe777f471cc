"""The identities of partitions, the rule for names, and topic ids as Kafka prints them.

In: topics, by name or by `uuid.UUID`, and partitions. Out: `TopicPartition` and `TopicIdPartition`; the fault of a
name; a topic id's 22 characters of url-safe base64 without padding, and back. It never makes an id.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

__all__ = [
    "ZERO_ID",
    "TopicIdPartition",
    "TopicPartition",
    "check_stored_name",
    "name_fault",
    "topic_id_of",
    "topic_id_parse",
    "topic_id_text",
]

_NAME_LENGTH_MAX: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_METADATA_TOPIC: Final = "__cluster_metadata"
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


def name_fault(name: str) -> str:
    """Return why no topic may have this name; "" for a legal one. Kafka: `Topic.detectInvalidTopic`."""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "'.' and '..' are not names"
    if len(name) > _NAME_LENGTH_MAX:
        return f"it has {len(name)} characters, at most {_NAME_LENGTH_MAX} are allowed"
    if not _LEGAL_NAME.fullmatch(name):
        return "only ASCII letters, digits, '.', '_' and '-' are allowed"
    return ""


def check_stored_name(name: str, what: str = "topic name") -> None:
    """Raise ValueError for a name that another machine wrote, where it may not become a part of a path here.

    No topic has the name of the metadata log, whose directory a partition of it would share.
    """
    fault = "it is the metadata log's" if name == _METADATA_TOPIC else name_fault(name)
    if fault:
        raise ValueError(f"{what} {name[:300]!r}: {fault}")


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
