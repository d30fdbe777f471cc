"""Ctrl-C while `strata produce` reads a terminal, a pipe or its generator: the count equals the sent records."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.server_process import STRATA, Server, strata

LIMIT_S = 60
# A process in its own session; a terminal is its standard input, output and error.
ON_TERMINAL = "import os, sys; os.login_tty(os.dup(0)); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("interrupt"), ["num.partitions=1"]) as started:
        yield started


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> str:
    assert strata("topic", "create", request.node.name, "-b", server.address).returncode == 0
    name: str = request.node.name
    return name


def records(server: Server, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "ends"})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        return end
    finally:
        consumer.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_until_closed(terminal: int) -> str:
    """Return the terminal's output until the last process that has it open ends."""
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # EIO: Linux's end of a pseudo-terminal
            return shown.decode()


def test_ctrl_c_on_a_terminal_ends_at_once(server: Server, topic: str) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", ON_TERMINAL, *STRATA, "produce", topic, "-b", server.address]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as sender:
        try:
            os.close(theirs)
            os.write(ours, b"one\n")
            wait_until(lambda: records(server, topic) == 1)
            os.write(ours, b"half a line\x03")
            os.write(ours, b"typed after it\n")
            assert sender.wait(LIMIT_S) == 130
            shown = read_until_closed(ours)
        finally:
            sender.kill()
            os.close(ours)
    assert f"1 record(s) to {topic}" in shown
    assert "interrupted before the end of standard input" in shown
    assert "Traceback" not in shown
    assert records(server, topic) == 1


def test_a_second_ctrl_c_does_not_wait_for_the_broker(server: Server, topic: str) -> None:
    reads, writes = os.pipe()

    def unread() -> int:
        (size,) = struct.unpack("i", fcntl.ioctl(reads, termios.FIONREAD, b"\0" * 4))
        return int(size)

    def interrupt(process: subprocess.Popen[str]) -> None:
        """Send SIGINT and wait until the process has received it: the system merges two pending signals."""
        process.send_signal(signal.SIGINT)
        status = Path(f"/proc/{process.pid}/status")
        wait_until(lambda: re.search(r"SigPnd:\t0+\nShdPnd:\t0+\n", status.read_text()) is not None)

    command = [*STRATA, "produce", topic, "-b", server.address]
    with subprocess.Popen(command, stdin=reads, stderr=subprocess.PIPE, text=True) as sender:
        try:
            os.write(writes, b"one\n")
            wait_until(lambda: records(server, topic) == 1)
            os.kill(server.pid, signal.SIGSTOP)
            os.write(writes, b"two\n")
            wait_until(lambda: unread() == 0)
            interrupt(sender)
            interrupt(sender)
            _, said = sender.communicate(timeout=LIMIT_S)
        finally:
            os.kill(server.pid, signal.SIGCONT)
            sender.kill()
            os.close(reads)
            os.close(writes)
    assert sender.returncode == 130
    assert "1 record(s) were acknowledged before that" in said
    assert "Traceback" not in said


def test_an_interrupted_generator_counts_the_records_that_it_sent(
    server: Server, topic: str
) -> None:
    words = ("--generate", "access-log", "--count", "100000000", "-b", server.address)
    with subprocess.Popen(
        [*STRATA, "produce", topic, *words], stderr=subprocess.PIPE, text=True
    ) as sender:
        try:
            wait_until(lambda: records(server, topic) > 0)
            sender.send_signal(signal.SIGINT)
            _, said = sender.communicate(timeout=LIMIT_S)
        finally:
            sender.kill()
    assert sender.returncode == 0
    assert said == f"{records(server, topic)} record(s) to {topic}\n"
