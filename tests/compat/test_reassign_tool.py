"""Kafka's ReassignPartitions with --throttle on three of our nodes: the move ends, and --verify removes the limits."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from tests.compat.tools import java_tool, kafka_lib
from tests.integration.waiting import wait_for

from stratalog.testing import TemporaryCluster, cluster

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
RATE = "leader.replication.throttled.rate"

pytestmark = [pytest.mark.big, pytest.mark.timeout(180)]


def tool(three: TemporaryCluster, *words: str) -> str:
    done = java_tool(REASSIGN, "--bootstrap-server", three.address, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rate_of(admin: AdminClient, broker: int) -> str | None:
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    found = admin.describe_configs([resource])[resource].result(30)
    return found[RATE].value if RATE in found else None


def test_a_throttled_move_ends_and_leaves_no_limit(tmp_path: Path) -> None:
    kafka_lib()
    with cluster(3) as three:
        admin = AdminClient({"bootstrap.servers": three.address})
        for future in admin.create_topics([NewTopic("t", 1, 1)]).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": three.address})
        for _ in range(100):
            producer.produce("t", b"x" * 1000)
        assert producer.flush(30) == 0
        (before,) = admin.list_topics("t").topics["t"].partitions[0].replicas
        after = before % 3 + 1
        plan = tmp_path / "plan.json"
        replica = {"topic": "t", "partition": 0, "replicas": [after]}
        plan.write_text(json.dumps({"version": 1, "partitions": [replica]}))
        named = ("--reassignment-json-file", str(plan))
        tool(three, "--execute", *named, "--throttle", "50000000")
        assert rate_of(admin, before) == rate_of(admin, after) == "50000000"
        wait_for(lambda: "is completed" in tool(three, "--verify", *named), "the end of the move")
        assert admin.list_topics("t").topics["t"].partitions[0].replicas == [after]
        assert rate_of(admin, before) is rate_of(admin, after) is None
