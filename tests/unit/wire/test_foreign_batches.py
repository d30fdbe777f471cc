"""Our code reads batches of third-party libraries, and these libraries read ours."""

import re
import socket
import threading
from contextlib import contextmanager

import pytest
from tests.compat.tools import java_tool

from stratalog.wire.batch import check_produced
from stratalog.wire.budget import TRUSTED
from stratalog.wire.compression import CODEC_NAMES, CODECS
from stratalog.wire.envelope import UnsupportedVersion, decode_request, encode_response
from stratalog.wire.frames import FrameReader
from stratalog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from stratalog.wire.messages.init_producer_id import InitProducerIdResponse
from stratalog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from stratalog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from stratalog.wire.records import Record, build_batch, read_records

RECORDS = [
    Record(n, 1_700_000_000_000 + n % 7, b"key %d" % n, b"some value " * (n % 50), (("h", b"x"),))
    for n in range(1500)
]


def rows(records):
    return [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in records]


@pytest.mark.filterwarnings("ignore:.*Use files:DeprecationWarning")  # its import does
@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_kafka_python_and_we_read_each_other(codec):
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder

    ours = MemoryRecords(bytes(build_batch(RECORDS, codec=codec))).next_batch()
    assert ours.validate_crc()
    assert [
        (one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in ours
    ] == rows(RECORDS)

    builder = DefaultRecordBatchBuilder(2, CODECS[codec], False, -1, -1, -1, 1 << 20)
    for record in RECORDS:
        builder.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    theirs = bytes(builder.build())
    check_produced(memoryview(theirs), max_batch_bytes=1 << 20)
    assert rows(read_records(theirs)) == rows(RECORDS)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_aiokafka_and_we_read_each_other(codec):
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    ours = DefaultRecordBatch(build_batch(RECORDS, codec=codec))
    assert ours.validate_crc()
    assert [
        (one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in ours
    ] == rows(RECORDS)

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS[codec],
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for record in RECORDS:
        builder.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    theirs = bytes(builder.build())
    check_produced(memoryview(theirs), max_batch_bytes=1 << 20)
    assert rows(read_records(theirs)) == rows(RECORDS)


def test_kafkas_own_tool_reads_ours_in_every_codec(tmp_path):
    log = tmp_path / "00000000000000000000.log"
    batches = [
        build_batch(RECORDS, codec=codec, base_offset=n * len(RECORDS), leader_epoch=n)
        for n, codec in enumerate(CODEC_NAMES)
    ]
    log.write_bytes(b"".join(batches))
    done = java_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", str(log)
    )
    assert done.returncode == 0, done.stderr
    printed = re.findall(
        r"^\| offset: (\d+) .*? key: (.*?) payload: ?(.*)$", done.stdout, re.MULTILINE
    )
    assert [(int(offset), key, value) for offset, key, value in printed] == [
        (n * len(RECORDS) + one.offset, one.key.decode(), one.value.decode())
        for n in range(len(CODEC_NAMES))
        for one in RECORDS
    ]
    codecs = re.findall(r"compresscodec: (\w+) .*?isvalid: (\w+)", done.stdout)
    assert codecs == [(name, "true") for name in CODEC_NAMES]


SERVED = {0: (3, 12), 3: (0, 13), 18: (0, 4), 22: (0, 5)}


class ProduceSink:
    """The part of a broker that librdkafka needs to produce to one partition; it keeps the records fields."""

    def __init__(self, port):
        self.port = port
        self.produced = []

    def answer(self, frame):
        try:
            request = decode_request(frame, SERVED, TRUSTED)
        except UnsupportedVersion as refused:
            header = refused.request_header
            body = ApiVersionsResponse(error_code=35, api_keys=self.keys(0))
            return encode_response(18, 0, header.correlation_id, body)
        key, version = request.header.api_key, request.header.version
        bodies = {0: self.produce, 3: self.metadata, 18: self.versions, 22: self.producer_id}
        return encode_response(key, version, request.header.correlation_id, bodies[key](request))

    def keys(self, version):
        # librdkafka derives its features from the advertised APIs: lz4 from FindCoordinator, zstd from Fetch 10.
        advertised = {key: newest for key, (_, newest) in SERVED.items()} | {1: 17, 10: 6}
        return [
            ApiVersion(api_key=key, min_version=0, max_version=newest)
            for key, newest in advertised.items()
        ]

    def versions(self, request):
        return ApiVersionsResponse(error_code=0, api_keys=self.keys(request.header.version))

    def producer_id(self, _request):
        return InitProducerIdResponse(error_code=0, producer_id=4711, producer_epoch=3)

    def metadata(self, _request):
        partition = MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=1,
            leader_epoch=0,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        return MetadataResponse(
            error_code=0,
            brokers=[
                MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port, rack=None)
            ],
            cluster_id="c",
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    error_code=0, name="t", is_internal=False, partitions=[partition]
                )
            ],
        )

    def produce(self, request):
        (topic,) = request.body.topic_data
        (partition,) = topic.partition_data
        base_offset = len(self.produced)
        self.produced.append(bytes(partition.records))
        done = PartitionProduceResponse(
            index=partition.index,
            error_code=0,
            base_offset=base_offset,
            log_append_time_ms=-1,
            record_errors=[],
        )
        return ProduceResponse(
            responses=[TopicProduceResponse(name=topic.name, partition_responses=[done])]
        )

    def serve(self, connection):
        reader = FrameReader(1 << 24)
        with connection:
            while count := connection.recv_into(reader.get_buffer(-1)):
                for frame in reader.buffer_updated(count):
                    connection.sendall(b"".join(self.answer(frame)))


@contextmanager
def produce_sink():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink = ProduceSink(listener.getsockname()[1])
        threads = []

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                thread = threading.Thread(target=sink.serve, args=(connection,))
                thread.start()
                threads.append(thread)

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield sink
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(10)
            for thread in threads:
                thread.join(10)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_batches_of_librdkafka_are_sound_and_read(codec):
    from confluent_kafka import Producer

    with produce_sink() as sink:
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{sink.port}",
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 50,
            }
        )
        for record in RECORDS:
            producer.produce(
                "t",
                key=record.key,
                value=record.value,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        assert producer.flush(10) == 0
        del producer
    headers = []
    records = []
    for field in sink.produced:
        headers += check_produced(memoryview(field), max_batch_bytes=1 << 20)
        records += read_records(field)
    assert {header.codec for header in headers} <= {CODECS[codec], 0}
    assert CODECS[codec] in {header.codec for header in headers}
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(4711, 3)}
    assert headers[0].base_sequence == 0
    assert [row[1:] for row in rows(records)] == [row[1:] for row in rows(RECORDS)]
