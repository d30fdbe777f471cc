"""Whole requests and responses: headers, versions, and records that are not copied."""

import pytest
from kio.schema.errors import ErrorCode as KioCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType
from tests.properties.kio_oracle import kio_class

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.apis import APIS, is_flexible
from stratalog.wire.budget import TRUSTED
from stratalog.wire.envelope import (
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
)
from stratalog.wire.fetch import EncodedResponse, encode_topics
from stratalog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from stratalog.wire.messages.create_topics import CreateTopicsRequest
from stratalog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from stratalog.wire.messages.fetch_snapshot import FetchSnapshotRequest
from stratalog.wire.messages.heartbeat import HeartbeatRequest
from stratalog.wire.messages.leave_group import LeaveGroupRequest
from stratalog.wire.messages.metadata import MetadataRequest
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

SERVED = {key: (api.oldest, api.newest) for key, api in APIS.items()}
LARGE = memoryview(bytearray(b"r" * 100_000))


def frame_of(buffers):
    """Check the frame's length; return the frame without it in writable memory, as a broker gets it."""
    whole = bytearray(b"".join(buffers))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    return memoryview(whole)[4:]


def test_the_table_of_error_codes_equals_kios():
    assert {one.name: int(one) for one in ErrorCode} == {one.name: int(one) for one in KioCode}


@pytest.mark.parametrize("newer", [-2, 134, 32767])
def test_a_code_that_this_version_does_not_know_is_an_unknown_error(newer: int) -> None:
    assert ErrorCode(newer) is ErrorCode.unknown_server_error


def test_the_table_of_apis_equals_kios():
    assert {key: api.name for key, api in APIS.items()} == dict(api_key_map)
    for key, api in APIS.items():
        versions = schema_name_map[api.name]
        assert sorted(versions) == list(range(api.oldest, api.newest + 1))
        for version in versions:
            for side in ("request", "response"):
                cls = kio_class(key, version, side)
                assert cls.__type__ is EntityType[side]
                assert (cls.__api_key__, cls.__version__) == (key, version)
                assert cls.__flexible__ == is_flexible(key, version)
                flexible_header = 2 if side == "request" else 1
                expected = flexible_header - (0 if is_flexible(key, version) else 1)
                if (key, side) == (18, "response"):
                    expected = 0
                assert cls.__header_schema__.__version__ == expected


@pytest.mark.parametrize("client_id", [None, "", "me", "größe"])
@pytest.mark.parametrize("version", [11, 12])
def test_a_header_is_read_as_it_was_written(client_id, version):
    body = LeaveGroupRequest(group_id="g")
    frame = frame_of(encode_request(3, -5, client_id, body))
    assert parse_header(frame, TRUSTED)[0] == RequestHeader(13, 3, -5, client_id)
    body = ApiVersionsRequest(client_software_name="n", client_software_version="v")
    decoded = decode_request(frame_of(encode_request(3, 7, client_id, body)), SERVED, TRUSTED)
    assert decoded.header == RequestHeader(18, 3, 7, client_id)
    assert decoded.body == body


def test_tags_in_a_header_are_skipped():
    body = MetadataRequest(topics=None)
    whole = bytes(frame_of(encode_request(9, 1, "me", body)))
    tagged = whole[:12] + b"\2\0\3abc\x7f\1x" + whole[13:]
    assert whole[12] == 0
    assert decode_request(memoryview(tagged), SERVED, TRUSTED).body == body


@pytest.mark.parametrize(("key", "version"), [(18, 5), (3, 14), (0, 2), (0, -1), (999, 0), (-1, 0)])
def test_an_unserved_version_is_refused_with_its_header(key, version):
    frame = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    frame += (77).to_bytes(4, "big") + b"\0\2me" + b"\0junk"
    with pytest.raises(UnsupportedVersion) as refused:
        decode_request(memoryview(frame), SERVED, TRUSTED)
    assert refused.value.code is ErrorCode.unsupported_version
    assert refused.value.request_header == RequestHeader(key, version, 77, "me")


