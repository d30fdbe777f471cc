"""Measure how fast `strata tail` sends the lines of a file: MB/s by the clock, and a core's MB/s.

usage: python -m bench.tail [--rounds 3] [--mb 400] [--only FORM]...

The file has lines of 200 B, as of a web server. Each round sends it to a topic of three partitions of our broker, plain
and in the other forms. The CPU is that of the whole command, with its start. Prints a table for RESULTS.md.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from random import Random

from bench.broker import create, drop
from bench.peers import Server, product_command, strata
from bench.tier import Measurements

LINE_BYTES = 200
LINES_AT_ONCE = 5_000
PARTITIONS = 3
FORMS = {
    "plain": (),
    "keys": ("--key", r"^(\S+) "),
    "JSON": ("--format", "json"),
    "lines of several": ("--multi-line", r"\d"),
    "at least once": ("--at-least-once",),
}


def write(path: Path, size: int) -> int:
    """Write lines that begin with one of a million addresses; return their bytes."""
    chance = Random(1)
    with path.open("wb") as file:
        while file.tell() < size:
            for _ in range(LINES_AT_ONCE):
                line = b"10.%d.%d.%d - - [27/Nov/2026:12:00:00 +0000] " % tuple(
                    chance.randrange(100) for _ in range(3)
                )
                file.write(line.ljust(LINE_BYTES - 1, b"x") + b"\n")
        return file.tell()


def send(server: Server, path: Path, topic: str, state: Path, options: tuple[str, ...]) -> float:
    """Send the file; return the command's CPU seconds."""
    words = [product_command(), "tail", str(path), "--topic", topic, "-b", server.address]
    words += ["--state-dir", str(state), "--until-end", *options]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.stderr is not None
        said = process.stderr.read().decode()
    lines = path.stat().st_size // LINE_BYTES
    assert said.endswith(f"{lines} record(s) to {topic}\n"), said
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tail")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--only", action="append", choices=FORMS)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="bench-tail-"))
    measured = Measurements()
    try:
        size = write(place / "app.log", options.mb * 1_000_000)
        with strata(place / "broker") as server:
            for number in range(options.rounds):
                for form in options.only or FORMS:
                    topic = f"lines-{number}-{form.replace(' ', '-')}"
                    create(server, topic, PARTITIONS)
                    before, began = server.cpu_seconds(), time.monotonic()
                    cpu = send(server, place / "app.log", topic, place / topic, FORMS[form])
                    took = time.monotonic() - began
                    measured.note(f"{form}, MB/s of a core", size / cpu / 1e6)
                    measured.note(f"{form}, MB/s", size / took / 1e6)
                    broker = (server.cpu_seconds() - before) / size * 1e9
                    measured.note(f"{form}, broker CPU s/GB", broker)
                    drop(server, topic)
        measured.report(f"{options.rounds} rounds of {options.mb} MB")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
