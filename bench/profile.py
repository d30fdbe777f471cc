"""Show where the broker's CPU goes while it serves one line of `bench.broker`: system calls, the door, Python.

usage: python -m bench.profile [--line "200 connections"]... [--floor] [--seconds 4] [--stacks DIRECTORY]

`perf` samples the broker's process while the line's own client loads it. The command prints a table for each line: the
share of the samples, and that share of the CPU of a request (or of a gigabyte). With `py-spy` in the PATH a second run
adds the Python functions with the most samples of their own. `--floor` samples the program of bench/floor.c instead.
`--stacks` keeps the folded stacks (LINE.folded, and LINE.python.folded of py-spy): flamegraph.pl, inferno and
speedscope.app draw a flame graph of each. All lines by default. Linux; needs perf (Debian: linux-perf) and the right to
use it (`kernel.perf_event_paranoid`).
"""

import argparse
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import floor, load
from bench.broker import create
from bench.peers import Server, strata

TOPIC = "profiled"
SAMPLES_PER_S = 1999
PYTHON_SAMPLES_PER_S = 500
PYTHON_ROWS = 12
CONSUMED = 700_000
PRODUCED = 3_000_000
Line = Callable[[Server, float], tuple[float, str]]
"""Loads a server for some seconds; returns its CPU seconds of a unit, and the unit."""


def requests(connections: int, server: Server, seconds: float) -> tuple[float, str]:
    _rate, cpu_ms = load.many_producers(server, TOPIC, connections, seconds)
    return cpu_ms / 1000, "request"


def paced(per_second: int, server: Server, seconds: float) -> tuple[float, str]:
    before = server.cpu_seconds()
    load.latencies(server, TOPIC, per_second, seconds)
    return (server.cpu_seconds() - before) / (per_second * seconds), "record"


def made(size: int, server: Server, seconds: float) -> tuple[float, str]:
    return load.made_batches(server, TOPIC, size, seconds).cpu, "GB"


def again(
    load_once: Callable[[Server], load.Throughput], server: Server, seconds: float
) -> tuple[float, str]:
    begun, costs = time.monotonic(), []
    while not costs or time.monotonic() - begun < seconds:
        costs.append(load_once(server).cpu)
    return sum(costs) / len(costs), "GB"


def produce(server: Server) -> load.Throughput:
    return load.produce(server, TOPIC, 100, PRODUCED)


def consume(server: Server) -> load.Throughput:
    return load.consume(server, TOPIC, CONSUMED)


def tail(server: Server, seconds: float) -> tuple[float, str]:
    return load.tail_consumers(server, TOPIC, 100, seconds)[1], "GB"


LINES: dict[str, Line] = {
    "1 connection": partial(requests, 1),
    "16 connections": partial(requests, 16),
    "200 connections": partial(requests, 200),
    "latency at 2,000/s": partial(paced, 2000),
    "made batches of 100 B": partial(made, 100),
    "produce 100 B": partial(again, produce),
    "consume 1 KiB": partial(again, consume),
    "100 consumers at the tail": tail,
}
LIBRARIES = {
    "stratalog_door": "the door (compiled)",
    "uvloop": "uvloop",
    "_crc32c": "CRC",
    "ffi": "ctypes",
    "_ctypes": "ctypes",
    "libc.so": "libc: copies, memory",
    "libpython": "the interpreter",
    "python3": "the interpreter",
    "stratalog": "modules compiled by mypyc",
    "vdso": "clocks",
}
SYSTEM_CALL = re.compile(r"(?:__(?:x64|arm64)_sys|ksys)_(\w+)|do_(p?(?:read|write)v)$")


def part(stack: list[tuple[str, str]]) -> str:
    """Return the part of the broker in which a sample lies. The stack has (symbol, library), the innermost first."""
    library = stack[0][1]
    if "kernel" in library:
        for name, _ in stack:
            if found := SYSTEM_CALL.match(name):
                return f"system call {found[1] or found[2]}"
            if "page_fault" in name:
                return "page faults"
        return "the kernel: interrupts, entry, switches"
    if library.endswith("/floor"):
        return "its own code"
    return next((part for name, part in LIBRARIES.items() if name in library), library)