def test_only_served_apis_are_read():
    body = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    frame = frame_of(encode_request(4, 1, None, body))
    assert decode_request(frame, {12: (0, 4)}, TRUSTED).body == body
    for served in ({12: (0, 3)}, {12: (5, 6)}, {11: (0, 9)}, {}):
        with pytest.raises(UnsupportedVersion):
            decode_request(frame, served, TRUSTED)


def test_a_null_in_a_non_nullable_array_is_refused():
    body = CreateTopicsRequest(topics=[], timeout_ms=1000)
    frame = frame_of(encode_request(7, 1, None, body))
    position = parse_header(frame, TRUSTED)[1]
    assert frame[position] == 1
    frame[position] = 0
    with pytest.raises(Rejected, match="topics must not be null"):
        decode_request(frame, SERVED, TRUSTED)


@pytest.mark.parametrize(
    ("key", "version", "before"),
    [
        (3, 1, b""),
        (3, 12, b""),
        (0, 8, b"\xff\xff" + bytes(6)),  # transactional id, acks, timeout
        (0, 9, b"\0" + bytes(6)),
        (0, 9, b"\0" + bytes(6) + b"\2\2t"),  # and a topic
        (20, 1, b""),
        (
            14,
            5,
            b"\1" + bytes(4) + b"\1" + b"\0\0\0",
        ),  # group, generation, member, instance, type, name
    ],
)
def test_an_array_that_announces_billions_is_refused_at_once(key, version, before):
    flexible = is_flexible(key, version)
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    frame += b"\0" * flexible + before
    frame += b"\xff\xff\xff\xff\x0f" if flexible else b"\x7f\xff\xff\xff"
    with pytest.raises(Rejected, match="an array of") as refused:
        decode_request(memoryview(frame + bytes(40)), SERVED, TRUSTED)
    assert refused.value.code is ErrorCode.invalid_request


def test_a_tagged_field_that_does_not_fill_its_size_is_refused():
    body = FetchSnapshotRequest(cluster_id="abc", replica_id=-1, max_bytes=0, topics=[])
    frame = bytes(frame_of(encode_request(0, 1, None, body)))
    assert frame.endswith(b"\1\0\4\4abc")
    assert decode_request(memoryview(frame), SERVED, TRUSTED).body == body
    for changed in (b"\1\0\5\4abcd", b"\1\0\3\4abc", b"\1\0\5\4abc"):
        with pytest.raises(Rejected):
            decode_request(memoryview(frame[:-7] + changed), SERVED, TRUSTED)
    unknown = frame[:-7] + b"\2\0\4\4abc\x63\2zz"
    assert decode_request(memoryview(unknown), SERVED, TRUSTED).body == body


def produced(*records):
    rows = [PartitionProduceData(index=n, records=one) for n, one in enumerate(records)]
    topic = TopicProduceData(name="t", partition_data=rows)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def fetched(*records, session_id=0):
    rows = [
        PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=9,
            aborted_transactions=None,
            records=one,
        )
        for one in records
    ]
    topic = FetchableTopicResponse(topic="t", partitions=rows)
    return FetchResponse(session_id=session_id, responses=[topic])


def test_produced_records_are_views_of_the_frame():
    pieces = encode_request(9, 5, "me", produced(LARGE, None))
    assert any(piece is LARGE for piece in pieces)
    frame = frame_of(pieces)
    first, second = decode_request(frame, SERVED, TRUSTED).body.topic_data[0].partition_data
    assert first.records == LARGE
    assert first.records.obj is frame.obj
    first.records[0] = 0x21
    assert bytes(frame).count(b"!rrr") == 1
    assert second.records is None


@pytest.mark.parametrize("version", [8, 9])
def test_records_that_run_past_the_end_are_refused(version):
    body = produced(memoryview(b"records"))
    frame = frame_of(encode_request(version, 1, None, body))
    end = len(frame) - (3 if version == 9 else 0)
    for cut in range(1, 8):
        with pytest.raises(Rejected):
            decode_request(frame[: end - cut], SERVED, TRUSTED)
    assert decode_request(frame, SERVED, TRUSTED).body == body


