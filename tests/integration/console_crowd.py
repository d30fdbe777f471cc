"""Three nodes with something on every page of the console: hostile names, long names, numbers of twenty digits.

In: a place. Out: a cluster with ACLs, users, quotas, a replica that moves slowly, an open transaction, groups, and
reports of queries; and the addresses of the nodes' monitors.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from tests.cluster_processes import ClusterProcesses
from tests.integration.console_cluster import apart
from tests.integration.server_process import strata

from stratalog.adapters.network import TcpNetwork
from stratalog.client.admin import commit_offsets
from stratalog.client.aio import Client
from stratalog.wire.ids import TopicPartition

SCRIPT = "<script>document.title='owned'</script>"
IMAGE = '"><img src=x onerror=document.title="owned">'
RIGHT_TO_LEFT = "\u05e7\u05d1\u05d5\u05e6\u05d4 \u202emoc.elpmaxe 123"
"""Hebrew, then an override that shows "example.com" where it is obeyed."""
LONG = "long_name." * 24 + "123456789"
"""A topic's longest name: 249 characters, at none of which a line may break."""
DIGITS = 18_446_744_073_709_551_615
OFFSET = 9_223_372_036_854_775_806
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "monitor.listener": "127.0.0.1:0",
}
WAIT_S = 60
MOVING = 50_000
"""Records of the replica that moves: at 1 kB/s some megabytes still pass in bursts, not all of these."""


@dataclass(frozen=True)
class Crowd:
    """The cluster's bootstrap address, and one monitor of each node."""

    address: str
    monitors: tuple[str, ...]


@contextmanager
def crowded_cluster(place: Path) -> Iterator[Crowd]:
    tier = {"tier.enable": "true", "tier.url": (place / "bucket").as_uri()}
    with closing(ClusterProcesses(place, 3, SETTINGS | tier)) as nodes:
        nodes.start([2, 3])
        nodes.start([1])  # metadata names brokers in the order of their registrations
        monitors = tuple(
            f"127.0.0.1:{json.loads((nodes.directory(node) / 'ready.json').read_text())['monitor_port']}"
            for node in nodes.ids
        )
        _topics(nodes)
        _rights(nodes.address, place)
        _reports(nodes.address)
        apart(_commit(nodes.address))
        held = _open_transaction(nodes.address)  # it stays open as long as its producer lives
        yield Crowd(nodes.address, monitors)
        del held


def _ok(address: str, *words: str, stdin: str = "") -> None:
    """Run a command that must succeed, on a thread of its own: Playwright's loop may run on this one."""
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(strata, *words, "-b", address, stdin=stdin).result()
    assert done.returncode == 0, done.stderr


def _topics(nodes: ClusterProcesses) -> None:
    address = nodes.address
    _ok(address, "topic", "create", LONG, "-c", f"retention.bytes={OFFSET}", "--partitions", "12")
    _ok(address, "topic", "create", "moving", "--replication-factor", "1")
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for _ in range(MOVING):
        producer.produce("moving", b"x" * 1000)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    apart(_move(address, nodes))


async def _move(address: str, nodes: ClusterProcesses) -> None:
    client = await Client.connect(TcpNetwork(), address)
    async with client:
        (at,) = (await client.metadata()).topics["moving"].partitions[0].replicas
    other = min(set(nodes.ids) - {at})
    plan = ("partition", "reassign", "moving", "--partition", "0", "--replicas", str(other))
    await asyncio.to_thread(_ok, address, *plan, "--throttle", "1kB/s", "--no-wait")


def _rights(address: str, place: Path) -> None:
    for name, principal in ((SCRIPT, f"User:{IMAGE}"), (LONG, f"User:CN={LONG}")):
        words = ("acl", "add", "--topic", name, "--principal", principal, "--operation", "read")
        _ok(address, *words)
    password = place / "password"
    password.write_text("a-password\n")
    _ok(address, "user", "create", IMAGE, "--password-file", str(password))
    for words in (
        ("--user", SCRIPT, "--producer-byte-rate", "8191PiB"),
        ("--client-id", LONG, "--controller-mutation-rate", str(DIGITS)),
    ):
        _ok(address, "quota", "set", *words)


def _reports(address: str) -> None:
    """Two queries' records in the progress topic, as Spark's listener writes them."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for query, name, event, error in (
        ("running", IMAGE, "progress", None),
        ("failed", LONG, "terminated", f"{SCRIPT}\n{'at org.apache.spark.Trace ' * 40}"),
    ):
        for batch in range(3):
            progress = {
                "batchId": DIGITS,
                "numInputRows": DIGITS,
                "inputRowsPerSecond": float(DIGITS),
                "processedRowsPerSecond": batch * 1e19,
                "batchDuration": DIGITS,
                "timestamp": f"2026-11-2{batch}T10:00:00.000Z",
                "sources": [{"description": f"{SCRIPT} {LONG}", "endOffset": "{}"}],
                "sink": {"description": IMAGE, "numOutputRows": DIGITS},
            }
            record = {
                "event": event,
                "query": query,
                "run_id": IMAGE,
                "name": name,
                "error": error,
                "progress": progress,
            }
            producer.produce("stratalog-progress", key=query, value=json.dumps(record))
    assert producer.flush(WAIT_S) == 0


async def _commit(address: str) -> None:
    client = await Client.connect(TcpNetwork(), address)
    async with client:
        for group in (IMAGE, RIGHT_TO_LEFT, f"{LONG}-readers"):
            committed = {TopicPartition(LONG, 0): OFFSET, TopicPartition("moving", 0): 7}
            await client.on_coordinator(group, commit_offsets(group, committed))


def _open_transaction(address: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": SCRIPT,
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for number in range(12):
        producer.produce(LONG, b"x", partition=number, timestamp=int(time.time() * 1000))
    assert producer.flush(WAIT_S) == 0
    return producer
