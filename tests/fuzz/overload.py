"""Clients that request too much, and the latencies of another client meanwhile.

usage: python -m tests.fuzz.overload [--seconds 10] [--mib 100] [--kafka]

In: how long each flood lasts, how large a request may be. Out: a line for each attack. The command starts a broker of
ours, and with --kafka also one of Apache Kafka. The attacks: 16 connections that pipeline without pause; 2,000 fetches
of damaged data; the largest request for each array of each API of a broker's listener, of things that are not there and
of one that is.
"""

import argparse
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.broker_process import broker_process
from tests.fuzz.beside import Beside, anonymous_mib, mib_once_freed
from tests.fuzz.flood import Flood
from tests.fuzz.large import TOPIC, Large, large_requests
from tests.properties.kio_oracle import kio_class, kio_read
from tests.wire_client import Wire

from stratalog.broker.apis import APIS
from stratalog.broker.network.dispatch import DECODED_BYTES_MAX
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.envelope import decode_request

CONNECTIONS = 16
FETCHES = 2000
ANSWER_S = 300
FIND_COORDINATOR = "FindCoordinator coordinator_keys"
FLOODS = {
    "ApiVersions": ("ApiVersions tags", 0),
    "Metadata": ("Metadata topics", 1),
    "Fetch": ("Fetch topics", 1),
    "Produce": ("Produce topic_data", 1),
}
"""The request of a flood: a large one, and its number of items."""
LEFT_MIB = 50
"""The memory that an attack may leave behind."""
WIDTH = 72
HEAD = (
    f"{'attack':{WIDTH}} {'p50 ms':>8} {'p99':>8} {'most':>8} {'turn ms':>8} "
    f"{'MiB before':>11} {'during':>7} {'after':>6} {'lines':>6}"
)


@dataclass(frozen=True)
class Target:
    """A broker under attack."""

    name: str
    port: int
    pid: int
    directory: Path
    log: Path

    @property
    def log_lines(self) -> int:
        """Return how many lines its log has."""
        return self.log.read_bytes().count(b"\n")


@dataclass(frozen=True)
class Seen:
    """The result of one attack."""

    what: str
    result: str
    beside: Beside
    before_mib: float
    after_mib: float


WORST: dict[str, Callable[[Seen], float]] = {
    "longest p99, ms": lambda one: one.beside.percentile_ms(99),
    "longest answer, ms": lambda one: max(one.beside.latencies_ms),
    "longest turn, ms of CPU": lambda one: one.beside.longest_turn_ms,
    "most memory above before, MiB": lambda one: one.beside.most_mib - one.before_mib,
    "most memory left, MiB": lambda one: one.after_mib - one.before_mib,
}


@contextmanager
def stratalog(directory: Path, **settings: str) -> Iterator[Target]:
    """Start a broker of ours."""
    with broker_process(directory, tier__url="", **settings) as broker:
        assert broker.process is not None
        log = directory / "broker.log"
        yield Target("Stratalog", broker.port, broker.process.pid, broker.data, log)


@contextmanager
def apache_kafka(directory: Path) -> Iterator[Target]:
    """Start a broker of Kafka's."""
    from bench.peers import kafka  # it needs the jars

    with kafka(directory) as server:
        pid, data = server.process.pid, directory / "data"
        yield Target(server.name, server.port, pid, data, directory / "log")


def prepared(target: Target) -> dict[str, Large]:
    """Create what requests name; return the requests."""
    with Wire(f"127.0.0.1:{target.port}") as wire:
        large = large_requests(wire.topic_id(TOPIC))
    find = large[FIND_COORDINATOR]
    kind = kio_class(find.key, find.version, "response")
    deadline = time.monotonic() + ANSWER_S
    while kio_read(kind, ask(target, find.frame(1, same=True))[5:]).coordinators[0].error_code:
        assert time.monotonic() < deadline, "no coordinator of groups"
        time.sleep(0.05)
    return large


def ask(target: Target, frame: bytes) -> bytes:
    """Send a request over a connection of its own; return its answer, b"" where the connection is closed instead."""
    with socket.create_connection(("127.0.0.1", target.port), ANSWER_S) as one:
        return exchange(one, frame)


def exchange(one: socket.socket, frame: bytes) -> bytes:
    """As `ask`, over a connection."""
    try:
        one.sendall(frame)
        with one.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            answer = stream.read(size)
    except ConnectionError:
        return b""
    assert len(answer) == size, f"{len(answer)} of {size} bytes of an answer"
    return answer


