"""Goal: every client reads what any client writes, in every codec, and can take over the group of another client.

Method: clients of five independent implementations against a real broker process, and against three nodes, through
`clients`. The tests compare the records that each read with the sent ones, and the clients' views of one topic.
"""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import KafkaConsumer
from tests.compat.clients import CLIENTS, TIMEOUT_S, KafkaJs, Kcat, Sent
from tests.compat.nodes import DEFAULT_FACTOR, NUMBERS, Serving, serving

TRACE = (("trace", "abc"),)
RECORDS = [
    Sent("k0", "v0", TRACE),
    Sent(None, "no key", TRACE),
    Sent("tombstone", None, TRACE),
    Sent("ключ", "значение", TRACE),
    *(Sent(f"k{number}", "x" * number, TRACE) for number in range(1, 21)),
]
EVERY = pytest.mark.parametrize("name", CLIENTS)
EACH_CODEC = [(name, codec) for name, client in CLIENTS.items() for codec in client.codecs]


@pytest.fixture(scope="module", params=NUMBERS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("broker"), request.param) as running:
        yield running


def create(broker: Serving, topic: str, partitions: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, DEFAULT_FACTOR)])[topic].result(TIMEOUT_S)
    return topic


@pytest.mark.parametrize(("name", "codec"), EACH_CODEC)
def test_records_of_a_client_in_any_codec_are_read(broker: Serving, name: str, codec: str) -> None:
    topic = create(broker, f"{name}-{codec}")
    CLIENTS[name].produce(broker.address, topic, RECORDS, codec)
    read = CLIENTS["confluent-kafka"].consume(broker.address, topic, topic, len(RECORDS))
    assert [one.offset for one in read] == list(range(len(RECORDS)))
    assert [one.sent for one in read] == RECORDS


@pytest.fixture(scope="module")
def written(broker: Serving) -> str:
    """Fill a topic with records of each client; return its name."""
    topic = create(broker, "from-all")
    kafkajs, *others = sorted(CLIENTS, key=lambda name: name != "kafkajs")
    for name in (kafkajs, *others):
        CLIENTS[name].produce(broker.address, topic, RECORDS, "gzip")
    return topic


@EVERY
def test_every_client_reads_the_records_of_all_clients(
    broker: Serving, written: str, name: str
) -> None:
    count = len(RECORDS) * len(CLIENTS)
    read = CLIENTS[name].consume(broker.address, written, f"reads-{name}", count)
    assert [one.sent for one in read] == RECORDS * len(CLIENTS)
    same = CLIENTS["confluent-kafka"].consume(broker.address, written, f"beside-{name}", count)
    assert read == same


@EVERY
def test_a_group_continues_with_another_client(broker: Serving, written: str, name: str) -> None:
    """Client one, client two, and client one again: each starts at the other's committed offset."""
    group, first, second = f"goes-on-{name}", CLIENTS[name], CLIENTS["confluent-kafka"]
    begins = [
        client.consume(broker.address, written, group, 10)[0].offset
        for client in (first, second, first)
    ]
    assert begins == [0, 10, 20]


def test_members_of_two_clients_share_a_group(broker: Serving) -> None:
    """The group uses the one assignor that both offer. Each member gets a partition; the last one gets both again."""
    topic = create(broker, "shared", partitions=2)
    settings = {
        "bootstrap_servers": broker.address,
        "group_id": topic,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
    }

    async def until_shared(one: AIOKafkaConsumer, other: KafkaConsumer, counts: list[int]) -> None:
        while [len(one.assignment()), len(other.assignment())] != counts:
            await asyncio.to_thread(other.poll, 100)
            await one.getmany(timeout_ms=100)

    async def story() -> None:
        other = KafkaConsumer(topic, **settings)
        async with AIOKafkaConsumer(topic, **settings) as one:
            await until_shared(one, other, [1, 1])
            assert not {(place.topic, place.partition) for place in one.assignment()} & {
                (place.topic, place.partition) for place in other.assignment()
            }
            await asyncio.to_thread(other.close)
            while len(one.assignment()) != 2:
                await one.getmany(timeout_ms=100)

    asyncio.run(asyncio.wait_for(story(), TIMEOUT_S))