def test_fetched_records_are_views_on_both_sides():
    parts = [LARGE[:60_000], LARGE[60_000:]]
    pieces = encode_response(1, 12, 5, fetched(parts))
    assert [any(piece is part for piece in pieces) for part in parts] == [True, True]
    frame = frame_of(pieces)
    correlation_id, decoded = decode_response(1, 12, frame)
    assert correlation_id == 5
    records = decoded.responses[0].partitions[0].records
    assert records == LARGE
    assert records.obj is frame.obj


@pytest.mark.parametrize("version", [4, 7, 12, 17])
@pytest.mark.parametrize("records", [b"few", LARGE])
def test_a_response_to_several_readers_is_written_once_and_not_changed(records, version):
    topics = encode_topics(fetched([records]).responses, version)
    for reader in range(3):
        shared = EncodedResponse(0, 100 + reader, topics)
        alone = fetched([records], session_id=100 + reader)
        assert frame_of(encode_response(1, version, reader, shared)) == frame_of(
            encode_response(1, version, reader, alone)
        )


def test_the_errors_of_partitions_are_returned_with_the_written_bytes():
    rows = [
        PartitionData(
            partition_index=n,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=None,
            records=(),
        )
        for n, code in enumerate((0, 6, 0, 3))
    ]
    assert encode_topics([FetchableTopicResponse(topic="t", partitions=rows)], 12).errors == [6, 3]


def test_small_records_are_written_in_one_piece():
    pieces = encode_response(1, 12, 5, fetched(*[[b"a", b"b"]] * 3))
    assert len(pieces) == 1
    decoded = decode_response(1, 12, frame_of(pieces))[1]
    assert [bytes(one.records) for one in decoded.responses[0].partitions] == [b"ab"] * 3


@pytest.mark.parametrize("version", range(5))
def test_an_api_versions_answer_has_the_old_header_in_every_version(version):
    served = ApiVersion(api_key=0, min_version=0, max_version=12)
    body = ApiVersionsResponse(error_code=0, api_keys=[served])
    frame = frame_of(encode_response(18, version, 0x01020304, body))
    assert bytes(frame[:6]) == b"\1\2\3\4\0\0"
    assert decode_response(18, version, frame) == (0x01020304, body)


@pytest.mark.parametrize("junk", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\xff\xff"])
def test_a_malformed_response_is_corrupt(junk):
    with pytest.raises(Corrupt):
        decode_response(3, 12, memoryview(junk))
    with pytest.raises(Corrupt):
        decode_response(1, 12, memoryview(junk))


@pytest.mark.parametrize("version", [4, 11, 17])
def test_consumers_that_send_the_same_fetch_share_its_body(version):
    def decoded(correlation_id, offset, at_version=version):
        partition = FetchPartition(partition=3, fetch_offset=offset, partition_max_bytes=1000)
        topic = FetchTopic(partitions=[partition])
        body = FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=[topic])
        buffers = encode_request(at_version, correlation_id, f"c{correlation_id}", body)
        return decode_request(frame_of(buffers), SERVED, TRUSTED)

    first, second, other = decoded(1, 50), decoded(2, 50), decoded(3, 51)
    assert first.body is second.body
    assert first.header != second.header
    assert [one.body.topics[0].partitions[0].fetch_offset for one in (first, other)] == [50, 51]
    assert decoded(1, 50, at_version=5).body is not first.body
    for offset in range(1000):
        assert decoded(1, offset).body.topics[0].partitions[0].fetch_offset == offset
    assert decoded(4, 50).body is not first.body  # the cache dropped it for newer requests


def test_a_long_fetch_is_not_cached():
    topics = [FetchTopic(topic=f"t{number}", partitions=[]) for number in range(200)]
    buffers = encode_request(11, 1, "c", FetchRequest(max_wait_ms=1, min_bytes=1, topics=topics))
    first, second = (decode_request(frame_of(buffers), SERVED, TRUSTED) for _ in range(2))
    assert first.body == second.body
    assert first.body is not second.body
