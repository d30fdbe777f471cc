"""A fetch that repeats the last one has the answer and the metrics of the same fetch that the handler serves.

Method: two brokers on threads of this process get the same requests. In the second one no connection expects a next
fetch, so the handler serves each of them. Random requests are drawn from a seed; special cases have tests of their own.
"""

import json
import random
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.integration.waiting import wait_for
from tests.wire_client import TIMEOUT_S, Wire

from stratalog.adapters.local_disk import LocalDisk
from stratalog.broker.fetching import repeating
from stratalog.broker.replication.leading import Follower
from stratalog.errors import ErrorCode
from stratalog.metadata.rights import Operation, Resource
from stratalog.testing import TemporaryBroker
from stratalog.wire.apis import FETCH
from stratalog.wire.batch import HEADER_SIZE, parse_header
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from stratalog.wire.records import Record, build_batch

NOW = 1_700_000_000_000
STEPS = 400
SESSION_AT = 10
"""Behind a correlation id, a throttle time and an error code."""
TOPIC = "t"
SMALL_SEGMENTS = {"log.segment.bytes": str(1 << 20)}
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def batch(size: int, count: int = 1) -> bytes:
    return bytes(build_batch([Record(at, NOW, None, bytes(size)) for at in range(count)]))


class Consumer:
    """A connection that fetches partition 0 of a topic, by the topic's id."""

    def __init__(self, address: str, topic_id, version: int = 16, trusting=None) -> None:
        host, _colon, port = address.rpartition(":")
        stream = socket.create_connection((host, int(port)), TIMEOUT_S)
        if trusting is not None:
            stream = trusting.wrap_socket(stream, server_hostname=host)
        self.stream, self.incoming = stream, stream.makefile("rb")
        self.topic_id, self.version = topic_id, version
        self.client_id = "consumer"
        self.sent = self.position = 0
        self.limits: dict[str, int] = {}

    def ask(self, request) -> bytes:
        """Return the answer to a request, without its length and what differs by broker: ids."""
        self.sent += 1
        version = self.version if isinstance(request, FetchRequest) else 2
        pieces = encode_request(version, self.sent, self.client_id, request)
        self.stream.sendall(b"".join(bytes(one) for one in pieces))
        size = int.from_bytes(self.incoming.read(4), "big")
        answer = self.incoming.read(size)
        assert len(answer) == size, "an answer"
        if isinstance(request, FetchRequest):
            at = SESSION_AT + (version >= 12)
            has_session = int.from_bytes(answer[at : at + 4]) > 0
            answer = answer[:at] + has_session.to_bytes(4) + answer[at + 4 :]
        return answer.replace(self.topic_id.bytes, bytes(16))

    def fetch(self, offset: int, **changes) -> bytes:
        return self.ask(self.request(offset, **changes))

    def request(self, offset: int, **changes) -> FetchRequest:
        limits = {"max_wait_ms": 10, "min_bytes": 1} | changes
        partition = FetchPartition(
            partition=limits.pop("index", 0),
            fetch_offset=offset,
            partition_max_bytes=limits.pop("partition_max_bytes", 1 << 20),
            current_leader_epoch=limits.pop("leader_epoch", -1),
            last_fetched_epoch=limits.pop("last_fetched_epoch", -1),
        )
        topic = FetchTopic(
            topic=TOPIC if self.version < 13 else "",
            topic_id=self.topic_id if self.version >= 13 else ZERO_ID,
            partitions=[partition],
        )
        return FetchRequest(topics=[topic], **limits)

    def partition(self, answer: bytes):
        """Return the one partition of an answer to a fetch, and the whole answer."""
        body = decode_response(FETCH, self.version, memoryview(answer))[1]
        return (body.responses[0].partitions[0] if body.responses else None), body

    def close(self) -> None:
        self.incoming.close()
        self.stream.close()


