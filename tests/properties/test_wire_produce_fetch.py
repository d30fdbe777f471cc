"""Our own Produce request and Fetch response against kio's, both ways, in every version."""

from datetime import timedelta
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from stratalog.wire import fetch, fetch_request, produce
from stratalog.wire.budget import TRUSTED
from stratalog.wire.construct import body_class, request_types, response_types
from stratalog.wire.fetch import FetchedPartition, FetchedTopic, FetchResponse, NodeEndpoint
from stratalog.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

FEW = settings(max_examples=15, deadline=None)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=40) | st.just("n" * 200)
RECORDS = st.binary(max_size=200) | st.sampled_from([b"r" * 126, b"r" * 127, b"R" * 5000])
TOPIC_ID = st.uuids().filter(lambda topic_id: topic_id.int != 0)


def topics(partition):
    named = st.tuples(TEXT, TOPIC_ID, st.lists(partition, max_size=3))
    return st.lists(named, max_size=3)


@pytest.mark.parametrize("version", range(3, 14))
@FEW
@given(
    st.none() | TEXT,
    st.sampled_from([-1, 0, 1, 32767, -32768]),
    INT32,
    topics(st.tuples(INT32, st.none() | RECORDS)),
)
def test_produce_requests(version, transactional_id, acks, timeout_ms, rows):
    make = request_types(0, version)
    theirs = make.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timeout_ms,
        topic_data=[
            make.TopicProduceData(
                name=name,
                topic_id=topic_id,
                partition_data=[
                    make.PartitionProduceData(index=index, records=records)
                    for index, records in partitions
                ],
            )
            for name, topic_id, partitions in rows
        ],
    )
    by_id = version >= 13
    ours = ProduceRequest(
        transactional_id,
        acks,
        timeout_ms,
        [
            ProduceTopic(
                "" if by_id else name,
                topic_id if by_id else None,
                [
                    ProducePartition(index, None if records is None else memoryview(records))
                    for index, records in partitions
                ],
            )
            for name, topic_id, partitions in rows
        ],
    )
    cls = body_class(0, version, "request")
    written = BytesIO()
    entity_writer(cls)(written, theirs)
    assert b"".join(produce.encode(ours, version)) == written.getvalue()
    assert produce.decode(memoryview(written.getvalue()), version, TRUSTED) == ours
    assert entity_reader(cls)(written.getvalue(), 0)[0] == theirs


@pytest.mark.parametrize("version", range(4, 18))
@FEW
@given(
    st.tuples(INT32, INT32, INT32, st.integers(0, 1), INT32, INT32),
    topics(st.tuples(INT32, INT32, INT64, INT32)),
    topics(INT32),
    TEXT,
)
def test_fetch_requests(version, fields, rows, gone, rack):
    make = request_types(1, version)
    max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch = fields
    theirs = make.FetchRequest(
        replica_id=-1,
        max_wait=max_wait,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            make.FetchTopic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    make.FetchPartition(
                        partition=index,
                        current_leader_epoch=epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=epoch ^ 1,
                        log_start_offset=offset ^ 1,
                        partition_max_bytes=size,
                    )
                    for index, epoch, offset, size in partitions
                ],
            )
            for name, topic_id, partitions in rows
        ],
        forgotten_topics_data=[
            make.ForgottenTopic(topic=name, topic_id=topic_id, partitions=indexes)
            for name, topic_id, indexes in gone
        ],
        rack_id=rack,
    )
    written = BytesIO()
    entity_writer(body_class(1, version, "request"))(written, theirs)
    read = fetch_request.decode(memoryview(written.getvalue()), version, TRUSTED)
    has_sessions, has_epochs, by_id = version >= 7, version >= 9, version >= 13

    wanted = {
        (topic_id if by_id else name, i): (i, e if has_epochs else -1, o, s)
        for name, topic_id, parts in rows
        for i, e, o, s in parts
    }
    forgotten = [
        (topic_id if by_id else name, index)
        for name, topic_id, indexes in gone
        for index in indexes
        if has_sessions
    ]
    assert read == (
        *fields[:4],
        *(fields[4:] if has_sessions else (0, -1)),
        tuple(wanted.items()),
        tuple(forgotten),
        rack if version >= 11 else "",
    )
    assert (
        fetch_request.decode(memoryview(written.getvalue()), version, TRUSTED) == read
    )  # as remembered


