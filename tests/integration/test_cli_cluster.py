"""`strata cluster`: each command finds the real nodes in the background; a user's mistake is one line."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.server_process import strata
from tests.integration.test_cli_json import wrong_keys
from tests.integration.waiting import wait_for

from stratalog.adapters.detached import Detached, is_running, send

Completed = subprocess.CompletedProcess[str]


class Cluster:
    """`strata cluster` on one directory."""

    def __init__(self, place: Path) -> None:
        self.directory = place / "three"
        self.ready_file = place / "ready.json"

    def __call__(self, *words: str) -> Completed:
        return strata("cluster", *words, "--directory", str(self.directory))

    def ok(self, *words: str) -> str:
        done = self(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        done = self(*words)
        assert done.returncode == 2, done.stdout
        (line,) = done.stderr.splitlines()
        return line

    def start(self, *words: str) -> dict[str, Any]:
        self.ok("start", "--ready-file", str(self.ready_file), *words)
        return json.loads(self.ready_file.read_text())

    def rows(self) -> dict[int, dict[str, Any]]:
        rows = json.loads(self.ok("status", "--json"))
        assert wrong_keys(rows) == set()
        return {row["id"]: row for row in rows}

    def processes(self) -> list[Detached]:
        nodes = json.loads((self.directory / "cluster.json").read_text())["nodes"]
        return [Detached(**node["process"]) for node in nodes if node["process"]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    if (made.directory / "cluster.json").exists():
        for process in made.processes():
            send(process, signal.SIGKILL)
            wait_for(lambda process=process: not is_running(process), "its end")


def meta(cluster: Cluster, node: int) -> dict[str, str]:
    text = (cluster.directory / f"node-{node}/data/meta.properties").read_text()
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def answers(port: int) -> bool:
    done = strata("topic", "list", "-b", f"127.0.0.1:{port}")
    return done.returncode == 0


def test_three_nodes_are_started_killed_restarted_and_stopped(cluster: Cluster) -> None:
    ready = cluster.start("--nodes", "3", "--override", "num.partitions=2")
    assert [node["id"] for node in ready["nodes"]] == [1, 2, 3]
    ports = [node["port"] for node in ready["nodes"]]
    assert ready["bootstrap_servers"] == ",".join(f"127.0.0.1:{port}" for port in ports)
    assert cluster.ok("bootstrap") == ready["bootstrap_servers"] + "\n"
    assert all(map(answers, ports))
    assert len({meta(cluster, node)["cluster.id"] for node in (1, 2, 3)}) == 1
    assert [meta(cluster, node)["node.id"] for node in (1, 2, 3)] == ["1", "2", "3"]
    assert {row["state"] for row in cluster.rows().values()} == {"serving"}

    cluster.ok("kill", "2")
    row = cluster.rows()[2]
    assert (row["state"], row["pid"], row["port"]) == ("stopped", None, None)
    assert not (cluster.directory / "node-2/data/.kafka_cleanshutdown").exists()
    assert "node 2 does not run" in cluster.refused("kill", "2")

    cluster.ok("restart", "2")
    row = cluster.rows()[2]
    assert row["state"] == "serving"
    assert row["port"] == ports[1]
    assert row["pid"] != ready["nodes"][1]["pid"]
    assert "(1, 2, 3)" in cluster.refused("start")

    processes = cluster.processes()
    cluster.ok("stop")
    assert not any(map(is_running, processes))
    assert (cluster.directory / "node-2/data/.kafka_cleanshutdown").exists()
    for node in (1, 2, 3):  # the active controller goes last, so it answered the others
        log = (cluster.directory / f"node-{node}/server.log").read_text()
        assert "stopping without the controller" not in log
    assert "no node serves" in cluster.refused("bootstrap")
    assert "--nodes: 4 is not accepted; accepted: 3" in cluster.refused("start", "--nodes", "4")

    properties = cluster.directory / "node-1/server.properties"
    assert properties.stat().st_mode & 0o777 == 0o600, "a setting may be a secret"
    properties.chmod(0o644)
    again = cluster.start("--override", "num.partitions=5")
    assert properties.stat().st_mode & 0o777 == 0o600
    assert [node["port"] for node in again["nodes"]] == ports
    created = strata("topic", "create", "five", "-b", again["bootstrap_servers"], "--json")
    assert json.loads(created.stdout)["partitions"] == 5, created.stderr


def test_a_failed_start_is_one_line_and_leaves_no_process(cluster: Cluster) -> None:
    cluster.start("--nodes", "1")
    port = cluster.rows()[1]["port"]
    cluster.ok("stop")
    with socket.create_server(("127.0.0.1", port)):
        assert f"port {port} of node 1 is taken" in cluster.refused("start")
        assert not any(map(is_running, cluster.processes()))

    properties = cluster.directory / "node-1/server.properties"
    original = properties.read_text()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        properties.write_text(f"{original}monitor.listener={address}\n")
        line = cluster.refused("start")
        assert "node 1 did not start" in line
        assert f"cannot listen on {address}" in line
    assert not any(map(is_running, cluster.processes()))
    properties.write_text(original)

    file = cluster.directory / "node-1/data/meta.properties"
    file.write_text(
        "\n".join(
            "cluster.id=AAAAAAAAAAAAAAAAAAAAAA" if line.startswith("cluster.id") else line
            for line in file.read_text().splitlines()
        )
    )
    assert "belongs to cluster AAAAAAAAAAAAAAAAAAAAAA" in cluster.refused("start")


def test_another_process_with_a_nodes_old_id_is_left_alone(cluster: Cluster) -> None:
    cluster.start("--nodes", "1")
    cluster.ok("kill", "1")
    bystander = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        file = cluster.directory / "cluster.json"
        state = json.loads(file.read_text())
        state["nodes"][0]["process"]["pid"] = bystander.pid
        file.write_text(json.dumps(state))
        assert "node 1 does not run" in cluster.refused("kill", "1")
        cluster.ok("stop")
        assert cluster.rows()[1]["state"] == "stopped"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["status"], "no cluster is there"),
        (["stop"], "no cluster is there"),
        (["kill", "1"], "no cluster is there"),
        (["restart", "1"], "no cluster is there"),
        (["start", "--override", "node.id=7"], "--override node.id"),
        (["start", "--override", "num.partition=7"], "did you mean num.partitions?"),
        (["start", "--override", "num.partitions=none"], "num.partitions"),
        (["start", "--profile", "best"], "--profile: 'best' is not accepted"),
        (["start", "--ready-file", "/nowhere/ready.json"], "--ready-file /nowhere/ready.json"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(cluster: Cluster, words: list[str], reason: str) -> None:
    assert reason in cluster.refused(*words)
    assert not (cluster.directory / "cluster.json").exists()


def test_a_directory_with_other_things_is_refused(cluster: Cluster) -> None:
    cluster.directory.mkdir()
    (cluster.directory / "letters").mkdir()
    assert "it is not empty (letters, …)" in cluster.refused("start")
    assert sorted(one.name for one in cluster.directory.iterdir()) == [".lock", "letters"]


def test_an_unknown_node_is_named_with_the_existing_ones(cluster: Cluster) -> None:
    cluster.directory.mkdir()
    nodes = [{"id": node, "process": None} for node in (1, 2)]
    state = {"cluster_id": "x", "profile": "", "nodes": nodes}
    (cluster.directory / "cluster.json").write_text(json.dumps(state))
    assert "node 7 is not there" in cluster.refused("kill", "7")
    assert "has nodes 1, 2" in cluster.refused("restart", "7")