@pytest.fixture
def repeated(monkeypatch) -> Counter:
    """Count the fetches that were answered as repetitions, `True`, and those left to the handler."""
    noted: Counter = Counter()
    answer = repeating._NextFetch.answer

    def noting(self, *more):
        found = answer(self, *more)
        noted[found is not None] += 1
        return found

    monkeypatch.setattr(repeating._NextFetch, "answer", noting)
    return noted


def trust_of(broker: TemporaryBroker, *, tls: bool) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=str(broker.authority.certificate)) if tls else None


class Drive:
    """Lets the page cache have nothing for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold = False
        for name in ("cached", "try_read"):
            monkeypatch.setattr(LocalDisk, name, self._unless_cold(getattr(LocalDisk, name)))

    def _unless_cold(self, function):
        return lambda *arguments: None if self.is_cold else function(*arguments)


def run(
    directory: Path, seed: int, drive: Drive, *, tls: bool = False, old: bool = False
) -> dict[str, object]:
    """Let consumers read while a producer writes; return all that they got, and what the broker counted.

    `old` records have left the log's memory, many are not in the page cache, and batches are small beside the limits.
    """
    chance = random.Random(seed)
    with (
        TemporaryBroker(SMALL_SEGMENTS, directory=directory, tls=tls) as broker,
        ExitStack() as stack,
    ):
        trusting = trust_of(broker, tls=tls)
        wire = stack.enter_context(Wire(broker.address, trusting))
        topic_id = wire.topic_id(TOPIC)
        versions = (11, 12, 13, 14, 15, 16, 17, 18)
        consumers = [Consumer(broker.address, topic_id, one, trusting) for one in versions]
        (hosted,) = [one for one in broker._node.broker.hosting.all() if one.name.topic == TOPIC]
        answers, end, start = [], 0, 0
        for one in consumers if old else ():
            one.limits = {"partition_max_bytes": 170_000}
        for _ in range(200 if old else 0):
            assert wire.produce(TOPIC, batch(chance.randrange(20_000, 30_000), 2)).error_code == 0
            end += 2
        for _ in range(STEPS):
            if chance.random() < 0.25:
                count = chance.choice((1, 1, 5, 400))
                size = chance.choice((0, 300, 150_000)) if count < 9 else 400
                assert wire.produce(TOPIC, batch(size, count)).error_code == 0
                end += count
            if chance.random() < 0.01:
                start = chance.randrange(start, end + 1)
                gone = DeleteRecordsPartition(partition_index=0, offset=start)
                topic = DeleteRecordsTopic(name=TOPIC, partitions=[gone])
                wire.ask(2, DeleteRecordsRequest(topics=[topic], timeout_ms=10_000))
            drive.is_cold = chance.random() < (0.3 if old else 0.05)
            if old:
                hosted.log.tail.clear()
            answers.append(step(chance, chance.choice(consumers), start, end))
        requests = broker._node.broker.metrics.requests
        for one in consumers:
            stack.callback(one.close)
        return {
            "answers": answers,
            "errors": {key: count for key, count in requests.errors.items() if key[0] == FETCH},
            "requests": sum(requests.durations[FETCH].counts),
            "out": (hosted.metrics.bytes_out, hosted.metrics.messages_out),
        }


def step(chance: random.Random, one: Consumer, start: int, end: int) -> bytes:
    """Let a consumer read on, mostly; now and then it changes its limits, jumps, or asks for something else."""
    kind = chance.random()
    if kind < 0.03:
        one.limits = chance.choice(
            (
                {},
                {"partition_max_bytes": chance.choice((0, 1, 70_000, 300_000))},
                {"isolation_level": 1},
                {"min_bytes": 100_000},
                {"min_bytes": 1 << 30, "max_bytes": 200_000},
                {"min_bytes": 200_000, "max_wait_ms": 0},
                {"max_bytes": chance.choice((0, 1, 90_000))},
                {"leader_epoch": 0},
                {"session_epoch": 0},
            )
        )
    elif kind < 0.05:
        one.position = chance.choice((start - 1, start, end, end + 1, chance.randrange(end + 2)))
    elif kind < 0.06:
        one.client_id = chance.choice(("consumer", "other", ""))
    elif kind < 0.07:
        return one.ask(ApiVersionsRequest())[:8]
    elif kind < 0.08:
        return one.fetch(one.position, leader_epoch=77)
    answer = one.fetch(one.position, **one.limits)
    partition, _ = one.partition(answer)
    if partition is None or partition.error_code:
        one.position = start
        return answer
    records, place = bytes(partition.records or b""), 0
    while place + HEADER_SIZE <= len(records):
        header = parse_header(records, place)
        place += header.size
        if place <= len(records):
            one.position = header.next_offset
    return answer


@pytest.mark.parametrize(
    ("seed", "kind"),
    [(1, {}), (2, {}), (3, {"old": True}), (4, {"tls": True})],
    ids=["1", "2", "old", "tls"],
)
def test_answers_and_metrics_are_those_of_the_handler(
    seed: int,
    kind: dict[str, bool],
    tmp_path: Path,
    repeated: Counter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drive = Drive(monkeypatch)
    found = run(tmp_path / "repeated", seed, drive, **kind)
    assert repeated[True] > STEPS // 8, "many fetches are answered as repetitions"
    assert repeated[False] > STEPS // 20, "and some are not"
    repeated.clear()
    monkeypatch.setattr("stratalog.broker.apis.fetch.expect_next", lambda _gathering: None)
    expected = run(tmp_path / "handlers", seed, drive, **kind)
    assert not repeated
    for ours, theirs in zip(found["answers"], expected["answers"], strict=True):
        assert ours == theirs
    assert found == expected


@contextmanager
def reading(
    settings: dict[str, str], records: int = 1, size: int = 100_000
) -> Iterator[tuple[TemporaryBroker, Wire, Consumer]]:
    """Yield a broker with ten large batches, a client, and a consumer that has read three of them, one a fetch."""
    with TemporaryBroker(settings) as broker, Wire(broker.address) as wire:
        topic_id = wire.topic_id(TOPIC)
        for _ in range(10):
            assert wire.produce(TOPIC, batch(size, records)).error_code == 0
        one = Consumer(broker.address, topic_id)
        limits = {"partition_max_bytes": 1} if records == 1 else {}
        for at in range(3):
            assert one.partition(one.fetch(at * records, **limits))[0].records
        yield broker, wire, one
        one.close()


def test_the_third_fetch_in_a_row_is_a_repetition(repeated: Counter) -> None:
    with reading({}) as (_, _, one):
        assert repeated == {True: 1}
        assert one.partition(one.fetch(7, partition_max_bytes=1))[0].records
        assert repeated == {True: 2}, "an offset is free"
        one.fetch(7, partition_max_bytes=2)
        one.fetch(7, partition_max_bytes=1, index=5)
        one.fetch(7, partition_max_bytes=1, leader_epoch=0)
        one.version = 17
        one.fetch(7, partition_max_bytes=1, leader_epoch=0)
        assert repeated == {True: 2, False: 4}, "other bytes, of the same number, are not"


@pytest.mark.parametrize(
    "changes",
    [
        {"session_epoch": 0},
        {"last_fetched_epoch": 0},
        {"replica_state": ReplicaState(replica_id=2)},
        {"rack_id": "r"},
    ],
    ids=["session", "last fetched epoch", "follower", "rack"],
)
def test_a_fetch_that_depends_on_more_is_left_to_the_handler(
    repeated: Counter, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Follower, "fetches", lambda *_: None)  # as if broker 2 had a replica
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with reading({"replica.selector.class": selector}) as (_, _, one):
        for offset in range(4):
            partition, _ = one.partition(one.fetch(offset, **changes))
            assert partition.records
        assert repeated[True] == 1, "the one before"


def test_small_answers_have_no_form(repeated: Counter) -> None:
    with reading({}) as (_, wire, one):
        other = Consumer(f"127.0.0.1:{one.stream.getpeername()[1]}", wire.topic_id("small"))
        for _ in range(5):
            assert wire.produce("small", batch(10)).error_code == 0
        for offset in range(5):
            other.fetch(offset, partition_max_bytes=1)
        other.close()
        assert repeated == {True: 1}


def test_a_fetch_waits_for_the_bytes_that_it_asks_for() -> None:
    with reading({}) as (_, wire, one):
        limits = {"min_bytes": 150_000, "max_wait_ms": 1000 * TIMEOUT_S}
        for offset in range(3):
            one.fetch(offset, **limits)
        sending = threading.Timer(0.2, wire.produce, (TOPIC, batch(100_000)))
        sending.start()
        partition, _ = one.partition(one.fetch(9, **limits))
        sending.join()
        assert len(partition.records) > 200_000


def test_an_answer_is_one_batch_while_clients_leave_too_much_unread() -> None:
    with reading({}) as (broker, _, one):
        for offset in range(3):
            assert len(one.partition(one.fetch(offset))[0].records) > 300_000
        memory = broker._node.broker.client_memory
        memory.answers += memory.answers_max
        assert len(one.partition(one.fetch(3))[0].records) < 200_000
        memory.answers -= memory.answers_max


def test_a_partition_that_is_being_truncated_has_no_offsets() -> None:
    with reading({}) as (broker, _, one):
        (hosted,) = [at for at in broker._node.broker.hosting.all() if at.name.topic == TOPIC]
        hosted.rewriting = object()
        partition, _ = one.partition(one.fetch(3, partition_max_bytes=1))
        hosted.rewriting = None
        assert partition.error_code == ErrorCode.offset_not_available


def test_a_session_has_the_client_id_of_its_newest_request(repeated: Counter) -> None:
    with reading({}) as (broker, _, one):
        (session,) = [at.session for at in broker._node._connections if at.session.answer_next]
        one.client_id = "another"
        one.ask(ApiVersionsRequest())
        assert session.client_id == "another"
        one.client_id = "consumer"
        one.fetch(3, partition_max_bytes=1)
        assert repeated[True] == 2
        assert session.client_id == "consumer"


def test_a_long_request_is_not_kept(repeated: Counter) -> None:
    with reading({}) as (_, _, one):
        for offset in range(3):
            one.fetch(offset, rack_id="r" * 1_000)
        assert repeated[True] == 1


def test_large_batches_stay_in_their_file() -> None:
    with reading({}) as (broker, _, _):
        (hosted,) = [one for one in broker._node.broker.hosting.all() if one.name.topic == TOPIC]
        hosted.log.tail.clear()
        (piece,) = hosted.read_at_once(5, 1, 1, end_offset=10, from_file=True).pieces
        assert not isinstance(piece, memoryview)
        assert len(piece) > 100_000


def test_a_read_beside_a_swap_of_files_is_left_to_the_handler() -> None:
    with reading({}) as (broker, _, _):
        (hosted,) = [one for one in broker._node.broker.hosting.all() if one.name.topic == TOPIC]
        hosted.log.tail.clear()
        assert hosted.read_at_once(5, 1, 1, end_offset=10, from_file=False)
        hosted._swap = object()
        assert hosted.read_at_once(5, 1, 1, end_offset=10, from_file=False) is None
        hosted._swap = None


def test_a_client_that_may_no_longer_read_is_denied_and_audited_once(
    repeated: Counter, tmp_path: Path
) -> None:
    path = tmp_path / "audit.log"
    settings = {"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true"}
    with reading(settings | {"audit.log.path": str(path)}) as (broker, wire, one):
        assert repeated[True], "the client may read"
        authorizer = broker._node.broker.authorizer
        wire.permit_host(TOPIC, "127.0.0.9")
        (session,) = [at.session for at in broker._node._connections if at.session.answer_next]
        right = (Operation.READ, Resource.TOPIC, TOPIC)
        wait_for(lambda: not authorizer.allows(session, *right), "the ACL counts")
        partition, _ = one.partition(one.fetch(3, partition_max_bytes=1))
        assert partition.error_code == ErrorCode.topic_authorization_failed
        assert not partition.records
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len([at for at in lines if at["event"] == "denied" and at["api"] == "Fetch"]) == 1


def test_a_deleted_topic_is_unknown(repeated: Counter) -> None:
    with reading({}) as (_, wire, one):
        assert repeated[True]
        state = DeleteTopicState(name=None, topic_id=one.topic_id)
        deleted = wire.ask(6, DeleteTopicsRequest(topics=[state], timeout_ms=10_000))
        assert [gone.error_code for gone in deleted.responses] == [0]
        wire.topic_id(TOPIC)  # a new topic of the name
        partition, _ = one.partition(one.fetch(3, partition_max_bytes=1))
        assert partition.error_code == ErrorCode.unknown_topic_id


def test_a_quota_counts_from_when_it_is_set(repeated: Counter) -> None:
    with reading({}) as (broker, wire, one):
        assert repeated[True]
        entity = AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=None)
        rate = OpData(key="consumer_byte_rate", value=1000.0, remove=False)
        entry = AlterClientQuotasRequestEntryData(entity=[entity], ops=[rate])
        wire.ask(1, AlterClientQuotasRequest(entries=[entry], validate_only=False))
        throttling = broker._node.broker.throttling
        wait_for(lambda: throttling.is_on, "the quota counts")
        partition, body = one.partition(one.fetch(3, partition_max_bytes=1))
        assert partition is None
        assert body.throttle_time_ms
        assert repeated[True] == 1


def test_an_audit_of_data_requests_has_each_fetch(repeated: Counter, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = {"audit.log.path": str(path), "audit.log.data.requests": "true"}
    with reading(audit | {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}):
        assert not repeated
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len([one for one in lines if one.get("api") == "Fetch"]) == 3


def test_a_reader_of_committed_records_stops_at_open_transactions_and_learns_of_aborted_ones(
    repeated: Counter,
) -> None:
    with reading({}) as (broker, _, one):
        limits = {"partition_max_bytes": 1, "isolation_level": 1}
        another = Consumer(broker.address, one.topic_id)
        for offset in range(3, 6):
            one.fetch(offset, **limits)
            another.fetch(offset, **limits)
        assert repeated[True] == 4
        producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "x"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(TOPIC, b"aborted" * 20_000, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        assert not one.partition(one.fetch(10, **limits))[0].records
        producer.abort_transaction(TIMEOUT_S)
        wait_for(
            lambda: one.partition(one.fetch(10, **limits))[0].records, "the transaction has ended"
        )
        assert another.partition(another.fetch(10, **limits))[0].aborted_transactions
        assert repeated[True] == 4
        another.close()


def test_numbers_that_look_like_an_offset_s_mark_are_no_form(repeated: Counter) -> None:
    """The mark's bytes in other fields would let the form take those for the offset."""
    high, low = struct.unpack(">ii", struct.pack(">q", repeating._MARK))
    with reading({}) as (_, _, one):
        limits = {"max_wait_ms": high, "min_bytes": low}
        found = [one.partition(one.fetch(offset, **limits))[0] for offset in (0, 5, 0)]
        assert [bytes(at.records)[7] for at in found] == [0, 5, 0]
        partition, _ = one.partition(one.fetch(repeating._MARK, max_wait_ms=0, min_bytes=5))
        assert partition.error_code == ErrorCode.offset_out_of_range
        assert repeated[True] == 1
