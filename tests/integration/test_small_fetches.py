"""Fetches that wait at the door have the answers and metrics of the same fetches that handlers serve.

Three brokers get the same requests: one without a door, one with the compiled door, one with the door in Python. A
producer sends a batch once all consumers wait; so each answer is known, whichever request arrives first.
"""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.compat.tools import cannot_be_had
from tests.sim.door import PythonDoor
from tests.wire_client import Wire

from stratalog.adapters.compiled_door import open_door
from stratalog.adapters.local_disk import LocalDisk
from stratalog.broker.small_fetches import SmallFetches
from stratalog.errors import ErrorCode
from stratalog.metadata.rights import Operation, Resource
from stratalog.testing import TemporaryBroker
from stratalog.wire.apis import FETCH
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.records import Record, build_batch

NOW = 1_700_000_000_000
CONSUMERS, ROUNDS = 12, 60
LONG_MS = 60_000
TIMEOUT_S = 30
HANDLERS = {"small.requests.compiled": "false"}
DOOR = {"small.requests.compiled": "true"}


def fetch(topic, offset: int, **more) -> FetchRequest:
    """Return a fetch of partition 0, by the topic's name or id."""
    limits = {"max_wait_ms": LONG_MS, "min_bytes": 1} | more
    partition = FetchPartition(
        partition=limits.pop("index", 0),
        fetch_offset=offset,
        partition_max_bytes=limits.pop("partition_max_bytes", 1 << 20),
        current_leader_epoch=limits.pop("leader_epoch", -1),
    )
    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    return FetchRequest(topics=[FetchTopic(partitions=[partition], **named)], **limits)


class Consumer:
    """A connection that fetches at the tail, and now and then something else."""

    def __init__(self, port: int, number: int, topic_id, source: str = "") -> None:
        self.chance = random.Random(number)
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (source, 0))
        self.incoming = self.socket.makefile("rb")
        self.topic_id = topic_id
        self.version = self.chance.choice((4, 6, 7, 11, 11, 11, 12, 13, 16, 18))
        self.offset = 0
        self.waits_for = 0
        self.sent = 0
        self.answers: list[bytes] = []

    def send(self, request) -> None:
        self.sent += 1
        version = self.version if isinstance(request, FetchRequest) else 2
        client = "other" if self.chance.random() < 0.01 else "consumer"
        pieces = encode_request(version, self.sent, client, request)
        self.socket.sendall(b"".join(bytes(one) for one in pieces))

    def receive(self) -> None:
        head = self.incoming.read(4)
        assert len(head) == 4, "an answer"
        answer = head + self.incoming.read(int.from_bytes(head, "big"))
        self.answers.append(answer.replace(self.topic_id.bytes, bytes(16)))

    def ask(self, end: int) -> None:
        """Send a fetch at the end of the log, unless one waits; some of them get an error first."""
        if self.waits_for:
            return
        topic = self.topic_id if self.version >= 13 else "t"
        kind = self.chance.random()
        if kind < 0.02:
            self.send(ApiVersionsRequest())
            self.receive()
        elif kind < 0.05:
            self.send(fetch(topic, end + 7))
            self.receive()
        elif kind < 0.07:
            self.send(fetch(topic, end, index=5))
            self.receive()
        elif kind < 0.09 and self.version >= 9:
            self.send(fetch(topic, end, leader_epoch=77))
            self.receive()
        elif kind < 0.14:
            self.send(fetch(topic, end, max_wait_ms=10))
            self.receive()
        limits = {}
        if self.chance.random() < 0.2:
            limits["min_bytes"] = self.chance.choice((200, 500))
        if self.chance.random() < 0.1:
            limits["partition_max_bytes"] = 1
        if self.chance.random() < 0.2:
            limits["isolation_level"] = 1
        self.waits_for = min(limits.get("min_bytes", 1), 1 << 20)
        self.offset = end
        self.send(fetch(topic, end, **limits))

    def close(self) -> None:
        self.incoming.close()
        self.socket.close()


