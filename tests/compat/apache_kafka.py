"""One node of Apache Kafka in its own process, for tests that compare our broker with it.

In: a directory and settings in Kafka's names, dots as double underscores. Out: the address of a serving node, which
ends with the block. Without Java or Kafka the test is skipped, as in `tools`. It never writes outside the directory.
"""

import json
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection
from tempfile import TemporaryDirectory

from tests.compat.tools import java_command, java_environment, java_tool

from stratalog.adapters.free_ports import free_ports
from stratalog.adapters.system import SystemEntropy
from stratalog.broker.storage.claim import new_cluster_id

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30


def properties(directory: Path, ports: Sequence[int], settings: dict[str, str]) -> str:
    """Return the properties of a broker and controller in one, which listens on two ports."""
    broker_port, controller_port = ports
    address = f"127.0.0.1:{broker_port}"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # On a busy machine Kafka fences its own broker otherwise, and leader epochs grow.
        "broker.session.timeout.ms": "60000",
        **settings,
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


@contextmanager
def apache_kafka(directory: Path, features: Sequence[str] = (), **settings: str) -> Iterator[str]:
    """Run a node; yield its address. Skips without Java or Kafka; AssertionError if the node does not start.

    `features` are levels of the new cluster that differ from Kafka's own choice, as `name=level`.
    """
    ports = free_ports(2)
    named = {name.replace("__", "."): value for name, value in settings.items()}
    file = directory / "server.properties"
    file.write_text(properties(directory, ports, named))
    cluster_id = new_cluster_id(SystemEntropy())
    words = ["format", "-t", cluster_id, "-c", str(file), "--standalone"]
    words += [f"--feature={feature}" for feature in features]
    done = java_tool("kafka.tools.StorageTool", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    with kafka_process(file, ports[0]):
        yield f"127.0.0.1:{ports[0]}"


@contextmanager
def kafka_process(file: Path, port: int, *jars: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Kafka with the properties of `file`; yield once it listens on `port`. Its output goes beside the file.

    `jars`: directories of more jars.
    """
    output = file.parent / "kafka.out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            java_command("kafka.Kafka", str(file), heap="512m", jars=jars),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=java_environment(),
        )
        try:
            wait_until_open(port, process, output)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)


def wait_until_open(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    """Wait until the node listens, which it does once it serves."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        assert process.poll() is None, output.read_text(errors="replace")[-2000:]
        assert time.monotonic() < deadline, f"not there: {output.read_text()[-2000:]}"
        try:
            create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


def main() -> None:
    """Run a node until the input ends: a suite's results for Apache Kafka come from such a node."""
    parser = ArgumentParser(prog="python -m tests.compat.apache_kafka")
    parser.add_argument("settings", nargs="*", help="NAME=VALUE of Kafka's settings")
    chosen = [setting.partition("=") for setting in parser.parse_args().settings]
    with TemporaryDirectory(prefix="stratalog-kafka-") as scratch:
        named = {name.replace(".", "__"): value for name, _, value in chosen}
        with apache_kafka(Path(scratch), **named) as address:
            print(json.dumps({"bootstrap": address}), flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
