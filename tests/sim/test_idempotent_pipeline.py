"""An idempotent pipeline writes each record once and in order, while leaders end and answers are lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.network import STORY
from tests.sim.records import values_in
from tests.sim.test_replicated_cluster import log_bytes, partition
from tests.sim.world import START_MS, World

from stratalog.broker.partitions.gaps import YOUNG_MS
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.records import BatchBuilder

COUNT = 120
TIMEOUT_S = 5
CUT_S = 2.5 * TIMEOUT_S
"""The client gives up its connection meanwhile: the answers on it are lost."""
Meddle = Callable[[Cluster, int], Coroutine[Any, Any, None]]


def one(value: bytes) -> BatchBuilder:
    builder = BatchBuilder()
    builder.add(None, value, START_MS)
    return builder


async def connected(cluster: Cluster) -> Client:
    addresses = ",".join(f"{host_of(node)}:9092" for node in cluster.machines)
    return await Client.connect(cluster.world.network, addresses, timeout_s=TIMEOUT_S)


def story(meddle: Meddle, seed: int, acks: int = -1) -> None:
    """Write COUNT records; `meddle` runs before each of them with its number."""

    async def whole() -> None:
        cluster = Cluster(World(seed), 3, {"replica.lag.time.max.ms": "3000"})
        async with asyncio.timeout(3600):
            await cluster.start()
            async with await connected(cluster) as client:
                topic = NewTopic("t", 1, 3, {"min.insync.replicas": "2"})
                (created,) = await client.create_topics([topic])
                assert created.error is ErrorCode.none
                async with IdempotentPipeline(client, acks=acks) as pipeline:
                    for number in range(COUNT):
                        await meddle(cluster, number)
                        await pipeline.send("t", 0, one(b"%d" % number))
            leader = cluster.machines[partition(cluster).leader]
            values = [value for _offset, value in values_in(log_bytes(leader))]
            wanted = [b"%d" % number for number in range(COUNT)]
            assert (values if acks == -1 else sorted(set(values), key=int)) == wanted
            assert acks == -1 or len(values) > COUNT, (
                "no batch was sent twice: the story proves nothing"
            )
            await cluster.stop()
        assert all(machine.broken_tasks == [] for machine in cluster.machines.values())

    run(whole())


@pytest.mark.parametrize("ending", ["kill", "lose_power", "stop"])
@pytest.mark.parametrize("seed", [1, 2])
def test_each_record_is_there_once_where_the_leader_ends_twice(ending: str, seed: int) -> None:
    ended: list[int] = []

    async def meddle(cluster: Cluster, number: int) -> None:
        if number in {30, 80}:
            ended.append(partition(cluster).leader)
            await getattr(cluster.machines[ended[-1]], ending)()
        elif number == 60:
            await cluster.machines[ended[-1]].start()
            await cluster.until(lambda: len(partition(cluster).isr) == 3, "a whole ISR", 120)

    story(meddle, seed)
    assert len(ended) == 2


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_record_is_missing_where_answers_are_lost(seed: int, acks: int) -> None:
    """The leader appends all batches and its answers are lost, so the producer sends every batch under way again.

    With acks 1 it has no producer id, and those batches are there twice.
    """
    cuts: list[str] = []

    async def meddle(cluster: Cluster, number: int) -> None:
        network = cluster.world.network
        if number == 40:
            cuts.append(host_of(partition(cluster).leader))
            network.cut(cuts[-1], STORY)
            asyncio.get_running_loop().call_later(CUT_S, network.heal, cuts[-1], STORY)

    story(meddle, seed, acks)
    assert cuts


@pytest.mark.parametrize("writes_first", [False, True])
def test_a_gap_right_after_an_election_is_refused_as_by_a_broker_that_does_not_lead(
    writes_first: bool,
) -> None:
    """A batch before it may have come while this broker did not lead yet. librdkafka repeats others' batches, too,
    after OUT_OF_ORDER_SEQUENCE_NUMBER.
    """

    async def whole() -> None:
        cluster = Cluster(World(1), 3, {"replica.lag.time.max.ms": "3000"})
        await cluster.start()
        async with await connected(cluster) as client:
            await client.create_topics([NewTopic("t", 1, 3, {"min.insync.replicas": "2"})])
            producer_id, epoch = await client.init_producer_id()

            async def refusal(client: Client, number: int) -> ErrorCode:
                batch = one(b"%d" % number).build(
                    producer_id=producer_id, producer_epoch=epoch, base_sequence=number
                )
                try:
                    await client.produce("t", 0, batch)
                except Rejected as error:
                    return error.code
                return ErrorCode.none

            async def refuses(client: Client) -> None:
                # Older than the five batches that a broker remembers: a repeat that is no gap.
                assert await refusal(client, 0) is ErrorCode.out_of_order_sequence_number
                if writes_first:
                    assert await refusal(client, 7) is ErrorCode.none
                    assert await refusal(client, 10) is ErrorCode.out_of_order_sequence_number
                else:
                    assert await refusal(client, 9) is ErrorCode.not_leader_or_follower
                    await asyncio.sleep(YOUNG_MS / 1000)
                    assert await refusal(client, 9) is ErrorCode.out_of_order_sequence_number
                    assert await refusal(client, 7) is ErrorCode.none

            for number in range(7):
                assert await refusal(client, number) is ErrorCode.none
            first = partition(cluster).leader
            assert await refusal(client, 9) is ErrorCode.out_of_order_sequence_number
            stopping = asyncio.create_task(cluster.machines[first].stop())
            await cluster.until(lambda: partition(cluster).leader not in {first, -1}, "a leader")
            leader = cluster.machines[partition(cluster).leader]
            (hosted,) = leader.broker.hosting.by_id.values()
            await cluster.until(lambda: hosted.replica.leads, "it leads")
            async with await leader.connect() as other:
                await refuses(other)
            await stopping
        await cluster.stop()

    run(whole())


def test_a_refusal_that_stays_is_raised_at_once() -> None:
    async def whole() -> None:
        cluster = Cluster(World(1), 1)
        await cluster.start()
        async with await connected(cluster) as client:
            await client.create_topics([NewTopic("t", 1, 1, {"max.message.bytes": "100"})])
            with pytest.raises(Rejected) as refused:
                async with IdempotentPipeline(client) as pipeline:
                    await pipeline.send("t", 0, one(b"x" * 200))
        assert refused.value.code is ErrorCode.message_too_large
        await cluster.stop()

    run(whole())
