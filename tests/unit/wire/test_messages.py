"""The generated classes, readers and writers: defaults, nulls, tags, fields that a version lacks, uncopied records."""

import subprocess
import sys
from struct import error as struct_error
from uuid import UUID

import pytest

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.codecs import codec
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages import fetch, metadata, offset_commit, produce, vote
from stratalog.wire.messages import fetch_snapshot as snapshot

DELETE_GROUPS = codec(42)
DESCRIBE_TOPIC_PARTITIONS = codec(75)
FETCH = codec(1)
FETCH_SNAPSHOT = codec(59)
METADATA = codec(3)
OFFSET_COMMIT = codec(8)
PRODUCE = codec(0)
VOTE = codec(52)
LARGE = memoryview(bytearray(b"r" * 100_000))


def budget():
    return DecodeBudget(1 << 30)


def joined(pieces):
    return b"".join(pieces)


def test_a_version_that_lacks_a_field_is_read_as_the_schemas_default():
    sent = metadata.MetadataRequest(topics=[])
    old = METADATA.read_request[1](
        joined(METADATA.write_request[1](bytearray(), sent)), 0, budget()
    )
    assert old.allow_auto_topic_creation
    topic = metadata.MetadataResponseTopic(error_code=0, name="t", partitions=[])
    assert topic.topic_id == ZERO_ID
    assert topic.topic_authorized_operations == -(1 << 31)


def test_a_response_drops_fields_that_its_version_lacks():
    response = metadata.MetadataResponse(brokers=[], cluster_id="c", controller_id=5, topics=[])
    written = joined(METADATA.write_response[0](bytearray(), response))
    read = METADATA.read_response[0](written, 0, budget())
    assert (read.cluster_id, read.controller_id) == (None, -1)


def test_a_request_refuses_fields_that_its_version_lacks_unless_ignorable():
    request = metadata.MetadataRequest(topics=[], include_topic_authorized_operations=True)
    METADATA.write_request[8](bytearray(), request)
    with pytest.raises(Rejected, match="include_topic_authorized_operations") as refused:
        METADATA.write_request[7](bytearray(), request)
    assert refused.value.code is ErrorCode.unsupported_version
    with_epoch = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=7, committed_metadata=None
    )
    topic = offset_commit.OffsetCommitRequestTopic(name="t", partitions=[with_epoch])
    ignorable = offset_commit.OffsetCommitRequest(group_id="g", member_id="m", topics=[topic])
    OFFSET_COMMIT.write_request[2](bytearray(), ignorable)


@pytest.mark.parametrize(
    ("reader", "data", "name"),
    [
        (DELETE_GROUPS.read_request[0], b"\xff\xff\xff\xff", "groups_names"),
        (DELETE_GROUPS.read_request[0], b"\0\0\0\1\xff\xff", "groups_names"),
        (DELETE_GROUPS.read_request[2], b"\0\0", "groups_names"),
        (DELETE_GROUPS.read_request[2], b"\2\0\0", "groups_names"),
        (OFFSET_COMMIT.read_request[2], b"\xff\xff" + bytes(40), "group_id"),
        (OFFSET_COMMIT.read_request[8], b"\0" + bytes(40), "group_id"),
        (METADATA.read_request[0], b"\xff\xff\xff\xff", "topics"),
    ],
)
def test_a_null_in_a_non_nullable_field_is_corrupt(reader, data, name):
    with pytest.raises(Corrupt, match=f"{name} must not be null"):
        reader(data, 0, budget())


def test_a_null_in_a_nullable_field_is_none():
    assert METADATA.read_request[1](b"\xff\xff\xff\xff", 0, budget()).topics is None
    assert METADATA.read_request[9](b"\0\0\0\0\0", 0, budget()).topics is None
    read = DESCRIBE_TOPIC_PARTITIONS.read_request[0](b"\1\0\0\0\0\xff\0", 0, budget())
    assert read.cursor is None


def test_a_null_length_of_several_bytes_is_corrupt():
    for data in (b"\x80\x00", b"\x80\x80\x00"):
        with pytest.raises(Corrupt, match="null length of several bytes"):
            PRODUCE.read_request[9](memoryview(data + bytes(7)), 0, budget())


def test_none_is_not_written_to_a_non_nullable_field():
    with pytest.raises(AssertionError, match="topics must not be null"):
        METADATA.write_request[0](bytearray(), metadata.MetadataRequest(topics=None))


