"""The node over a bucket that fails and recovers: reads and writes meanwhile, retention, deletion, KIP-950.

Method: the real node in virtual time, over a bucket that a test switches off and on.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.disk import paths
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, list_offsets_body, records_of
from tests.sim.records import batch, in_bucket, read_all
from tests.sim.store import FaultyStore
from tests.sim.world import START_MS, World

from stratalog.client.admin import Altered, alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.config.rules import Resource
from stratalog.errors import ErrorCode
from stratalog.tier.checking.verify import verify

URL = "memory://bucket"
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "1000",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "100",
}
BATCHES = 12

LONGEST_BACKOFF_S = 40
"""Longer than remote.log.manager.task.retry.backoff.max.ms: the next attempt has come, whatever its jitter."""
Story = Callable[["Tale"], Coroutine[Any, Any, None]]


class Tale:
    """A machine with a bucket and a topic."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.store = FaultyStore(self.world.store("memory://under"), self.world.chance)
        self.world.stores[URL] = self.store
        self.machine = Machine(self.world, {"tier.url": URL})
        self.client: Client
        self.written = 0

    async def start(self) -> None:
        self.client = await self.machine.restart()

    async def start_once_without_a_bucket(self) -> None:
        """Start once without the bucket, so that later starts do not need it. No cluster has claimed it yet."""
        url = self.machine.settings.pop("tier.url")
        await self.start()
        await self.machine.stop()
        self.machine.settings["tier.url"] = url

    async def create(self, name: str = "t", **settings: str) -> None:
        configs = {**TIERED, **{key.replace("_", "."): value for key, value in settings.items()}}
        (result,) = await self.client.create_topics([NewTopic(name, 1, configs=configs)])
        assert result.error == ErrorCode.none, result
        await self.client.metadata([name])  # its id is a new one
        self.written = 0

    async def write(self, name: str = "t", count: int = BATCHES) -> dict[int, bytes]:
        """Append `count` batches of two records, a second apart in record time. Nearly each closes a segment."""
        written: dict[int, bytes] = {}
        for number in range(self.written, self.written + count):
            self.written += 1
            values = [b"%d-%d" % (number, n) for n in range(2)]
            data = batch(values, START_MS + number * 1100)
            produced = await self.client.produce(name, 0, data)
            written |= {produced.base_offset + n: value for n, value in enumerate(values)}
        return written

    async def set(self, **settings: str | None) -> Altered:
        changes = {key.replace("_", "."): value for key, value in settings.items()}
        return await self.client.on_controller(alter_configs(Resource.TOPIC, "t", changes))

    async def raw(self) -> Raw:
        return await Raw.connect(self.world.network)


def in_bucket_segments(tale: Tale) -> list[str]:
    return [info.path for info in tale.store.list("") if ".seg" in info.path]


def tell(story: Story, seed: int = 1) -> None:
    async def main() -> None:
        tale = Tale(seed)
        await story(tale)

    run(main())


def test_producing_goes_on_while_the_bucket_is_unreachable() -> None:
    async def story(tale: Tale) -> None:
        tale.store.down = True
        await tale.start_once_without_a_bucket()
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(60)
        log = tale.machine.partition("t").log
        assert (log.tiered_end, log.local_start_offset) == (0, 0)
        assert await read_all(tale.client, "t", 0, len(written)) == written
        tale.store.down = False
        await asyncio.sleep(LONGEST_BACKOFF_S)
        assert 0 < log.local_start_offset == log.tiered_end
        assert await read_all(tale.client, "t", 0, len(written)) == written
        tale.store.down = True
        more = await tale.write()
        assert min(more) == len(written)
        await asyncio.sleep(60)
        tale.store.down = False
        await asyncio.sleep(LONGEST_BACKOFF_S)
        assert log.tiered_end > len(written), "the archiver catches up"
        _manifest, tiered = in_bucket(tale.store, "t")
        assert tiered == {at: (written | more)[at] for at in range(log.tiered_end)}
        await tale.machine.stop()

    tell(story)


