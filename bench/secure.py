"""Measure TLS beside Apache Kafka with TLS, and what ACLs, a login and TLS cost our broker.

usage: python -m bench.secure [--rounds 5] [--scale 1.0] [--only tls|acls|protocols]

TLS: one producer of 1 KiB records with acks=1 and one consumer, librdkafka's generator, load both brokers by turns over
a TLS listener and over a plain one. The certificate has a key on the curve P-256. A steady producer runs alone and
beside 1,000 handshakes that do not go on. ACLs: two brokers of ours serve the
same loads, one with an authorizer and 1,000 ACLs of 100 principals; the clients' own rights are among them. Protocols:
one record a request over a plain connection through the door, without a door, after a login by SASL, over TLS (decision
0048). Prints a table for RESULTS.md. A first round, which does not count, warms all
brokers.
"""

import argparse
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bench import load
from bench.broker import Bench, create, drop, report, touch_memory
from bench.peers import Server, kafka, product_command, strata
from bench.rights import drawn
from stratalog.adapters.free_ports import free_ports
from stratalog.metadata.rights import PatternType
from stratalog.testing.certificates import Authority

OURS, THEIRS = "Stratalog", "Apache Kafka"
ON, OFF = "1,000 ACLs", "no authorizer"
RECORD_BYTES = 1024
ACLS = 1000
CONNECTIONS = 16
STUCK, RATE = 1000, 500
PROTOCOL_RATES = (2_000, 10_000)
PLAIN, NO_DOOR, LOGIN, TLS = "plain, the door", "plain, no door", "SASL_PLAINTEXT", "TLS"


@contextmanager
def tls_brokers(scratch: Path, authority: Authority) -> Iterator[dict[str, tuple[Server, Server]]]:
    """Yield both brokers, each by its plain and by its TLS listener."""
    identity = authority.issue("broker")
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(identity.pem)}
    protocols = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT"
    }
    lines = "".join(f"{name}={value}\n" for name, value in (settings | protocols).items())
    our_port, our_tls, their_tls = free_ports(3)
    listeners = f"PLAINTEXT://127.0.0.1:{our_port},SSL://127.0.0.1:{our_tls}"
    with (
        strata(scratch / "ours", "", listeners=listeners, **settings) as ours,
        kafka(scratch / "theirs", tls=f"SSL://127.0.0.1:{their_tls}\n{lines}") as theirs,
    ):
        plain = replace(ours, port=our_port)
        yield {
            OURS: (plain, replace(plain, port=our_tls)),
            THEIRS: (theirs, replace(theirs, port=their_tls)),
        }


def throughput(
    bench: Bench, kind: str, peer: str, servers: tuple[Server, Server], options: tuple[str, ...]
) -> None:
    """Measure a producer and a consumer on `servers[1]`; `servers[0]` creates and removes their topic."""
    through, server = servers
    topic = f"acl-{kind.replace(' ', '-').replace(',', '')}"
    create(through, topic, 1)
    count = bench.count(500_000)
    touch_memory(count * 2 * RECORD_BYTES)
    made = load.produce(server, topic, RECORD_BYTES, count, *options)
    read = load.consume(server, topic, count, *options)
    drop(through, topic)
    for what, found in (("produce", made), ("consume", read)):
        bench.note(f"{kind}{what} 1 KiB, MB/s", peer, found.rate)
        bench.note(f"{kind}{what} 1 KiB, CPU s/GB", peer, found.cpu)


def requests(bench: Bench, peer: str, server: Server) -> None:
    """Measure small requests: there the decision is the largest part."""
    create(server, "acl-small", 1)
    rate, cpu = load.many_producers(server, "acl-small", CONNECTIONS, 5 * bench.scale)
    drop(server, "acl-small")
    bench.note(f"{CONNECTIONS} connections, requests/s", peer, rate)
    bench.note(f"{CONNECTIONS} connections, CPU ms/request", peer, cpu)


@contextmanager
def stuck_handshakes(server: Server) -> Iterator[None]:
    """Keep 1,000 connections that begin a handshake, all at once a second after the start, and do not go on."""
    greeting = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), greeting, server_hostname="127.0.0.1"
    )
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = greeting.read()
    with ExitStack() as streams:

        def begin() -> None:
            time.sleep(1)
            for _ in range(STUCK):
                stream = socket.create_connection(("127.0.0.1", server.port), 60)
                streams.enter_context(stream).sendall(hello)

        beginning = threading.Thread(target=begin)
        beginning.start()
        yield
        beginning.join()


def beside_handshakes(
    bench: Bench, peer: str, servers: tuple[Server, Server], options: tuple[str, ...]
) -> None:
    """Measure a steady producer over TLS alone, and beside stuck handshakes."""
    through, server = servers
    create(through, "steady", 1)
    seconds = max(4.0, 8 * bench.scale)
    _median, alone = load.latencies(server, "steady", RATE, seconds, *options)
    with stuck_handshakes(server):
        _median, beside = load.latencies(server, "steady", RATE, seconds, *options)
    drop(through, "steady")
    bench.note(f"TLS, p99 at {RATE}/s, ms", peer, alone)
    bench.note(f"the same beside {STUCK:,} stuck handshakes, ms", peer, beside)
    bench.note("beside them / alone", peer, beside / alone)


def turns(bench: Bench, number: int) -> list[str]:
    """Return the brokers in the order of a round: the second one finds memory as the first left it."""
    return list(bench.starters) if number % 2 == 0 else list(bench.starters)[::-1]


