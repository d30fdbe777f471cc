"""Requests that the door serves have the answers, files and metrics of the same requests that handlers serve.

Three brokers get the same streams: one without a door, one with the compiled door, one with the door in Python.
"""

import random
import socket
import ssl
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.compat.tools import cannot_be_had
from tests.fuzz.door import attack
from tests.produce import produce_body
from tests.sim.door import PythonDoor
from tests.wire_client import Wire

from stratalog.adapters.compiled_door import CompiledDoor, open_door
from stratalog.broker.small_requests import SmallRequests
from stratalog.metadata.rights import Operation, Resource
from stratalog.testing import TemporaryBroker
from stratalog.wire.apis import PRODUCE
from stratalog.wire.envelope import encode_request
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from stratalog.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from stratalog.wire.messages.sasl_handshake import SaslHandshakeRequest
from stratalog.wire.records import Record, build_batch

NOW = 1_700_000_000_000
TOPICS = {
    "plain": {},
    "keyed": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "small": {"max.message.bytes": "300", "segment.bytes": str(1 << 20)},
}
PARTITIONS = 2
SEEDS = (1, 2)
COMPILED = {"small.requests.compiled": "true"}


def batch(chance: random.Random, sequence: dict[int, int]) -> bytearray:
    """Return a batch: most are good, others repeat, leave a gap, or have a damaged byte somewhere."""
    count = chance.randint(1, 3)
    far = chance.random() < 0.004
    key = b"k" if chance.random() < 0.995 else None
    headers = (("h", b"v"),) if chance.random() < 0.1 else ()
    records = [
        Record(0, NOW + (1 << 44 if far else at), key, bytes(chance.randint(0, 120)), headers)
        for at in range(count)
    ]
    codec = "gzip" if chance.random() < 0.004 else "none"
    producer = chance.randrange(4)
    if producer == 3:
        made = build_batch(records, codec=codec)
    else:
        kind = chance.random()
        first = sequence.get(producer, 0)
        if kind < 0.02:
            first += 1
        elif kind < 0.1:
            first = max(first - count, 0)
        else:
            sequence[producer] = first + count
        made = build_batch(
            records, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=first
        )
    if chance.random() < 0.008:
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return made


def stream(chance: random.Random, ids: dict, topic: str, index: int) -> list[bytes]:
    """Return the frames of one connection."""
    frames = []
    sequence: dict[int, int] = {}
    for number in range(500):
        kind = chance.random()
        version = chance.choice((3, 5, 7, 8, 9, 11, 12, 13, 13))
        client = "other" if kind < 0.003 else "me"
        if kind > 0.997:
            request = ApiVersionsRequest()
            version = 2
        else:
            named = ids[topic] if version == 13 else topic
            acks = 1 if kind < 0.8 else -1
            data = batch(chance, sequence)
            if kind > 0.994:
                data = build_batch([Record(0, NOW, b"k", bytes(20_000))])
            request = produce_body(named, data, acks=acks, index=index if kind < 0.99 else 77)
        pieces = encode_request(version, number, client, request)
        frames.append(b"".join(bytes(one) for one in pieces))
    return frames


def exchange(port: int, frames: list[bytes], chance: random.Random) -> list[bytes]:
    """Send frames in bursts, cut anywhere; return the answers."""
    answers = []
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        incoming = connection.makefile("rb")
        while frames:
            count = chance.choice((1, 1, 4, 16, 40))
            burst, frames = frames[:count], frames[count:]
            data = b"".join(burst)
            while data:
                size = chance.choice((len(data), len(data), 10, 1000))
                connection.sendall(data[:size])
                data = data[size:]
            for _ in burst:
                head = incoming.read(4)
                if len(head) < 4:
                    return [*answers, b"closed"]
                answers.append(head + incoming.read(int.from_bytes(head, "big")))
    return answers


