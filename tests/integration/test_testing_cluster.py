"""`stratalog.testing.cluster`: nodes of a test's own process, ended and restarted; nothing is left behind."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.integration.waiting import wait_for

from stratalog.errors import UserError
from stratalog.testing import TemporaryCluster, cluster


def answers(address: str) -> bool:
    found = AdminClient({"bootstrap.servers": address}).list_topics(timeout=10)
    return bool(found.brokers)


def test_nodes_are_ended_one_by_one_and_come_back_at_their_address() -> None:
    with cluster(3) as three:
        addresses = three.address.split(",")
        assert len(addresses) == 3
        assert all(map(answers, addresses))
        three.kill(1)
        three.stop(2)
        running = [node for node, broker in three.brokers.items() if broker.is_running]
        assert running == [3]
        three.restart(1)
        three.restart(2)
        assert three.address.split(",") == addresses
        assert all(map(answers, addresses))
        directory = three.brokers[1].directory.parent
        assert sorted(one.name for one in directory.iterdir()) == ["node-1", "node-2", "node-3"]
    assert not directory.exists()
    assert not [one for one in threading.enumerate() if one.name == "strata-broker"]


def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match="unknown setting"):
        cluster(2, {"no.such": 1}).start()
    assert not list(tmp_path.iterdir())
    assert not [one for one in threading.enumerate() if one.name == "strata-broker"]


def test_no_data_outlives_a_killed_test_process(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from stratalog.testing import TemporaryBroker, cluster\n"
        "TemporaryBroker().start()\n"
        "cluster(2).start()\n"
        "print(*os.listdir(os.environ['TMPDIR']), file=open('seen', 'w'), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"TMPDIR": str(scratch)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
    assert len((tmp_path / "seen").read_text().split()) == 2
    wait_for(lambda: not list(scratch.iterdir()), "the end of the data")


def test_a_cluster_has_at_least_one_node() -> None:
    with pytest.raises(UserError, match="nodes: 0 is not accepted"):
        TemporaryCluster(0)
