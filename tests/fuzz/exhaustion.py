"""Clients without a right that take what all share, and what honest clients see beside them.

usage: python -m tests.fuzz.exhaustion [--minutes 10]

In: how long. Out: the latencies of honest clients by kind of request, alone and beside all attacks of `exhausting`
together; the steps of each attack; the most of the metrics. The command starts a broker. It exits 1 where
an honest request fails, a bound is exceeded, or a p99 is more than twice that of the clients alone and above 5 ms.
"""

import argparse
import http.client
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any, Self

import msgspec
from tests.broker_process import BrokerProcess
from tests.fuzz.beside import anonymous_mib, mib_once_freed
from tests.fuzz.exhausting import WORD, Exhausting, Target, logged_in
from tests.held_port import held_port
from tests.integration.issuer import Issuer
from tests.wire_client import Wire

from stratalog.adapters.free_ports import free_ports
from stratalog.broker.telemetry.series import SERIES_MAX
from stratalog.metadata.rights import Operation, Permission, Resource
from stratalog.replication.fetch_sessions import PARTITIONS_MAX
from stratalog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from stratalog.wire.messages.create_acls import AclCreation, CreateAclsRequest
from stratalog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.records import Record, build_batch

MIB = 1 << 20
TOPIC = "kept"
CLIENTS = 3
HONEST_PAUSE_S = 0.02
LOGIN_EVERY = 20
METRICS_EVERY = 5
JUDGED_MS = 5.0
ONE_MORE = 48 * MIB
"""The request that has its turn past the limit, and the decoded form of one."""
LEFT_MIB = 150
"""The memory that the attacks may leave behind."""
USERS = ("honest", "mallory", "crowd", "admin")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required "


class Running(msgspec.Struct):
    """A broker, and the ports of its listener with logins and of its monitor."""

    broker: Any
    sasl: int
    monitor: int

    @property
    def pid(self) -> int:
        return int(self.broker.process.pid)


@contextmanager
def running(place: Path, *, descriptors: int, request_bytes: int) -> Iterator[Running]:
    """Yield a broker with a topic, on which user `honest` has rights; `crowd` may read one group, `mallory` nothing."""
    broker = BrokerProcess(place / "broker", descriptors=descriptors)
    sasl, (monitor,) = held_port(broker), free_ports(1)
    (place / "keys").mkdir()
    users = " ".join(f'user_{name}="{WORD}"' for name in USERS)
    broker.settings = {
        "tier.url": "",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker.port},LOGIN://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.name.login.plain.sasl.jaas.config": f"{JAAS}{users};",
        "sasl.oauthbearer.jwks.endpoint.url": Issuer(place / "keys").keys.as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "queued.max.request.bytes": str(request_bytes),
        "delegation.token.secret.key": WORD,
        "telemetry.series.enable": "true",
        "monitor.listener": f"127.0.0.1:{monitor}",
    }
    try:
        broker.start()
        permit(broker)
        yield Running(broker, sasl, monitor)
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()


def permit(broker: BrokerProcess) -> None:
    with Wire(broker.address) as admin:
        topic = CreatableTopic(
            name=TOPIC, num_partitions=4, replication_factor=1, assignments=[], configs=[]
        )
        admin.ask(7, CreateTopicsRequest(topics=[topic], timeout_ms=9000, validate_only=False))
        rights = [
            AclCreation(
                resource_type=resource,
                resource_name=name,
                resource_pattern_type=3,
                principal=f"User:{user}",
                host="*",
                operation=operation,
                permission_type=Permission.ALLOW,
            )
            for user, operation, resource, name in (
                ("honest", Operation.ALL, Resource.TOPIC, TOPIC),
                ("crowd", Operation.READ, Resource.GROUP, "crowd"),
            )
        ]
        admin.ask(2, CreateAclsRequest(creations=rights))
        each = AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=None)
        quota = OpData(key="request_percentage", value=90.0, remove=False)
        entry = AlterClientQuotasRequestEntryData(entity=[each], ops=[quota])
        admin.ask(1, AlterClientQuotasRequest(entries=[entry], validate_only=False))


class Honest:
    """`with Honest(running) as honest: …`: clients with rights, each of which does one thing after another."""

    def __init__(self, target: Running, seed: int) -> None:
        self.latencies_ms: dict[str, list[float]] = defaultdict(list)
        self.failures: list[str] = []
        self.most: dict[str, float] = defaultdict(float)
        """The metrics at most, and the process's memory as `MiB`."""
        self._target = target
        self._ending = threading.Event()
        work = [*(lambda n=n: self._client(seed + n) for n in range(CLIENTS)), self._watch]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._kept, args=(one,)) for one in work]

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for one in self._threads:
            one.join()

    def _kept(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, AssertionError, ValueError) as failure:
            self.failures.append(repr(failure))

    def _client(self, seed: int) -> None:
        chance = Random(seed)
        wire, count, session = self._log_in(), 0, 0
        topic_id = wire.topic_id(TOPIC)
        try:
            while not self._ending.wait(HONEST_PAUSE_S):
                count += 1
                if count % LOGIN_EVERY == 0:
                    wire.close()
                    wire = self._log_in()
                kind = chance.choice(("produce 1 KB", "produce 100 KB", "fetch", "session"))
                began = time.perf_counter()
                if kind.startswith("produce"):
                    size = 1000 if kind == "produce 1 KB" else 100_000
                    answer = wire.produce(TOPIC, batch(chance, size), index=chance.randrange(4))
                    assert not answer.error_code, answer
                elif kind == "fetch":
                    fetch(wire, topic_id, -1)
                else:
                    session = fetch(wire, topic_id, session)
                self.latencies_ms[kind].append((time.perf_counter() - began) * 1000)
        finally:
            wire.close()

    def _log_in(self) -> Wire:
        began = time.perf_counter()
        wire = logged_in(self._target.sasl, "honest", "127.0.0.1")
        wire.client_id = "honest"  # the quota of a client id is of all its clients
        self.latencies_ms["login"].append((time.perf_counter() - began) * 1000)
        return wire

    def _watch(self) -> None:
        """Ask whether the broker is ready, and for its metrics."""
        looks = 0
        while not self._ending.wait(0.2):
            began = time.perf_counter()
            asked(self._target.monitor, "/readyz")
            self.latencies_ms["readyz"].append((time.perf_counter() - began) * 1000)
            self.most["MiB"] = max(self.most["MiB"], anonymous_mib(self._target.pid))
            looks += 1
            if looks % METRICS_EVERY:
                continue
            for line in asked(self._target.monitor, "/metrics").splitlines():
                if line.startswith("stratalog_") and not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    self.most[name] = max(self.most[name], float(value))


