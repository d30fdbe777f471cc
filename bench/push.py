"""Measure the CPU of `strata metrics push` at the rate of OpenTSDB's first users, for an hour.

usage: python -m bench.push [--minutes 60] [--partitions 1300] [--lines]

A broker with many partitions is scraped each second, which makes some 6,600 points a second. The receiver is a process
of its own that counts the points and forgets them. Prints a line each minute, and the measurement for RESULTS.md.
"""

import argparse
import gzip
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import psutil
from tests.integration.server_process import STRATA, Server, strata

MINUTE_S = 60
STOP_S = 60


def receive(listening: socket.socket, points: "Synchronized[int]") -> None:
    """Answer batches: JSON by HTTP, each in a connection of its own, or lines."""
    while True:
        connection, _ = listening.accept()
        with connection, connection.makefile("rwb") as stream:
            length = 0
            while line := stream.readline():
                if line.startswith(b"put "):
                    points.value += 1
                elif line == b"version\n":
                    stream.write(b"net.opentsdb 2.4\nBuilt here\n")
                    stream.flush()
                elif line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
                elif line == b"\r\n":
                    points.value += gzip.decompress(stream.read(length)).count(b'"metric"')
                    stream.write(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
                    stream.flush()


def measure(minutes: float, partitions: int, scheme: str, place: Path) -> None:
    points = multiprocessing.Value("q", 0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        receiver = multiprocessing.Process(target=receive, args=(listening, points), daemon=True)
        receiver.start()
        target = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    with Server(place, ["monitor.listener=127.0.0.1:0"]) as server:
        words = ("topic", "create", "counted", "--partitions", str(partitions))
        made = strata(*words, "-b", server.address)
        assert made.returncode == 0, made.stderr
        monitor = json.loads((place / "ready.json").read_text())["monitor_port"]
        command = [*STRATA, "metrics", "push", target, "--monitor", f"127.0.0.1:{monitor}"]
        command += ["--every", "1s"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as pushing:
            used = psutil.Process(pushing.pid)
            others = [psutil.Process(server.pid), psutil.Process(receiver.pid)]
            began, before = time.monotonic(), [sum(one.cpu_times()[:2]) for one in others]
            while (left := minutes * MINUTE_S - (time.monotonic() - began)) > 0:
                time.sleep(min(MINUTE_S, left))
                seconds, cpu = time.monotonic() - began, sum(used.cpu_times()[:2])
                memory = used.memory_info().rss / 1e6
                print(
                    f"{seconds:.0f} s: {points.value / seconds:.0f} points/s, {cpu / seconds:.2%} of a core, "
                    f"{memory:.0f} MB, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            shares = [
                (sum(one.cpu_times()[:2]) - was) / seconds
                for one, was in zip(others, before, strict=True)
            ]
            pushing.send_signal(signal.SIGTERM)
            said = pushing.communicate(timeout=STOP_S)[1]
    print(f"broker {shares[0]:.2%}, receiver {shares[1]:.2%} of a core")
    print(f"received {points.value}; the command said: {said.strip()}")
    receiver.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--partitions", type=int, default=1300)
    parser.add_argument("--lines", action="store_true", help="lines over TCP instead of HTTP")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-push-") as scratch:
        scheme = "opentsdb" if chosen.lines else "http"
        measure(chosen.minutes, chosen.partitions, scheme, Path(scratch))


if __name__ == "__main__":
    sys.exit(main())
