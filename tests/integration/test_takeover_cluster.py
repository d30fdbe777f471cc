"""A broker with a newly formatted directory joins a cluster that was restored from its bucket, and archives there.

Or the takeover restores onto three brokers at once.

Method: real processes and a directory as the bucket: `kill -9`, `strata restore --takeover`, `strata storage format`,
two nodes of which the second gets every partition, or three of which each gets its share.
"""

import json
import shutil
from pathlib import Path

from tests.cluster_processes import ClusterProcesses
from tests.integration.server_process import strata
from tests.integration.test_takeover import (
    TIER,
    consume,
    create,
    produce,
    restorable,
    server,
)
from tests.integration.waiting import wait_for

RECORDS = 300
ONE_REPLICA = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
}


def test_a_newly_formatted_broker_joins_a_restored_cluster(tmp_path: Path) -> None:
    bucket = (tmp_path / "bucket").as_uri()
    with server(tmp_path / "old", bucket) as old:
        create(old.address, "t")
        produce(old.address, "t", [b"%d" % n for n in range(RECORDS)])
        wait_for(lambda: restorable(bucket)[0]["t"]["records"] == RECORDS, "all is tiered")
        old.kill()
    settings = dict(line.split("=", 1) for line in TIER) | ONE_REPLICA | {"tier.url": bucket}
    nodes = ClusterProcesses(tmp_path / "new", 2, settings)
    for node in nodes.ids:
        shutil.rmtree(nodes.data(node))
    restored = strata("restore", bucket, "--takeover", "--data", str(nodes.data(1)))
    assert restored.returncode == 0, restored.stderr
    only_broker(nodes, 2)
    cluster_id = restorable(bucket)[1]["cluster"]
    file = str(nodes.directory(2) / "server.properties")
    formatted = strata("storage", "format", file, "-t", str(cluster_id))
    assert formatted.returncode == 0, formatted.stderr
    with nodes:
        words = ("t", "--replicas", "2", "-b", nodes.address)
        moved = strata("partition", "reassign", *words)
        assert moved.returncode == 0, moved.stdout + moved.stderr
        produce(nodes.address, "t", [b"%d" % n for n in range(RECORDS, 2 * RECORDS)])
        wait_for(lambda: restorable(bucket)[0]["t"]["records"] == 2 * RECORDS, "broker 2 archives")
        values = consume(nodes.address, "t", "readers", 2 * RECORDS).values()
        assert sorted(values) == sorted(b"%d" % n for n in range(2 * RECORDS))
        assert restorable(bucket)[1]["incarnation"] == 1
        nodes.stop()
    verified = strata("tier", "verify", bucket)
    assert verified.returncode == 0, verified.stdout


def only_broker(nodes: ClusterProcesses, node: int) -> None:
    """Make a node a broker of the quorum whose only voter is node 1."""
    voters = f"1@127.0.0.1:{nodes.ports[1].controllers}"
    for one in nodes.ids:
        changed = {"controller.quorum.voters": voters}
        if one == node:
            listener = f"PLAINTEXT://127.0.0.1:{nodes.ports[one].clients}"
            changed |= {"process.roles": "broker", "listeners": listener}
        with (nodes.directory(one) / "server.properties").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in changed.items())


def test_a_takeover_restores_onto_three_brokers(tmp_path: Path) -> None:
    """Each partition gets two of three brokers, among them partitions that the restored node leaves."""
    bucket = (tmp_path / "bucket").as_uri()
    with server(tmp_path / "old", bucket) as old:
        create(old.address, "t")
        produce(old.address, "t", [b"%d" % n for n in range(RECORDS)])
        consume(old.address, "t", "readers", RECORDS)
        wait_for(lambda: restorable(bucket)[0]["t"]["records"] == RECORDS, "all is tiered")
        wait_for(lambda: restorable(bucket)[1]["offsets"] == 3, "the group's offsets")
        old.kill()
    settings = dict(line.split("=", 1) for line in TIER) | ONE_REPLICA | {"tier.url": bucket}
    nodes = ClusterProcesses(tmp_path / "new", 3, settings)
    for node in nodes.ids:
        shutil.rmtree(nodes.data(node))
    words = ("restore", bucket, "--takeover", "--data", str(nodes.data(1)), "--brokers", "1,2,3")
    restored = strata(*words, "--replication-factor", "2")
    assert restored.returncode == 0, restored.stderr
    cluster_id = str(restorable(bucket)[1]["cluster"])
    for node in (2, 3):
        only_broker(nodes, node)
        file = str(nodes.directory(node) / "server.properties")
        assert strata("storage", "format", file, "-t", cluster_id).returncode == 0
    with nodes:
        wait_for(
            lambda: spread(nodes) == [(1, 2), (1, 3), (2, 3)], "two replicas of each partition"
        )
        values = consume(nodes.address, "t", "others", RECORDS).values()
        assert sorted(values) == sorted(b"%d" % n for n in range(RECORDS))
        produce(nodes.address, "t", [b"%d" % n for n in range(RECORDS, 2 * RECORDS)])
        values = consume(nodes.address, "t", "readers", RECORDS).values()
        assert sorted(values) == sorted(b"%d" % n for n in range(RECORDS, 2 * RECORDS))
        nodes.stop()
    verified = strata("tier", "verify", bucket)
    assert verified.returncode == 0, verified.stdout


def spread(nodes: ClusterProcesses) -> list[tuple[int, ...]]:
    """Return the in-sync replicas of each partition, where they are all of its replicas."""
    done = strata("partition", "list", "t", "-b", nodes.address, "--json")
    assert done.returncode == 0, done.stderr
    whole = [
        row for row in json.loads(done.stdout) if sorted(row["isr"]) == sorted(row["replicas"])
    ]
    return sorted(tuple(sorted(row["isr"])) for row in whole)
