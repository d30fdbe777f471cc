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
        assert "voter" in refused("remove", "1", "-b", address), "the last voter stays"
        running.enter_context(served(tmp_path, two))
        assert roles(address) == {1: "leader", 2: "observer"}
        done = strata("quorum", "add", "2", f"CONTROLLER://127.0.0.1:{ports[3]}", "-b", address)
        assert done.returncode == 0, done.stderr
        assert roles(address) == {1: "leader", 2: "voter"}
        done = strata("quorum", "remove", "2", "-b", address)
        assert done.returncode == 0, done.stderr
        assert roles(address) == {1: "leader", 2: "observer"}
        assert "accepted: 1" in refused("remove", "7", "-b", address)
