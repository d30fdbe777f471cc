"""Connections without a login take no file descriptor that the log needs, and no place that another client needs.

Method: a broker with few descriptors, and more connections than these that never log in. Another client writes segment
after segment, asks what no client has asked before, and logs in.
"""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from tests.broker_process import BrokerProcess
from tests.held_port import held_port
from tests.integration.waiting import wait_for
from tests.wire_client import Wire

from stratalog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from stratalog.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from stratalog.wire.messages.list_groups import ListGroupsRequest
from stratalog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from stratalog.wire.records import Record, build_batch

DESCRIPTORS = 200
CONNECTIONS = 400
TIMEOUT_S = 60
USER = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="word";'


@contextmanager
def broker_of_few_descriptors(directory: Path, **more: str) -> Iterator[tuple[BrokerProcess, int]]:
    """Yield a broker with a listener without login, and the port of one with a login."""
    broker = BrokerProcess(directory, descriptors=DESCRIPTORS)
    port = held_port(broker)
    plain, other = f"PLAINTEXT://127.0.0.1:{broker.port}", f"LOGIN://127.0.0.1:{port}"
    broker.settings = {
        "tier.url": "",
        "listeners": f"{plain},{other}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": USER,
    } | {name.replace("__", "."): value for name, value in more.items()}
    try:
        broker.start()
        yield broker, port
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()


def admin_with_login(port: int) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "word",
        }
    )


def create(wire: Wire, name: str) -> None:
    small = CreatableTopicConfig(name="segment.bytes", value="1048576")
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[small]
    )
    answer = wire.ask(7, CreateTopicsRequest(topics=[topic], timeout_ms=9000, validate_only=False))
    assert answer.topics[0].error_code == 0


def produce(wire: Wire, name: str) -> None:
    batch = bytes(build_batch([Record(0, 1_700_000_000_000, None, bytes(600_000), ())]))
    part = PartitionProduceData(index=0, records=[batch])
    topics = [TopicProduceData(name=name, partition_data=[part])]
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=9000, topic_data=topics)
    answer = wire.ask(9, request)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_connections_without_a_login_take_no_descriptor_of_the_log(tmp_path: Path) -> None:
    with broker_of_few_descriptors(tmp_path) as (broker, port), ExitStack() as held:
        wire = held.enter_context(Wire(broker.address))
        create(wire, "rolled")
        for _ in range(CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
        for _ in range(20):
            produce(wire, "rolled")
        first = DescribeLogDirsRequest(topics=None)
        assert wire.ask(4, first).results[0].error_code == 0
        assert wire.ask(5, ListGroupsRequest(states_filter=[], types_filter=[])).error_code == 0
        files = list((broker.data / "rolled-0").glob("*.log"))
        assert len(files) > 5, "each segment is a new file"
        text = broker.log_text
        assert re.search(r"connection refused: file descriptors", text)
        for alarm in ("log directory failed", "request failed", "Too many open files"):
            assert alarm not in text
        assert broker.stop() == 0


def test_a_client_that_logs_in_takes_the_place_of_one_that_does_not(tmp_path: Path) -> None:
    with (
        broker_of_few_descriptors(tmp_path, max__connections="20") as (_broker, port),
        ExitStack() as held,
    ):
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
            for _ in range(30)
        ]
        admin = admin_with_login(port)
        found = admin.list_topics(timeout=TIMEOUT_S)
        assert len(found.brokers) == 1
        node = ConfigResource(ResourceType.BROKER, "1")
        assert admin.describe_configs([node])[node].result(TIMEOUT_S)
        for one in silent:
            one.setblocking(False)
        wait_for(lambda: sum(map(is_ended, silent)) > 10, "some of them have ended")


def is_ended(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
