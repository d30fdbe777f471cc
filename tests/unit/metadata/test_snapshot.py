"""Snapshot files: Kafka's are read, ours hold every field, and damage is never read as the file's end."""

from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import fields, replace
from tests.unit.quorum.metadata_log import NOW_MS, started

from stratalog.errors import Corrupt
from stratalog.metadata import snapshot
from stratalog.metadata.image import (
    EMPTY,
    Broker,
    Endpoint,
    FeatureRange,
    Image,
    Partition,
    Topic,
)
from stratalog.metadata.snapshot import (
    SnapshotId,
    decode_snapshot,
    encode_checkpoint,
    encode_snapshot,
    image_of,
    parse_file_name,
    records_of,
    snapshot_id,
)
from stratalog.quorum.controller import NewTopic
from stratalog.quorum.voters import voters_control
from stratalog.wire.batch import scan
from stratalog.wire.internal.control_records import KRaftVersionRecord, VotersRecord
from stratalog.wire.internal.marker_records import NoOpRecord
from stratalog.wire.internal.metadata_records import FeatureLevelRecord, RegisterControllerRecord
from stratalog.wire.internal.security_records import (
    AccessControlEntryRecord,
    UserScramCredentialRecord,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "internal_records"


def busy_log():
    log = started()
    topics = [NewTopic("a", 3, 1, {}, {"retention.ms": "5"}), NewTopic("b.c", 1, 1)]
    log.run(log.controller.create_topics(topics, log.entropy))
    log.broker(1)
    log.run(log.controller.allocate_producer_ids(1, log.image.brokers[1].epoch))
    return log


def test_a_snapshot_is_read_back_as_its_image():
    log = busy_log()
    data = encode_snapshot(log.image, NOW_MS, NOW_MS - 1, voters_control(log.voters))
    read = decode_snapshot(data)
    assert read.last_contained_timestamp_ms == NOW_MS - 1
    assert [type(record) for record in read.control] == [KRaftVersionRecord, VotersRecord]
    assert read.control[1] == log.voters
    assert image_of(read, snapshot_id(log.image)) == log.image


def full(kind, **values):
    """Return a value of `kind`; fail if a field is empty, so that a test must set each new field."""
    value = kind(**values)
    empty = [f.name for f in fields(value) if not getattr(value, f.name)]
    assert empty == [], f"{kind.__name__}: nothing in {empty}"
    return value


def test_no_field_is_left_out():
    a, b = UUID(int=11), UUID(int=12)
    partition = full(
        Partition,
        replicas=(1, 2),
        isr=(2,),
        leader=2,
        leader_epoch=5,
        partition_epoch=9,
        directories=(a, b),
        removing_replicas=(1,),
        adding_replicas=(2,),
        leader_recovery_state=1,
        eligible_leader_replicas=(1,),
        last_known_elr=(2,),
    )
    broker = full(
        Broker,
        id=1,
        epoch=7,
        incarnation_id=a,
        endpoints=(full(Endpoint, name="SSL", host="h", port=9, security_protocol=1),),
        rack="r",
        fenced=True,
        in_controlled_shutdown=True,
        directories=(a,),
        cordoned_directories=(b,),
        features=(full(FeatureRange, name="f", min_level=1, max_level=2),),
    )
    controller = RegisterControllerRecord(
        controller_id=1, incarnation_id=b, zk_migration_ready=False, end_points=(), features=()
    )
    image = full(
        Image,
        offset=40,
        epoch=3,
        features={"metadata.version": 30},
        brokers={1: broker, 2: replace(broker, id=2, fenced=False, cordoned_directories=None)},
        controllers={1: controller},
        topics_by_id={a: full(Topic, id=a, name="t", partitions={0: partition, 3: partition})},
        topic_ids_by_name={"t": a},
        configs={(2, "t"): {"x": "1", "y": ""}, (4, ""): {"z": "2"}},
        next_producer_id=3000,
        foreign={
            ("AccessControlEntryRecord", a): AccessControlEntryRecord(
                id=a,
                resource_type=2,
                resource_name="t",
                pattern_type=3,
                principal="User:u",
                host="*",
                operation=3,
                permission_type=3,
            ),
            ("UserScramCredentialRecord", ("u", 1)): UserScramCredentialRecord(
                name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
            ),
        },
        open_transaction=((41, NoOpRecord()),),
    )
    image = replace(image, open_transaction=None)  # no snapshot is written meanwhile
    data = encode_snapshot(image, NOW_MS, NOW_MS)
    assert image_of(decode_snapshot(data), snapshot_id(image)) == image


def test_a_large_snapshot_has_many_batches(monkeypatch):
    monkeypatch.setattr(snapshot, "RECORDS_PER_BATCH", 3)
    image = busy_log().image
    data = encode_snapshot(image, NOW_MS, NOW_MS)
    batches = [header for _, header in scan(data)]
    assert len(batches) > 4
    assert [header.is_control for header in batches] == [True, *[False] * (len(batches) - 2), True]
    ends = [header.next_offset for header in batches[:-1]]
    assert ends == [header.base_offset for header in batches[1:]]
    assert image_of(decode_snapshot(data), snapshot_id(image)) == image


def test_the_metadata_version_is_the_first_record():
    image = replace(EMPTY, features={"group.version": 1, "metadata.version": 30})
    assert [record.name for record in records_of(image)] == ["metadata.version", "group.version"]


def test_file_names_of_snapshots_are_read_and_written():
    assert SnapshotId(18, 2).file_name() == "00000000000000000018-0000000002.checkpoint"
    assert parse_file_name("00000000000000000018-0000000002.checkpoint") == SnapshotId(18, 2)
    for other in (
        "bootstrap.checkpoint",
        "00000000000000000018.log",
        "00000000000000000018-0000000002.checkpoint.part",
        "0000000000000000001x-0000000002.checkpoint",
        "",
    ):
        assert parse_file_name(other) is None


def test_kafkas_bootstrap_checkpoint_is_read():
    read = decode_snapshot((GOLDEN / "kafka-4.3.1-bootstrap.checkpoint").read_bytes())
    assert read.control == ()
    assert FeatureLevelRecord(name="metadata.version", feature_level=30) in read.records


def test_kafkas_first_checkpoint_is_written_byte_for_byte():
    data = (GOLDEN / "kafka-4.3.1-voters.checkpoint").read_bytes()
    read = decode_snapshot(data)
    opened, closed = (header for _, header in scan(data))
    ours = encode_checkpoint(
        read.records,
        opened.base_timestamp,
        last_contained_timestamp_ms=read.last_contained_timestamp_ms,
        epoch=0,
        control=read.control,
    )
    assert ours[: opened.size] == data[: opened.size]
    # Kafka closes some milliseconds after it opened: compare what is not time and checksum.
    tail, kafkas = ours[opened.size :], data[opened.size :]
    assert (tail[:17], tail[43:]) == (kafkas[:17], kafkas[43:])
    assert closed.size == len(tail)


def test_damage_at_any_byte_is_found():
    data = encode_snapshot(busy_log().image, NOW_MS, NOW_MS)
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            decode_snapshot(data[:size])
    for position in range(0, len(data), 7):
        # Offsets and leader epochs lie outside the checksum; in a snapshot they carry nothing.
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        in_prefix = any(
            start <= position < start + 8 or start + 12 <= position < start + 16
            for start, _ in scan(data)
        )
        if not in_prefix:
            with pytest.raises(Corrupt):
                decode_snapshot(flipped)


def test_a_snapshot_without_its_first_batch_is_refused():
    data = encode_snapshot(busy_log().image, NOW_MS, NOW_MS)
    first = next(header.size for _, header in scan(data))
    with pytest.raises(Corrupt, match=r"no (header|footer)"):
        decode_snapshot(data[first:])
    with pytest.raises(Corrupt, match="footer"):
        decode_snapshot(b"")
