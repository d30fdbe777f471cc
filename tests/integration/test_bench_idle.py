"""`bench.idle` measures what it says: each wakeup of a process, and every line for nodes without clients."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from bench import cluster_peers, peers
from bench.broker import Bench, report
from bench.idle import ONE, THREE, measure, wakeups

STRATA = str(Path(sys.executable).with_name("strata"))
SLEEPER = "import time\nfor _ in range(50): time.sleep(0.001)\nprint(flush=True)\ninput()"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads Linux's /proc")


def test_each_sleep_of_a_process_is_a_wakeup() -> None:
    words = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert sum(wakeups(process.pid).values()) >= 50
        assert 0 < peers.cpu_seconds(process.pid) < 10
        process.communicate(b"\n")


@pytest.mark.parametrize("nodes", [ONE, THREE])
def test_each_line_has_a_value_of_each_peer(
    nodes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = peers.strata if nodes == ONE else cluster_peers.strata
    starters = {"this": partial(kind, command=STRATA), "the same": partial(kind, command=STRATA)}
    bench = Bench(1, 1, [], tmp_path, starters)
    measure(bench, starters, nodes, 3, 0.5)
    replicas = "" if nodes == ONE else " of 3 replicas"
    assert list(bench.measured) == [
        f"{nodes}, {what}: {unit}"
        for what in ("no topics", f"3 partitions{replicas}")
        for unit in ("CPU s a minute", "wakeups a second")
    ]
    for values in bench.measured.values():
        assert [len(one) for one in values.values()] == [1, 1]
    report(bench, 1)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 + 4