@contextmanager
def serving(tmp_path: Path, settings: dict[str, str]) -> Iterator[tuple[TemporaryBroker, Wire]]:
    broker = TemporaryBroker(settings, directory=tmp_path)
    with broker, Wire(broker.address) as wire:
        yield broker, wire


def port(broker: TemporaryBroker) -> int:
    return int(broker.address.rpartition(":")[2])


def batch(value: bytes) -> bytes:
    return bytes(build_batch([Record(0, NOW, None, value)]))


def run(directory: Path, settings: dict[str, str], seed: int) -> dict[str, object]:
    """Let consumers follow a producer; return all that they got, and what the broker counted."""
    chance = random.Random(seed)
    with serving(directory, settings) as (broker, wire):
        topic_id = wire.topic_id("t")
        consumers = [Consumer(port(broker), 1000 * seed + at, topic_id) for at in range(CONSUMERS)]
        ends = [0]
        for _ in range(ROUNDS):
            for one in consumers:
                one.ask(len(ends) - 1)
            made = batch(bytes(chance.randrange(150)))
            assert wire.produce("t", made, acks=1).error_code == 0
            ends.append(ends[-1] + len(made))
            for one in consumers:
                if ends[-1] - ends[one.offset] >= one.waits_for:
                    one.receive()
                    one.waits_for = 0
        inner = broker._node.broker
        requests = inner.metrics.requests
        (hosted,) = [one for one in inner.hosting.all() if one.name.topic == "t"]
        found = {
            "answers": [one.answers for one in consumers],
            "errors": {key: count for key, count in requests.errors.items() if key[0] == FETCH},
            "requests": sum(requests.durations[FETCH].counts),
            "out": (hosted.metrics.bytes_out, hosted.metrics.messages_out),
        }
        for one in consumers:
            one.close()
        wait_until(lambda: not len(inner.purgatory), "no fetch waits for a client that left")
        wait_until(lambda: not inner.client_memory.requests, "no request is in memory")
    return found


def records_bytes(answer: bytes) -> int:
    """Return the size of the records in an answer of version 11."""
    _, body = decode_response(FETCH, 11, memoryview(answer)[4:])
    return sum(len(part.records) for one in body.responses for part in one.partitions)


def wait_until(holds, what: str) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def compiled():
    """Skip, or fail in CI, where the installation has no compiled door."""
    door = open_door()
    if door is None:
        cannot_be_had("the compiled door", "install cargo, then run hatch_build.py")
    door.close()


@pytest.fixture
def groups(monkeypatch):
    """Note how many connections each answer of the door goes to."""
    noted = []
    answer = SmallFetches._answer

    def noting(self, loans, *more):
        noted.append(len(loans))
        return answer(self, loans, *more)

    monkeypatch.setattr(SmallFetches, "_answer", noting)
    return noted