def test_reads_of_an_unreachable_bucket_get_retriable_errors_and_never_out_of_range() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        await tale.machine.kill()
        tale.store.down = True
        await tale.start()
        raw = await tale.raw()
        fetched = await raw.ask(12, fetch_body([("t", 0, 0)]))
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.replica_not_available
        listed = await raw.ask(8, list_offsets_body("t", START_MS + 1000))
        assert listed.topics[0].partitions[0].error_code == ErrorCode.replica_not_available
        tale.store.down = False
        await asyncio.sleep(3)
        assert await read_all(tale.client, "t", 0, len(written)) == written
        tale.store.down = True
        cold = await raw.ask(12, fetch_body([("t", 0, 0)]))
        code = cold.responses[0].partitions[0].error_code
        assert code in {ErrorCode.none, ErrorCode.kafka_storage_error}, (
            "cached, or a retriable error"
        )
        await tale.machine.stop()

    tell(story)


@pytest.mark.parametrize("seed", range(4))
def test_right_after_a_restart_readers_wait_for_the_manifest(seed: int) -> None:
    async def story(tale: Tale) -> None:
        tale.machine.slowness = 0.5
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(20)
        start = tale.machine.partition("t").log.local_start_offset
        assert start > 0
        await (tale.machine.kill if seed % 2 else tale.machine.stop)()
        await tale.start()
        raw = await tale.raw()
        fetched = await raw.ask(12, fetch_body([("t", 0, 0)]))
        first = fetched.responses[0].partitions[0]
        assert first.error_code == ErrorCode.none
        assert records_of(first)
        listed = await raw.ask(8, list_offsets_body("t", START_MS + 1000))
        assert listed.topics[0].partitions[0].offset == 2, "the second batch is in the bucket"
        assert await read_all(tale.client, "t", 0, len(written)) == written
        await tale.machine.stop()

    tell(story, seed)


def test_offsets_by_time_with_most_of_the_log_in_the_bucket() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        log = tale.machine.partition("t").log
        tiered, end = log.tiered_end, len(written)
        raw = await tale.raw()

        async def ask(timestamp: int, version: int = 10) -> tuple[int, int]:
            answer = await raw.ask(version, list_offsets_body("t", timestamp))
            found = answer.topics[0].partitions[0]
            assert found.error_code == ErrorCode.none, found
            return found.offset, found.timestamp

        latest = START_MS + (BATCHES - 1) * 1100
        assert await ask(-1) == (end, -1)
        assert await ask(-2) == (0, -1)
        assert await ask(-3) == (end - 2, latest)
        assert await ask(-4) == (log.local_start_offset, -1)
        assert await ask(-5) == (tiered - 1, -1)
        for number in range(BATCHES):
            assert await ask(START_MS + number * 1100) == (2 * number, START_MS + number * 1100)
            just_after = START_MS + number * 1100 + 1
            expected = (2 * number + 2, just_after + 1099) if number < BATCHES - 1 else (-1, -1)
            assert await ask(just_after) == expected
        assert await ask(0) == (0, START_MS)
        for special, first in ((-3, 7), (-4, 8), (-5, 9)):
            answer = await raw.ask(first - 1, list_offsets_body("t", special))
            code = answer.topics[0].partitions[0].error_code
            assert code == ErrorCode.unsupported_version, special
        await tale.machine.stop()

    tell(story)


def test_retention_in_the_bucket_moves_the_start_and_a_crash_does_not_bring_it_back() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create(retention_bytes="400")
        written = await tale.write(count=20)
        await asyncio.sleep(10)
        log = tale.machine.partition("t").log
        start = log.log_start_offset
        assert 0 < start < len(written)
        await tale.machine.kill()
        tale.store.down = True  # only this machine's own files have the start
        await tale.start()
        raw = await tale.raw()
        answer = await raw.ask(8, list_offsets_body("t", -2))
        assert answer.topics[0].partitions[0].offset == start
        fetched = await raw.ask(12, fetch_body([("t", 0, start - 1)]))
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.offset_out_of_range
        tale.store.down = False
        kept = await read_all(tale.client, "t", start, len(written))
        assert kept == {at: value for at, value in written.items() if at >= start}
        await tale.machine.stop()

    tell(story)


def test_a_log_start_found_only_in_the_local_manifest_survives_a_crash() -> None:
    """No checkpoint was written since retention moved the start, and the bucket is unreachable."""

    async def story(tale: Tale) -> None:
        tale.machine.settings["log.flush.offset.checkpoint.interval.ms"] = "3600000"
        await tale.start()
        await tale.create(retention_bytes="400")
        await tale.write(count=20)
        await asyncio.sleep(10)
        log = tale.machine.partition("t").log
        start, tiered_end = log.log_start_offset, log.tiered_end
        assert 0 < start < tiered_end
        await tale.machine.kill()
        tale.store.down = True
        await tale.start()
        log = tale.machine.partition("t").log
        assert (log.log_start_offset, log.tiered_end) == (start, tiered_end)
        tale.store.down = False
        await tale.machine.stop()

    tell(story)


