"""Goal: a broker's metrics and health reports are true.

Method: the tests scrape a server process over HTTP while librdkafka produces and consumes. They compare every metric
that a client can compute exactly; of times they check only that they exist.
"""

import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.monitor_scrape import Scrape, get
from tests.integration.server_process import strata
from tests.integration.waiting import wait_for
from tests.wire_client import Wire

from stratalog.monitor.metrics import METRICS, Kind
from stratalog.testing.broker import TemporaryBroker
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

TIMEOUT_S = 30
HOUR_MS = 3_600_000
SEGMENT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("monitor")
    # Without these two the metrics about clients' metrics are missing.
    clients = {
        "telemetry__series__enable": "true",
        "telemetry__otlp__url": "http://127.0.0.1:1/v1/metrics",
    }
    with broker_process(place, monitor__listener="127.0.0.1:0", **clients) as broker:
        yield broker


def monitor_port(broker: BrokerProcess) -> int:
    return json.loads((broker.directory / "ready.json").read_text())["monitor_port"]


def scrape(broker: BrokerProcess) -> Scrape:
    return Scrape(monitor_port(broker))


def create(broker: BrokerProcess, name: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(TIMEOUT_S)


def produce(broker: BrokerProcess, topic: str, count: int, *, at_ms: int = 0, size: int = 100):
    """Produce `count` records to partition 0, in one batch."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1000, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, bytes(size), partition=0, timestamp=at_ms)
    assert producer.flush(TIMEOUT_S) == 0


def commit(broker: BrokerProcess, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def read(broker: BrokerProcess, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        got = 0
        while got < count:
            found = consumer.consume(count - got, timeout=TIMEOUT_S)
            assert found
            got += len(found)
    finally:
        consumer.close()


def test_bytes_messages_and_offsets_are_exact(broker: BrokerProcess) -> None:
    create(broker, "exact", 2)
    produce(broker, "exact", 250)
    log = broker.data / "exact-0" / f"{0:020}.log"
    size = log.stat().st_size
    found = scrape(broker)
    assert found("topic_bytes_in_total", topic="exact") == size
    assert found("topic_messages_in_total", topic="exact") == 250
    assert found("topic_bytes_out_total", topic="exact") == 0
    for partition, end in (("0", 250), ("1", 0)):
        where = {"topic": "exact", "partition": partition}
        assert found("partition_log_end_offset", **where) == end
        assert found("partition_high_watermark", **where) == end
        assert found("partition_log_start_offset", **where) == 0
        assert found("partition_log_bytes", **where) == (size if end else 0)
    read(broker, "exact", 250)
    found = scrape(broker)
    # A client may fetch a batch twice (it drops records): count whole reads of the log, at least one.
    assert found("topic_bytes_out_total", topic="exact") >= size
    assert found("topic_messages_out_total", topic="exact") >= 250


def test_records_from_before_the_start_are_not_counted_as_received(tmp_path: Path) -> None:
    with broker_process(tmp_path, monitor__listener="127.0.0.1:0") as broker:
        create(broker, "again")
        produce(broker, "again", 5)
        assert broker.stop() == 0
        broker.start()
        produce(broker, "again", 2)
        found = scrape(broker)
        assert found("topic_messages_in_total", topic="again") == 2
        assert found("partition_log_end_offset", topic="again", partition="0") == 7


def test_lag_is_exact_and_its_seconds_come_from_record_times(broker: BrokerProcess) -> None:
    create(broker, "late")
    now_ms = int(time.time() * 1000)
    for minutes_ago in (30, 20, 5):
        produce(broker, "late", 10, at_ms=now_ms - minutes_ago * 60_000)
    commit(broker, "slow", "late", 10)
    commit(broker, "done", "late", 30)
    found = scrape(broker)
    slow, done = ({"group": group, "topic": "late"} for group in ("slow", "done"))
    assert found("group_lag_records", **slow) == 20
    assert found("group_partition_lag_records", **slow, partition="0") == 20
    assert found("group_lag_seconds", **slow) == 15 * 60
    assert found("group_lag_records", **done) == 0
    assert found("group_lag_seconds", **done) == 0
    commit(broker, "slow", "late", 25)  # inside the last batch
    found = scrape(broker)
    assert found("group_lag_records", **slow) == 5
    assert found("group_lag_seconds", **slow) == 0


def test_headroom_is_the_time_and_bytes_until_retention(broker: BrokerProcess) -> None:
    create(broker, "kept", retention_ms=str(HOUR_MS), retention_bytes=str(4 * SEGMENT_BYTES))
    create(broker, "kept-for-ever", retention_ms="-1")
    now_ms = int(time.time() * 1000)
    for topic in ("kept", "kept-for-ever"):
        produce(broker, topic, 10, at_ms=now_ms - HOUR_MS // 2)
    first_bytes = (broker.data / "kept-0" / f"{0:020}.log").stat().st_size
    produce(broker, "kept", 10, at_ms=now_ms)
    bytes_all = (broker.data / "kept-0" / f"{0:020}.log").stat().st_size
    commit(broker, "h", "kept", 0)
    commit(broker, "h", "kept-for-ever", 0)
    found = scrape(broker)
    seconds = found("group_retention_headroom_seconds", group="h", topic="kept")
    assert 0 < seconds <= 1800
    left = found("group_retention_headroom_bytes", group="h", topic="kept")
    assert left == 4 * SEGMENT_BYTES - bytes_all
    assert found("group_retention_headroom_seconds", group="h", topic="kept-for-ever") == math.inf
    commit(broker, "h", "kept", 10)
    found = scrape(broker)
    assert found("group_retention_headroom_seconds", group="h", topic="kept") > 1800
    left = found("group_retention_headroom_bytes", group="h", topic="kept")
    assert left == 4 * SEGMENT_BYTES - (bytes_all - first_bytes)
    commit(broker, "h", "kept", 20)
    assert scrape(broker)("group_retention_headroom_seconds", group="h", topic="kept") == math.inf


def test_uploads_and_reads_of_the_bucket_have_metrics(broker: BrokerProcess) -> None:
    create(
        broker,
        "tiered",
        remote_storage_enable="true",
        segment_bytes=str(SEGMENT_BYTES),
        local_retention_bytes="1",
    )
    for _ in range(4):
        produce(broker, "tiered", 600, size=1000)

    where = {"topic": "tiered", "partition": "0"}
    scraped: list[Scrape] = []

    def at_rest() -> bool:
        """Return whether every closed segment is in the bucket only. The client's batches decide their number."""
        scraped.append(scrape(broker))
        found = scraped[-1]
        return (
            found("remote_copy_segments_total", topic="tiered") >= 2
            and found("remote_copy_lag_segments", topic="tiered") == 0
            and found("partition_log_bytes", **where)
            == found("remote_copy_lag_bytes", topic="tiered")
        )

    wait_for(at_rest, "closed segments in the bucket alone")
    found = scraped[-1]
    assert found("partition_local_start_offset", **where) > 0
    assert found("remote_copy_lag_seconds", topic="tiered") > 0
    lag = found("remote_copy_lag_bytes", topic="tiered")
    copied = found("remote_copy_bytes_total", topic="tiered")
    assert copied + lag == found("topic_bytes_in_total", topic="tiered")
    assert found("partition_log_start_offset", **where) == 0
    commit(broker, "history", "tiered", 0)
    read(broker, "tiered", 2400)
    found = scrape(broker)
    assert found("remote_fetch_requests_total", topic="tiered") > 0
    assert found("remote_fetch_bytes_total", topic="tiered") >= copied
    assert found("remote_fetch_errors_total", topic="tiered") == 0
    assert found("remote_copy_errors_total", topic="tiered") == 0
    assert found("remote_delete_errors_total", topic="tiered") == 0
    assert found("group_lag_records", group="history", topic="tiered") == 2400
    assert found("group_retention_headroom_seconds", group="history", topic="tiered") > 0


def test_requests_and_errors_by_api(broker: BrokerProcess) -> None:
    def errors() -> float:
        return scrape(broker).find("request_errors_total", api="CreateTopics", error=exists) or 0

    exists = "TOPIC_ALREADY_EXISTS"
    create(broker, "once")
    before = errors()
    asked = scrape(broker)("request_duration_seconds_count", api="CreateTopics")
    with pytest.raises(KafkaException):
        create(broker, "once")
    assert errors() == before + 1
    found = scrape(broker)
    assert found("request_duration_seconds_count", api="CreateTopics") == asked + 1
    assert found("request_duration_seconds_bucket", api="CreateTopics", le="+Inf") == asked + 1


def test_malformed_requests_are_counted(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as client:
        client.sendall(bytes.fromhex("0000000a 7fff 0000 00000001 ffff"))
        assert client.recv(100) == b""
    assert scrape(broker)("request_errors_total", api="", error="UNSUPPORTED_VERSION") >= 1


def test_connections_directories_and_the_process(broker: BrokerProcess) -> None:
    create(broker, "one")
    produce(broker, "one", 1)
    accepted = scrape(broker)("connections_accepted_total")
    with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S):
        wait_for(lambda: scrape(broker)("connections_accepted_total") > accepted, "a connection")
        assert scrape(broker)("connections") >= 1
    found = scrape(broker)
    assert found("log_directory_online", directory=str(broker.data)) == 1
    assert found("partitions_offline") == 0
    assert found("partitions") > 0
    assert found("ready") == 1
    writes = {"directory": str(broker.data), "operation": "write"}
    assert found("disk_duration_seconds_count", **writes) > 0
    assert found("event_loop_delay_seconds_count") > 0
    assert found.samples["process_resident_memory_bytes", frozenset()] > 0


def test_the_monitor_serves_exactly_the_metrics_of_the_table(broker: BrokerProcess) -> None:
    text = scrape(broker).text
    heads = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    described = {name: kind for name, kind in heads if name.startswith("stratalog_")}
    assert described == {metric.name: metric.kind.value for metric in METRICS}
    assert len(heads) == len({name for name, _kind in heads}), (
        "the samples of a metric must follow each other"
    )
    assert all(
        metric.name.endswith("_total") == (metric.kind is Kind.COUNTER) for metric in METRICS
    )


def test_every_latency_is_a_histogram_with_percentiles(broker: BrokerProcess) -> None:
    """Check the needs of Prometheus' histogram_quantile: buckets grow with their bound, and the last one counts all."""
    create(broker, "timed")
    produce(broker, "timed", 10)
    read(broker, "timed", 10)
    found = scrape(broker)
    directory = str(broker.data)
    for name, labels in (
        ("request_duration_seconds", {"api": "Produce"}),
        ("request_duration_seconds", {"api": "Fetch"}),
        ("disk_duration_seconds", {"directory": directory, "operation": "write"}),
        ("event_loop_delay_seconds", {}),
    ):
        buckets = {
            float(at["le"]): value
            for (sample, pairs), value in found.samples.items()
            if sample == f"stratalog_{name}_bucket"
            and (at := dict(pairs)).items() >= labels.items()
        }
        counts = [buckets[bound] for bound in sorted(buckets)]
        assert len(buckets) > 5, name
        assert counts == sorted(counts), name
        assert counts[-1] == found(f"{name}_count", **labels) > 0, name
        assert found(f"{name}_sum", **labels) > 0, name


def test_producers_and_fetch_sessions_are_counted(broker: BrokerProcess) -> None:
    create(broker, "known")
    before = scrape(broker)
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    producer.produce("known", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        session_id=0,
        session_epoch=0,
        topics=[FetchTopic(topic="known", partitions=[one])],
        forgotten_topics_data=[],
    )
    with Wire(broker.address) as wire:
        wire.ask(12, fetch)
    found = scrape(broker)
    assert found("producer_ids") == before("producer_ids") + 1
    assert found("fetch_sessions") == before("fetch_sessions") + 1
    assert found("group_lag_left_out") == 0
    assert found("group_lookups_left") == 0


def test_an_open_transaction_has_an_age_until_its_end(broker: BrokerProcess) -> None:
    create(broker, "opened")
    assert scrape(broker)("transaction_oldest_open_seconds") == 0
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "slow"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("opened", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    first = scrape(broker)("transaction_oldest_open_seconds")
    time.sleep(0.01)
    assert scrape(broker)("transaction_oldest_open_seconds") > first
    assert scrape(broker)("partitions_with_late_transactions") == 0
    producer.commit_transaction(TIMEOUT_S)
    name = "transaction_oldest_open_seconds"
    wait_for(lambda: scrape(broker)(name) == 0, "the transaction's markers")


def test_a_sole_broker_leads_all_partitions_and_is_the_controller(broker: BrokerProcess) -> None:
    create(broker, "led")
    found = scrape(broker)
    assert found("partitions_led") == found("partitions") > 0
    assert found("partitions_under_replicated") == found("partitions_under_min_isr") == 0
    assert found("replica_lag_max_records") == 0
    assert found("active_controller") == found("quorum_leader") == 1
    assert found("quorum_epoch") >= 1
    assert found("quorum_high_watermark") > 0
    assert found("quorum_state", state="leader") == 1
    assert found("quorum_state", state="candidate") == found("quorum_state", state="observer") == 0
    assert found("brokers", state="active") == 1
    assert found("brokers", state="fenced") == 0
    assert found("cluster_partitions_offline") == found("cluster_partitions_not_preferred") == 0
    assert found("partitions_reassigning") == found("reassignment_bytes_left") == 0
    assert found("leader_elections_total", kind="unclean") == 0


def test_refused_connections_are_counted(tmp_path: Path) -> None:
    settings = {"monitor__listener": "127.0.0.1:0", "max__connections": "1"}
    with broker_process(tmp_path, **settings) as broker:
        address = ("127.0.0.1", broker.port)
        with socket.create_connection(address, TIMEOUT_S) as first:
            wait_for(lambda: scrape(broker)("connections") == 1, "the first is taken")
            with socket.create_connection(address, TIMEOUT_S) as second:
                assert second.recv(1) == b""
            assert scrape(broker)("connections_refused_total") == 1
            assert scrape(broker)("connections") == 1
            first.shutdown(socket.SHUT_RDWR)


def test_the_log_says_where_the_monitor_is(broker: BrokerProcess) -> None:
    (line,) = [one for one in broker.log_text.splitlines() if re.search(r"\] monitor\b", one)]
    assert "host=127.0.0.1" in line
    assert f"port={monitor_port(broker)}" in line


def test_a_running_broker_is_healthy_and_ready(broker: BrokerProcess) -> None:
    port = monitor_port(broker)
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ready\n")
    assert get(port, "/elsewhere")[0] == 404


def test_a_failed_directory_makes_it_unready() -> None:
    with TemporaryBroker({"monitor.listener": "127.0.0.1:0"}) as broker:
        node = broker._node
        port = node._monitor._server._bound.port
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(TIMEOUT_S)
        assert get(port, "/readyz") == (200, "ready\n")

        async def fail() -> None:
            node.directories[0].fail(OSError("the drive is gone"))

        broker._run(fail())
        status, text = get(port, "/readyz")
        assert status == 503
        assert f"{broker.directory} has failed: the drive is gone" in text
        assert "3 partitions are not served, t-" in text
        assert get(port, "/healthz")[0] == 200
        found = Scrape(port)
        assert found("ready") == 0
        assert found("partitions_offline") == 3
        assert found("log_directory_online", directory=str(broker.directory)) == 0


def test_a_taken_port_and_a_wrong_address_are_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address, said in (
            (f"127.0.0.1:{port}", f"monitor.listener: cannot listen on 127.0.0.1:{port}"),
            ("9404", "monitor.listener: '9404' is not accepted; accepted: host:port"),
        ):
            done = strata(
                "server",
                f"--override=log.dirs={tmp_path}",
                "--override=listeners=PLAINTEXT://127.0.0.1:0",
                f"--override=monitor.listener={address}",
            )
            assert done.returncode == 2, done.stderr
            assert said in done.stderr
            assert len(done.stderr.splitlines()) == 1


def test_a_broker_stops_with_scrapes_in_flight(tmp_path: Path) -> None:
    with broker_process(tmp_path, monitor__listener="127.0.0.1:0") as broker:
        port = monitor_port(broker)
        asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with (
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as unread,
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as half,
        ):
            unread.sendall(
                asked * 1000
            )  # far more than the socket buffers hold, and the test reads none of it
            half.sendall(asked[:20])
            assert get(port, "/healthz")[0] == 200
            assert broker.stop() == 0


CHUNKED = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_CHUNK = b"ZZZZ\r\nabc\r\n"


def answer_of(port: int, *pieces: bytes) -> bytes:
    """Return the whole answer; send each piece after the first once a part of the answer has come."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(pieces[0])
        found = b""
        for piece in pieces[1:]:
            found += connection.recv(1)
            connection.sendall(piece)
        while more := connection.recv(1 << 16):
            found += more
        return found


@pytest.mark.parametrize("path", [b"metrics", b"healthz", b"nothing"])
def test_a_malformed_chunk_is_a_400_and_nothing_in_the_log(
    path: bytes, broker: BrokerProcess
) -> None:
    port = monitor_port(broker)
    assert answer_of(port, CHUNKED % path + NO_CHUNK).startswith(b"HTTP/1.1 400 ")
    # Requests answered before the error get one answer.
    answered = answer_of(port, CHUNKED % path, NO_CHUNK)
    assert answered.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))
    assert answered.count(b"HTTP/1.1") == 1
    assert get(port, "/healthz") == (200, "ok\n")
    log = broker.log_text
    assert "Traceback" not in log
    assert "Exception in ASGI application" not in log


def test_the_monitor_answers_to_its_own_names_and_to_addresses_alone(tmp_path: Path) -> None:
    def status(port: int, head: str) -> int:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as raw:
            raw.sendall(head.replace("\n", "\r\n").encode())
            return int(raw.makefile("rb").readline().split()[1])

    names = {"monitor__listener": "127.0.0.1:0", "monitor__allowed__hosts": "metrics.example,other"}
    with broker_process(tmp_path, **names) as broker:
        port = monitor_port(broker)
        for host in (
            "127.0.0.1",
            f"127.0.0.1:{port}",
            "[::1]:9404",
            "10.1.2.3",
            "localhost",
            "METRICS.example:9404",
            os.uname().nodename,
        ):
            for path in ("/healthz", "/metrics", "/"):
                assert status(port, f"GET {path} HTTP/1.1\nHost: {host}\n\n") == 200, host
        for host in (
            "attacker.example",
            "metrics.example.attacker.example",
            "127.0.0.1.attacker.example",
            "",
        ):
            for path in ("/healthz", "/metrics", "/readyz", "/"):
                assert status(port, f"GET {path} HTTP/1.1\nHost: {host}\n\n") == 403, host
        assert status(port, "GET /healthz HTTP/1.0\n\n") == 200
