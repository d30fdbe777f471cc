"""The bucket's cleaner on a whole node, when something else happens in the middle of a cleaning.

Goal: a cleaning that may not be committed any more is not committed, and leaves no object behind; the next one is.
Method: one key is written again and again into small segments, which go to a bucket. The cleaner's call is slow, and
the story acts before it is committed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.sim.compacted import CONFIGS, SETTINGS, TOPIC, in_bucket
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.tier import bucket_cleaner
from stratalog.broker.tier.partition_archiver import PartitionArchiver
from stratalog.client.admin import alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import BROKER, NewTopic
from stratalog.client.calls import TOPIC as OF_TOPIC
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.formats.paths import SEGMENT_SUFFIX
from stratalog.tier.writing.cleaning import clean_objects
from stratalog.tier.writing.tier_writer import ORPHAN_GRACE_MS, Retention
from stratalog.wire.records import BatchBuilder

URL = "memory://bucket"
TIERED = {
    **CONFIGS,
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "1.0",
}
WRITES = 12
WITHIN_S = 60.0


class Story:
    """One node with a compacted topic in a bucket. `written` are the values by offset."""

    def __init__(self, machine: Machine, client: Client) -> None:
        self.machine = machine
        self.client = client
        self.written: dict[int, bytes] = {}

    @classmethod
    async def begun(cls, **configs: str) -> "Story":
        """Start the node, and write while no cleaning is due."""
        machine = Machine(World(7), {**SETTINGS, "tier.url": URL})
        story = cls(machine, await machine.restart())
        wanted = TIERED | {name.replace("_", "."): value for name, value in configs.items()}
        await story.client.create_topics([NewTopic(TOPIC, partitions=1, configs=wanted)])
        await story.write()
        return story

    async def write(self) -> None:
        """Write values of one key, each into a segment of its own; wait until the bucket has all but the last."""
        for _ in range(WRITES):
            builder = BatchBuilder()
            value = b"%d" % len(self.written)
            builder.add(b"key", value, self.machine.world.clock.now_ms())
            produced = await self.client.produce(TOPIC, 0, builder.build())
            self.written[produced.base_offset] = value
            await asyncio.sleep(0.4)
        await self.until(lambda: self.manifest.tiered_end >= max(self.written), "upload")

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        for _ in range(round(WITHIN_S / 0.01)):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {what}")

    @property
    def cleaner(self) -> bucket_cleaner.BucketCleaner:
        tiering = self.machine.broker.tiering
        assert tiering is not None
        return tiering.cleaner

    @property
    def archiver(self) -> PartitionArchiver:
        return self.cleaner._archivers[self.machine.partition(TOPIC)]

    @property
    def manifest(self) -> Manifest:
        if not self.archiver.activated.is_set():
            return Manifest(cluster_id="", topic_id="", topic=TOPIC, partition=0)
        tier = self.archiver.tier
        assert tier is not None
        return tier.manifest

    async def alter(self, **configs: str) -> None:
        changes = {name.replace("_", "."): value for name, value in configs.items()}
        await self.client.on_controller(alter_configs(OF_TOPIC, TOPIC, changes))

    async def begin_cleaning(self) -> None:
        """Make the topic due for a cleaning, which is slow, and wait for its begin."""
        self.machine.slow_bucket(1.0)
        await self.alter(min_cleanable_dirty_ratio="0.01")
        await self.until(lambda: self.archiver.is_cleaning, "cleaning")

    async def end_cleaning(self) -> None:
        await self.until(lambda: not self.archiver.is_cleaning, "end of the cleaning")
        self.machine.slow_bucket(0.0)

    def in_bucket(self) -> dict[int, bytes | None]:
        """Return the values in the bucket by offset; none of them is another than was written there."""
        _end, records = in_bucket(self.machine.world.store(URL), TOPIC)
        assert all(self.written[one.offset] == one.value for one in records)
        return {one.offset: one.value for one in records}

    def orphans(self) -> list[str]:
        """Return the objects that no manifest names; no other problem is in the bucket."""
        problems = verify(self.machine.world.store(URL), now_ms=1 << 50, grace_ms=0)
        assert all(one.orphan for one in problems), problems
        return [one.path for one in problems]

    async def is_cleaned_next(self) -> None:
        """The next cleaning leaves the last value of the key alone."""
        await self.until(lambda: self.manifest.clean_end > 0, "committed cleaning")
        end = self.manifest.clean_end
        assert list(self.in_bucket()) == list(range(end - 1, self.manifest.tiered_end))
        assert not self.orphans()
        assert not self.cleaner.uncleanable
        await self.machine.stop()
        assert not self.machine.broken_tasks


async def memory_is_raised() -> None:
    name = "log.cleaner.dedupe.buffer.size"
    machine = Machine(World(7), {**SETTINGS, "tier.url": URL, name: "480"})
    story = Story(machine, await machine.restart())
    wanted = TIERED | {"min.cleanable.dirty.ratio": "0.01"}
    await story.client.create_topics([NewTopic(TOPIC, partitions=1, configs=wanted)])
    for _ in range(4):
        builder = BatchBuilder()
        for key in range(100):
            builder.add(b"%d" % key, b"value", machine.world.clock.now_ms())
        await story.client.produce(TOPIC, 0, builder.build())
        await asyncio.sleep(0.4)
    await story.until(lambda: bool(story.cleaner.uncleanable), "too small table")
    (reason,) = story.cleaner.uncleanable.values()
    assert f"raise {name}" in reason
    await story.client.on_controller(alter_configs(BROKER, "", {name: "48000"}))
    await story.until(lambda: story.manifest.clean_end > 0, "committed cleaning")
    assert not story.cleaner.uncleanable
    await machine.stop()


def test_a_partition_whose_keys_need_more_memory_is_cleaned_once_there_is_more() -> None:
    with capture_logs() as logs:
        run(memory_is_raised())
    assert "log.cleaner.dedupe.buffer.size" in _remedy(logs)


def _remedy(logs: Sequence[Mapping[str, Any]]) -> str:
    (line,) = [one for one in logs if one["event"] == "uncleanable in the bucket"]
    return str(line["remedy"])


async def an_object_is_damaged() -> None:
    story = await Story.begun()
    store = story.machine.world.store(URL)
    (path, *_) = sorted(one.path for one in store.list("") if one.path.endswith(SEGMENT_SUFFIX))
    damaged = bytearray(store.get(path))
    damaged[damaged.index(b"key")] ^= 1
    store.put(path, [damaged])
    await story.alter(min_cleanable_dirty_ratio="0.01")
    await story.until(lambda: bool(story.cleaner.uncleanable), "damage")
    (reason,) = story.cleaner.uncleanable.values()
    assert path in reason
    assert not story.manifest.clean_end
    await story.machine.stop()


def test_a_partition_with_a_damaged_object_is_set_aside_with_a_remedy() -> None:
    with capture_logs() as logs:
        run(an_object_is_damaged())
    assert "strata tier verify" in _remedy(logs)


async def the_policy_changes() -> None:
    story = await Story.begun()
    await story.begin_cleaning()
    await story.alter(cleanup_policy="delete")
    assert story.archiver.is_cleaning, "the cleaning is not committed yet: else this proves nothing"
    await story.end_cleaning()
    assert not story.cleaner.passes
    assert set(story.in_bucket()) == set(range(story.manifest.tiered_end)), "no record has gone"
    assert not story.orphans(), "the cleaning's objects are removed"
    await story.alter(cleanup_policy="compact")
    await story.is_cleaned_next()


def test_a_cleaning_is_dropped_where_the_policy_becomes_delete() -> None:
    run(the_policy_changes())


async def objects_go(monkeypatch: pytest.MonkeyPatch) -> None:
    story = await Story.begun(cleanup_policy="compact,delete")
    gone = 4

    def after_retention(*given: Any) -> Any:
        """Retention drops the oldest objects, and the grace period ends, before the cleaner reads them."""
        monkeypatch.setattr(bucket_cleaner, "clean_objects", clean_objects)
        tier = story.archiver.tier
        assert tier is not None
        now_ms = story.machine.world.clock.now_ms()
        for later_ms in (0, 1):
            tier.expire(now_ms + later_ms, Retention(-1, -1, gone, 0, grace_ms=-1))
        return clean_objects(*given)

    monkeypatch.setattr(bucket_cleaner, "clean_objects", after_retention)
    await story.begin_cleaning()
    await story.end_cleaning()
    assert story.manifest.start_offset == gone
    await story.is_cleaned_next()


def test_a_cleaning_whose_objects_expire_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run(objects_go(monkeypatch))


async def the_commit_is_late() -> None:
    story = await Story.begun()
    store = story.machine.world.store(URL)
    await story.begin_cleaning()
    async with story.archiver._turn:  # as an upload that waits for its quota holds it
        await asyncio.sleep(ORPHAN_GRACE_MS / 1000 + 1)
        assert len(story.orphans()) > 0, "the cleaning waits for its commit"
        sweep(store, now_ms=story.machine.world.clock.now_ms())
    await story.end_cleaning()
    assert set(story.in_bucket()) == set(range(story.manifest.tiered_end)), "no record has gone"
    await story.is_cleaned_next()


def test_a_cleaning_is_not_committed_once_a_sweep_may_have_removed_its_objects() -> None:
    run(the_commit_is_late())
