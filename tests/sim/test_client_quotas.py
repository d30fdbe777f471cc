"""Goal: a client over its quota is answered at once with a throttle time, and then muted so long (KIP-219).

Method: a real node in virtual time, so that every wait is exact. Other clients are served meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.quotas import alter_quotas
from stratalog.errors import ErrorCode
from stratalog.metadata.client_quotas import CLIENT_ID, IP, Entity
from stratalog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from stratalog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.messages.metadata import MetadataRequest
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from stratalog.wire.records import Record, build_batch

RAW: Entity = ((CLIENT_ID, "raw"),)
METADATA = MetadataRequest(topics=[])
Story = Callable[[Machine, Client, Raw], Coroutine[Any, Any, None]]


def play(story: Story) -> None:
    async def whole() -> None:
        machine = Machine(World(1), {"auto.create.topics.enable": "false"})
        client = await machine.restart()
        await client.create_topics(
            [NewTopic("t", 1, configs={"retention.ms": "-1", "flush.messages": "1"})]
        )
        raw = await Raw.connect(machine.world.network)
        await story(machine, client, raw)
        raw.close()
        await machine.stop()

    run(whole())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def produce(size: int, acks: int = 1) -> ProduceRequest:
    """A Produce of version 9 whose frame has `size` bytes."""
    overhead = 145
    batch = build_batch([Record(0, 1000, None, bytes(size - overhead), ())])
    data = PartitionProduceData(index=0, records=memoryview(batch))
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=[data])],
    )


def fetch(session: int, epoch: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=[wanted])] if not session else [],
    )


async def limit(client: Client, entity: Entity = RAW, **quotas: float | None) -> None:
    await client.on_any(alter_quotas(entity, quotas))


def test_a_producer_over_its_quota_is_muted_and_others_are_not() -> None:
    async def story(machine: Machine, client: Client, raw: Raw) -> None:
        await limit(client, producer_byte_rate=1000)
        assert (await raw.ask(9, produce(5000))).throttle_time_ms == 0
        began_s = now_s()
        answer = await raw.ask(9, produce(7000))
        assert now_s() - began_s < 0.1, "the answer itself is not delayed"
        throttle_s = answer.throttle_time_ms / 1000
        assert 1.9 < throttle_s < 2.1  # 12,000 bytes in 10 s, of which 10,000 are allowed
        assert answer.responses[0].partition_responses[0].error_code == 0
        later = raw.ask(9, METADATA)
        other = await Raw.connect(machine.world.network)
        await other.ask(9, METADATA)
        assert now_s() - began_s < 0.2
        assert not later.done()
        await later
        assert throttle_s <= now_s() - began_s < throttle_s + 0.1
        throttling = machine.broker.throttling
        assert throttling.throttled == {"producer_byte_rate": 1}
        assert throttling.throttled_ms["producer_byte_rate"] == answer.throttle_time_ms
        other.close()

    play(story)


def test_a_producer_without_acks_is_muted_although_it_receives_no_answer() -> None:
    async def story(_: Machine, client: Client, raw: Raw) -> None:
        await limit(client, producer_byte_rate=1000)
        began_s = now_s()
        raw.tell(9, produce(13_000, acks=0))
        await raw.ask(9, METADATA)
        assert 2.9 < now_s() - began_s < 3.2

    play(story)


def test_a_producer_that_leaves_before_its_answer_is_charged() -> None:
    async def story(machine: Machine, client: Client, raw: Raw) -> None:
        await limit(client, producer_byte_rate=1000)
        gone = await Raw.connect(machine.world.network)
        gone.tell(9, produce(12_000, acks=-1))
        await asyncio.sleep(0)
        gone.close()
        await asyncio.sleep(0.1)
        answer = await raw.ask(9, produce(1000))
        assert 2.8 < answer.throttle_time_ms / 1000 < 3.1

    play(story)


def test_a_consumer_over_its_quota_receives_nothing_and_keeps_its_session() -> None:
    async def story(_: Machine, client: Client, raw: Raw) -> None:
        await raw.ask(9, produce(6000))
        await limit(client, consumer_byte_rate=1000)
        first = await raw.ask(12, fetch(0, 0))
        assert first.throttle_time_ms == 0
        assert first.responses
        began_s = now_s()
        second = await raw.ask(12, fetch(first.session_id, 1))
        assert (second.error_code, second.session_id) == (0, first.session_id)
        assert not second.responses
        assert second.throttle_time_ms > 1000
        later, epoch = second, 1
        while not later.responses:
            epoch += 1
            later = await raw.ask(12, fetch(first.session_id, epoch))
            assert now_s() - began_s >= second.throttle_time_ms / 1000
        assert later.responses[0].partitions[0].records, "bytes that were not sent do not count"
        assert now_s() - began_s < 12.5, "the first fetch leaves the window after 11 s"

    play(story)


def test_one_fetch_brings_at_most_the_bytes_of_a_window() -> None:
    async def story(_: Machine, client: Client, raw: Raw) -> None:
        for _number in range(5):
            await raw.ask(9, produce(6000))
        await limit(client, consumer_byte_rate=1000)
        answer = await raw.ask(12, fetch(0, 0))
        (partition,) = answer.responses[0].partitions
        assert isinstance(partition.records, memoryview)
        size = len(partition.records)
        assert (answer.throttle_time_ms, 5000 < size <= 10_000) == (0, True)

    play(story)


def test_a_quota_that_is_removed_limits_no_more() -> None:
    async def story(machine: Machine, client: Client, raw: Raw) -> None:
        states = [machine.broker.throttling.is_on]
        for rate in (1000, None):
            await limit(client, producer_byte_rate=rate)
            states.append(machine.broker.throttling.is_on)
        assert states == [False, True, False]
        assert (await raw.ask(9, produce(100_000))).throttle_time_ms == 0

    play(story)


def test_topics_and_partitions_beyond_the_quota_are_refused_and_older_versions_wait() -> None:
    async def story(_: Machine, client: Client, raw: Raw) -> None:
        await limit(client, controller_mutation_rate=1)
        assert await created(raw, 7, "a", 5) == (0, 0)
        assert await created(raw, 7, "b", 8) == (0, 0), "one more request may overdraw"
        began_s = now_s()
        code, throttle_ms = await created(raw, 7, "c", 1)
        assert (code, 1900 < throttle_ms <= 2000) == (ErrorCode.throttling_quota_exceeded, True)
        assert await created(raw, 7, "c", 1) == (0, 0)
        assert now_s() - began_s >= throttle_ms / 1000
        # An older client does not know the error: its request is carried out, and then it waits.
        code, throttle_ms = await created(raw, 5, "d", 4)
        assert (code, 3900 < throttle_ms <= 5000) == (0, True)
        more = [CreatePartitionsTopic(name="a", count=9, assignments=None)]
        extended = await raw.ask(
            2, CreatePartitionsRequest(topics=more, timeout_ms=1000, validate_only=False)
        )
        assert extended.results[0].error_code == 0
        assert extended.throttle_time_ms > 3000
        refused = await raw.ask(4, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000))
        assert refused.responses[0].error_code == 0
        assert refused.throttle_time_ms > 8000
        gone = await raw.ask(5, DeleteTopicsRequest(topic_names=["b"], timeout_ms=1000))
        assert gone.responses[0].error_code == 0, "the connection was muted so long"

    play(story)


async def created(raw: Raw, version: int, name: str, partitions: int) -> tuple[int, int]:
    """Create a topic; return its error and the throttle time."""
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    answer = await raw.ask(version, request)
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_an_address_over_its_connection_rate_is_closed_after_a_while() -> None:
    async def story(machine: Machine, client: Client, _: Raw) -> None:
        await limit(client, ((IP, "127.0.0.1"),), connection_creation_rate=1)
        assert not machine.broker.throttling.is_on, "no request is counted"
        network = machine.world.network
        served = [await Raw.connect(network) for _ in range(10)]
        began_s = now_s()
        await asyncio.gather(*(one.ask(9, METADATA) for one in served))
        beyond = await Raw.connect(network)
        answer = beyond.ask(9, METADATA)
        await beyond.closed
        assert answer.cancelled() or not answer.done()
        assert 0.5 < now_s() - began_s < 1.2
        await limit(client, ((IP, "127.0.0.1"),), connection_creation_rate=None)
        free = await Raw.connect(network)
        await free.ask(9, METADATA)
        for one in (*served, free):
            one.close()

    play(story)
