"""Snapshots of the metadata log: an image as records, and the bytes of a `.checkpoint` file.

In: an image, or a file's bytes. Out: the file's bytes, or the records in it. It never reads or writes a file.

A file is an opening control batch (SnapshotHeader; also KRaftVersion and Voters where the log has the voters),
batches of records, and a closing control batch (SnapshotFooter). Sources: KIP-630, Kafka's RecordsSnapshotWriter.
Offsets count from 0. The file's name gives the offset of the log: `<end offset>-<epoch>.checkpoint`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import EMPTY, METADATA_VERSION, Broker, Image, Partition, Topic
from stratalog.metadata.levels import unreadable
from stratalog.ports import Buffer
from stratalog.wire.batch import crc_holds, scan
from stratalog.wire.internal.control import ControlRecord, decode_control, encode_control
from stratalog.wire.internal.control_records import (
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from stratalog.wire.internal.metadata import decode, encode_all
from stratalog.wire.internal.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from stratalog.wire.records import Record, build_batch, read_records

RECORDS_PER_BATCH = 1024
"""Kafka: BatchAccumulator fills 8 MiB; a smaller unit keeps a damaged file's loss easy to name."""


class SnapshotId(Struct, frozen=True):
    """The extent of a snapshot: all records below `end_offset`, the last of them written in `epoch`."""

    end_offset: int
    epoch: int

    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


class Snapshot(Struct, frozen=True):
    """The content of a `.checkpoint` file; `control` are the control records between header and records (versions,
    voters).
    """

    last_contained_timestamp_ms: int
    control: tuple[ControlRecord, ...]
    records: tuple[Any, ...]


def snapshot_id(image: Image) -> SnapshotId:
    """Return the extent of a snapshot of the image."""
    return SnapshotId(image.offset + 1, image.epoch)


def parse_file_name(name: str) -> SnapshotId | None:
    """Return the snapshot of a file name; None for any other file."""
    stem, dot, extension = name.partition(".")
    offset, dash, epoch = stem.partition("-")
    if dot + extension != ".checkpoint" or not dash or len(offset) != 20 or len(epoch) != 10:
        return None
    return SnapshotId(int(offset), int(epoch)) if (offset + epoch).isdecimal() else None


def records_of(image: Image) -> Iterator[Any]:
    """Yield the records that give `image` when replayed on the empty one, in an order that depends on nothing else.

    The metadata version comes first, as a reader must know it before anything else (KIP-778).
    """
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for controller_id in sorted(image.controllers):
        yield image.controllers[controller_id]
    for broker_id in sorted(image.brokers):
        yield broker_record(image.brokers[broker_id])
    for topic in sorted(image.topics_by_id.values(), key=lambda topic: topic.name):
        yield from topic_records(topic)
    for (resource_type, resource_name), values in sorted(image.configs.items()):
        for name in sorted(values):
            yield ConfigRecord(
                resource_type=resource_type,
                resource_name=resource_name,
                name=name,
                value=values[name],
            )
    if image.next_producer_id:
        # Like Kafka, a snapshot does not keep the broker that got the last block.
        yield ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id
        )
    yield from (image.foreign[key] for key in sorted(image.foreign))


def encode_snapshot(
    image: Image,
    now_ms: int,
    last_contained_timestamp_ms: int,
    control: Sequence[ControlRecord] = (),
) -> bytes:
    """Return the bytes of the image's `.checkpoint` file; `control` is carried over from the log (versions, voters)."""
    return b"".join(snapshot_batches(image, now_ms, last_contained_timestamp_ms, control))


def snapshot_batches(
    image: Image,
    now_ms: int,
    last_contained_timestamp_ms: int,
    control: Sequence[ControlRecord] = (),
) -> Iterator[bytearray]:
    """Yield the result of `encode_snapshot` batch by batch: the image of a large cluster takes seconds."""
    return _batches(
        records_of(image),
        now_ms,
        last_contained_timestamp_ms=last_contained_timestamp_ms,
        epoch=image.epoch,
        control=control,
    )


def encode_checkpoint(
    records: Sequence[Any],
    now_ms: int,
    *,
    last_contained_timestamp_ms: int,
    epoch: int,
    control: Sequence[ControlRecord] = (),
) -> bytes:
    """Return a `.checkpoint` file of these records: also a node's first one, and `bootstrap.checkpoint`."""
    return b"".join(
        _batches(
            records,
            now_ms,
            last_contained_timestamp_ms=last_contained_timestamp_ms,
            epoch=epoch,
            control=control,
        )
    )