@pytest.mark.parametrize(
    "count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x80"]
)
def test_an_array_that_announces_billions_is_corrupt_at_once(count):
    with pytest.raises(Corrupt):
        METADATA.read_request[12](count + bytes(100), 0, budget())


def test_a_field_that_runs_past_the_end_is_corrupt():
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=[
            produce.TopicProduceData(
                name="t", partition_data=[produce.PartitionProduceData(index=0, records=LARGE[:9])]
            )
        ],
    )
    for version in (3, 9):
        written = joined(PRODUCE.write_request[version](bytearray(), request))
        for size in range(len(written)):
            with pytest.raises((Corrupt, IndexError, ValueError, struct_error)):
                PRODUCE.read_request[version](memoryview(written[:size]), 0, budget())
        read = PRODUCE.read_request[version](memoryview(written + b"more"), 0, budget())
        assert read == request


def test_tagged_fields_are_written_unless_they_are_the_default():
    write, read = VOTE.write_response[1], VOTE.read_response[1]
    none = vote.VoteResponse(error_code=0, topics=[])
    assert joined(write(bytearray(), none)) == b"\0\0\1\0"
    some = vote.VoteResponse(
        error_code=0, topics=[], node_endpoints=[vote.NodeEndpoint(node_id=1, host="h", port=65535)]
    )
    written = joined(write(bytearray(), some))
    assert read(written, 0, budget()) == some
    # Unknown tags come before and after it.
    position = len(joined(write(bytearray(), none))) - 1
    tags = written[position + 1 :]
    unknown = written[:position] + b"\3" + tags + b"\x63\2zz" + b"\x64\0"
    assert read(unknown, 0, budget()) == some


@pytest.mark.parametrize(
    "changed", [b"\1\0\5\4abcd", b"\1\0\3\4abc", b"\1\0\5\4abc", b"\1\0\x7f\4abc"]
)
def test_a_tagged_field_that_does_not_fill_its_size_is_corrupt(changed):
    request = snapshot.FetchSnapshotRequest(cluster_id="abc", max_bytes=0, topics=[], replica_id=-1)
    written = joined(FETCH_SNAPSHOT.write_request[0](bytearray(), request))
    assert written.endswith(b"\1\0\4\4abc")
    with pytest.raises((Corrupt, IndexError)):
        FETCH_SNAPSHOT.read_request[0](written[:-7] + changed, 0, budget())


def test_records_are_views_of_the_input_and_not_copied_on_write():
    data = produce.PartitionProduceData(index=3, records=LARGE)
    empty = produce.PartitionProduceData(index=4, records=None)
    topic = produce.TopicProduceData(topic_id=UUID(int=7), partition_data=[data, empty, data])
    request = produce.ProduceRequest(acks=1, timeout_ms=5, topic_data=[topic])
    pieces = PRODUCE.write_request[13](bytearray(), request)
    assert [piece is LARGE for piece in pieces] == [False, True, False, True, False]
    frame = memoryview(bytearray(joined(pieces)))
    read = PRODUCE.read_request[13](frame, 0, budget())
    assert read == request
    first = read.topic_data[0].partition_data[0].records
    first[0] = 0x21
    assert bytes(frame).count(b"!rrr") == 1


def test_records_in_several_buffers_follow_each_other():
    parts = [LARGE[:60_000], LARGE[60_000:]]
    rows = [
        fetch.PartitionData(
            partition_index=n,
            error_code=0,
            high_watermark=9,
            aborted_transactions=None,
            records=records,
        )
        for n, records in enumerate((parts, [b"a", b"b"], memoryview(b"c"), None, parts))
    ]
    topic = fetch.FetchableTopicResponse(topic="t", partitions=rows)
    response = fetch.FetchResponse(responses=[topic])
    for version in (4, 12):
        pieces = FETCH.write_response[version](bytearray(), response)
        assert len(pieces) == 3 + 4 - (version == 4)
        frame = memoryview(joined(pieces))
        read = FETCH.read_response[version](frame, 0, budget()).responses[0].partitions
        found = [None if row.records is None else bytes(row.records) for row in read]
        assert found == [LARGE, b"ab", b"c", None, LARGE]
        assert read[0].records.obj is frame.obj


def test_a_fresh_process_has_imported_no_codec():
    code = (
        "import sys, stratalog.node, stratalog.client.aio\n"
        "print([name for name in sys.modules if 'stratalog.wire.' in name and '.codecs.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