def stacks(data: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield the stack of each sample."""
    words = ["perf", "script", "-i", str(data), "-F", "ip,sym,dso"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for sample in text.split("\n\n"):
        frames = [re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line) for line in sample.splitlines()]
        found = [(one[1], one[2]) for one in frames if one]
        if found:
            yield found


def sampled(words: list[str], work: Callable[[], tuple[float, str]]) -> tuple[float, str]:
    """Run a sampler beside `work`; return what `work` returns."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as sampler:
        time.sleep(0.5)  # it attaches
        result = work()
        sampler.send_signal(signal.SIGINT)
        _, said = sampler.communicate(timeout=60)
    if sampler.returncode not in (0, -signal.SIGINT):
        raise SystemExit(f"{words[0]}: {said.decode()[-500:]}")
    return result


def table(line: str, samples: Counter[str], cost: float, unit: str) -> None:
    total = sum(samples.values())
    scale, name = (1e6, "µs") if unit != "GB" else (1, "s")
    print(f"\n| {line} | share | {name} a {unit} |\n|---|---|---|")
    for name, count in samples.most_common():
        if count >= total / 200:
            print(f"| {name} | {count / total:.1%} | {count / total * cost * scale:.2f} |")
    print(f"| all ({total} samples) | 100% | {cost * scale:.2f} |")


def folded(data: Path) -> Counter[str]:
    return Counter(";".join(name for name, _ in reversed(stack)) for stack in stacks(data))


def python_functions(line: str, stacks: Path, cost: float, unit: str) -> None:
    """Print the functions with the most samples of their own, from py-spy's folded stacks."""
    own: Counter[str] = Counter()
    for text in stacks.read_text().splitlines():
        frames, _, count = text.rpartition(" ")
        own[frames.rpartition(";")[2].rpartition(":")[0]] += int(count)
    top = Counter(dict(own.most_common(PYTHON_ROWS)))
    top["others"] = own.total() - top.total()
    table(f"{line}: by Python function, with what it calls in C", top, cost, unit)


def measure(line: str, server: Server, scratch: Path, seconds: float, kept: Path | None) -> None:
    load_it, name = LINES[line], line.replace(" ", "-").replace("/", "-").replace(",", "")
    create(server, TOPIC, 1)
    if line == "consume 1 KiB":
        load.produce(server, TOPIC, 1024, CONSUMED)
    load_it(server, min(seconds, 2))  # warm
    data, process = scratch / "perf.data", str(server.process.pid)
    words = ["perf", "record", "-e", "cpu-clock", "-F", str(SAMPLES_PER_S), "-g"]
    words += ["-p", process, "-o", str(data)]
    cost, unit = sampled(words, lambda: load_it(server, seconds))
    table(line, Counter(part(stack) for stack in stacks(data)), cost, unit)
    if kept:
        lines = [f"{stack} {count}\n" for stack, count in folded(data).items()]
        (kept / f"{name}.folded").write_text("".join(lines))
    if shutil.which("py-spy") and server.name != floor.NAME:
        found = (kept or scratch) / f"{name}.python.folded"
        words = ["py-spy", "record", "--format", "raw", "--output", str(found)]
        words += ["--rate", str(PYTHON_SAMPLES_PER_S), "--duration", "unlimited", "--pid", process]
        cost, unit = sampled(words, lambda: load_it(server, seconds))
        python_functions(line, found, cost, unit)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--line", action="append", choices=LINES, help="by default all")
    parser.add_argument("--floor", action="store_true", help="the program in C")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--stacks", type=Path, metavar="DIRECTORY", help="keep folded stacks here")
    chosen = parser.parse_args()
    if shutil.which("perf") is None:
        raise SystemExit("there is no perf in the PATH: install linux-perf")
    if chosen.stacks:
        chosen.stacks.mkdir(parents=True, exist_ok=True)
    start = floor.floor if chosen.floor else strata
    for line in chosen.line or LINES:
        if chosen.floor and LINES[line] is tail:
            continue  # it has no waiting fetches
        with (
            tempfile.TemporaryDirectory(prefix="bench-profile-") as scratch,
            start(Path(scratch) / "server") as server,
        ):
            measure(line, server, Path(scratch), chosen.seconds, chosen.stacks)


if __name__ == "__main__":
    main()
