"""Goal: our client's Fetch and ListOffsets name the leader epoch of its metadata (KIP-320).

Method: the real node, whose leader epochs rise with each start, and a client whose metadata has another epoch than the
broker. The broker refuses that client's first request; its fresh metadata is the proof.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch
from tests.sim.world import START_MS, World

from stratalog.client import calls
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.reader import Reader
from stratalog.errors import ErrorCode
from stratalog.wire.ids import TopicPartition

KEY = TopicPartition("t", 0)
Request = Callable[[Client], Coroutine[Any, Any, None]]


async def fetch(client: Client) -> None:
    found = await client.fetch(*KEY, 0)
    assert found.records


async def read(client: Client) -> None:
    with Reader(client, {KEY: 0}) as reader:
        while not await reader.poll(1.0):
            pass


def remember(client: Client, epoch: int) -> None:
    """Make the client's metadata name another leader epoch."""
    topic = client._view.topics[KEY.topic]
    partition = replace(topic.partitions[0], leader_epoch=epoch)
    client._view.topics[KEY.topic] = replace(topic, partitions={0: partition})


async def started(machine: Machine) -> Client:
    """Start a node with one record in `t`, in an epoch above 0; return a client that knows its leader."""
    client = await machine.restart()
    await client.create_topics([NewTopic("t", partitions=1)])
    await machine.stop()
    client = await machine.restart()
    await client.produce("t", 0, batch([b"a"], START_MS))
    return client


@pytest.mark.parametrize("request_of", [fetch, read])
@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_fetch_with_another_epoch_is_retried_with_fresh_metadata(
    request_of: Request, off_by: int
) -> None:
    """One epoch too low is FENCED_LEADER_EPOCH, one too high UNKNOWN_LEADER_EPOCH."""

    async def story() -> None:
        machine = Machine(World(5))
        client = await started(machine)
        epoch = (await client.leader_of(*KEY)).epoch
        assert epoch > 0
        remember(client, epoch + off_by)
        async with asyncio.timeout(60):
            await request_of(client)
        assert (await client.leader_of(*KEY)).epoch == epoch, "the broker refused the first fetch"
        await machine.stop()

    run(story())


@pytest.mark.parametrize(
    ("off_by", "code"),
    [(-1, ErrorCode.fenced_leader_epoch), (1, ErrorCode.unknown_leader_epoch), (0, ErrorCode.none)],
)
def test_list_offsets_with_another_epoch_is_refused(off_by: int, code: ErrorCode) -> None:
    async def story() -> None:
        machine = Machine(World(5))
        client = await started(machine)
        leader = await client.leader_of(*KEY)
        call = calls.list_offsets({KEY: calls.LATEST}, 0, {KEY: leader.epoch + off_by})
        found = await client.call(call, leader.node_id)
        assert found[KEY].error is code
        await machine.stop()

    run(story())
