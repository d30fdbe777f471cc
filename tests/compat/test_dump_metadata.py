"""Kafka's own dump tool reads the internal logs that we write.

Method: batches from our code go straight into files with Kafka's names; `DumpLogSegments` prints them; what it prints
is compared field by field with what was written.
"""

import json
import re
import subprocess
import sys
from base64 import b64encode
from uuid import UUID

import msgspec
import pytest
from scripts.generator.schemas import read_schemas, records
from tests.compat.tools import java_tool, kafka_lib
from tests.unit.quorum.metadata_log import NOW_MS, configure, started

from stratalog.metadata.snapshot import encode_snapshot, records_of, snapshot_id
from stratalog.quorum.controller import NewTopic
from stratalog.quorum.metadata_batches import decode_record
from stratalog.quorum.voters import voters_control
from stratalog.wire.batch import scan
from stratalog.wire.ids import topic_id_text
from stratalog.wire.internal import marker_records, metadata_records, security_records
from stratalog.wire.internal.metadata import encode
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from stratalog.wire.records import Record, build_batch, read_records

pytestmark = pytest.mark.timeout(300)

SAMPLES = {
    "bool": True,
    "int8": 7,
    "int16": 300,
    "uint16": 65000,
    "int32": 70_000,
    "int64": 2**40 + 1,
    "float64": 2.5,
    "string": "Grüße",
    "bytes": b"\x00\xff\x10",
    "uuid": UUID("28b72cba-f5c8-48e8-9b3e-9332d405191d"),
}


FAMILIES = {"metadata": metadata_records, "security": security_records, "marker": marker_records}


def sample(module, struct, version):
    """Return a record with a value in every field of the version."""
    values = {}
    for field in struct.fields:
        if field.versions.has(version):
            nested = field.struct
            value = sample(module, nested, version) if nested else SAMPLES[field.kind]
            values[field.name] = (value, value) if field.array else value
    return getattr(module, struct.name)(**values)


def dumped(path, decoder):
    """Return (lines, records): the tool's output for a file, and the JSON of each record."""
    done = java_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        decoder,
        "--print-data-log",
        "--deep-iteration",
        "--files",
        str(path),
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stdout, done.stdout
    assert all("isvalid: true" in line for line in lines if line.startswith("baseOffset"))
    return lines, [line for line in lines if line.startswith("| offset")]


def payload(line):
    return json.loads(line.partition("payload: ")[2])


def snake(name):
    return re.sub(
        r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("KRaft", "Kraft").replace("kRaft", "kraft")
    ).lower()


def agrees(shown, value):
    """Return whether Kafka's JSON equals our value."""
    if isinstance(shown, dict) and isinstance(value, msgspec.Struct):
        return all(agrees(one, getattr(value, snake(name))) for name, one in shown.items())
    if isinstance(shown, list) and isinstance(value, tuple):
        return len(shown) == len(value) and all(map(agrees, shown, value))
    if isinstance(value, UUID):
        return shown == topic_id_text(value)
    if isinstance(value, bytes):
        return shown == b64encode(value).decode()
    return shown == value


def kind(record):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(record).__name__).upper()


def test_kafka_reads_every_metadata_record_at_every_version(tmp_path):
    families = records(read_schemas(kafka_lib()))
    schemas = {schema.name: schema for family in FAMILIES for schema in families[family]}
    written = [
        (sample(module, schema.top, version), version)
        for family, module in FAMILIES.items()
        for schema in families[family]
        for version in range(schema.versions.first, schema.versions.last + 1)
    ]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(
        build_batch([Record(0, NOW_MS, None, encode(r, version)) for r, version in written])
    )
    _, lines = dumped(path, "--cluster-metadata-decoder")
    assert len(lines) == len(written)
    for line, (record, version) in zip(lines, written, strict=True):
        shown = payload(line)
        assert shown["version"] == version
        assert shown["type"] == kind(record) or type(record).__name__.startswith("Zk")
        assert agrees(shown["data"], record), (shown, record)
        printed = {snake(name) for name in shown["data"]}
        here = schemas[type(record).__name__].top.fields
        missing = {field.name for field in here if field.versions.has(version)} - printed
        assert not missing, missing


def a_busy_log():
    log = started()
    topics = [
        NewTopic("hello", 2, 1, {}, {"retention.ms": "-1"}),
        NewTopic("a.b", 1, 1),
        NewTopic("refused", 0),
    ]
    log.run(log.controller.create_topics(topics, log.entropy))
    log.run(log.controller.allocate_producer_ids(1, log.image.brokers[1].epoch))
    log.broker(1)
    log.run(configure(log.controller, 2, "hello", {"retention.ms": None, "segment.ms": "9"}))
    log.run(log.controller.delete_topics(["a.b"]))
    return log


