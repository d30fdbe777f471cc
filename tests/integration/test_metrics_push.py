"""`strata metrics push` where the receiver refuses, stalls or is away: bounds hold, and each point is counted.

The receiver here is a server with prepared answers; tests/compat/test_metrics_push.py has a real one.
"""

import gzip
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from typing import Self

import pytest
from tests.integration.server_process import STRATA, Server, strata
from tests.integration.waiting import wait_for

ANSWER_S = 60
MONITOR: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    place = tmp_path_factory.mktemp("push")
    with Server(place, ["monitor.listener=127.0.0.1:0"]):
        port = json.loads((place / "ready.json").read_text())["monitor_port"]
        MONITOR[:] = ["--monitor", f"127.0.0.1:{port}"]
        yield


class Receiver:
    """An HTTP server that answers each batch with the next of `answers`, and with the last from then on."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        left, self.points = list(answers), 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.points += len(json.loads(gzip.decompress(body)))
                status, text = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        self._thread = Thread(target=self.server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def test_refused_points_are_counted_and_fail_the_command() -> None:
    said = b'{"success":1,"failed":3}'
    with Receiver((400, said)) as receiver:
        done = strata("metrics", "push", receiver.url, *MONITOR, "--once")
    assert done.returncode == 2
    assert f"{receiver.points - 3} point(s) sent, 3 refused, 0 dropped, 0 not sent" in done.stderr
    assert said.decode() in done.stderr.splitlines()[-1]
    with Receiver((403, b"no")) as receiver:
        done = strata("metrics", "push", receiver.url, *MONITOR, "--once")
    assert done.returncode == 2
    assert f"0 point(s) sent, {receiver.points} refused" in done.stderr


def test_a_failing_receiver_gets_the_same_batch_again() -> None:
    with Receiver((503, b""), (204, b"")) as receiver, pushing(receiver.url) as process:
        assert process.stderr is not None
        assert "status 503" in process.stderr.readline()
        assert "answers again" in process.stderr.readline()
        said = stopped(process)
    sent = int(said.split()[0])
    assert receiver.points > sent > 0, "the first batch came twice"
    assert "0 refused, 0 dropped, 0 not sent" in said


@contextmanager
def pushing(receiver: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    words = [*STRATA, "metrics", "push", receiver, *MONITOR, "--every", "1s", *options]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def stopped(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=ANSWER_S)
    assert process.returncode == 0, said
    return said


def test_a_receiver_that_never_answers_costs_no_more_than_the_queue() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pushing(f"opentsdb://127.0.0.1:{port}", "--queue", "20kB") as process:
            assert process.stderr is not None
            assert "points wait" in process.stderr.readline()
            assert "the queue is full" in process.stderr.readline()
            said = stopped(process).splitlines()[-1].split()
    assert int(said[0]) == 0
    assert int(said[said.index("dropped,") - 1]) > 0, said
    assert 0 < int(said[said.index("not") - 1]) < 250, "one batch of some 15 kB"


@pytest.mark.parametrize(
    ("scheme", "beginning", "rest"),
    [("http", b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"), ("opentsdb", b"", b"put: no\n")],
)
def test_a_receiver_that_answers_byte_by_byte_costs_one_batch(
    scheme: str, beginning: bytes, rest: bytes
) -> None:
    """Each byte comes well within a socket's timeout, and the answer has no end."""
    ended = Event()

    class Trickle(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(beginning)
            for byte in cycle(rest):
                if ended.wait(0.05):
                    return
                with suppress(OSError):
                    self.wfile.write(bytes((byte,)))

    with ThreadingTCPServer(("127.0.0.1", 0), Trickle) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with pushing(f"{scheme}://127.0.0.1:{server.server_address[1]}") as process:
                assert process.stderr is not None
                assert "timed out; points wait" in process.stderr.readline()
                said = stopped(process)
        finally:
            ended.set()
            server.shutdown()
            thread.join()
    assert said.split()[0] == "0", said


def test_a_silent_monitor_does_not_hold_up_the_points_of_another() -> None:
    """Its scrape takes longer than the time from one scrape to the next."""
    with socket.create_server(("127.0.0.1", 0)) as silent, Receiver((204, b"")) as receiver:
        monitor = f"127.0.0.1:{silent.getsockname()[1]}"
        with pushing(receiver.url, "--monitor", monitor) as process:
            wait_for(lambda: receiver.points > 100, "points of the monitor that answers", ANSWER_S)
            said = stopped(process)
    assert f"http://{monitor}/metrics: timed out" in said
    assert "0 refused, 0 dropped, 0 not sent" in said


def test_a_line_that_opentsdb_refuses_is_counted() -> None:
    """OpenTSDB answers `put: …` for a bad line, before its version."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rwb") as lines:
                for line in lines:
                    if line.startswith(b"put stratalog_ready "):
                        lines.write(b"put: illegal argument: no such metric\n")
                    elif line == b"version\n":
                        lines.write(b"net.opentsdb 2.4\nBuilt here\n")
                    lines.flush()

        thread = Thread(target=serve)
        thread.start()
        target = f"opentsdb://127.0.0.1:{listening.getsockname()[1]}"
        done = strata("metrics", "push", target, *MONITOR, "--once")
        thread.join()
    assert done.returncode == 2
    assert "1 refused, 0 dropped, 0 not sent" in done.stderr
    assert "illegal argument: no such metric" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("ftp://h",), "RECEIVER: 'ftp://h'"),
        (("opentsdb://h:x",), "RECEIVER: 'opentsdb://h:x'"),
        (("http://h", "--every", "0s"), "--every: '0s'"),
        (("http://h", "--tag", "a"), "--tag: 'a'"),
        (("http://h", "--tag", "a=b c"), "--tag: 'a=b c'"),
        (("http://h", "--queue", "x"), "--queue"),
    ],
)
def test_a_bad_command_line_is_named(words: tuple[str, ...], named: str) -> None:
    done = strata("metrics", "push", *words, *MONITOR)
    assert (done.returncode, named in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_monitor_that_is_away_is_named() -> None:
    with Receiver((204, b"")) as receiver:
        done = strata("metrics", "push", receiver.url, "--monitor", "127.0.0.1:1", "--once")
    assert done.returncode == 2
    assert "http://127.0.0.1:1/metrics" in done.stderr.splitlines()[-1]