def test_kafkajs_creates_describes_and_deletes(broker: Serving, written: str) -> None:
    group = "kafkajs-admin"
    CLIENTS["kafkajs"].consume(broker.address, written, group, 5)
    cut = create(broker, "cut-by-kafkajs")
    CLIENTS["kafkajs"].produce(broker.address, cut, RECORDS[:9], "none")
    made = {"topic": "made-by-kafkajs", "numPartitions": 2, "replicationFactor": 1}
    resource = {"type": 2, "name": "made-by-kafkajs"}
    change = {**resource, "configEntries": [{"name": "retention.ms", "value": "1234567"}]}
    calls = [
        ("createTopics", {"topics": [made]}),
        ("createTopics", {"topics": [made]}),
        ("createPartitions", {"topicPartitions": [{"topic": made["topic"], "count": 3}]}),
        ("fetchTopicMetadata", {"topics": [made["topic"]]}),
        ("alterConfigs", {"resources": [change]}),
        ("describeConfigs", {"resources": [{**resource, "configNames": ["retention.ms"]}]}),
        ("fetchTopicOffsets", written),
        ("fetchOffsets", {"groupId": group, "topics": [written]}),
        ("describeGroups", [group]),
        ("listGroups", None),
        ("deleteGroups", [group]),
        ("fetchTopicOffsets", cut),  # kafkajs sends no request to an unknown leader
        ("deleteTopicRecords", {"topic": cut, "partitions": [at(4)]}),
        ("fetchTopicOffsets", cut),
        ("describeCluster", None),
        ("deleteTopics", {"topics": [made["topic"]]}),
        ("listTopics", None),
    ]
    answers = KafkaJs().ask(broker.address, "admin", {"calls": calls})
    assert answers[:2] == [True, False], "the first call creates the topic, and the second finds it"
    assert answers[2] is None
    places = broker.address.split(",")
    partitions = answers[3]["topics"][0]["partitions"]
    assert sorted(one["partitionId"] for one in partitions) == [0, 1, 2]
    assert {one["leader"] for one in partitions} <= {*range(1, len(places) + 1)}
    entry = answers[5]["resources"][0]["configEntries"][0]
    assert (entry["configName"], entry["configValue"]) == ("retention.ms", "1234567")
    end = str(len(RECORDS) * len(CLIENTS))
    assert answers[6] == [{"partition": 0, "offset": end, "high": end, "low": "0"}]
    assert answers[7][0]["partitions"] == [{"partition": 0, "offset": "5", "metadata": None}]
    assert (answers[8]["groups"][0]["state"], answers[8]["groups"][0]["members"]) == ("Empty", [])
    assert group in [one["groupId"] for one in answers[9]["groups"]]
    assert answers[10][0]["errorCode"] == 0
    assert answers[12:14] == [None, [{"partition": 0, "offset": "9", "high": "9", "low": "4"}]]
    described = {one["nodeId"]: f"{one['host']}:{one['port']}" for one in answers[14]["brokers"]}
    assert described == dict(enumerate(places, 1))
    assert made["topic"] not in answers[16]


def at(offset: int) -> dict[str, object]:
    return {"partition": 0, "offset": str(offset)}


def test_kcat_lists_metadata_and_offsets(broker: Serving, written: str) -> None:
    count = len(RECORDS) * len(CLIENTS)
    listing = Kcat().run(broker.address, "-L", "-t", written)
    assert f'topic "{written}" with 1 partitions:\n    partition 0, leader ' in listing
    assert (
        Kcat().run(broker.address, "-Q", "-t", f"{written}:0:-1")
        == f"{written} [0] offset {count}\n"
    )
    assert Kcat().run(broker.address, "-Q", "-t", f"{written}:0:-2") == f"{written} [0] offset 0\n"
    tail = ("-C", "-t", written, "-p", "0", "-o", "-3", "-e", "-q", "-f", "%o %k %S\n")
    assert Kcat().run(broker.address, *tail) == "".join(
        f"{count - 3 + index} k{18 + index} {18 + index}\n" for index in range(3)
    )