def asked(port: int, path: str) -> str:
    one = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        one.request("GET", path)
        answer = one.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, (path, answer.status, text[:200])
        return text
    finally:
        one.close()


def batch(chance: Random, size: int) -> bytes:
    return bytes(
        build_batch([Record(0, time.time_ns() // 1_000_000, None, chance.randbytes(size), ())])
    )


def fetch(wire: Wire, topic_id: Any, session: int) -> int:
    """Fetch from each partition; return the session that begins instead of this one. Below 0: none is to begin."""
    wanted = [
        FetchPartition(partition=one, fetch_offset=0, partition_max_bytes=1000) for one in range(4)
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=4000,
        session_id=max(0, session),
        session_epoch=0 if session >= 0 else -1,
        topics=[FetchTopic(topic_id=topic_id, partitions=wanted)],
        forgotten_topics_data=[],
    )
    answer = wire.ask(13, request)
    assert not answer.error_code, answer
    assert bool(answer.session_id) == (session >= 0), "a session"
    return int(answer.session_id)


def bounds(request_bytes: int, descriptors: int) -> dict[str, float]:
    """Return the most that each metric may be."""
    return {
        'stratalog_client_memory_bytes{of="before_login"}': max(
            MIB, min(request_bytes // 16, 16 * MIB)
        ),
        'stratalog_client_memory_bytes{of="requests"}': request_bytes * 9 // 8 + ONE_MORE,
        "stratalog_connections": descriptors // 2 + 50,
        "stratalog_fetch_session_partitions": PARTITIONS_MAX,
        "stratalog_client_metrics_series": SERIES_MAX,
    }


def exceeded(honest: Honest, request_bytes: int, descriptors: int) -> list[str]:
    """Return the bounds that metrics were beyond."""
    return [
        f"{name} was {honest.most[name]:.0f}, above {most:.0f}"
        for name, most in bounds(request_bytes, descriptors).items()
        if honest.most[name] > most
    ]


def p99(latencies_ms: list[float]) -> float:
    return quantiles(latencies_ms, n=100, method="inclusive")[98]


def compared(alone: Honest, beside: Honest) -> list[str]:
    """Print the latencies of both; return what took too long."""
    late = []
    print(f"{'p50, p99, most in ms':20} {'alone':>26} {'beside the attacks':>26}")
    for kind in sorted(alone.latencies_ms):
        rows = [one.latencies_ms[kind] for one in (alone, beside)]
        texts = [f"{quantiles(row)[1]:8.2f} {p99(row):8.2f} {max(row):8.2f}" for row in rows]
        print(f"{kind:20} {texts[0]:>26} {texts[1]:>26}")
        if p99(rows[1]) > max(2 * p99(rows[0]), JUDGED_MS):
            late.append(f"{kind}: p99 {p99(rows[1]):.1f} ms, {p99(rows[0]):.1f} ms alone")
    return late


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.exhaustion", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--alone", type=float, default=1, help="minutes without an attack, before")
    chosen = parser.parse_args()
    descriptors, request_bytes = 4000, 256 * MIB
    with (
        tempfile.TemporaryDirectory(prefix="strata-exhaustion-") as place,
        running(Path(place), descriptors=descriptors, request_bytes=request_bytes) as target,
    ):
        with Honest(target, 1) as alone:
            time.sleep(60 * chosen.alone)
        before = anonymous_mib(target.pid)
        attacks = Exhausting(Target(target.sasl, target.monitor, share=600, pause_s=0.005))
        with Honest(target, 2) as beside, attacks:
            time.sleep(60 * chosen.minutes)
        after = mib_once_freed(target.pid, before + LEFT_MIB)
        found = compared(alone, beside) + exceeded(beside, request_bytes, descriptors)
        found += [f"an honest client: {one}" for one in alone.failures + beside.failures]
        for name, count in attacks.steps.items():
            print(f"{name}: {count} steps")
        for name in sorted((*bounds(1, 1), *ended_of(beside))):
            print(f"{name} at most {beside.most[name]:.0f}")
        print(f"MiB: {before:.0f} before, {beside.most['MiB']:.0f} at most, {after:.0f} after")
        if "Traceback" in target.broker.log_text:
            found.append("a traceback in the broker's log")
        with suppress(KeyError):
            print(f"{len(target.broker.log_text.splitlines())} lines in the broker's log")
    print("\n".join(found) or "all bounds hold")
    return bool(found)


def ended_of(honest: Honest) -> list[str]:
    return [name for name in honest.most if name.startswith("stratalog_connections_ended_total")]


if __name__ == "__main__":
    sys.exit(main())
