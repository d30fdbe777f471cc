"""Measure what nodes cost that no client uses, beside Apache Kafka: CPU time and wakeups, with and without partitions.

usage: python -m bench.idle [--rounds 3] [--seconds 60] [--partitions 3000] [--only LINE] [--against STRATA]

One node of each runs at first, then three nodes of each; without topics, then with partitions of one replica, or of
three. Both peers idle at the same time: the two together take a few hundredths of a core. A wakeup is a voluntary
context switch of any thread. Values are of all nodes of a peer together. The first `--seconds` of
a line do not count. `--against` puts another version of this project in Kafka's place. The command needs Linux. It
leaves neither processes nor files.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from bench import broker, cluster_peers, peers
from bench.broker import Bench, report
from bench.cluster_peers import FACTOR, Cluster
from bench.peers import Server, cpu_seconds

MINUTE_S = 60
ONE, THREE = "one node", "three nodes"
Peer = Server | Cluster
Starter = Callable[[Path], AbstractContextManager[Peer]]


def processes(peer: Peer) -> list[int]:
    if isinstance(peer, Cluster):
        return [one.pid for one in peer.processes.values()]
    return [peer.process.pid]


def wakeups(pid: int) -> dict[str, int]:
    """Return how often each thread of a process went to sleep by itself."""
    counts = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (thread / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        (count,) = [one for one in lines if one.startswith("voluntary_ctxt_switches")]
        counts[thread.name] = int(count.split()[1])
    return counts


def idle(bench: Bench, line: str, running: Mapping[str, Peer], seconds: float) -> None:
    """Note the CPU seconds a minute and the wakeups a second of each peer, over the same `seconds`."""
    all_of = {name: processes(peer) for name, peer in running.items()}
    before = {pid: (cpu_seconds(pid), wakeups(pid)) for one in all_of.values() for pid in one}
    time.sleep(seconds)
    for name, pids in all_of.items():
        cpu, woken = 0.0, 0
        for pid in pids:
            cpu_before, woken_before = before[pid]
            cpu += cpu_seconds(pid) - cpu_before
            now = wakeups(pid)
            woken += sum(count - woken_before.get(thread, 0) for thread, count in now.items())
        bench.note(f"{line}: CPU s a minute", name, cpu * MINUTE_S / seconds)
        bench.note(f"{line}: wakeups a second", name, woken / seconds)


def create(peer: Peer, partitions: int) -> None:
    if isinstance(peer, Cluster):
        cluster_peers.create(peer, "idle", partitions)
    else:
        broker.create(peer, "idle", partitions)


def measure(
    bench: Bench, starters: Mapping[str, Starter], nodes: str, partitions: int, round_s: float
) -> None:
    """Measure peers of so many `nodes`: `round_s` for each round, and as long before the first one of a line."""
    replicas = f" of {FACTOR} replicas" if nodes == THREE else ""
    empty, filled = f"{nodes}, no topics", f"{nodes}, {partitions:,} partitions{replicas}"
    if not (bench.wants(empty) or bench.wants(filled)):
        return
    with ExitStack() as stack:
        place = bench.scratch / nodes.replace(" ", "-")
        running = {
            name: stack.enter_context(start(place / str(number)))
            for number, (name, start) in enumerate(starters.items())
        }
        for line, count in ((empty, 0), (filled, partitions)):
            if not bench.wants(line):
                continue
            for peer in running.values():
                if count:
                    create(peer, count)
            time.sleep(round_s)
            for _ in range(bench.rounds):
                idle(bench, line, running, round_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--partitions", type=int, default=3000)
    parser.add_argument("--only", action="append", default=[], metavar="LINE")
    parser.add_argument("--against", metavar="STRATA", help="the `strata` of another version")
    chosen = parser.parse_args()
    one: dict[str, Starter] = {"Stratalog": peers.strata, "Apache Kafka": peers.kafka}
    three: dict[str, Starter] = {
        "Stratalog": cluster_peers.strata,
        "Apache Kafka": cluster_peers.kafka,
    }
    if chosen.against:
        other = "the other version"
        one = {"this version": peers.strata, other: partial(peers.strata, command=chosen.against)}
        against = partial(cluster_peers.strata, command=chosen.against, name=other)
        three = {"this version": cluster_peers.strata, other: against}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        bench = Bench(chosen.rounds, 1, chosen.only, Path(scratch), one)
        measure(bench, one, ONE, chosen.partitions, chosen.seconds)
        measure(bench, three, THREE, chosen.partitions, chosen.seconds)
    report(bench, time.monotonic() - begun)


if __name__ == "__main__":
    main()
