"""Measure how fast the console opens large pages: lists of many topics, and the last records of a long partition.

usage: python -m bench.console_pages [--rounds 5] [--topics 10000] [--millions 100]

One broker has the topics, and one partition of a hundred million small records. A page is opened as a browser asks for
it, by a console that has just started (the first line of each page) and again. Prints a table for RESULTS.md.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.console_process import console_process

from bench import load
from bench.broker import create
from bench.peers import Server, strata
from bench.tier import Measurements

LONG = "long"
RECORDS_A_BATCH = 50_000
TOPICS_A_REQUEST = 1_000
PAGES = {
    "topics": "/topics",
    "topics, by size": "/topics?sort=size",
    "topics, by records": "/topics?sort=records",
    "last 50 records": f"/topics/{LONG}/messages",
    "overview": "/",
}


def fill(server: Server, topics: int, millions: int) -> None:
    """Make the topics, one record in each hundredth of them, and the long partition."""
    admin = AdminClient({"bootstrap.servers": server.address})
    names = [f"topic-{number:05}" for number in range(topics)]
    for first in range(0, topics, TOPICS_A_REQUEST):
        wanted = [NewTopic(name, 1, 1) for name in names[first : first + TOPICS_A_REQUEST]]
        for future in admin.create_topics(wanted, operation_timeout=60).values():
            future.result(60)
    now_ms = round(time.time() * 1000)
    for name in names[::100]:
        load.once(server, name, 1, load.batch(10, 1, now_ms))
    create(server, LONG, 1, {"max.message.bytes": str(8 << 20)})
    batch = load.batch(10, RECORDS_A_BATCH, now_ms)
    for _ in range(millions * 1_000_000 // RECORDS_A_BATCH):
        load.once(server, LONG, 1, batch)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console_pages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--millions", type=int, default=100)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="bench-console-"))
    measured = Measurements()
    try:
        with strata(place / "broker") as server:
            fill(server, options.topics, options.millions)
            for _ in range(options.rounds):
                for name, path in PAGES.items():
                    with console_process(place / "console", server.address) as console:
                        for how in ("the first page of a console", "again"):
                            began = time.perf_counter()
                            answer = console.get(path)
                            took = time.perf_counter() - began
                            assert answer.status == 200, answer.text
                            measured.note(f"{name}, ms, {how}", took * 1000)
        what = f"{options.topics} topics, {options.millions} million records"
        measured.report(f"{options.rounds} rounds, {what}")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
