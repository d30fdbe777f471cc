"""Stream offsets, as stored in Spark's checkpoints.

In: an offset from a checkpoint, or positions. Out: the same, both ways. It never contacts a broker.

It also reads a checkpoint of Spark's Kafka source, so that a query continues when its format changes:
`{"t":{"0":17}}`, topics by name. Our own JSON must stay readable as long as users' checkpoints exist
(`docs/formats.md`, golden files):

    {"version":1,"topics":{"<topic id>":{"name":"t","partitions":{"0":17}}}}

Topics are keyed by id, so that a topic deleted and created again under its name is another topic. The name is for
people and errors. An offset is that of the next record to read. The first batch's offsets also say where the batch
begins ("begins", as "topics"): Spark stores only the end, and requests the beginning again when it repeats that batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from stratalog.errors import BadOption, Corrupt
from stratalog.wire.ids import ZERO_ID, topic_id_parse, topic_id_text

VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Next offsets to read of one topic, by partition."""

    name: str
    partitions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Positions:
    """Next offsets to read, by topic id."""

    topics: Mapping[UUID, TopicPosition]
    begins: Mapping[UUID, TopicPosition] | None = None
    """The beginning of the batch that ends here, if it is a query's first."""

    def of(self, topic_id: UUID, partition: int) -> int | None:
        """Return the next offset of a partition; None for a partition that was unknown then."""
        topic = self.topics.get(topic_id)
        return topic.partitions.get(partition) if topic is not None else None


def to_json(positions: Positions) -> dict[str, Any]:
    """Return the JSON for Spark's checkpoint, with topics sorted by name and partitions by number, so that equal
    positions give equal texts.
    """
    kept = {"version": VERSION, "topics": _topics_json(positions.topics)}
    if positions.begins is not None:
        kept["begins"] = _topics_json(positions.begins)
    return kept


def _topics_json(topics: Mapping[UUID, TopicPosition]) -> dict[str, Any]:
    ordered = sorted(topics.items(), key=lambda item: (item[1].name, item[0].bytes))
    return {
        topic_id_text(topic_id): {
            "name": topic.name,
            "partitions": {
                str(index): topic.partitions[index] for index in sorted(topic.partitions)
            },
        }
        for topic_id, topic in ordered
    }


def from_json(kept: Mapping[str, Any], ids: Mapping[str, UUID]) -> Positions:
    """Return the positions in a checkpoint; `ids` are the existing topics, for a checkpoint of Spark's Kafka source.

    Raises BadOption for a later version, Corrupt for offsets that cannot be read.
    """
    version = kept.get("version")
    if all(isinstance(partitions, Mapping) for partitions in kept.values()):
        return _of_kafka(kept, ids)
    if version != VERSION:
        raise BadOption(
            f"stream offsets of version {version!r}: this release reads version {VERSION}"
        )
    try:
        begins = kept.get("begins")
        topics = _topics(kept["topics"])
        return Positions(topics, None if begins is None else _topics(begins))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Corrupt(f"stream offsets that cannot be read: {error!r}") from None


def _topics(kept: Mapping[str, Any]) -> dict[UUID, TopicPosition]:
    topics = {}
    for text, topic in kept.items():
        partitions = {int(index): int(offset) for index, offset in topic["partitions"].items()}
        topics[topic_id_parse(text)] = TopicPosition(str(topic["name"]), partitions)
    return topics


def _of_kafka(kept: Mapping[str, Mapping[str, Any]], ids: Mapping[str, UUID]) -> Positions:
    try:
        named = {
            name: TopicPosition(name, {int(index): int(at) for index, at in partitions.items()})
            for name, partitions in kept.items()
        }
    except (TypeError, ValueError) as error:
        raise Corrupt(f"stream offsets that cannot be read: {error!r}") from None
    # A deleted topic's name keeps a separate entry, so that its loss is noticed.
    return Positions({ids.get(name, uuid5(ZERO_ID, name)): topic for name, topic in named.items()})
