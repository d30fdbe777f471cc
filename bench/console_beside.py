"""Measure what a console beside load costs: the producer's latency and the broker's CPU, with and without a viewer.

usage: python -m bench.console_beside [--rounds 5] [--seconds 10]

A steady producer writes 500 records of 100 B a second, and a consumer group reads some of them. By turns a viewer looks
at the cluster as one person does: a page every two seconds, records that are followed every second, charts from the
broker's monitor. Everything else is the same. Prints a table for RESULTS.md.
"""

import argparse
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer
from tests.integration.console_process import Console, console_process

from bench import load
from bench.broker import create
from bench.peers import Server, strata
from bench.tier import Measurements

RATE = 500
OTHER_TOPICS = 100
PAGES = ("/", "/topics", "/topics/live", "/groups", "/metrics")
"""A viewer's pages, one each two seconds; between them the records are followed."""
PAGE_S = 2.0
FOLLOW_S = 1.0
WARM_RECORDS = 200_000


class Viewer:
    """Asks for pages during the block."""

    def __init__(self, console: Console) -> None:
        self.asked = 0
        self._console = console
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=call) for call in (self._look, self._follow)]

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for one in self._threads:
            one.join()

    def _ask(self, path: str) -> None:
        answer = self._console.get(path)
        assert answer.status == 200, answer.text
        self.asked += 1

    def _look(self) -> None:
        while True:
            for path in PAGES:
                self._ask(path)
                if self._ending.wait(PAGE_S):
                    return

    def _follow(self) -> None:
        address = "/topics/live/messages"
        while not self._ending.wait(FOLLOW_S):
            path, _, query = address.partition("?")
            found = self._console.json(f"{path}.json?{query}")
            self.asked += 1
            address = found["follow"]


def turn(server: Server, seconds: float) -> tuple[float, float, float]:
    """Return p50 and p99 of the producer in ms, and the broker's share of a core."""
    before, began = server.cpu_seconds(), time.monotonic()
    p50, p99 = load.latencies(server, "live", RATE, seconds)
    return p50, p99, (server.cpu_seconds() - before) / (time.monotonic() - began)


def read_some(server: Server) -> None:
    """Commit a group's offset in the topic, so that the page of groups has a lag to show."""
    settings = {"bootstrap.servers": server.address, "group.id": "g"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["live"])
    assert consumer.consume(100, 60)
    consumer.commit(asynchronous=False)
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console_beside")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="bench-console-"))
    measured = Measurements()
    try:
        with strata(place / "broker", monitor__listener="127.0.0.1:0") as server:
            monitor = json.loads((place / "broker" / "ready.json").read_text())["monitor_port"]
            create(server, "live", 1)
            for number in range(OTHER_TOPICS):
                create(server, f"other-{number}", 1)
            load.produce(server, "live", 100, WARM_RECORDS)
            read_some(server)
            words = ("--monitor", f"127.0.0.1:{monitor}")
            for _ in range(options.rounds):
                alone = turn(server, options.seconds)
                with console_process(place / "console", server.address, *words) as console:
                    with Viewer(console) as viewer:
                        watched = turn(server, options.seconds)
                    assert viewer.asked >= options.seconds  # a page or more a second
                for how, found in (("alone", alone), ("console", watched)):
                    measured.note(f"p50, ms, {how}", found[0])
                    measured.note(f"p99, ms, {how}", found[1])
                    measured.note(f"broker CPU, % of a core, {how}", found[2] * 100)
                measured.note("p99, console / alone", watched[1] / alone[1])
                measured.note("broker CPU for the console, %", (watched[2] - alone[2]) * 100)
        measured.report(f"{options.rounds} rounds of {options.seconds:g} s")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
