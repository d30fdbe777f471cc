"""Encode and decode the small text files of a log directory, in Kafka's formats.

In: values. Out: file contents, and back. It never reads or writes a file.

An offset checkpoint is the version line "0", a count, then lines of "topic partition offset". A leader epoch
checkpoint has lines of "epoch offset" instead. `meta.properties` and `partition.metadata` are key-value lines. Kafka:
`CheckpointFile`, `MetaProperties`, `PartitionMetadataFile`, `CleanShutdownFileHandler`.
"""

import json
import uuid
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from stratalog.errors import Corrupt
from stratalog.wire.ids import TopicPartition, check_stored_name, topic_id_parse, topic_id_text

__all__ = [
    "CLEANED_OFFSETS",
    "CLEAN_SHUTDOWN",
    "LEADER_EPOCHS",
    "LOG_START_OFFSETS",
    "META_PROPERTIES",
    "PARTITION_METADATA",
    "RECOVERY_POINTS",
    "REPLICATION_OFFSETS",
    "MetaProperties",
    "decode_clean_shutdown",
    "decode_epochs",
    "decode_meta_properties",
    "decode_offsets",
    "decode_partition_metadata",
    "encode_clean_shutdown",
    "encode_epochs",
    "encode_lines",
    "encode_meta_properties",
    "encode_partition_metadata",
    "offset_line",
]

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
REPLICATION_OFFSETS: Final = "replication-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
CLEANED_OFFSETS: Final = "cleaner-offset-checkpoint"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"


class MetaProperties(Struct, frozen=True):
    """The owner of a log directory (version 1). `directory_id` is None until the directory gets one."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID | None


def offset_line(name: TopicPartition, offset: int) -> str:
    """Return a partition's line in an offset checkpoint."""
    topic, partition = name
    return f"{topic} {partition} {offset}"


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the {(topic, partition): offset} of an offset checkpoint; raises Corrupt."""
    offsets = {}
    for line in _decode_lines(data):
        fields = line.split()
        if len(fields) != 3:
            raise Corrupt(f"a checkpoint line of {len(fields)} fields: {line!r}")
        offsets[TopicPartition(fields[0], _number(fields[1], line))] = _number(fields[2], line)
    return offsets


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return a leader epoch checkpoint of (epoch, first offset) pairs."""
    return encode_lines([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return the (epoch, first offset) pairs of a leader epoch checkpoint; raises Corrupt."""
    entries = []
    for line in _decode_lines(data):
        fields = line.split()
        if len(fields) != 2:
            raise Corrupt(f"an epoch line of {len(fields)} fields: {line!r}")
        entries.append((_number(fields[0], line), _number(fields[1], line)))
    return entries


def encode_meta_properties(meta: MetaProperties) -> bytes:
    """Return the `meta.properties` file, version 1."""
    lines = [f"cluster.id={meta.cluster_id}"]
    if meta.directory_id is not None:
        lines.append(f"directory.id={topic_id_text(meta.directory_id)}")
    lines += [f"node.id={meta.node_id}", "version=1"]
    return ("\n".join(lines) + "\n").encode()


def decode_meta_properties(data: bytes) -> MetaProperties:
    """Raise Corrupt for a version other than 1 or a field missing."""
    values = dict(_properties(data))
    if values.get("version") != "1":
        version = values.get("version")
        hint = (
            "; Apache Kafka 3.9 migrates a cluster of ZooKeeper to KRaft" if version == "0" else ""
        )
        raise Corrupt(f"meta.properties of version {version}, only 1 is known{hint}")
    for name in ("cluster.id", "node.id"):
        if name not in values:
            raise Corrupt(f"meta.properties without {name}")
    try:
        check_stored_name(values["cluster.id"], "cluster id")  # a part of paths in the bucket
    except ValueError as error:
        raise Corrupt(f"meta.properties: {error}") from None
    directory = values.get("directory.id")
    return MetaProperties(
        values["cluster.id"],
        _number(values["node.id"], "node.id"),
        None if directory is None else _uuid(directory, "directory.id"),
    )


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Return the `partition.metadata` file of a partition."""
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> uuid.UUID:
    """Return the topic id in a `partition.metadata` file; raises Corrupt."""
    values = {}
    for line in _text(data).splitlines():
        name, _, value = line.partition(":")
        values[name.strip()] = value.strip()
    if values.get("version") != "0" or "topic_id" not in values:
        raise Corrupt(f"a partition.metadata that reads {data[:80]!r}")
    return _uuid(values["topic_id"], "topic_id")


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Return the `.kafka_cleanshutdown` file; its presence marks a clean shutdown."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """Return the broker epoch in a clean shutdown file, -1 where it has none (older Kafkas wrote an empty one)."""
    try:
        found = json.loads(data)
    except ValueError:
        return -1
    epoch = found.get("brokerEpoch", -1) if isinstance(found, dict) else -1
    return epoch if isinstance(epoch, int) else -1


def encode_lines(lines: Collection[str]) -> bytes:
    """Return a checkpoint of these lines."""
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def _decode_lines(data: bytes) -> list[str]:
    lines = _text(data).splitlines()
    if len(lines) < 2 or lines[0].strip() != "0":
        raise Corrupt(f"a checkpoint that starts with {data[:20]!r}")
    count = _number(lines[1].strip(), lines[1])
    entries = [line for line in lines[2:] if line.strip()]
    if len(entries) != count:
        raise Corrupt(f"a checkpoint of {count} entries with {len(entries)}")
    return entries


def _properties(data: bytes) -> Iterable[tuple[str, str]]:
    for line in _text(data).splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            name, _, value = stripped.partition("=")
            yield name.strip(), value.strip()


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt("a checkpoint that is not text") from error


def _number(text: str, line: str) -> int:
    # int() would also take "1_000" and digits of other scripts, which no checkpoint holds.
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
        raise Corrupt(f"{text!r} is no number in {line!r}")
    return int(text)


def _uuid(text: str, what: str) -> uuid.UUID:
    try:
        return topic_id_parse(text)
    except ValueError as error:
        raise Corrupt(f"{what} {text!r} is no id") from error
