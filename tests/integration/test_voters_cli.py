"""Controllers become voters and stop voting by `strata quorum`, on real processes that bootstrap by addresses."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.integration.server_process import STRATA, strata, strata_process
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports

CLUSTER = "abcdefghijklmnopqrstug"

pytestmark = pytest.mark.timeout(180)


def properties(place: Path, node: int, ports: list[int], seed: int) -> Path:
    file = place / f"{node}.properties"
    file.write_text(
        f"""
process.roles=broker,controller
node.id={node}
controller.quorum.bootstrap.servers=127.0.0.1:{seed}
listeners=PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[1]}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={place / f"data-{node}"}
"""
    )
    return file


@contextmanager
def served(place: Path, file: Path) -> Iterator[None]:
    """Run `strata server FILE` and wait until it serves."""
    ready = place / f"{file.stem}.ready"
    with (place / f"{file.stem}.log").open("wb") as output:
        process = subprocess.Popen(
            [*STRATA, "server", str(file), "--ready-file", str(ready)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None, "the server")
        assert ready.exists(), (place / f"{file.stem}.log").read_text()
        yield
    finally:
        process.kill()
        process.wait(30)


def roles(address: str) -> dict[int, str]:
    done = strata("quorum", "describe", "-b", address, "--json")
    assert done.returncode == 0, done.stderr
    return {row["id"]: row["role"] for row in json.loads(done.stdout)["nodes"]}


def refused(*words: str) -> str:
    done = strata_process("quorum", *words)
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    return line


def test_a_controller_joins_the_voters_and_leaves_them(tmp_path: Path) -> None:
    ports = free_ports(4)
    one = properties(tmp_path, 1, ports[:2], ports[1])
    two = properties(tmp_path, 2, ports[2:], ports[1])
    address = f"127.0.0.1:{ports[0]}"
    for file, how in ((one, "--standalone"), (two, "--no-initial-controllers")):
        done = strata("storage", "format", str(file), "-t", CLUSTER, how)
        assert done.returncode == 0, done.stderr
    with ExitStack() as running:
        running.enter_context(served(tmp_path, one))
        assert "node 2 does not fetch" in refused(
            "add", "2", "CONTROLLER://127.0.0.1:1", "-b", address
        )
        line = refused("remove", "1", "-b", address)
        assert "voter 1 is the only one and cannot leave; add another voter first" in line
        running.enter_context(served(tmp_path, two))
        assert roles(address) == {1: "leader", 2: "observer"}
        done = strata("quorum", "add", "2", f"CONTROLLER://127.0.0.1:{ports[3]}", "-b", address)
        assert done.returncode == 0, done.stderr
        assert roles(address) == {1: "leader", 2: "voter"}
        done = strata("quorum", "remove", "2", "-b", address)
        assert done.returncode == 0, done.stderr
        assert roles(address) == {1: "leader", 2: "observer"}
        assert "accepted: 1" in refused("remove", "7", "-b", address)


def test_a_second_node_with_a_voters_id_ends(tmp_path: Path) -> None:
    """The log names the voter's directory and its address, where the voter answers."""
    ports = free_ports(4)
    one = properties(tmp_path, 1, ports[:2], ports[1])
    (tmp_path / "twin").mkdir()
    twin = properties(tmp_path / "twin", 1, ports[2:], ports[1])
    for file, how in ((one, "--standalone"), (twin, "--no-initial-controllers")):
        done = strata("storage", "format", str(file), "-t", CLUSTER, how)
        assert done.returncode == 0, done.stderr
    with served(tmp_path, one):
        done = subprocess.run(
            [*STRATA, "server", str(twin)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 2, done
        line = done.stderr.splitlines()[-1]
        assert f"node.id: 1: another node serves at 127.0.0.1:{ports[1]}" in line
        assert roles(f"127.0.0.1:{ports[0]}") == {1: "leader"}