@pytest.mark.parametrize("seed", range(6))
def test_topics_created_and_deleted_in_a_loop_leave_no_file_or_object(seed: int) -> None:
    async def story(tale: Tale) -> None:
        chance = tale.world.chance
        tale.machine.slowness = chance.choice((0.0, 0.2))
        trouble = chance.choice((0.0, 0.1))
        tale.machine.settings["remote.delete.grace.ms"] = "0"
        await tale.start()  # the first start needs the bucket
        tale.store.trouble = trouble
        for number in range(10):
            await tale.create()
            written = await tale.write(count=chance.randint(1, 8))
            assert min(written) == 0, "a new topic of the name begins at 0"
            await asyncio.sleep(chance.choice((0, 0.1, 3)))
            assert await read_all(tale.client, "t", 0, len(written)) == written
            if chance.random() < 0.3:
                await (tale.machine.lose_power if number % 2 else tale.machine.kill)()
                await tale.start()
            (deleted,) = await tale.client.delete_topics(["t"])
            assert deleted.error == ErrorCode.none
            if chance.random() < 0.3:
                await (tale.machine.lose_power if number % 2 else tale.machine.kill)()
                await tale.start()
        tale.store.trouble = 0.0
        await asyncio.sleep(30)
        await tale.machine.stop()
        left = [path for path in paths(tale.world.disks["/data"]) if path.startswith("t-")]
        assert not left
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms(), grace_ms=0), "no orphans"
        assert not in_bucket_segments(tale)
        assert not tale.machine.broken_tasks, tale.machine.broken_tasks

    tell(story, seed)


def test_a_topic_deleted_while_the_bucket_is_down_is_deleted_there_later() -> None:
    async def story(tale: Tale) -> None:
        tale.machine.settings["metadata.log.max.record.bytes.between.snapshots"] = "2000"
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(10)
        tale.store.down = True
        await tale.client.delete_topics(["t"])
        for number in range(10):  # more than a snapshot's worth
            await tale.create(f"other-{number}")
        await tale.machine.lose_power()
        await tale.start()
        await asyncio.sleep(10)
        tale.store.down = False
        await asyncio.sleep(10)
        await tale.machine.stop()
        assert not in_bucket_segments(tale)
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms(), grace_ms=0)

    tell(story)


