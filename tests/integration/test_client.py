"""Our own client against a real broker: it follows names of topics, restarts, and changes of assignment."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from stratalog.adapters.network import TcpNetwork
from stratalog.cli.shared.reading import records_from
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.fetches import FetchedPartition
from stratalog.client.reader import FetchSettings, Reader
from stratalog.errors import ErrorCode, Rejected
from stratalog.testing import TemporaryBroker
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder, read_records


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker() as started:
        yield started


def batch(*values: bytes) -> bytearray:
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, 1_700_000_000_000)
    return builder.build()


def values_of(fetched: FetchedPartition) -> list[bytes | None]:
    return [record.value for record in read_records(fetched.records)]


def play(broker: TemporaryBroker, story: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        async with await Client.connect(TcpNetwork(), broker.address, timeout_s=20) as client:
            await story(client)

    asyncio.run(tell())


async def made(client: Client, topic: str, partitions: int = 1) -> None:
    (result,) = await client.create_topics([NewTopic(topic, partitions)])
    assert result.error == ErrorCode.none


def test_a_name_means_the_topic_that_has_the_name_now(broker: TemporaryBroker) -> None:
    async def story(client: Client) -> None:
        await made(client, "again")
        await client.produce("again", 0, batch(b"old"))
        assert values_of(await client.fetch("again", 0, 0)) == [b"old"]
        await client.delete_topics(["again"])
        await made(client, "again")
        await client.produce("again", 0, batch(b"new"))
        assert values_of(await client.fetch("again", 0, 0)) == [b"new"]
        await client.delete_topics(["again"])
        with pytest.raises(Rejected) as gone:
            await client.fetch("again", 0, 0)
        assert gone.value.code == ErrorCode.unknown_topic_or_partition

    play(broker, story)


async def read(reader: Reader, count: int) -> dict[int, list[bytes | None]]:
    """Read `count` records by partition; fail if they do not arrive."""
    found: dict[int, list[bytes | None]] = {}
    async with asyncio.timeout(30):
        while sum(map(len, found.values())) < count:
            for one in await reader.poll(5):
                records = (r for _, r in records_from(one.records, one.offset))
                some = [r.value for r in records if r is not None]
                found.setdefault(one.partition, []).extend(some)
    return found


def test_partitions_are_read_side_by_side_each_in_its_order(broker: TemporaryBroker) -> None:
    async def story(client: Client) -> None:
        await made(client, "many", 3)
        wanted = {index: [b"%d-%d" % (index, n) for n in range(20)] for index in range(3)}
        for index, values in wanted.items():
            for value in values:
                await client.produce("many", index, batch(value))
        # A limit so small that partitions wait for one another, and none waits for ever.
        settings = FetchSettings(max_bytes=200, partition_max_bytes=150)
        with Reader(
            client, {TopicPartition("many", index): index for index in range(3)}, settings
        ) as reader:
            found = await read(reader, 57)
            assert found == {index: values[index:] for index, values in wanted.items()}
            assert await reader.poll(0.01) == []
            # Its Fetch is in flight; only the new assignment counts.
            reader.assign({TopicPartition("many", 1): 18})
            assert await read(reader, 2) == {1: [b"1-18", b"1-19"]}

    play(broker, story)


def test_a_reader_continues_after_a_restart_and_ends_with_the_topic(
    broker: TemporaryBroker,
) -> None:
    async def story(client: Client) -> None:
        await made(client, "kept")
        await client.produce("kept", 0, batch(b"before"))
        with Reader(client, {TopicPartition("kept", 0): 0}) as reader:
            assert await read(reader, 1) == {0: [b"before"]}
            await asyncio.to_thread(broker.restart)
            await client.produce("kept", 0, batch(b"after"))
            assert await read(reader, 1) == {0: [b"after"]}
            await client.delete_topics(["kept"])
            with pytest.raises(Rejected, match="topic kept does not exist any more"):
                await read(reader, 1)

    play(broker, story)


def test_an_offset_outside_the_log_is_an_error(broker: TemporaryBroker) -> None:
    async def story(client: Client) -> None:
        await made(client, "short")
        with Reader(client, {TopicPartition("short", 0): 5}) as reader:
            with pytest.raises(Rejected) as refused:
                await read(reader, 1)
            assert refused.value.code == ErrorCode.offset_out_of_range

    play(broker, story)
