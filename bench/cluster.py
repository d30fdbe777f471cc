"""Measure three of our nodes beside three of Apache Kafka: acks=all with three replicas, CPU, starts, failover.

usage: python -m bench.cluster [--rounds 3] [--warm-gb 1] [--only LINE]... [--scale 1.0] [--against STRATA]

Both clusters run at the same time and are loaded in turn by the same compiled client, as in `bench.broker`. CPU seconds
and memory are of all three nodes together. The command prints medians, spread and ratios, and leaves neither processes
nor files. `--against` puts another version of this project in Kafka's place: the path of its `strata` command.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient
from hatch_build import compile_in_place

from bench import load
from bench.broker import Bench, drop, first_record, report, touch_memory
from bench.cluster_peers import (
    FACTOR,
    PARTITIONS,
    Cluster,
    active,
    create,
    kafka,
    leaders,
    partitions_of,
    strata,
    wait_for_whole,
)
from bench.peers import product_command
from stratalog.adapters.network import TcpNetwork, event_loop
from stratalog.broker.metrics import BOUNDS_NS
from stratalog.client.aio import Client
from stratalog.errors import Rejected, Unavailable
from stratalog.wire import walk

LATENCY_RATE = 2000
ALL = ("-a", "-1")
"""rdkafka_performance's acks=all; of two options it takes the last."""
MANY_TOPICS, MANY_PARTITIONS = 10, 1000
WRITE_EVERY_S = 0.02
QUIET_TRIES = 15


# Lines on the two running clusters. Each call runs one round on one cluster; round -1 only warms it.


def produce(bench: Bench, cluster: Cluster, topic: str, size: int, full: int, name: str) -> None:
    count = bench.count(full)
    touch_memory(2 * FACTOR * count * size)
    made = load.produce(cluster, topic, size, count, *ALL)
    bench.note(f"produce {name}, MB/s", cluster.name, made.rate)
    bench.note(f"produce {name}, CPU s/GB", cluster.name, made.cpu)


def produce_1k(bench: Bench, cluster: Cluster, topic: str) -> None:
    produce(bench, cluster, topic, 1024, 300_000, "1 KiB")


def produce_100(bench: Bench, cluster: Cluster, topic: str) -> None:
    produce(bench, cluster, topic, 100, 1_500_000, "100 B")


def latency(bench: Bench, cluster: Cluster, topic: str) -> None:
    """Measure latencies with librdkafka, which keeps a core busy, and with a generator that sleeps."""
    seconds = max(2.0, 6 * bench.scale)
    rate = f"{LATENCY_RATE:,} records/s"
    middle, slow = load.latencies(cluster, topic, LATENCY_RATE, seconds, *ALL)
    bench.note(f"{rate}, librdkafka, p50 ms", cluster.name, middle)
    bench.note(f"{rate}, librdkafka, p99 ms", cluster.name, slow)
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 2})
    led = {index: cluster.ports[node] for index, node in leaders(admin, topic).items()}
    before = cluster.cpu_seconds()
    middle, slow = load.paced(led, topic, LATENCY_RATE, seconds)
    used = (cluster.cpu_seconds() - before) * 1000 / (LATENCY_RATE * seconds)
    bench.note(f"{rate}, a record a request, p50 ms", cluster.name, middle)
    bench.note(f"{rate}, a record a request, p99 ms", cluster.name, slow)
    bench.note(f"{rate}, a record a request, CPU ms a record", cluster.name, used)


def full_load(bench: Bench, cluster: Cluster, topic: str) -> None:
    """Measure, under a producer at full speed, the delay of our event loops, elections, and changes of the ISR."""
    before = cluster.metrics()
    epoch = active(cluster, list(cluster.ports))[1]
    until = time.monotonic() + max(5.0, 60 * bench.scale)
    while time.monotonic() < until:
        load.produce(cluster, topic, 1024, 100_000, *ALL)
    elections = active(cluster, list(cluster.ports))[1] - epoch
    bench.note("full load: elections of a controller", cluster.name, elections)
    if not before:
        return  # Apache Kafka's nodes have no monitor
    grown = {name: value - before.get(name, 0) for name, value in cluster.metrics().items()}
    bench.note("full load: loop delay, p99.9 ms at most", cluster.name, slowest(grown))
    for what in ("shrinks", "expansions"):
        bench.note(f"full load: ISR {what}", cluster.name, grown[f"stratalog_isr_{what}_total"])


def slowest(grown: dict[str, float]) -> float:
    """Return the bound in ms of the bucket that holds the 99.9th percentile of the loops' delays."""
    name = "stratalog_event_loop_delay_seconds"
    wanted = 0.999 * grown[f"{name}_count"]
    for bound in BOUNDS_NS:
        if grown[f'{name}_bucket{{le="{bound / 1e9:g}"}}'] >= wanted:
            return bound / 1e6
    return float("inf")