PAIR_32_64 = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 2**60))
PARTITIONS = st.builds(
    FetchedPartition,
    index=INT32,
    error_code=st.sampled_from([0, 1, 3, 6, 74]),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    aborted=st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
    preferred_read_replica=INT32,
    records=st.lists(RECORDS, max_size=3),
    diverging_epoch=PAIR_32_64,
    current_leader=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
    snapshot_id=st.none() | st.tuples(st.integers(0, 2**60), st.integers(0, 99)),
)
ENDPOINTS = st.lists(
    st.builds(NodeEndpoint, node_id=INT32, host=TEXT, port=INT32, rack=st.none() | TEXT), max_size=2
)


def partition_of_kio(make, one):
    given_tags = {}
    if one.diverging_epoch is not None:
        epoch, end_offset = one.diverging_epoch
        given_tags["diverging_epoch"] = make.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    if one.current_leader is not None:
        leader_id, leader_epoch = one.current_leader
        given_tags["current_leader"] = make.LeaderIdAndEpoch(
            leader_id=leader_id, leader_epoch=leader_epoch
        )
    if one.snapshot_id is not None:
        end_offset, epoch = one.snapshot_id
        given_tags["snapshot_id"] = make.SnapshotId(end_offset=end_offset, epoch=epoch)
    aborted = None
    if one.aborted is not None:
        aborted = [
            make.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in one.aborted
        ]
    return make.PartitionData(
        partition_index=one.index,
        error_code=one.error_code,
        high_watermark=one.high_watermark,
        last_stable_offset=one.last_stable_offset,
        log_start_offset=one.log_start_offset,
        aborted_transactions=aborted,
        preferred_read_replica=one.preferred_read_replica,
        records=b"".join(one.records),
        **given_tags,
    )


def as_version_has_it(one, version):
    """What is left of a partition after a trip through `version`."""
    return FetchedPartition(
        one.index,
        one.error_code,
        one.high_watermark,
        one.last_stable_offset,
        one.log_start_offset if version >= 5 else -1,
        one.aborted,
        one.preferred_read_replica if version >= 11 else -1,
        memoryview(b"".join(one.records)),
        one.diverging_epoch if version >= 12 else None,
        one.current_leader if version >= 12 else None,
        one.snapshot_id if version >= 12 else None,
    )


@pytest.mark.parametrize("version", range(4, 19))
@FEW
@given(INT32, INT32, topics(PARTITIONS), ENDPOINTS)
def test_fetch_responses(version, throttle_time_ms, session_id, rows, endpoints):
    error = ErrorCode.fetch_session_id_not_found
    make = response_types(1, version)
    theirs = make.FetchResponse(
        throttle_time=timedelta(milliseconds=throttle_time_ms),
        error_code=error,
        session_id=session_id,
        responses=[
            make.FetchableTopicResponse(
                topic=name,
                topic_id=topic_id,
                partitions=[partition_of_kio(make, one) for one in partitions],
            )
            for name, topic_id, partitions in rows
        ],
        node_endpoints=[
            make.NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in endpoints
        ],
    )
    ours = FetchResponse(
        throttle_time_ms,
        error,
        session_id,
        [FetchedTopic(name, topic_id, partitions) for name, topic_id, partitions in rows],
        endpoints,
    )
    cls = body_class(1, version, "response")
    written = BytesIO()
    entity_writer(cls)(written, theirs)
    assert b"".join(fetch.encode(ours, version)) == written.getvalue()
    assert entity_reader(cls)(written.getvalue(), 0)[0] == theirs
    by_id = version >= 13
    assert fetch.decode(memoryview(written.getvalue()), version) == FetchResponse(
        throttle_time_ms,
        error if version >= 7 else 0,
        session_id if version >= 7 else 0,
        [
            FetchedTopic(
                "" if by_id else name,
                topic_id if by_id else None,
                [as_version_has_it(one, version) for one in partitions],
            )
            for name, topic_id, partitions in rows
        ],
        endpoints if version >= 16 else [],
    )
