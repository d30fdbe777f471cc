"""Three real brokers with a compacted topic in a bucket: leaders die while they clean.

Method: as `test_compacted_tier.py`. In each round the partition's leader is killed in the middle of requests and
cleanings, a consumer reads from offset 0 through the next leader, and the dead node starts again. Replicas clean their
disks apart. At the end the bucket and then the disk of any of them give the same table. `KILLS=20` sets how often.
"""

import os
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient
from tests.cluster_processes import ClusterProcesses
from tests.integration.compacted_table import (
    SETTINGS,
    TIMEOUT_S,
    TOPIC,
    Writer,
    check_bucket,
    consumed,
    create,
    policies,
    set_policy,
    table_of,
    until_cleaned,
)
from tests.sim.compacted import in_bucket

from stratalog.adapters.object_store import open_store
from stratalog.wire.batch import scan
from stratalog.wire.records import Record, read_records

KILLS = int(os.environ.get("KILLS", "2"))
NODES = 3

pytestmark = [pytest.mark.big, pytest.mark.timeout(300 + 60 * KILLS)]


def leader_of(nodes: ClusterProcesses) -> int:
    """Return the partition's leader, once it has one."""
    admin = AdminClient({"bootstrap.servers": nodes.address})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions
        leader = found[0].leader if 0 in found else -1
        if leader in nodes.ids and nodes.processes[leader].poll() is None:
            return int(leader)
        assert time.monotonic() < deadline, "no leader"
        time.sleep(0.1)


def until_in_sync(nodes: ClusterProcesses) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.address})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions
        if 0 in found and len(found[0].isrs) == NODES:
            return
        assert time.monotonic() < deadline, "a replica stays out of sync"
        time.sleep(0.1)


def test_the_last_values_survive_the_leaders_of_a_cluster(tmp_path: Path) -> None:
    writer, chance = Writer(), Random(6)
    policy = policies(chance)
    url = (tmp_path / "bucket").as_uri()
    with ClusterProcesses(tmp_path / "nodes", NODES, {**SETTINGS, "tier.url": url}) as nodes:
        create(nodes.address, NODES)
        for _ in range(KILLS):
            until_in_sync(nodes)
            set_policy(nodes.address, next(policy))
            leader = leader_of(nodes)
            writer.write(nodes.address, chance.uniform(2, 4), partial(nodes.kill, leader))
            leader_of(nodes)
            writer.check(consumed(nodes.address))
            nodes.start([leader])
        set_policy(nodes.address, "compact")
        until_in_sync(nodes)
        until_cleaned(url, lambda: "".join(map(nodes.said, nodes.ids)))
        found = consumed(nodes.address)
        writer.check(found)
        kept = {key: value for key, value in found.items() if value is not None}
        assert table_of(bootstrap_servers=nodes.address, tier_url=url) == kept
        nodes.stop()
    check_bucket(url)
    _end, tiered = in_bucket(open_store(url), TOPIC)
    for node in nodes.ids:
        local = on_disk(nodes.data(node) / f"{TOPIC}-0")
        assert local, f"node {node} has no record on its disk: this proves nothing of its cleanings"
        older = [one for one in tiered if one.offset < local[0].offset]
        last = {one.key: one.value for one in [*older, *local]}
        assert {key: value for key, value in last.items() if value is not None} == kept, node


def on_disk(directory: Path) -> list[Record]:
    """Return the records of a stopped node's replica."""
    found: list[Record] = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for at, header in scan(data):
            found += read_records(data[at : at + header.size])
    return found