def wait_until(holds, what: str) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def run(
    tmp_path: Path,
    name: str,
    seed: int,
    settings: dict[str, str],
    topics_of=TOPICS,
    streams_of=lambda *words: [stream(*words)],
) -> dict[str, object]:
    """Send the streams of a seed to a broker; return all that it answered, wrote and counted."""
    quiet = {
        "log.retention.check.interval.ms": "3600000",
        "log.index.interval.bytes": "500",
        **settings,
    }
    broker = TemporaryBroker(quiet, directory=tmp_path / name)
    broker._clock.now_ms = lambda: NOW
    answers = {}
    with broker:
        with Wire(broker.address) as wire:
            topics = [
                CreatableTopic(
                    name=topic,
                    num_partitions=PARTITIONS,
                    replication_factor=1,
                    assignments=[],
                    configs=[
                        CreatableTopicConfig(name=one, value=value)
                        for one, value in settings.items()
                    ],
                )
                for topic, settings in topics_of.items()
            ]
            made = wire.ask(7, CreateTopicsRequest(topics=topics, timeout_ms=30_000))
        ids = {one.name: one.topic_id for one in made.topics}
        assert all(one.error_code == 0 for one in made.topics)
        # The same ids for each broker would need one seed: the answers of version 13 are compared without them.
        for topic in topics_of:
            for index in range(PARTITIONS):
                chance = random.Random(f"{seed} {topic} {index}")
                found = []
                for frames in streams_of(chance, ids, topic, index):
                    found += exchange(int(broker.address.rpartition(":")[2]), frames, chance)
                answers[topic, index] = [one.replace(ids[topic].bytes, bytes(16)) for one in found]
        inner = broker._node.broker
        requests = inner.metrics.requests
        counted = {
            "errors": {key: count for key, count in requests.errors.items() if key[0] == PRODUCE},
            "requests": sum(requests.durations[PRODUCE].counts),
            "bytes": {
                str(one.name): one.metrics.bytes_in
                for one in inner.hosting.all()
                if one.name.topic in topics_of
            },
        }
        wait_until(lambda: not inner.client_memory.requests, "no request is in memory")
        broker.stop()
        files = {
            (path.parent.name, path.name): path.read_bytes()
            for topic in topics_of
            for path in sorted((tmp_path / name).glob(f"{topic}-*/*"))
            if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
        }
    return {"answers": answers, "counted": counted, "files": files}


@pytest.fixture(autouse=True)
def compiled():
    """Skip, or fail in CI, where the installation has no compiled door."""
    door = open_door()
    if door is None:
        cannot_be_had("the compiled door", "install cargo, then run hatch_build.py")
    door.close()


@pytest.fixture
def rows(monkeypatch):
    """Count the rows that the broker decides."""
    counted = []
    decide = SmallRequests._decide

    def counting(self, groups):
        counted.extend(len(group.rows) for group in groups)
        return decide(self, groups)

    monkeypatch.setattr(SmallRequests, "_decide", counting)
    return counted


@pytest.mark.parametrize("kind", ["compiled", "python"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_door_answers_writes_and_counts_as_the_handlers_do(
    kind, seed, tmp_path, monkeypatch, rows
):
    expected = run(tmp_path, "handlers", seed, {"small.requests.compiled": "false"})
    assert not rows
    if kind == "python":
        monkeypatch.setattr("stratalog.adapters.system.open_door", PythonDoor)
    found = run(tmp_path, "door", seed, {"small.requests.compiled": "true"})
    assert sum(rows) > 200, "many requests are rows"
    assert max(rows) > 4, "some turns have several rows"
    for place, answers in expected["answers"].items():
        assert found["answers"][place] == answers, place
    assert found["counted"] == expected["counted"]
    assert found["files"].keys() == expected["files"].keys()
    for place, data in expected["files"].items():
        assert found["files"][place] == data, place


def test_the_compiled_door_accepts_no_frame_that_the_handlers_would_refuse():
    accepted, sound = attack(5000, seed=3)
    assert 0.8 * sound < accepted <= sound


def test_a_broker_without_the_library_says_so_once_and_serves(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("stratalog.adapters.system.open_door", lambda: None)
    broker = TemporaryBroker({"small.requests.compiled": "true"}, directory=tmp_path)
    with broker, Wire(broker.address) as wire:
        assert wire.ask(2, ApiVersionsRequest()).error_code == 0
    said = capfd.readouterr().out
    assert said.count("small requests are not compiled") == 1


@pytest.fixture
def loans(monkeypatch):
    """Note each connection that the door borrows."""
    noted = []
    borrow = CompiledDoor.borrow

    def noting(self, transport, client_id):
        noted.append(client_id)
        return borrow(self, transport, client_id)

    monkeypatch.setattr(CompiledDoor, "borrow", noting)
    return noted


def small() -> bytes:
    return bytes(build_batch([Record(0, NOW, b"k", b"v")]))


def lend(broker: TemporaryBroker, wire: Wire) -> None:
    """Produce until the connection is lent: a slow drive returns it."""
    lender, until = broker._node._connections._shared.lender, time.monotonic() + 60
    while not lender._connections:
        assert time.monotonic() < until, "the connection is lent"
        assert answers_of(wire, 2) == [0, 0]
        time.sleep(0.01)


def answers_of(wire: Wire, count: int) -> list[int]:
    return [wire.produce("t", small()).error_code for _ in range(count)]


def both_in_one_turn(lender: SmallRequests, wires: list[Wire], acks: list[int]) -> None:
    """Produce over each connection while the loop stands still."""
    stands, arrived = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        arrived.wait()

    lender._loop.call_soon_threadsafe(stand)
    stands.wait()
    for wire, one in zip(wires, acks, strict=True):
        wire.send_produce("t", small(), acks=one)
    arrived.set()


def test_a_request_with_other_acks_returns_its_own_connection_and_no_other(rows):
    with TemporaryBroker(COMPILED) as broker, ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.address)) for _ in range(2)]
        wires[0].topic_id("t")
        lender = broker._node._connections._shared.lender

        def is_alone() -> bool:
            """Return whether the other connection stays lent. A slow write returns it, too: then try again."""
            while len(lender._connections) < 2:
                assert [one.produce("t", small(), acks=1).error_code for one in wires] == [0, 0]
                time.sleep(0.01)
            rows.clear()
            both_in_one_turn(lender, wires, [0, 1])
            answer = wires[1].receive_produced()
            assert answer.error_code == 0
            assert rows == [2]
            later = [wires[at].produce("t", small(), acks=1).base_offset for at in (1, 0)]
            assert later == [answer.base_offset + 2, answer.base_offset + 3]
            return sum(rows) > 2

        wait_until(is_alone, "the connection with acks=1 stays at the door")