def measure_tls(bench: Bench, warming: Bench) -> None:
    authority = Authority(bench.scratch / "authority")
    options = ("-X", "security.protocol=ssl", "-X", f"ssl.ca.location={authority.certificate}")
    with tls_brokers(bench.scratch, authority) as brokers:
        for number in range(-1, bench.rounds):
            noted = bench if number >= 0 else warming
            for peer in turns(bench, number):
                throughput(noted, "TLS, ", peer, brokers[peer], options)
                plain = brokers[peer][0]
                throughput(noted, "plain, ", peer, (plain, plain), ())
                beside_handshakes(noted, peer, brokers[peer], options)


@contextmanager
def brokers_with_and_without_acls(scratch: Path) -> Iterator[dict[str, Server]]:
    """Yield two brokers of ours. The clients are User:ANONYMOUS, whose rights on topics `acl-…` are two of the ACLs."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The broker sends requests to itself as User:ANONYMOUS too, and has its right from an ACL.
        "super.users": "User:admin",
    }
    with strata(scratch / "on", "", **authorizer | {"super.users": "User:ANONYMOUS"}) as server:
        add_acls(server)
    with ExitStack() as stack:
        yield {
            ON: stack.enter_context(strata(scratch / "on", "", **authorizer)),
            OFF: stack.enter_context(strata(scratch / "off", "")),
        }


def add_acls(server: Server) -> None:
    kinds = {
        PatternType.LITERAL: ResourcePatternType.LITERAL,
        PatternType.PREFIXED: ResourcePatternType.PREFIXED,
    }
    allow = AclPermissionType.ALLOW
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            one.name,
            kinds[PatternType(one.pattern_type)],
            one.principal,
            "*",
            AclOperation.READ,
            allow,
        )
        for one in drawn(ACLS - 2)
    ]
    for resource, name, kind, operation in (
        (ResourceType.TOPIC, "acl-", ResourcePatternType.PREFIXED, AclOperation.ALL),
        (ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, AclOperation.ALL),
    ):
        bindings.append(AclBinding(resource, name, kind, "User:ANONYMOUS", "*", operation, allow))
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.create_acls(bindings, request_timeout=60).values():
        future.result(60)


def measure_acls(bench: Bench, warming: Bench) -> None:
    with brokers_with_and_without_acls(bench.scratch) as brokers:
        for number in range(-1, bench.rounds):
            noted = bench if number >= 0 else warming
            for peer in turns(bench, number):
                server = brokers[peer]
                throughput(noted, "", peer, (server, server), ())
                requests(noted, peer, server)


@contextmanager
def protocols(scratch: Path) -> Iterator[dict[str, tuple[Server, Server, tuple[str, ...]]]]:
    """Yield, of each protocol, a broker by its plain listener, by the protocol's, and the client's options."""
    authority = Authority(scratch / "authority")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    plain, login, tls = free_ports(3)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{login},SSL://127.0.0.1:{tls}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker").pem),
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_bench="bench";',
    }
    words = ("security.protocol=sasl_plaintext", "sasl.mechanisms=PLAIN")
    words += ("sasl.username=bench", "sasl.password=bench")
    trust = ("security.protocol=ssl", f"ssl.ca.location={authority.certificate}")
    handlers = {"small.requests.compiled": "false"}
    with (
        strata(scratch / "door", "", **settings) as ours,
        strata(scratch / "no-door", "", **handlers) as without,
    ):
        through = replace(ours, port=plain)
        yield {
            PLAIN: (through, through, ()),
            NO_DOOR: (without, without, ()),
            LOGIN: (through, replace(ours, port=login), options_of(words)),
            TLS: (through, replace(ours, port=tls), options_of(trust)),
        }


def options_of(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for word in words for one in ("-X", word))


def measure_protocols(bench: Bench, warming: Bench) -> None:
    with protocols(bench.scratch) as servers:
        for number in range(-1, bench.rounds):
            noted = bench if number >= 0 else warming
            for peer in turns(bench, number):
                through, server, options = servers[peer]
                create(through, "paced", 1)
                for rate in PROTOCOL_RATES:
                    seconds = max(2.0, 6 * bench.scale)
                    before = server.cpu_seconds()
                    middle, slow = load.latencies(server, "paced", rate, seconds, *options)
                    used = (server.cpu_seconds() - before) * 1000 / (rate * seconds)
                    noted.note(f"{rate:,}/s, CPU ms a record", peer, used)
                    noted.note(f"{rate:,}/s, p50 ms", peer, middle)
                    noted.note(f"{rate:,}/s, p99 ms", peer, slow)
                drop(through, "paced")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=("tls", "acls", "protocols"))
    chosen = parser.parse_args()
    product_command()
    for name, peers, measure in (
        ("tls", (OURS, THEIRS), measure_tls),
        ("acls", (ON, OFF), measure_acls),
        ("protocols", (PLAIN, NO_DOOR, LOGIN, TLS), measure_protocols),
    ):
        if chosen.only not in {None, name}:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
            place = Path(scratch)
            starters = dict.fromkeys(peers, strata)
            bench = Bench(chosen.rounds, chosen.scale, [], place, starters)
            measure(bench, Bench(1, chosen.scale, [], place, starters))
        report(bench, time.monotonic() - begun)


if __name__ == "__main__":
    main()