class Writer:
    """A client that writes to one partition all the time, and looks for its leader again after each failure."""

    def __init__(self, topic: str, partition: int) -> None:
        self.failures: list[str] = []
        self._topic, self._partition = topic, partition

    async def write(self, address: str) -> None:
        record = load.batch(100, 1, round(time.time() * 1000))
        async with await Client.connect(TcpNetwork(), address) as client:
            while True:
                try:
                    await client.produce(self._topic, self._partition, record)
                except (Rejected, Unavailable) as error:
                    self.failures.append(str(error))
                await asyncio.sleep(WRITE_EVERY_S)


async def write_during_stop(cluster: Cluster, topic: str, node: int) -> list[int]:
    """Return, for each of two clients a partition, how many requests failed while a node stopped."""
    writers = [Writer(topic, partition) for partition in range(PARTITIONS) for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        writing = [group.create_task(one.write(cluster.address)) for one in writers]
        await until_quiet(writers)
        await asyncio.get_running_loop().run_in_executor(None, cluster.stop, [node])
        await asyncio.sleep(2)
        for one in writing:
            one.cancel()
    for one in writers:
        if len(one.failures) > 1:
            print(f"{cluster.name}, while node {node} stopped: {one.failures}", flush=True)
    return [len(one.failures) for one in writers]


async def until_quiet(writers: list[Writer]) -> None:
    """Wait until no request fails for two seconds: the leaders may have moved just before."""
    for _ in range(QUIET_TRIES):
        for one in writers:
            one.failures.clear()
        await asyncio.sleep(2)
        if not any(one.failures for one in writers):
            return
    raise SystemExit(f"requests fail without a reason: {[one.failures for one in writers]}")


def shutdown(bench: Bench, cluster: Cluster, topic: str) -> None:
    """Stop each node in turn, with permission, under clients that write to every partition."""
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 2})
    failed = []
    for node in cluster.ports:
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            failed.append(runner.run(write_during_stop(cluster, topic, node)))
        cluster.start([node])
        wait_for_whole(admin, topic, PARTITIONS)
        admin.elect_leaders(ElectionType.PREFERRED).result(60)
    most = max(map(max, failed))
    bench.note("controlled shutdown: retriable answers a client, at most", cluster.name, most)
    bench.note("controlled shutdown: answers to six clients", cluster.name, sum(map(sum, failed)))


def failover(bench: Bench, cluster: Cluster, topic: str) -> None:
    """Measure, after kill -9 of the active controller, when another is active and each partition has a leader."""
    killed, epoch = active(cluster, list(cluster.ports))
    others = [node for node in cluster.ports if node != killed]
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 2})
    begun = time.monotonic()
    cluster.kill(killed)
    while active(cluster, others)[1] <= epoch:
        time.sleep(0.005)
    bench.note("kill -9 of the controller: another one, s", cluster.name, time.monotonic() - begun)
    while killed in leaders(admin, topic).values():
        time.sleep(0.02)
    bench.note("kill -9: all partitions led again, s", cluster.name, time.monotonic() - begun)
    cluster.start([killed])
    wait_for_whole(admin, topic, PARTITIONS)


RUNNING = {
    "produce 1 KiB": produce_1k,
    "produce 100 B": produce_100,
    "latency": latency,
    "full load": full_load,
    "controlled shutdown": shutdown,
    "failover": failover,
}
START = "start"
INSIDE = "inside a test"
MANY = "10,000 partitions"


def running(bench: Bench, warm_gb: float) -> None:
    """Measure all lines of `RUNNING` on one warm pair of clusters."""
    lines = {name: line for name, line in RUNNING.items() if bench.wants(name)}
    if not lines:
        return
    warming = Bench(1, bench.scale, [], bench.scratch, {})  # its measurements are dropped
    with ExitStack() as stack:
        pair = [
            stack.enter_context(start(bench.scratch / f"running-{number}"))
            for number, start in enumerate(STARTERS.values())
        ]
        for cluster in pair:
            create(cluster, "warm")
            for _ in range(round(warm_gb)):
                load.produce(cluster, "warm", 1024, 1_000_000, *ALL)
            drop(cluster, "warm")
        for number in range(-1 if warm_gb else 0, bench.rounds):
            for line in lines.values():
                topic = f"{line.__name__}-{number + 1}"
                for cluster in pair if number % 2 == 0 else pair[::-1]:
                    create(cluster, topic)
                    line(bench if number >= 0 else warming, cluster, topic)
                for cluster in pair:
                    drop(cluster, topic)
        for cluster in pair:
            bench.note("resident after the load, MB", cluster.name, cluster.resident_mb())