def test_a_new_topic_inherits_nothing_from_the_one_before_it() -> None:
    """Checkpoints are by name: a log start of 30 must not be taken for the new topic's after a crash."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create(retention_bytes="300")
        await tale.write(count=20)
        await asyncio.sleep(20)
        assert tale.machine.partition("t").log.log_start_offset > 6
        await tale.client.delete_topics(["t"])
        await tale.create()
        written = await tale.write(count=3)
        await tale.machine.kill()
        await tale.start()
        assert await read_all(tale.client, "t", 0, len(written)) == written
        await tale.machine.stop()

    tell(story)


def test_a_disabled_tier_leaves_the_local_records() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        log = tale.machine.partition("t").log
        start, end = log.local_start_offset, log.tiered_end
        assert start > 0
        pinned, _all = in_bucket(tale.store, "t")
        refused = await tale.set(remote_storage_enable="false")
        assert refused.error == ErrorCode.invalid_config
        assert "remote.log.delete.on.disable" in (refused.message or "")
        done = await tale.set(remote_storage_enable="false", remote_log_delete_on_disable="true")
        assert done.error == ErrorCode.none, done
        raw = await tale.raw()
        answer = await raw.ask(8, list_offsets_body("t", -2))
        assert answer.topics[0].partitions[0].offset == start, "at once"
        answer = await raw.ask(10, list_offsets_body("t", -5))
        assert answer.topics[0].partitions[0].offset == -1, "nothing is tiered"
        fetched = await raw.ask(12, fetch_body([("t", 0, start - 1)]))
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.offset_out_of_range
        kept = {at: value for at, value in written.items() if at >= start}
        assert await read_all(tale.client, "t", start, len(written)) == kept
        await asyncio.sleep(0.5)
        manifest, left = in_bucket(tale.store, "t")
        assert manifest is not None
        assert pinned is not None
        # A reader of the bucket finds the same end and no segment before it: an end, not a hole.
        assert (manifest.start_offset, manifest.tiered_end, left) == (end, end, {})
        for segment in pinned.recent():
            assert tale.store.size(segment.path) == segment.entry.size, "running readers continue"
        await asyncio.sleep(10)
        assert not in_bucket_segments(tale)
        beside = [path for path in paths(tale.world.disks["/data"]) if "tier-manifest" in path]
        assert not beside
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms(), grace_ms=0)
        versions = manifest.version
        written |= await tale.write(count=5)
        await asyncio.sleep(10)
        assert await read_all(tale.client, "t", start, len(written)) == {
            at: value for at, value in written.items() if at >= start
        }
        manifest, _ = in_bucket(tale.store, "t")
        assert manifest is not None
        assert manifest.version <= versions + 2, "later writes leave the bucket alone"
        await tale.machine.stop()

    tell(story)


def test_objects_of_a_disabled_tier_are_deleted_after_a_crash() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(10)
        tale.store.down = True
        await tale.set(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await tale.set(remote_log_delete_on_disable=None)
        await tale.machine.lose_power()
        await tale.start()
        await asyncio.sleep(3)
        tale.store.down = False
        assert in_bucket_segments(tale)
        await asyncio.sleep(10)
        assert not in_bucket_segments(tale)
        await tale.machine.stop()

    tell(story)


@pytest.mark.parametrize("seed", [*range(9), 48, 67, 173, 288])
def test_a_tier_disabled_and_enabled_again_through_crashes_loses_no_record(seed: int) -> None:
    """After any interruption the log has its records, and in the end the bucket holds the same records or none.

    A power cut takes records that were not synced, in the middle of the log too (docs/limits.md). It takes no other.
    """

    async def story(tale: Tale) -> None:
        chance = tale.world.chance
        tale.machine.slowness = chance.choice((0.0, 0.2))
        await tale.start()
        await tale.create()
        written, is_on = await tale.write(), True
        await asyncio.sleep(chance.choice((0.1, 3)))
        for _ in range(6):
            tale.store.trouble = chance.choice((0.0, 0.3))
            tale.store.down = chance.random() < 0.2
            is_on = not is_on
            text = "true" if is_on else "false"
            await tale.set(remote_storage_enable=text, remote_log_delete_on_disable="true")
            if chance.random() < 0.3:
                await tale.set(remote_log_delete_on_disable=None)
            await asyncio.sleep(chance.choice((0, 0.05, 0.5, 3)))
            written |= await tale.write(count=chance.randint(1, 6))
            await asyncio.sleep(chance.choice((0, 0.1, 3)))
            ending, durable = chance.choice(("", "kill", "power", "stop")), 0
            if ending:
                # Records only in the bucket were fsynced here before, so no kind of stop loses them.
                log = tale.machine.partition("t").log
                start, durable = log.log_start_offset, max(log.recovery_point, log.tiered_end)
                await {
                    "kill": tale.machine.kill,
                    "power": tale.machine.lose_power,
                    "stop": tale.machine.stop,
                }[ending]()
                await tale.start()
                log = tale.machine.partition("t").log
                assert log.log_start_offset >= start or ending == "power"
            tale.store.down, tale.store.trouble = False, 0.0
            hosted = tale.machine.partition("t")
            log, end = hosted.log, hosted.high_watermark
            written = {at: value for at, value in written.items() if at < end}
            found = await read_all(tale.client, "t", log.log_start_offset, end)
            if ending == "power":
                lost = [at for at in written if at >= log.log_start_offset and at not in found]
                assert all(at >= durable for at in lost), (lost, durable)
                written = {at: value for at, value in written.items() if at not in lost}
            assert found == {at: v for at, v in written.items() if at >= log.log_start_offset}
            tale.written = end // 2
        await asyncio.sleep(30)
        assert not tale.machine.broken_tasks, tale.machine.broken_tasks
        hosted = tale.machine.partition("t")
        log = hosted.log
        manifest, tiered = in_bucket(tale.store, "t")
        if is_on:
            assert manifest is not None
            span = range(manifest.start_offset, log.tiered_end)
            assert tiered == {at: value for at, value in written.items() if at in span}
            assert log.local_start_offset <= log.tiered_end
        else:
            assert not in_bucket_segments(tale)
            assert log.log_start_offset == log.local_start_offset
        found = await read_all(tale.client, "t", log.log_start_offset, hosted.high_watermark)
        assert found == {at: v for at, v in written.items() if at >= log.log_start_offset}
        await tale.machine.stop()
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms(), grace_ms=1 << 60)

    tell(story, seed)
