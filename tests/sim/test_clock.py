"""The wall clock is set forward or back by hours: durations do not change, and retention follows it as Kafka's does.

Method: the real node in virtual time. A test steps its wall clock, and the steady clock runs on.
"""

import asyncio
from typing import Any

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch
from tests.sim.store import FaultyStore
from tests.sim.world import World

from stratalog.client.admin import alter_configs, describe_group
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.membership import Member
from stratalog.config.rules import Resource
from stratalog.wire.records import Record, build_batch, read_records

HOUR_MS = 3_600_000
STEPS = [5 * HOUR_MS, -5 * HOUR_MS, 24 * 8 * HOUR_MS]
"""The last step is longer than every duration among the defaults."""
stepped = pytest.mark.parametrize("step_ms", STEPS)


class Tale:
    """A machine with a bucket, and topics to write to."""

    def __init__(self, **settings: str) -> None:
        self.world = World(1)
        self.world.stores["memory://b"] = FaultyStore(
            self.world.store("memory://under"), self.world.chance
        )
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.machine = Machine(self.world, {"tier.url": "memory://b", **named})
        self.client: Client

    async def start(self, **configs: str) -> None:
        """Start, with a topic `t` of these settings; by default it keeps records for ever."""
        self.client = await self.machine.restart()
        named = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic("t", 1, configs={"retention.ms": "-1", **named})
        (result,) = await self.client.create_topics([new])
        assert result.error == 0

    async def write(self, value: bytes = b"x") -> int:
        """Append one record with the current time; return its offset."""
        data = batch([value], self.world.clock.now_ms())
        return (await self.client.produce("t", 0, data)).base_offset

    @property
    def log(self) -> Any:
        return self.machine.partition("t").log


@stepped
def test_flush_ms_counts_steady_time_whatever_the_wall_clock_says(step_ms: int) -> None:
    async def story() -> None:
        tale = Tale()
        await tale.start(flush_ms="60000")
        await tale.write()
        tale.world.clock.step_ms = step_ms
        await asyncio.sleep(50)
        await tale.write()
        assert tale.log.recovery_point == 0
        await asyncio.sleep(11)
        assert tale.log.recovery_point == 2
        syncs = tale.world.disk("/data").syncs
        await tale.write()
        tale.world.clock.step_ms = 0
        await asyncio.sleep(61)
        assert tale.log.recovery_point == 3, "the next record starts a new interval"
        assert tale.world.disk("/data").syncs > syncs
        await tale.machine.stop()

    run(story())


@stepped
def test_a_quiet_segment_is_tiered_after_its_lag(step_ms: int) -> None:
    async def story() -> None:
        tale = Tale()
        await tale.start(remote_storage_enable="true", tier_max_lag_ms="60000")
        await tale.write()
        tale.world.clock.step_ms = step_ms
        await asyncio.sleep(50)
        assert tale.log.tiered_end == 0
        await asyncio.sleep(15)
        assert tale.log.tiered_end == 1
        await tale.machine.stop()

    run(story())


@stepped
def test_deleted_files_wait_out_their_delay(step_ms: int) -> None:
    async def story() -> None:
        tale = Tale()
        await tale.start(file_delete_delay_ms="60000", retention_bytes="0", segment_bytes="1048576")
        await tale.write(b"x" * 900_000)
        await tale.write(b"x" * 900_000)
        await asyncio.sleep(5)
        tale.world.clock.step_ms = step_ms

        def waiting() -> list[str]:
            files = tale.world.disk("/data").list("t-0")
            return [one.name for one in files if one.name.endswith(".deleted")]

        await asyncio.sleep(45)
        assert waiting(), "a reader may still use the file"
        await asyncio.sleep(20)
        assert not waiting()
        await tale.machine.stop()

    run(story())


@stepped
def test_producers_are_remembered_for_their_expiration_time(step_ms: int) -> None:
    async def story() -> None:
        tale = Tale(producer_id_expiration_ms="60000")
        await tale.start()

        async def produce(sequence: int) -> int:
            record = Record(0, tale.world.clock.now_ms(), None, b"x", ())
            data = build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
            return (await tale.client.produce("t", 0, data)).base_offset

        assert await produce(0) == 0
        tale.world.clock.step_ms = step_ms
        await asyncio.sleep(50)
        assert await produce(0) == 0, "the log knows a repeated batch as a duplicate"
        assert await produce(1) == 1
        await asyncio.sleep(50)
        assert await produce(1) == 1
        await asyncio.sleep(65)
        assert await produce(1) == 2, "the producer sent nothing for so long that the log forgot it"
        await tale.machine.stop()

    run(story())


