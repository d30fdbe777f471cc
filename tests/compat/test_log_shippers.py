"""rsyslog, syslog-ng and Kafka Connect's file connectors against a broker, with the settings of docs/tail.md.

Method: Debian's packages, unpacked and not installed, and Kafka's own jars. Each follows a file that grows; a topic
must hold its lines, once and in order.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import debian_packages, java_command, java_environment, kafka_jars
from tests.integration.waiting import wait_for

from stratalog import read
from stratalog.adapters.free_ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "tail.md"
TIMEOUT_S = 60
RSYSLOG = ("rsyslog", "rsyslog-kafka", "libestr0", "libfastjson4", "liblognorm5", "librdkafka1")
SYSLOG_NG = (
    "syslog-ng-core",
    "syslog-ng-mod-rdkafka",
    "libivykis0",
    "libnet1",
    "libwrap0",
    "libpcre3",
    "librdkafka1",
)
LAST = b"the last line"
LINES = [f"line {number}".encode() for number in range(1, 6)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("shippers")) as started:
        yield started


def settings(kind: str, changed: Mapping[str, str]) -> str:
    """The page's settings of a kind, with a test's places instead of the page's."""
    found = re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, kind
    text = found[1]
    for old, new in changed.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextmanager
def running(
    command: Sequence[str], place: Path, environ: Mapping[str, str] | None = None
) -> Iterator[Callable[[], str]]:
    """Run a shipper; yield what it said so far."""
    output = place / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=place,
            env={**os.environ, **(environ or {})},
        )
    try:
        yield lambda: f"{process.poll()}: {output.read_text(errors='replace')[-3000:]}"
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def libraries(root: Path) -> dict[str, str]:
    places = [
        *root.glob("usr/lib/*-linux-gnu"),
        *root.glob("lib/*-linux-gnu"),
        root / "usr/lib/syslog-ng",
    ]
    return {"LD_LIBRARY_PATH": ":".join(map(str, places))}


def is_valid(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """The program itself finds nothing wrong with its settings: at work it passes over an unknown name."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def values(broker: BrokerProcess, topic: str) -> list[bytes]:
    try:
        found = read(topic, bootstrap_servers=broker.address).read_all()
    except ValueError:  # no topic yet
        return []
    return [bytes(one) for one in found.column("value").to_pylist()]


def is_filled(broker: BrokerProcess, topic: str, file: Path, said: Callable[[], str]) -> None:
    """Wait for the file's lines; then append one, which must follow them."""
    comes(broker, topic, LINES, said)
    with file.open("ab") as out:
        out.write(LAST + b"\n")
    comes(broker, topic, [*LINES, LAST], said)


def comes(
    broker: BrokerProcess, topic: str, wanted: Sequence[bytes], said: Callable[[], str]
) -> None:
    """Wait until the topic has these lines, and no others."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(found := values(broker, topic)) < len(wanted):
        assert time.monotonic() < deadline, f"{found}; {said()}"
        time.sleep(0.3)
    assert [one.lstrip() for one in found] == list(wanted)  # syslog begins a message with a blank


def written(place: Path) -> Path:
    file = place / "app.log"
    file.write_bytes(b"".join(line + b"\n" for line in LINES))
    return file


def test_rsyslogs_omkafka_sends_a_file(broker: BrokerProcess, tmp_path: Path) -> None:
    root = debian_packages(*RSYSLOG)
    file = written(tmp_path)
    text = settings(
        "rsyslog",
        {
            "localhost:9092": broker.address,
            "/var/log/app.log": str(file),
            "/var/spool/rsyslog": str(tmp_path),
        },
    )
    (tmp_path / "rsyslog.conf").write_text(text)
    modules = next(root.glob("usr/lib/*/rsyslog"))
    command = [str(root / "usr/sbin/rsyslogd"), "-n", "-i", str(tmp_path / "pid")]
    command += ["-f", str(tmp_path / "rsyslog.conf"), "-M", str(modules)]
    is_valid([*command, "-N1"], libraries(root))
    with running(command, tmp_path, libraries(root)) as said:
        is_filled(broker, "rsyslog", file, said)


def test_syslog_ngs_kafka_destination_sends_a_file(broker: BrokerProcess, tmp_path: Path) -> None:
    root = debian_packages(*SYSLOG_NG)
    file = written(tmp_path)
    text = settings("syslog-ng", {"localhost:9092": broker.address, "/var/log/app.log": str(file)})
    modules = next(root.glob("usr/lib/syslog-ng/[0-9]*"))
    (tmp_path / "syslog-ng.conf").write_text(f"@version: {modules.name}\n{text}")
    command = [
        str(root / "usr/sbin/syslog-ng"),
        "-F",
        "--no-caps",
        "-f",
        str(tmp_path / "syslog-ng.conf"),
    ]
    command += ["--module-path", str(modules), "-R", str(tmp_path / "persist")]
    command += ["-p", str(tmp_path / "pid"), "-c", str(tmp_path / "control")]
    is_valid([*command, "--syntax-only"], libraries(root))
    with running(command, tmp_path, libraries(root)) as said:
        is_filled(broker, "syslog-ng", file, said)


def test_connects_file_source_and_sink_carry_lines_from_file_to_file(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    jars = kafka_jars("kafka-connect", "connect-runtime", "connect-file", "connect-mirror")
    file, copy = written(tmp_path), tmp_path / "copy.log"
    changed = {
        "localhost:9092": broker.address,
        "/var/log/app.log": str(file),
        "/var/log/copy.log": str(copy),
        "/var/lib/connect": str(tmp_path),
    }
    worker, source, sink = settings("properties", changed).split("\n\n")
    names = []
    for name, text in (
        ("worker", f"{worker}\nlisteners=http://127.0.0.1:{port}\nplugin.discovery=service_load\n"),
        ("source", source),
        ("sink", sink),
    ):
        (tmp_path / f"{name}.properties").write_text(text)
        names.append(str(tmp_path / f"{name}.properties"))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = java_command(main, *names, heap="256m", jars=(jars,))
    with running(command, tmp_path, java_environment()) as said:
        is_filled(broker, "connect", file, said)
        wait_for(
            lambda: copy.exists() and copy.read_bytes().splitlines()[: len(LINES)] == LINES,
            "the sink's lines",
        )
