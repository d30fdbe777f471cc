"""Goal: a segment that was closed is durable soon, and nothing waits for that; DeleteRecords moves the log start only.

Method: the real node with default durability (no `flush.messages`, no `flush.ms`), whose retention and checkpoints come
too late to help. Kafka: `UnifiedLog.roll`, which flushes the closed segment in the background.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.disk import paths
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import batch, read_all
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.log.segment import DELETED
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from stratalog.wire.records import Record, build_batch

HOUR_MS = 3_600_000
LATE = {
    "log.retention.check.interval.ms": str(HOUR_MS),
    "log.flush.offset.checkpoint.interval.ms": str(HOUR_MS),
}
PRODUCER = 7


def story(
    tell: Callable[[Machine, Client], Coroutine[Any, Any, None]],
    settings: dict[str, str],
    seed: int = 3,
    **configs: str,
) -> None:
    """Run a story on a node with the topic `t` of these settings."""

    async def whole() -> None:
        machine = Machine(World(seed), settings)
        client = await machine.restart()
        named = {name.replace("_", "."): value for name, value in configs.items()}
        (made,) = await client.create_topics([NewTopic("t", 1, configs=named)])
        assert made.error == ErrorCode.none, made.message
        await tell(machine, client)
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


def numbered(sequence: int) -> bytearray:
    """One record of an idempotent producer."""
    record = Record(0, START_MS, None, b"%d" % sequence)
    return build_batch([record], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)


@pytest.mark.parametrize("seed", range(12))
def test_a_power_loss_takes_at_most_what_was_in_the_active_segment(seed: int) -> None:
    async def tell(machine: Machine, client: Client) -> None:
        machine.be_slow(machine.world.chance.choice((0.0, 0.3)))
        for sequence in range(20):
            assert (await client.produce("t", 0, numbered(sequence))).base_offset == sequence
        await asyncio.sleep(60)
        active = machine.partition("t").log.segments[-1].base_offset
        assert 10 < active < 20
        assert machine.partition("t").log.recovery_point == active
        await machine.lose_power()
        client = await machine.restart()
        end = machine.partition("t").log.log_end_offset
        assert end >= active
        found = await read_all(client, "t", 0, end)
        assert found == {offset: b"%d" % offset for offset in range(end)}
        again = await client.produce("t", 0, numbered(active - 1))
        assert again.base_offset == active - 1, (
            "the log must know the producer and its repeated batch"
        )
        assert (await client.produce("t", 0, numbered(end))).base_offset == end

    story(tell, LATE, seed, internal_segment_bytes="300")


def test_a_start_after_a_kill_scans_the_active_segment_only() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        for sequence in range(20):
            await client.produce("t", 0, numbered(sequence))
        await asyncio.sleep(10)  # a checkpoint comes
        await machine.kill()
        await machine.restart()
        log = machine.partition("t").log
        assert (log.log_end_offset, log.recovered.segments_scanned) == (20, 1)

    story(tell, {"log.retention.check.interval.ms": str(HOUR_MS)}, internal_segment_bytes="300")


def test_appends_wait_for_no_sync_of_a_closed_segment() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        loop = asyncio.get_running_loop()
        (directory,) = machine.node.directories
        stalled_until = directory._syncer._free_at = loop.time() + 1000  # type: ignore[attr-defined]
        for sequence in range(40):
            async with asyncio.timeout(1):
                await client.produce("t", 0, numbered(sequence))
        log = machine.partition("t").log
        assert len(log.segments) > 5
        assert log.recovery_point == 0
        assert loop.time() < stalled_until
        await asyncio.sleep(1010)
        assert log.recovery_point == log.segments[-1].base_offset, (
            "one sync must cover all segments"
        )

    story(tell, LATE, internal_segment_bytes="300")


def test_appends_wait_for_no_unlink_of_deleted_files() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        loop = asyncio.get_running_loop()
        hosted = machine.partition("t")
        for sequence in range(20):
            await client.produce("t", 0, numbered(sequence))
        await asyncio.sleep(1)
        machine.world.clock.step_ms = 2 * HOUR_MS
        await hosted.keep_retention()
        await asyncio.sleep(61)
        assert deleted(machine)
        (directory,) = machine.node.directories
        directory._syncer._free_at = loop.time() + 1000  # type: ignore[attr-defined]
        removing = asyncio.create_task(hosted.keep_retention())
        await asyncio.sleep(1)
        async with asyncio.timeout(1):
            await client.produce("t", 0, numbered(20))
        assert deleted(machine)
        await removing
        assert not deleted(machine)

    def deleted(machine: Machine) -> list[str]:
        return [path for path in paths(machine.world.disk("/data")) if path.endswith(DELETED)]

    story(
        tell, LATE, internal_segment_bytes="300", retention_ms="60000", file_delete_delay_ms="60000"
    )


def test_retention_deletes_nothing_before_later_records_are_durable() -> None:
    """The file after a segment has the next offset and the producers, so that file must outlive the segment."""

    async def tell(machine: Machine, client: Client) -> None:
        loop = asyncio.get_running_loop()
        for sequence in range(6):
            await client.produce("t", 0, numbered(sequence))
        (directory,) = machine.node.directories
        await asyncio.sleep(1)
        directory._syncer._free_at = loop.time() + 1000  # type: ignore[attr-defined]
        for sequence in range(6, 12):
            await client.produce("t", 0, numbered(sequence))
        log = machine.partition("t").log
        synced = log.recovery_point
        assert synced < log.segments[-1].base_offset
        machine.world.clock.step_ms = 2 * HOUR_MS
        await machine.partition("t").keep_due()
        assert log.segments[0].base_offset == log.log_start_offset == synced > 0
        await machine.partition("t").keep_retention()
        assert log.log_start_offset == log.log_end_offset == 12

    story(tell, LATE, internal_segment_bytes="300", retention_ms="60000")


def test_delete_records_applies_no_retention() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        for number in range(10):
            old = START_MS - HOUR_MS + number
            await client.produce("t", 0, batch([b"%d" % number], old))
        raw = await Raw.connect(machine.world.network)
        cut = DeleteRecordsPartition(partition_index=0, offset=3)
        topics = [DeleteRecordsTopic(name="t", partitions=[cut])]
        answer = await raw.ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
        (row,) = answer.topics[0].partitions
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, 3)
        await machine.lose_power() if machine.world.quickness else await machine.kill()
        client = await machine.restart()
        log = machine.partition("t").log
        assert (log.log_start_offset, log.log_end_offset) == (3, 10)
        found = await read_all(client, "t", 3, 10)
        assert found == {offset: b"%d" % offset for offset in range(3, 10)}
        await machine.partition("t").keep_retention()
        assert log.log_start_offset == 10

    story(
        tell,
        LATE,
        internal_segment_bytes="100",
        retention_ms="60000",
        retention_bytes="100",
        flush_messages="1",
    )
