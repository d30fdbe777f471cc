"""Apache Kafka itself starts on a metadata directory that we wrote, and we read what it wrote on.

Method: a snapshot of ours, a log of ours that goes on from it, `quorum-state` and `meta.properties`, under a real
broker and controller of Kafka. It must show our topic, take records for it and add a topic; then its log is replayed
by our controller.
"""

from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as KafkaTopic
from tests.compat.apache_kafka import kafka_process
from tests.integration.waiting import wait_for
from tests.unit.quorum.metadata_log import NOW_MS, MetadataLog

from stratalog.adapters.free_ports import free_ports
from stratalog.metadata.image import Endpoint
from stratalog.metadata.replay import Replay
from stratalog.metadata.snapshot import (
    decode_snapshot,
    encode_snapshot,
    image_of,
    parse_file_name,
    snapshot_id,
)
from stratalog.quorum.controller import BrokerRegistration, NewTopic
from stratalog.quorum.metadata_batches import METADATA_TOPIC_ID, decode_record
from stratalog.quorum.saved_state import encode_quorum_state
from stratalog.quorum.voters import Voter, voters_control
from stratalog.wire.batch import scan
from stratalog.wire.ids import topic_id_text
from stratalog.wire.records import read_records

pytestmark = [pytest.mark.timeout(180), pytest.mark.serial]


def write_directory(directory, broker_port, controller_port):
    """A node's directory with a topic `ours` of two partitions, half of it in a snapshot; the topic's id."""
    log = MetadataLog()
    directory_id = log.entropy.uuid()
    log.lead(Voter(1, directory_id, (Endpoint("CONTROLLER", "127.0.0.1", controller_port),)))
    log.run(log.controller.bootstrap())
    us = BrokerRegistration(
        1,
        log.entropy.uuid(),
        (Endpoint("PLAINTEXT", "127.0.0.1", broker_port),),
        directories=(directory_id,),
    )
    epoch = log.run(log.controller.register_broker(us, 0))
    log.heartbeat(1)
    asked = [NewTopic("ours", 2, 1, {}, {"retention.ms": "-1"}), NewTopic("gone", 1, 1)]
    ours, _ = log.run(log.controller.create_topics(asked, log.entropy))
    identity = snapshot_id(log.image)
    control = voters_control(log.voters)
    snapshot = encode_snapshot(log.image, NOW_MS, NOW_MS, control)
    start = len(log.data)
    log.run(log.controller.delete_topics(["gone"]))
    log.heartbeat(1, want_fence=True)
    log.heartbeat(1)
    log.run(log.controller.allocate_producer_ids(1, epoch))
    metadata = directory / "__cluster_metadata-0"
    metadata.mkdir(parents=True)
    (metadata / identity.file_name()).write_bytes(snapshot)
    (metadata / f"{identity.end_offset:020d}.log").write_bytes(log.data[start:])
    (metadata / "quorum-state").write_bytes(encode_quorum_state(log.state))
    (metadata / "leader-epoch-checkpoint").write_text(f"0\n1\n1 {identity.end_offset}\n")
    (metadata / "partition.metadata").write_text(
        f"version: 0\ntopic_id: {topic_id_text(METADATA_TOPIC_ID)}"
    )
    (directory / "meta.properties").write_text(
        f"version=1\ncluster.id={topic_id_text(log.entropy.uuid())}\nnode.id=1\n"
        f"directory.id={topic_id_text(directory_id)}\n"
    )
    return ours.topic_id


@contextmanager
def kafka(tmp_path, directory, broker_port, controller_port):
    """A running Kafka on `directory`."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"listeners=PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n"
        f"log.dirs={directory}\n"
        "offsets.topic.replication.factor=1\n"
        "broker.session.timeout.ms=2000\n"
    )
    with kafka_process(properties, broker_port):
        yield


def replayed(directory):
    """Replay the directory's metadata into our image."""
    metadata = directory / "__cluster_metadata-0"
    newest = max(metadata.glob("*.checkpoint"))
    image = image_of(decode_snapshot(newest.read_bytes()), parse_file_name(newest.name))
    replay = Replay(image)
    for path in sorted(metadata.glob("*.log")):
        data = memoryview(path.read_bytes())
        for position, header in scan(data):
            for record in read_records(data[position : position + header.size]):
                decoded = decode_record(record, is_control=header.is_control)
                replay.replay(record.offset, header.leader_epoch, decoded)
    return replay.image()


def test_kafka_continues_our_metadata_log_and_we_continue_kafkas(tmp_path):
    broker_port, controller_port = free_ports(2)
    directory = tmp_path / "data"
    topic_id = write_directory(directory, broker_port, controller_port)
    assert set(replayed(directory).topic_ids_by_name) == {"ours"}
    with kafka(tmp_path, directory, broker_port, controller_port):
        settings = {"bootstrap.servers": f"127.0.0.1:{broker_port}", "log_level": 0}
        admin = AdminClient(settings)
        admin.create_topics([KafkaTopic("theirs", 3, 1)])["theirs"].result(30)
        # The broker answers from its image, which may be behind the controller's answer.
        wait_for(lambda: "theirs" in admin.list_topics(timeout=30).topics, "the topic in the image")
        topics = admin.list_topics(timeout=30).topics
        assert sorted(name for name in topics if not name.startswith("__")) == ["ours", "theirs"]
        assert sorted(topics["ours"].partitions) == [0, 1]
        producer = Producer(settings | {"enable.idempotence": True})
        producer.produce("ours", b"hello", partition=1)
        assert producer.flush(30) == 0
        consumer = Consumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("ours", 1, 0)])
        message = consumer.poll(30)
        consumer.close()
        assert (message.value(), message.offset()) == (b"hello", 0)
    after = replayed(directory)
    assert after.topic("ours").id == topic_id
    assert after.topic_configs("ours") == {"retention.ms": "-1"}
    assert sorted(after.topic("theirs").partitions) == [0, 1, 2]
    assert after.features["metadata.version"] == 30
    assert after.next_producer_id >= 2000, "Kafka must continue after our block of producer ids"