@stepped
def test_a_session_ends_only_when_heartbeats_stop(step_ms: int) -> None:
    async def story() -> None:
        tale = Tale()
        await tale.start()
        client = await Client.connect(tale.world.network, "127.0.0.1:9092", timeout_s=300)
        member = Member(client, "g", ["t"])
        assert await member.join() == (("t", 0),)
        generation = member.generation
        for _ in range(60):
            tale.world.clock.step_ms = step_ms
            await asyncio.sleep(2)
            assert await member.beat(), "the member is still in its session"
        assert member.generation == generation

        async def members() -> int:
            return len((await tale.client.on_coordinator("g", describe_group("g"))).members)

        await asyncio.sleep(40)
        tale.world.clock.step_ms = 0
        assert await members() == 1
        await asyncio.sleep(10)
        assert await members() == 0, "the session lasts 45 seconds"
        await client.close()
        await tale.machine.stop()

    run(story())


def test_retention_counts_from_the_records_time_to_the_clocks() -> None:
    """As Apache Kafka (`UnifiedLog.deleteRetentionMsBreachedSegments`): a clock set forward makes records old."""

    async def story() -> None:
        tale = Tale()
        await tale.start(retention_ms=str(24 * HOUR_MS))
        await tale.write()
        tale.world.clock.step_ms = -48 * HOUR_MS
        await asyncio.sleep(10)
        assert tale.log.log_start_offset == 0
        tale.world.clock.step_ms = 23 * HOUR_MS
        await asyncio.sleep(10)
        assert tale.log.log_start_offset == 0
        tale.world.clock.step_ms = 25 * HOUR_MS
        await asyncio.sleep(10)
        assert tale.log.log_start_offset == 1
        await tale.machine.stop()

    run(story())


def test_records_without_timestamps_expire_by_elapsed_time() -> None:
    async def story() -> None:
        tale = Tale()
        await tale.start(retention_ms="60000")
        await tale.client.produce("t", 0, batch([b"x"], -1))
        tale.world.clock.step_ms = 5 * HOUR_MS
        await asyncio.sleep(50)
        assert tale.log.log_start_offset == 0
        tale.world.clock.step_ms = -5 * HOUR_MS
        await asyncio.sleep(15)
        assert tale.log.log_start_offset == 1
        await tale.machine.stop()

    run(story())


@pytest.mark.parametrize("step_ms", STEPS[:2])
def test_append_time_follows_the_wall_clock_and_offsets_continue(step_ms: int) -> None:
    async def story() -> None:
        tale = Tale()
        await tale.start(message_timestamp_type="LogAppendTime")
        assert await tale.write() == 0
        tale.world.clock.step_ms = step_ms
        assert await tale.write() == 1
        fetched = await tale.client.fetch("t", 0, 1)
        assert isinstance(fetched.records, memoryview)
        (record,) = [one for one in read_records(fetched.records) if one.offset == 1]
        assert abs(record.timestamp - tale.world.clock.now_ms()) < 1000
        await tale.machine.stop()

    run(story())


@stepped
def test_an_expired_segment_stays_in_the_bucket_for_the_grace_period(step_ms: int) -> None:
    """`remote.delete.grace.ms` is elapsed time: readers of the older manifest have all of that time."""

    async def story() -> None:
        tale = Tale(**{"remote.delete.grace.ms": "60000"})
        await tale.start(remote_storage_enable="true", segment_ms="1000", local_retention_ms="0")
        await tale.write()
        await asyncio.sleep(2)
        await tale.write()
        await asyncio.sleep(40)

        def segments() -> int:
            bucket = tale.world.stores["memory://b"]
            return len([info for info in bucket.list("") if info.path.endswith(".seg")])

        before = segments()
        assert before
        changes = alter_configs(Resource.TOPIC, "t", {"retention.bytes": "0"})
        await tale.client.on_controller(changes)
        await asyncio.sleep(31)  # the next cycle expires it
        tale.world.clock.step_ms = step_ms
        await asyncio.sleep(25)
        assert segments() == before, "a query may still read the segment"
        await asyncio.sleep(100)
        assert segments() == 0
        await tale.machine.stop()

    run(story())