def test_a_failure_of_the_test_broker_reaches_a_lent_connection(loans, rows):
    with TemporaryBroker(COMPILED) as broker, Wire(broker.address) as wire:
        wire.topic_id("t")
        lend(broker, wire)
        assert answers_of(wire, 1) == [0]
        assert rows
        lend(broker, wire)
        broker.fail("Produce", "NOT_ENOUGH_REPLICAS", times=2)
        before = len(loans)
        assert answers_of(wire, 10) == [19, 19, *[0] * 8]
        assert len(loans) == before, "a broker with a failure lends no connection"
        broker.restart()
        with Wire(broker.address) as again:
            lend(broker, again)  # the failure is used up


def test_no_connection_with_tls_is_lent(loans):
    with TemporaryBroker(COMPILED, tls=True) as broker:
        trusting = ssl.create_default_context(cafile=str(broker.authority.certificate))
        with Wire(broker.address, trusting) as wire:
            wire.topic_id("t")
            for _ in range(10):
                assert wire.produce("t", small()).error_code == 0
    assert loans == []


@pytest.mark.parametrize("longest_ms", [0, 3_600_000])
def test_a_session_that_has_logged_in_is_lent_unless_it_ends(loans, rows, longest_ms):
    logins = "org.apache.kafka.common.security.plain.PlainLoginModule required user_a='planted';"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": logins.replace("'", '"'),
        "connections.max.reauth.ms": str(longest_ms),
    }
    with TemporaryBroker(COMPILED | settings) as broker, Wire(broker.address) as wire:
        assert wire.ask(1, SaslHandshakeRequest(mechanism="PLAIN")).error_code == 0
        answer = wire.ask(2, SaslAuthenticateRequest(auth_bytes=b"\0a\0planted"))
        assert (answer.error_code, answer.session_lifetime_ms) == (0, longest_ms)
        wire.topic_id("t")
        if longest_ms:
            assert answers_of(wire, 10) == [0] * 10
            assert loans == []
        else:
            lend(broker, wire)
            assert answers_of(wire, 1) == [0]
            assert rows


def test_rows_of_a_client_without_the_right_are_refused_and_no_others(rows):
    class_name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    everything = {"authorizer.class.name": class_name, "allow.everyone.if.no.acl.found": "true"}
    with TemporaryBroker(COMPILED | everything) as broker, ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.address, source=f"127.0.0.{at}")) for at in (1, 2)]
        wires[0].topic_id("t")
        lender, authorizer = (
            broker._node._connections._shared.lender,
            broker._node.broker.authorizer,
        )

        def are_lent() -> bool:
            assert [one.produce("t", small(), acks=1).error_code for one in wires] == [0, 0]
            return len(lender._connections) == 2

        wait_until(are_lent, "both connections are lent")
        sessions = [one.session for one in lender._connections.values()]
        with Wire(broker.address) as third:
            third.permit_host("t", "127.0.0.1")
        wait_until(
            lambda: sum(may_write(authorizer, one) for one in sessions) == 1, "the ACL counts"
        )
        rows.clear()
        both_in_one_turn(lender, wires, [1, 1])
        assert [one.receive_produced().error_code for one in wires] == [0, 29]
        assert rows == [2], "both requests were rows"
        for _ in range(10):
            assert [one.produce("t", small()).error_code for one in wires] == [0, 29]
        assert sum(rows) > 5, "the other client stays at the door"
        assert sessions[1] not in [one.session for one in lender._connections.values()]


def may_write(authorizer, session) -> bool:
    return authorizer.allows(session, Operation.WRITE, Resource.TOPIC, "t")