def starts(bench: Bench) -> None:
    """Measure from the start of three empty nodes to a record with acks=all that is acknowledged."""
    product_command()
    for number in range(bench.rounds):
        for place, start in enumerate(STARTERS.values()):
            with start(bench.scratch / f"start-{place}-{number}") as cluster:
                create(cluster, "first")
                first_record(cluster, "first", acks="all")
                took = time.monotonic() - cluster.begun
                bench.note("start to first acknowledged record, s", cluster.name, took)
                bench.note("resident idle, MB", cluster.name, cluster.resident_mb())


def many(bench: Bench) -> None:
    """Measure 10,000 partitions of three replicas, once: creation, memory, idle CPU, kill -9, a stop and a start."""
    partitions = max(10, round(MANY_PARTITIONS * bench.scale))
    count = MANY_TOPICS * partitions
    line = f"{count:,} partitions of three replicas: "
    for place, start in enumerate(STARTERS.values()):
        with start(bench.scratch / f"many-{place}") as cluster:
            begun = time.monotonic()
            for number in range(MANY_TOPICS):
                create(cluster, f"many-{number}", partitions)
            admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 2})
            wait_for_whole(admin, "", count)
            bench.note(line + "created, s", cluster.name, time.monotonic() - begun)
            time.sleep(5)
            before = cluster.cpu_seconds()
            time.sleep(10)
            idle = (cluster.cpu_seconds() - before) * 100
            bench.note(line + "idle, CPU ms a second", cluster.name, idle)
            bench.note(line + "resident, MB", cluster.name, cluster.resident_mb())
            made = load.produce(
                cluster, "many-0", 1024, bench.count(100_000), *ALL, "-X", load.MANY
            )
            bench.note(line + "acks=all 1 KiB, MB/s", cluster.name, made.rate)
            bench.note(line + "acks=all 1 KiB, CPU s/GB", cluster.name, made.cpu)
            killed, _ = active(cluster, list(cluster.ports))
            begun = time.monotonic()
            cluster.kill(killed)
            while any(one.leader in (killed, -1) for one in partitions_of(admin, "")):
                time.sleep(0.2)
            bench.note(line + "kill -9, all led again, s", cluster.name, time.monotonic() - begun)
            begun = time.monotonic()
            cluster.start([killed])
            wait_for_whole(admin, "", count)
            bench.note(line + "it starts, all in sync, s", cluster.name, time.monotonic() - begun)
            begun = time.monotonic()
            cluster.stop(cluster.ports)
            bench.note(line + "all stop, s", cluster.name, time.monotonic() - begun)
            begun = time.monotonic()
            cluster.start(cluster.ports)
            first_record(cluster, "many-0", acks="all")
            wait_for_whole(admin, "", count)
            bench.note(line + "all start, all in sync, s", cluster.name, time.monotonic() - begun)


def inside_a_test(bench: Bench) -> None:
    """Measure `stratalog.testing.cluster(3)`: in a new interpreter, imports included, and again in the same one."""
    for _ in range(bench.rounds):
        begun = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-c", INSIDE_A_TEST], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            lines = (line for line in process.stdout if line.startswith("@"))
            next(lines)
            bench.note("testing.cluster(3), imports too: ready, s", OURS, time.monotonic() - begun)
            wall, cpu = map(float, next(lines).split()[1:])
        bench.note("testing.cluster(3) again: ready, s", OURS, wall)
        bench.note("testing.cluster(3) again: CPU s", OURS, cpu)


INSIDE_A_TEST = """
import time
from stratalog.testing import cluster
with cluster(3):
    print("@", flush=True)
began, cpu = time.monotonic(), time.process_time()
with cluster(3):
    print("@", time.monotonic() - began, time.process_time() - cpu, flush=True)
"""
OURS = "Stratalog"

STARTERS: dict[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
    OURS: strata,
    "Apache Kafka": kafka,
}


OWN = {START: starts, INSIDE: inside_a_test, MANY: many}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-gb", type=float, default=1)
    parser.add_argument("--only", action="append", default=[], metavar="LINE")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--against", metavar="STRATA", help="the `strata` of another version")
    parser.add_argument("--list", action="store_true", help="the lines' names")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join([*RUNNING, *OWN]))
        return
    if not walk.__file__.endswith((".so", ".pyd")):
        compile_in_place(Path(__file__).parents[1])  # as in an installation
    if chosen.against:
        both = {"this version": "", "the other version": chosen.against}
        STARTERS.clear()
        STARTERS.update(
            {name: partial(strata, command=one, name=name) for name, one in both.items()}
        )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        bench = Bench(chosen.rounds, chosen.scale, chosen.only, Path(scratch), STARTERS)
        try:
            running(bench, chosen.warm_gb)
            for name, line in OWN.items():
                if bench.wants(name):
                    line(bench)
        finally:  # a cluster that does not start again must not cost what was measured before
            report(bench, time.monotonic() - begun)


if __name__ == "__main__":
    main()