@pytest.fixture(params=["compiled", "python"])
def kind(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr("stratalog.adapters.system.open_door", PythonDoor)
    return request.param


@pytest.mark.parametrize("seed", [1, 2])
def test_the_door_answers_and_counts_fetches_as_the_handlers_do(kind, seed, tmp_path, groups):
    expected = run(tmp_path / "handlers", HANDLERS, seed)
    assert not groups
    found = run(tmp_path / "door", DOOR, seed)
    assert sum(groups) > CONSUMERS * ROUNDS // 4, "many fetches wait at the door"
    assert max(groups) > 1, "some answers go to several connections"
    for ours, theirs in zip(found["answers"], expected["answers"], strict=True):
        assert ours == theirs
    assert found == expected


def waiting(broker: TemporaryBroker, wire: Wire, number: int = 3) -> Consumer:
    """Return a consumer whose fetch waits at the door."""
    one = Consumer(port(broker), number, wire.topic_id("t"))
    one.version = 11
    (hosted,) = [at for at in broker._node.broker.hosting.all() if at.name.topic == "t"]
    end = hosted.high_watermark
    lender = broker._node._connections._shared.lender
    for _ in range(50):
        one.send(fetch("t", end))
        wait_until(lambda: len(broker._node.broker.purgatory), "the fetch waits")
        if lender._fetches._groups:
            one.offset = end
            return one
        assert wire.produce("t", batch(b"x"), acks=1).error_code == 0
        one.receive()
        end += 1
    raise AssertionError("no fetch waits at the door")


def test_a_request_behind_a_waiting_fetch_is_answered_after_it(kind, tmp_path):
    with serving(tmp_path, DOOR) as (broker, wire):
        one = waiting(broker, wire)
        answered = len(one.answers)
        one.send(ApiVersionsRequest())
        one.send(fetch("t", one.offset, max_wait_ms=0))
        lender = broker._node._connections._shared.lender
        wait_until(lambda: not lender._fetches._groups, "the connection goes on by itself")
        assert wire.produce("t", batch(b"later"), acks=1).error_code == 0
        for _ in range(3):
            one.receive()
        numbers = [int.from_bytes(answer[4:8], "big") for answer in one.answers[answered:]]
        assert numbers == [one.sent - 2, one.sent - 1, one.sent]
        assert [b"later" in answer for answer in one.answers[answered:]] == [True, False, True]
        one.close()


class Pair:
    """Two consumers at 127.0.0.1 and 127.0.0.2 of a broker with ACLs, whose fetches wait at the door."""

    def __init__(self, broker: TemporaryBroker, wire: Wire, version: int) -> None:
        self._broker, self._wire, self._version = broker, wire, version
        topic_id = wire.topic_id("t")
        self.topic = "t" if version < 13 else topic_id
        self.both = [Consumer(port(broker), 3, topic_id, f"127.0.0.{at}") for at in (1, 2)]
        self.lender = broker._node._connections._shared.lender
        for end in range(50):
            self.ask(end)
            wait_until(lambda: len(broker._node.broker.purgatory), "a fetch waits")
            time.sleep(0.05)  # in most rounds both wait then
            are_lent = len(self.lender._fetches._groups) == 2
            self.produce()
            for one in self.both:
                one.receive()
            if are_lent:
                break
        assert are_lent
        self.end = end + 1

    def ask(self, offset: int) -> None:
        for one in self.both:
            one.version = self._version
            one.send(fetch(self.topic, offset))

    def produce(self) -> None:
        assert self._wire.produce("t", batch(b"record"), acks=1).error_code == 0

    def take_the_right_of_the_second(self) -> None:
        authorizer = self._broker._node.broker.authorizer
        (session,) = [
            one.session
            for one in self.lender._connections.values()
            if one.session.host == "127.0.0.2"
        ]
        self._wire.permit_host("t", "127.0.0.1")
        right = (Operation.READ, Resource.TOPIC, "t")
        wait_until(lambda: not authorizer.allows(session, *right), "the ACL counts")

    def close(self) -> list[int]:
        """Return the errors of the last answers."""
        last = [memoryview(one.answers[-1])[4:] for one in self.both]
        answers = [decode_response(FETCH, self._version, one)[1] for one in last]
        for one in self.both:
            one.close()
        return [one.responses[0].partitions[0].error_code for one in answers]


RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.mark.parametrize("version", [11, 13])
def test_a_client_that_may_no_longer_read_is_refused_beside_one_that_waits(kind, version, tmp_path):
    with serving(tmp_path, DOOR | RIGHTS) as (broker, wire):
        pair = Pair(broker, wire, version)
        pair.take_the_right_of_the_second()
        pair.ask(pair.end)
        pair.both[1].receive()
        wait_until(lambda: len(pair.lender._fetches._groups) == 1, "the other one waits")
        pair.produce()
        pair.both[0].receive()
        assert pair.close() == [0, 29]


@pytest.mark.parametrize("version", [11, 13])
def test_a_fetch_that_began_to_wait_before_its_right_was_taken_gets_no_record(
    kind, version, tmp_path
):
    with serving(tmp_path, DOOR | RIGHTS) as (broker, wire):
        pair = Pair(broker, wire, version)
        pair.ask(pair.end)
        wait_until(lambda: len(pair.lender._fetches._groups) == 2, "both wait at the door")
        pair.take_the_right_of_the_second()
        pair.produce()
        for one in pair.both:
            one.receive()
        assert [b"record" in one.answers[-1] for one in pair.both] == [True, False]
        assert pair.close() == [0, 29]


@pytest.mark.parametrize("version", [11, 13])
def test_a_waiting_fetch_that_leaves_the_door_has_its_right_checked(kind, version, tmp_path):
    with serving(tmp_path, DOOR | RIGHTS) as (broker, wire):
        pair = Pair(broker, wire, version)
        pair.ask(pair.end)
        wait_until(lambda: len(pair.lender._fetches._groups) == 2, "both wait at the door")
        pair.take_the_right_of_the_second()
        for one in pair.both:
            one.send(ApiVersionsRequest())
        wait_until(lambda: not pair.lender._fetches._groups, "the connections go on by themselves")
        pair.produce()
        for one in pair.both:
            one.receive()
        assert [b"record" in one.answers[-1] for one in pair.both] == [True, False]
        assert pair.close() == [0, 29]


@pytest.mark.parametrize("min_bytes", [1, 1 << 20])
def test_a_cold_fetch_at_the_door_is_read_once(kind, min_bytes, tmp_path, monkeypatch):
    read = []
    whole_read = LocalDisk.read

    def noting(self, path, position, size):
        if path.endswith(".log"):
            read.append(position)
        return whole_read(self, path, position, size)

    with serving(tmp_path, DOOR) as (broker, wire), closing(waiting(broker, wire)) as one:
        assert wire.produce("t", batch(b"tail"), acks=1).error_code == 0
        one.receive()
        inner = broker._node.broker
        (hosted,) = [at for at in inner.hosting.all() if at.name.topic == "t"]
        with monkeypatch.context() as patch:  # as if the memory held no records
            hosted.log.tail.clear()
            patch.setattr(LocalDisk, "try_read", lambda *_: None)
            patch.setattr(LocalDisk, "cached", lambda *_: None)
            patch.setattr(LocalDisk, "read", noting)
            one.send(fetch("t", one.offset, max_wait_ms=10, min_bytes=min_bytes))
            one.receive()
        assert b"tail" in one.answers[-1]
        # A fetch that waits for more looks again once its time is over.
        assert len(read) == (1 if min_bytes == 1 else 2)
        assert not broker._node._connections._shared.lender._fetches._reading
        assert hosted.metrics.bytes_out == sum(map(records_bytes, one.answers))


def test_a_consumer_that_leaves_leaves_no_wait(kind, tmp_path):
    with serving(tmp_path, DOOR) as (broker, wire):
        one = waiting(broker, wire)
        lender = broker._node._connections._shared.lender
        one.close()
        wait_until(lambda: not len(broker._node.broker.purgatory), "the wait is over")
        wait_until(lambda: len(broker._node._connections) == 1, "the connection is closed")
        assert len(lender._connections) <= 1, "the producer's"
        assert not lender._fetches._groups
        assert not lender._fetches._latest


def test_a_fetch_of_a_connection_that_ends_as_it_comes_back_leaves_no_wait(kind, tmp_path):
    with serving(tmp_path, DOOR) as (broker, wire), closing(waiting(broker, wire)):
        lender = broker._node._connections._shared.lender
        (loan,) = lender._fetches._groups
        connection = lender._connections[loan]
        ended = threading.Event()

        def end() -> None:
            connection._transport.abort()
            lender.recall(loan)
            ended.set()

        connection._loop.call_soon_threadsafe(end)
        assert ended.wait(TIMEOUT_S)
        wait_until(lambda: not len(broker._node.broker.purgatory), "no fetch waits for the client")


def test_a_fetch_that_waits_at_the_door_learns_that_the_topic_is_deleted(kind, tmp_path):
    with serving(tmp_path, DOOR) as (broker, wire):
        one = waiting(broker, wire)
        state = DeleteTopicState(name=None, topic_id=wire.topic_id("t"))
        deleted = wire.ask(6, DeleteTopicsRequest(topics=[state], timeout_ms=10_000))
        assert [gone.error_code for gone in deleted.responses] == [0]
        one.receive()
        # size, correlation, throttle, error, session, topics, name, partitions, index
        at = 4 + 4 + 4 + 2 + 4 + 4 + (2 + 1) + 4 + 4
        code = int.from_bytes(one.answers[-1][at : at + 2], "big")
        assert code == ErrorCode.unknown_topic_or_partition
        one.close()


def test_fetches_in_a_session_stay_with_the_handlers(kind, tmp_path):
    with serving(tmp_path, DOOR) as (broker, wire):
        one = Consumer(port(broker), 3, wire.topic_id("t"))
        one.version = 11
        one.send(fetch("t", 0, max_wait_ms=0, session_epoch=0))
        one.receive()
        # size, correlation, throttle, error
        session = int.from_bytes(one.answers[-1][14:18], "big")
        assert session, "a session begins"
        for epoch in range(1, 6):
            in_session = FetchRequest(
                max_wait_ms=20, min_bytes=1, session_id=session, session_epoch=epoch, topics=[]
            )
            one.send(in_session)
            one.receive()
            assert one.answers[-1][12:14] == bytes(2), "no error"
        assert not broker._node._connections._shared.lender._connections
        one.close()


def test_an_answer_that_a_socket_does_not_take_arrives_whole(kind, tmp_path):
    value = random.Random(5).randbytes(7 << 20)
    settings = DOOR | {"message.max.bytes": str(16 << 20)}
    with serving(tmp_path, settings) as (broker, wire):
        one = waiting(broker, wire)
        assert wire.produce("t", batch(value), acks=1).error_code == 0
        lender = broker._node._connections._shared.lender
        wait_until(lambda: not lender._fetches._groups, "the answer is on its way")
        one.send(fetch("t", one.offset, min_bytes=0))
        for _ in range(2):
            one.receive()
            assert value in one.answers[-1]
        one.close()


def test_a_fetch_that_waits_is_no_idle_connection(kind, tmp_path):
    settings = DOOR | {"connections.max.idle.ms": "1000"}
    with serving(tmp_path, settings) as (broker, wire):
        one = waiting(broker, wire)
        assert wire.produce("t", batch(b"x"), acks=1).error_code == 0
        one.receive()
        one.send(fetch("t", one.offset + 1, max_wait_ms=5000))
        one.receive()
        one.close()


def test_all_connections_come_back_when_clients_get_quotas(kind, tmp_path):
    with serving(tmp_path, DOOR) as (broker, wire):
        one = waiting(broker, wire)
        entry = AlterClientQuotasRequestEntryData(
            entity=[
                AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name="other")
            ],
            ops=[OpData(key="consumer_byte_rate", value=1e9, remove=False)],
        )
        altered = wire.ask(1, AlterClientQuotasRequest(entries=[entry], validate_only=False))
        assert [done.error_code for done in altered.entries] == [0]
        lender = broker._node._connections._shared.lender
        wait_until(lambda: not lender._connections, "no connection is lent")
        assert wire.produce("t", batch(b"counted"), acks=1).error_code == 0
        one.receive()
        assert b"counted" in one.answers[-1]
        one.close()


def test_a_broker_that_stops_answers_the_fetch_that_waits(kind, tmp_path):
    with serving(tmp_path, DOOR) as (broker, wire):
        one = waiting(broker, wire)
        broker.stop()
        one.receive()
        one.close()
