"""Stories of requests about records; see `differential_stories`.

In: a `Broker`. Out: its trace.
"""

from typing import Any
from uuid import UUID

from tests.compat.differential import GONE, Broker, Connection
from tests.compat.differential_stories import TIMESTAMP_MS, Story, topic
from tests.fuzz.poison import (
    CODECS,
    ODD,
    UNSOUND,
    bomb,
    record,
    sound,
    with_fields,
    with_records,
)
from tests.integration.waiting import wait_for

from stratalog.client.calls import error_of
from stratalog.wire.compression import compress
from stratalog.wire.records import Record, build_batch

RECORD_STORIES: list[Story] = []


def story(function: Story) -> Story:
    RECORD_STORIES.append(function)
    return function


def batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: str = "none",
) -> bytes:
    """Return one batch; `producer` is id, epoch and first sequence."""
    records = [
        Record(0, TIMESTAMP_MS + number, key, value, (("h", b"1"),))
        for number, value in enumerate(values)
    ]
    producer_id, epoch, sequence = producer
    return bytes(
        build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def produce(
    connection: Connection,
    name: str,
    *batches: bytes | None,
    topic_id: UUID | None = None,
    **more: Any,
) -> Any:
    """Produce each batch to partition 0 in its own request."""
    answer = None
    for one in batches:
        answer = connection.ask(
            "Produce",
            topics=[
                {
                    "name": connection.broker.name(name),
                    "topic_id": topic_id or GONE,
                    "partitions": [(more.get("partition", 0), one)],
                }
            ],
            acks=more.get("acks", -1),
        )
    return answer


def fetch(
    connection: Connection, name: str, topic_id: UUID | None, offset: int, **more: Any
) -> Any:
    return connection.ask(
        "Fetch",
        replica_id=-1,
        max_wait=more.get("max_wait", 0),
        min_bytes=more.get("min_bytes", 1),
        max_bytes=more.get("max_bytes", 1 << 20),
        isolation_level=more.get("isolation_level", 0),
        session_id=more.get("session_id", 0),
        session_epoch=more.get("session_epoch", -1),
        rack_id="",
        topics=[
            {
                "topic": connection.broker.name(name),
                "topic_id": topic_id or GONE,
                "partitions": [
                    {
                        "partition": more.get("partition", 0),
                        "current_leader_epoch": more.get("leader_epoch", -1),
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": more.get("partition_max_bytes", 1 << 20),
                    }
                ],
            }
        ],
        forgotten_topics_data=[],
    )


def list_offsets(
    connection: Connection, name: str, *timestamps: int, partition: int = 0, leader_epoch: int = -1
) -> None:
    for timestamp in timestamps:
        connection.ask(
            "ListOffsets",
            replica_id=-1,
            topics=[
                {
                    "name": connection.broker.name(name),
                    "partitions": [
                        {
                            "partition_index": partition,
                            "current_leader_epoch": leader_epoch,
                            "timestamp": timestamp,
                        }
                    ],
                }
            ],
            timeout=1000,
        )


@story
def records_are_produced(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "log")
    send = {"topic_id": topic_id}
    produce(ask, "log", batch(b"a", b"b"), batch(None, key=None), **send)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        produce(ask, "log", batch(b"x" * 100, codec=codec), **send)
    produce(ask, "log", batch(b"a"), acks=1, **send)
    produce(ask, "log", batch(b"a"), acks=2, **send)
    produce(ask, "log", batch(b"a"), partition=1, **send)
    produce(ask, "absent", batch(b"a"))
    produce(ask, "log", b"", **send)
    whole = batch(b"a")
    produce(ask, "log", whole[:-1] + b"~", **send)
    produce(ask, "log", whole + whole, **send)
    produce(ask, "log", whole[:-3], **send)
    produce(ask, "log", whole[:16] + b"\x01" + whole[17:], **send)
    produce(ask, "log", batch(b"x" * 2_000_000), **send)
    ask.ask("Produce", topics=[], acks=-1)
    ask.ask(
        "Produce",
        transactional_id=None,
        topics=[{"name": broker.name("log"), "topic_id": topic_id, "partitions": []}],
    )
    list_offsets(ask, "log", -1, -2)
    fetch(ask, "log", topic_id, 0)


@story
def nothing_is_answered_to_acks_0(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "quiet")
    ask.send(
        "Produce",
        topics=[
            {"name": broker.name("quiet"), "topic_id": topic_id, "partitions": [(0, batch(b"a"))]}
        ],
        acks=0,
    )
    ask.waiting.pop()
    list_offsets(ask, "quiet", -1)


def put(connection: Connection, name: str, topic_id: UUID, one: bytes) -> None:
    """Produce a batch to partition 0; leave the answer out of the trace."""
    wanted = {"name": connection.broker.name(name), "topic_id": topic_id, "partitions": [(0, one)]}
    connection.send("Produce", topics=[wanted], acks=-1)
    connection.receive(traced=False)


def producer_id(connection: Connection, **asked: Any) -> Any:
    """Request an id until the broker gives one: Kafka must allocate a block of ids first."""
    answer = None

    def is_final() -> bool:
        nonlocal answer
        connection.send("InitProducerId", **asked)
        answer = connection.receive(traced=False)
        return error_of(answer.error_code).name != "coordinator_load_in_progress"

    wait_for(is_final, "a block of producer ids")
    connection.broker.add("InitProducerId", answer)
    return answer


@story
def producers_are_idempotent(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "once")
    first = producer_id(
        ask, transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )
    pid = first.producer_id

    def send(epoch: int, sequence: int, *values: bytes) -> None:
        produce(
            ask,
            "once",
            batch(*(values or (b"a",)), producer=(pid, epoch, sequence)),
            topic_id=topic_id,
        )

    send(0, 0)
    send(0, 1, b"b", b"c")
    send(0, 1, b"b", b"c")
    send(0, 0)
    send(0, 5)
    send(0, 2)
    for sequence in range(3, 10):
        send(0, sequence)
    send(0, 3)
    send(0, 5)
    send(1, 7)
    send(1, 0)
    send(0, 10)
    send(1, 1)
    send(3, 0)
    produce(ask, "once", batch(b"a", producer=(pid + 1_000_000, 0, 7)), topic_id=topic_id)
    produce(ask, "once", batch(b"a", producer=(pid + 1_000_001, 5, 0)), topic_id=topic_id)
    produce(ask, "once", batch(b"a", producer=(pid + 1_000_002, -1, 0)), topic_id=topic_id)
    produce(ask, "once", batch(b"a", producer=(pid + 1_000_003, 0, -1)), topic_id=topic_id)
    ask.ask(
        "DescribeProducers",
        topics=[
            {"name": broker.name("once"), "partition_indexes": [5]},
            {"name": broker.name("absent"), "partition_indexes": [0]},
        ],
    )
    fetch(ask, "once", topic_id, 0)
    list_offsets(ask, "once", -1, -3)


@story
def producer_ids_are_given(broker: Broker) -> None:
    ask = broker.connect()
    first = producer_id(
        ask, transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )
    ask.ask(
        "InitProducerId",
        transactional_id=None,
        transaction_timeout=0,
        producer_id=-1,
        producer_epoch=-1,
    )
    ask.ask(
        "InitProducerId",
        transactional_id=None,
        transaction_timeout=60_000,
        producer_id=first.producer_id,
        producer_epoch=0,
    )
    ask.ask(
        "InitProducerId",
        transactional_id="",
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )


@story
def records_are_fetched(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "read")
    for number in range(4):
        put(ask, "read", topic_id, batch(b"%d" % number * 100, b"y"))
    for offset in (0, 1, 7, 8, 9, -1, 100):
        fetch(ask, "read", topic_id, offset)
    fetch(ask, "read", topic_id, 0, isolation_level=1)
    fetch(ask, "read", topic_id, 0, partition_max_bytes=1)
    fetch(ask, "read", topic_id, 0, max_bytes=1)
    fetch(ask, "read", topic_id, 0, max_bytes=0)
    fetch(ask, "read", topic_id, 0, partition_max_bytes=400)
    fetch(ask, "read", topic_id, 8, max_wait=50, min_bytes=1)
    fetch(ask, "read", topic_id, 0, partition=3)
    fetch(ask, "read", topic_id, 0, leader_epoch=0)
    fetch(ask, "read", topic_id, 0, leader_epoch=1000)
    fetch(ask, "absent", GONE, 0)


@story
def fetches_have_sessions(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "session")
    if broker.version(1) < 7:
        return
    answer = fetch(ask, "session", topic_id, 0, session_epoch=0)
    session = answer.session_id

    def again(epoch: int, session_id: int, topics: Any = (), forgotten: Any = ()) -> None:
        ask.ask(
            "Fetch",
            replica_id=-1,
            max_wait=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session_id,
            session_epoch=epoch,
            rack_id="",
            topics=list(topics),
            forgotten_topics_data=list(forgotten),
        )

    again(1, session)
    put(ask, "session", topic_id, batch(b"a"))
    again(2, session)
    again(9, session)
    again(1, 123)
    again(
        3,
        session,
        forgotten=[{"topic": broker.name("session"), "topic_id": topic_id, "partitions": [0]}],
    )
    again(-1, session)
    again(4, session)
    again(-1, 0)
    again(5, 0)


@story
def offsets_are_listed(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "times")
    list_offsets(ask, "times", -1, -2, -3, -4, -5, 5, -6, -7)
    for number in range(3):
        put(ask, "times", topic_id, batch(b"%d" % number, b"y"))
    list_offsets(
        ask, "times", -1, -2, -3, -4, -5, 0, TIMESTAMP_MS, TIMESTAMP_MS + 1, TIMESTAMP_MS + 2
    )
    list_offsets(ask, "times", -1, partition=1)
    list_offsets(ask, "times", -1, leader_epoch=0)
    list_offsets(ask, "times", -1, leader_epoch=1000)
    list_offsets(ask, "absent", -1)
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    ask.ask(
        "ListOffsets",
        replica_id=-1,
        topics=[{"name": broker.name("times"), "partitions": [asked, asked]}],
        timeout=1000,
    )
    for current, epoch, partition in (
        (-1, 0, 0),
        (-1, 5, 0),
        (0, 0, 0),
        (1000, 0, 0),
        (-1, -1, 0),
        (-1, 0, 4),
    ):
        wanted = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        ask.ask(
            "OffsetForLeaderEpoch",
            replica_id=-1,
            topics=[{"topic": broker.name("times"), "partitions": [wanted]}],
        )


@story
def records_have_odd_times(broker: Broker) -> None:
    """From before 1970, without a time, and beyond every time where the broker gives its own."""
    ask = broker.connect()
    topics = {
        "old": topic(ask, "old"),
        "stamped": topic(ask, "stamped", message__timestamp__type="LogAppendTime"),
        "bounded": topic(ask, "bounded", message__timestamp__before__max__ms="1000"),
    }
    for name, topic_id in topics.items():
        for codec in ("none", "zstd"):
            for times in ((-86_400_000,), (-2, -5), (-1,), (-(1 << 40), 7), (1 << 62,)):
                made = [Record(0, at, b"k", b"v", ()) for at in times]
                put(ask, name, topic_id, bytes(build_batch(made, codec=codec)))
            if name != "stamped":
                list_offsets(ask, name, -1, -3, 0)
    fetch(ask, "old", topics["old"], 0)


@story
def records_are_deleted(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "cut")
    for _ in range(2):
        put(ask, "cut", topic_id, batch(b"a", b"b", b"c"))
    for name, partition, offset in (
        ("cut", 0, 2),
        ("cut", 0, 1),
        ("cut", 0, 7),
        ("cut", 0, -2),
        ("cut", 3, 0),
        ("absent", 0, 0),
        ("cut", 0, -1),
    ):
        ask.ask(
            "DeleteRecords",
            topics=[
                {
                    "name": broker.name(name),
                    "partitions": [{"partition_index": partition, "offset": offset}],
                }
            ],
            timeout=10_000,
        )
        fetch(ask, "cut", topic_id, 1)
    list_offsets(ask, "cut", -2, -1, 0)
    topic(ask, "compacted", cleanup__policy="compact")
    ask.ask(
        "DeleteRecords",
        topics=[
            {"name": broker.name("compacted"), "partitions": [{"partition_index": 0, "offset": 0}]}
        ],
        timeout=10_000,
    )


@story
def the_cluster_is_described(broker: Broker) -> None:
    ask = broker.connect()
    topic(ask, "sized")
    for authorized in (False, True):
        ask.ask(
            "DescribeCluster", include_cluster_authorized_operations=authorized, endpoint_type=1
        )
    if broker.version(60) >= 1:
        ask.ask("DescribeCluster", endpoint_type=9)
    ask.ask("DescribeLogDirs", topics=[{"topic": broker.name("sized"), "partitions": [0, 5]}])
    ask.ask("DescribeLogDirs", topics=[])
    ask.ask("DescribeLogDirs", topics=[{"topic": broker.name("absent"), "partitions": [0]}])
    ask.ask(
        "DescribeQuorum",
        topics=[{"topic_name": broker.name("sized"), "partitions": [{"partition_index": 0}]}],
    )


@story
def poison_is_refused(broker: Broker) -> None:
    """Trace only the codes and the named records: a batch that one broker accepts has no offset at the other."""
    ask = broker.connect()
    topics = {"plain": topic(ask, "plain"), "keyed": topic(ask, "keyed", cleanup__policy="compact")}
    topics["packed"] = topic(ask, "packed", compression__type="gzip")

    def send(what: str, name: str, codec: int, payload: bytes, count: int = 1) -> None:
        packed = compress(codec, payload) if codec else payload
        sent = with_fields(with_records(codec, packed, count), {7: TIMESTAMP_MS, 8: TIMESTAMP_MS})
        put_as(what, name, codec, sent)

    def put_as(what: str, name: str, codec: int, sent: bytes) -> None:
        ask.send(
            "Produce",
            topics=[
                {
                    "name": broker.name(name),
                    "topic_id": topics[name],
                    "partitions": [(0, sent)],
                }
            ],
            acks=-1,
        )
        (found,) = ask.receive(traced=False).responses[0].partition_responses
        named = [one.batch_index for one in found.record_errors]
        broker.add(f"Produce {what}/{CODECS[codec]}", [found.error_code, named])

    for codec in (0, 1, 3, 4):
        for what, payload in {**UNSOUND, **ODD}.items():
            send(what, "plain", codec, payload)
        late = record(timestamp_delta=1 << 40)
        mixed = late + record(offset_delta=1) + record(offset_delta=2, timestamp_delta=1 << 40)
        send("a time to come", "plain", codec, mixed, 3)
        keyless = record(key=None) + record(offset_delta=1) + record(offset_delta=2, key=None)
        send("no keys", "keyed", codec, keyless, 3)
        send("fewer than it says", "plain", codec, record() + record(offset_delta=1), 3)
        put_as(
            "a largest time that lies", "plain", codec, with_fields(sound(CODECS[codec]), {8: 5})
        )
        if codec:
            put_as("no such bytes", "plain", codec, with_records(codec, b"nothing of the kind", 1))
            put_as("a bomb", "plain", codec, bomb(codec))
    send("to be packed", "packed", 0, record())
    send("a length before the record's end", "packed", 0, record(length=3))