def largest(large: Large, frame_bytes_max: int, *, same: bool) -> int:
    """Return how many items the largest request may have, so that it is decoded."""
    few, many = 100, 300
    served = {key: api.served for key, api in APIS.items()}
    charged = []
    for count in (few, many):
        budget = DecodeBudget(1 << 40)
        decode_request(memoryview(large.frame(count, same=same))[4:], served, budget)
        charged.append(budget.charged)
    item = max(1, -(-(charged[1] - charged[0]) // (many - few)))
    rest = charged[0] - item * few
    item_bytes = len(large.known if same else large.item)
    by_size = (frame_bytes_max - 1000) // item_bytes
    return min(by_size, (min(frame_bytes_max, DECODED_BYTES_MAX) - rest) // item)


def attack(target: Target, what: str, act: Callable[[], str]) -> Seen:
    """Run one attack on the broker; print and return another client's latencies meanwhile."""
    before, lines = anonymous_mib(target.pid), target.log_lines
    with Beside(target.port, target.pid) as beside:
        result = act()
    after = mib_once_freed(target.pid, before + LEFT_MIB)
    print(
        f"{what:{WIDTH}} {beside.percentiles()} {beside.longest_turn_ms:8.2f} "
        f"{before:11.0f} {beside.most_mib:7.0f} {after:6.0f} {target.log_lines - lines:6}  {result}",
        flush=True,
    )
    return Seen(what, result, beside, before, after)


def flooded(
    target: Target, large: dict[str, Large], name: str, seconds: float
) -> tuple[Seen, float]:
    """Flood the broker with an API; return the result, and the answers a second."""
    which, count = FLOODS[name]
    flood = Flood(target.port, large[which].frame(count, same=True), connections=CONNECTIONS)

    def act() -> str:
        with flood:
            time.sleep(seconds)
        return f"{flood.answers_per_second:.0f} answers/s"

    return attack(target, f"{CONNECTIONS} connections of {name}", act), flood.answers_per_second


def largest_requests(
    target: Target, large: dict[str, Large], frame_bytes_max: int
) -> Iterator[Callable[[], Seen]]:
    """Yield attacks, each with the largest request for an array. Those that delete the topic come last."""
    for name, one in sorted(large.items(), key=lambda item: item[0].startswith("DeleteTopics")):
        for same in (False, True):
            count = largest(one, frame_bytes_max, same=same)
            frame = one.frame(count, same=same)

            def act(frame: bytes = frame) -> str:
                try:
                    answer = ask(target, frame)
                except TimeoutError:
                    return f"no answer in {ANSWER_S} s"
                return f"answered with {len(answer)} bytes" if answer else "closed"

            what = f"{name}, {'one' if same else 'each'} {count} times, {len(frame)} bytes"
            yield partial(attack, target, what, act)


def damaged_fetches(target: Target, large: dict[str, Large]) -> Seen:
    """Fetch damaged records from disk repeatedly."""
    frame = large["Fetch topics"].frame(1, same=True)
    ask(target, large["Produce topic_data"].frame(1, same=True))
    segment = target.directory / f"{TOPIC}-0" / f"{0:020}.log"
    with segment.open("r+b") as file:
        file.write(b"\xff" * 100)

    def act() -> str:
        with socket.create_connection(("127.0.0.1", target.port), ANSWER_S) as one:
            return f"last answer {len([exchange(one, frame) for _ in range(FETCHES)][-1])} bytes"

    return attack(target, f"{FETCHES} fetches of damaged data", act)


def whole(target: Target, options: argparse.Namespace) -> None:
    """Run all attacks, and print the worst one."""
    print(f"\n{target.name}\n{HEAD}")
    large = prepared(target)
    seen = [flooded(target, large, name, options.seconds)[0] for name in FLOODS]
    seen += [act() for act in largest_requests(target, large, options.mib << 20)]
    seen.append(damaged_fetches(target, prepared(target)))
    for title, value in WORST.items():
        worst = max(seen, key=value)
        print(f"{title}: {value(worst):.1f}, {worst.what}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each flood")
    parser.add_argument("--mib", type=int, default=100, help="of the largest request")
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        size = {"socket__request__max__bytes": str(options.mib << 20)}
        with stratalog(Path(place) / "ours", **size) as ours:
            whole(ours, options)
        if options.kafka:
            with apache_kafka(Path(place) / "theirs") as theirs:
                whole(theirs, options)


if __name__ == "__main__":
    main()