def _batches(
    records: Iterable[Any],
    now_ms: int,
    *,
    last_contained_timestamp_ms: int,
    epoch: int,
    control: Sequence[ControlRecord],
) -> Iterator[bytearray]:
    header = SnapshotHeaderRecord(
        version=0, last_contained_log_timestamp=last_contained_timestamp_ms
    )
    offset = 0

    def batch(piece: list[tuple[bytes | None, bytes]], *, is_control: bool) -> bytearray:
        nonlocal offset
        built = build_batch(
            [Record(0, now_ms, key, value) for key, value in piece],
            base_offset=offset,
            leader_epoch=epoch,
            control=is_control,
        )
        offset += len(piece)
        return built

    yield batch([encode_control(record) for record in (header, *control)], is_control=True)
    rest = iter(records)
    while some := list(islice(rest, RECORDS_PER_BATCH)):
        yield batch([(None, value) for value in encode_all(some)], is_control=False)
    yield batch([encode_control(SnapshotFooterRecord(version=0))], is_control=True)


def check_snapshot(data: Buffer) -> None:
    """Raise Corrupt where bytes are not those of a whole `.checkpoint` file; records are not decoded."""
    view = memoryview(data)
    end = 0
    edges: list[ControlRecord | None] = []
    for position, header in scan(view):
        if not crc_holds(view, position, header):
            raise Corrupt(f"snapshot: checksum of the batch at {position}")
        end = position + header.size
        if header.is_control:
            edges += [
                decode_control(one.key, one.value) for one in read_records(view[position:end])
            ]
    if end != len(view):
        raise Corrupt(f"snapshot: {len(view) - end} bytes after the last whole batch")
    if len(edges) < 2 or not isinstance(edges[-1], SnapshotFooterRecord):
        raise Corrupt("snapshot: no footer")
    if not isinstance(edges[0], SnapshotHeaderRecord):
        raise Corrupt("snapshot: no header")


def decode_snapshot(data: Buffer) -> Snapshot:
    """Return the content of a `.checkpoint` file; raises Corrupt for any damage, a missing end included."""
    check_snapshot(data)
    control: list[ControlRecord] = []
    records: list[Any] = []
    view = memoryview(data)
    for position, header in scan(view):
        for record in read_records(view[position : position + header.size]):
            if header.is_control:
                found = decode_control(record.key, record.value)
                control += [] if found is None else [found]
            elif record.value is not None:
                records.append(_decoded(record.value, records))
    first = control[0]
    assert isinstance(first, SnapshotHeaderRecord), "as it was checked"
    return Snapshot(first.last_contained_log_timestamp, tuple(control[1:-1]), tuple(records))


def _decoded(value: Buffer, before: Sequence[Any]) -> Any:
    """Return a record. Raises Corrupt, which names the level where the records before have one of a later release."""
    try:
        return decode(value)
    except Corrupt as error:
        raise unreadable(error, level_in(before)) from error


def level_in(records: Iterable[Any]) -> int | None:
    """Return the level of metadata.version that records set."""
    levels = [
        one.feature_level
        for one in records
        if isinstance(one, FeatureLevelRecord) and one.name == METADATA_VERSION
    ]
    return levels[-1] if levels else None


def image_of(snapshot: Snapshot, identity: SnapshotId) -> Image:
    """Return the image that a snapshot's records give, placed at its offset and epoch."""
    delta = Delta(EMPTY)
    delta.replay_all(0, snapshot.records)
    return replace(delta.image(), offset=identity.end_offset - 1, epoch=identity.epoch)


def broker_record(broker: Broker) -> RegisterBrokerRecord:
    """Return the record that registers the broker as it is."""
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=tuple(
            BrokerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in broker.endpoints
        ),
        features=tuple(
            BrokerFeature(
                name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level
            )
            for f in broker.features
        ),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.directories,
        cordoned_log_dirs=broker.cordoned_directories,
    )


def topic_records(topic: Topic) -> Iterator[TopicRecord | PartitionRecord]:
    """Yield the topic, then its partitions in order."""
    yield TopicRecord(name=topic.name, topic_id=topic.id)
    for index in sorted(topic.partitions):
        yield partition_record(topic, index, topic.partitions[index])


def partition_record(topic: Topic, index: int, partition: Partition) -> PartitionRecord:
    """Return the record that creates the partition as it is, epochs included."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic.id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        eligible_leader_replicas=partition.eligible_leader_replicas or None,
        last_known_elr=partition.last_known_elr or None,
    )
