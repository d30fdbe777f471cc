"""One request of an API, with the error that Apache Kafka gives a client without any right.

In: the topics and groups that a request names. Out: bodies. It sends nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

NONE, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 0, 29, 30, 31, 53
Ask = Callable[["Named"], Any]


class Named(NamedTuple):
    """The resources that a request names: topics with their ids, and groups."""

    topics: Mapping[str, UUID]
    groups: Sequence[str]

    def each(self, **fields: Any) -> list[dict[str, Any]]:
        """Return `fields` with the name of each topic."""
        return [{"name": topic, **fields} for topic in self.topics]

    def ids(self, **fields: Any) -> list[dict[str, Any]]:
        """Return `fields` with the id of each topic."""
        return [{"topic_id": str(topic), **fields} for topic in self.topics.values()]


class Case(NamedTuple):
    """`denied` is the error without any right; with `hides` that answer shows no name of a topic or group."""

    version: int
    ask: Ask
    denied: int
    hides: bool = False


def case(module: str, version: int, denied: int, ask: Ask, *, hides: bool = False) -> Case:
    name = "".join(word.title() for word in module.split("_"))
    cls = getattr(import_module(f"stratalog.wire.messages.{module}"), f"{name}Request")
    return Case(version, lambda named: msgspec.convert(ask(named), cls), denied, hides)