def test_kafka_reads_our_metadata_log(tmp_path):
    log = a_busy_log()
    path = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(log.data)
    _, lines = dumped(path, "--cluster-metadata-decoder")
    written = []
    for position, header in scan(log.data):
        written += [
            (header.is_control, decode_record(record, is_control=header.is_control))
            for record in read_records(memoryview(log.data)[position : position + header.size])
        ]
    assert len(lines) == len(written) == log.next_offset
    for line, (is_control, record) in zip(lines, written, strict=True):
        if not is_control:
            assert payload(line)["type"] == kind(record)
            assert agrees(payload(line)["data"], record), line
    assert "LeaderChange" in lines[0]
    assert "KRaftVersion" in lines[1]
    assert agrees(json.loads(lines[2].partition("KRaftVoters ")[2]), log.voters)


def test_kafka_reads_our_snapshot(tmp_path):
    log = a_busy_log()
    control = voters_control(log.voters)
    path = tmp_path / snapshot_id(log.image).file_name()
    path.write_bytes(encode_snapshot(log.image, NOW_MS, NOW_MS - 7, control))
    lines, records = dumped(path, "--cluster-metadata-decoder")
    assert f"Snapshot end offset: {log.next_offset}, epoch: {log.epoch}" in lines
    header = json.loads(records[0].partition("SnapshotHeader ")[2])
    assert header == {"version": 0, "lastContainedLogTimestamp": NOW_MS - 7}
    assert "KRaftVoters" in records[2]
    assert "SnapshotFooter" in records[-1]
    written = list(records_of(log.image))
    assert len(records) == len(written) + len(control) + 2
    for line, record in zip(records[3:-1], written, strict=True):
        assert payload(line)["type"] == kind(record)
        assert agrees(payload(line)["data"], record)


def test_kafka_reads_our_offsets_log(tmp_path):
    member = MemberMetadata(
        member_id="m-1",
        group_instance_id="i",
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout=300_000,
        session_timeout=45_000,
        subscription=b"\x00\x03" + b"\x00" * 16,
        assignment=b"",
    )
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m-1",
        current_state_timestamp=NOW_MS,
        members=(member,),
    )
    commit = OffsetCommitValue(
        offset=2**33,
        leader_epoch=4,
        metadata="é",
        commit_timestamp=NOW_MS,
        topic_id=SAMPLES["uuid"],
    )
    commit_key = encode_key(OffsetCommitKey(group="g", topic="t", partition=7))
    group_key = encode_key(GroupMetadataKey(group="g"))
    commits = [(version, encode_value(commit, version)) for version in (0, 1, 2, 3, 4)]
    groups = [(version, encode_value(group, version)) for version in (0, 1, 2, 3, 4)]
    commits.append((4, encode_value(commit)))
    groups.append((3, encode_value(group)))
    pairs = [(commit_key, value) for _, value in commits] + [(group_key, v) for _, v in groups]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(
        build_batch([Record(0, NOW_MS, *pair) for pair in [*pairs, (group_key, None)]])
    )
    _, lines = dumped(path, "--offsets-decoder")
    assert len(lines) == len(pairs) + 1
    for line, (version, _) in zip(lines, commits, strict=False):
        assert '"data":{"group":"g","topic":"t","partition":7}' in line
        shown = payload(line)
        assert shown["version"] == str(version)
        assert agrees(without(shown["data"], version < 3, "leaderEpoch"), commit), shown
        assert ("topicId" in shown["data"]) == (version == 4)
    for line, (version, _) in zip(lines[len(commits) :], groups, strict=False):
        shown = payload(line)
        assert shown["version"] == str(version)
        data = without(shown["data"], version < 2, "currentStateTimestamp")
        data["members"] = [
            without(without(m, version < 3, "groupInstanceId"), version < 1, "rebalanceTimeout")
            for m in data["members"]
        ]
        assert agrees(data, group), shown


def without(data, absent, name):
    """Return the value as a version shows it: a missing field has its default."""
    return {k: v for k, v in data.items() if not (absent and k == name)}


def test_the_generated_modules_equal_the_generators_output(repository):
    done = subprocess.run(
        [sys.executable, "-m", "scripts.generate_messages", str(kafka_lib()), "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
