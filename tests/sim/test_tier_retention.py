"""Retention settings change on a live topic with history in the bucket: records expire neither early nor late. A quiet
topic's history does not fall into many small objects.

Method: a batch every few seconds of virtual time, each of which closes a segment; the tests watch the log's start.
"""

import asyncio
from unittest.mock import patch

from structlog.testing import capture_logs
from tests.sim.records import batch, in_bucket, read_all
from tests.sim.test_tier_service import Tale, in_bucket_segments, tell
from tests.sim.world import START_MS

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.admin import create_partitions
from stratalog.errors import ErrorCode
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.reading.reader import open_bucket
from stratalog.tier.writing import tier_writer
from stratalog.tier.writing.spilling import SpillLimits

EVERY_S = 4
INTERVAL_MS = 1000
"""`remote.log.manager.task.interval.ms` of the machine, as long as its grace."""


class Watched:
    """A topic with regular writes, and the time of each batch."""

    def __init__(self, tale: Tale) -> None:
        self.tale = tale
        self.times: list[int] = []
        self.written: dict[int, bytes] = {}

    @property
    def hosted(self) -> HostedPartition:
        return self.tale.machine.partition("t")

    @property
    def start(self) -> int:
        return self.hosted.log.log_start_offset

    def now_ms(self) -> int:
        return self.tale.world.clock.now_ms()

    async def write(self, count: int) -> None:
        for _ in range(count):
            self.times.append(self.now_ms())
            value = b"%06d" % len(self.times)
            produced = await self.tale.client.produce("t", 0, batch([value], self.times[-1]))
            self.written[produced.base_offset] = value
            await asyncio.sleep(EVERY_S)

    async def hold(self, seconds: int, retention_ms: int) -> None:
        """For `seconds`, check that the log's start follows `retention_ms`: no younger record is deleted, and no older
        one stays for more than two intervals of the archiver.
        """
        began = self.now_ms()
        for _ in range(2 * seconds):
            await asyncio.sleep(0.5)
            now_ms, start = self.now_ms(), self.start
            slack = INTERVAL_MS * 2 if now_ms - began > INTERVAL_MS * 2 else 1 << 60
            # The newest records are not closed or not tiered yet, so retention cannot delete them.
            for offset, time_ms in enumerate(self.times[:-1]):
                age = now_ms - time_ms
                if offset < start:
                    assert age > retention_ms, f"offset {offset} went at {age} ms"
                else:
                    assert age <= retention_ms + slack, f"offset {offset} is there at {age} ms"

    def objects(self) -> int:
        return len(in_bucket_segments(self.tale))

    async def check(self) -> None:
        """Check that readers get every kept record, and that the bucket holds nothing else."""
        end = self.hosted.log.log_end_offset
        kept = {at: value for at, value in self.written.items() if at >= self.start}
        assert await read_all(self.tale.client, "t", self.start, end) == kept
        manifest, tiered = in_bucket(self.tale.store, "t")
        assert manifest is not None
        assert tiered == {at: value for at, value in kept.items() if at < manifest.tiered_end}
        assert self.objects() == sum(one.segments for one in manifest.live_totals())


def test_retention_lowered_and_raised_on_a_live_topic() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        watched = Watched(tale)
        await watched.write(20)
        assert watched.start == 0
        await tale.set(retention_ms="40000")
        writing = asyncio.create_task(watched.write(5))
        await watched.hold(EVERY_S * 5, 40_000)
        await writing
        await watched.hold(2, 40_000)
        assert 0 < watched.start < 20
        await tale.set(retention_ms="-1")
        await asyncio.sleep(1)  # one cycle may have started before
        start = watched.start
        await asyncio.sleep(60)
        assert watched.start == start, "a longer retention keeps the records that still exist"
        await watched.check()

        await tale.set(retention_ms="100000")
        await watched.hold(20, 100_000)
        await tale.set(retention_ms="60000")
        await watched.hold(20, 60_000)
        await watched.check()
        await tale.machine.stop()

    tell(story)


def test_a_reader_of_the_bucket_finds_partitions_added_to_a_live_topic() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(10)
        made = await tale.client.on_controller(create_partitions("t", 3))
        assert made.error == ErrorCode.none
        await tale.client.metadata(["t"])
        for number in range(6):
            await tale.client.produce("t", 2, batch([b"%d" % number], START_MS + number * 1100))
        await asyncio.sleep(10)
        bucket = open_bucket(tale.store)
        topic = bucket.topic("t")
        assert topic is not None
        assert topic.partitions == 3
        added = bucket.manifests(topic)[2]
        assert added.tiered_end > 3
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms(), grace_ms=0)
        await tale.machine.stop()

    tell(story)


def test_retention_by_size_lowered_and_raised_and_lowered_while_the_bucket_is_down() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        watched = Watched(tale)
        await watched.write(20)
        await asyncio.sleep(5)
        manifest, _ = in_bucket(tale.store, "t")
        assert manifest is not None
        (size,) = {segment.entry.data_size for segment in manifest.recent()}
        await tale.set(retention_bytes=str(10 * size))
        await asyncio.sleep(5)
        assert watched.start == 10, "ten batches are kept, the one in the active segment among them"
        await watched.check()
        await tale.set(retention_bytes=str(100 * size))
        await watched.write(5)
        assert watched.start == 10
        tale.store.down = True
        await tale.set(retention_bytes=str(5 * size))
        await asyncio.sleep(30)
        assert watched.start == 10, "no segment expires before a manifest says so"
        tale.store.down = False
        await asyncio.sleep(35)
        assert watched.start == 20
        await watched.check()
        await tale.machine.stop()

    tell(story)


def test_small_segments_of_a_quiet_topic_are_merged_into_few_objects() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create(tier_max_lag_ms="1000", segment_ms="3600000")
        watched = Watched(tale)
        await watched.write(30)
        tale.store.trouble = 0.2
        await watched.write(30)
        tale.store.trouble = 0.0
        await asyncio.sleep(40)
        assert watched.start == 0
        manifest, _ = in_bucket(tale.store, "t")
        assert manifest is not None
        live = list(manifest.recent())
        assert manifest.tiered_end >= 59
        assert len(live) < 20, [segment.entry.base_offset for segment in live]
        assert max(segment.entry.records for segment in live) >= 16, (
            "merged segments are merged again"
        )
        later = tale.world.clock.now_ms() + 1
        sweep(tale.store, now_ms=later, grace_ms=0)  # uploads whose answer was lost
        await watched.check()
        assert not verify(tale.store, now_ms=later, grace_ms=0)
        await tale.machine.kill()
        await tale.start()
        await watched.check()
        await tale.machine.stop()

    tell(story)


def test_a_backlog_of_small_segments_is_merged_before_it_is_archived() -> None:
    """Archived entries are never merged: a spill before the merge would keep small objects for ever."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()  # each batch closes a segment
        watched = Watched(tale)
        tale.store.down = True
        await watched.write(100)
        await tale.set(segment_ms="3600000")
        tale.store.down = False
        await asyncio.sleep(60)
        manifest, _ = in_bucket(tale.store, "t")
        assert manifest is not None
        assert manifest.tiered_end >= 99
        assert sum(one.segments for one in manifest.live_totals()) < 20
        await watched.check()
        await tale.machine.stop()

    with patch.object(tier_writer, "SPILL_LIMITS", SpillLimits(16, 8, 64)):
        tell(story)


def test_a_damaged_archive_manifest_is_logged_once_and_the_archiver_continues() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        watched = Watched(tale)
        await watched.write(12)
        await asyncio.sleep(5)
        manifest, _ = in_bucket(tale.store, "t")
        assert manifest is not None
        oldest = next(manifest.live_archives())
        path = manifest.archive_path(oldest)
        await tale.machine.kill()  # the broker's memory still has the archive manifest
        tale.store.put(path, [b"x" * oldest.size])
        with capture_logs() as logged:
            await tale.start()
            await tale.set(retention_ms="60000")
            await watched.write(5)
            assert watched.start == 0, "retention cannot read the entries of the damaged archive"
            bucket = open_bucket(tale.store)
            topic = bucket.topic("t")
            assert topic is not None
            newest = bucket.manifest(topic, 0)
            assert newest is not None
            assert len(list(newest.live_archives())) > 1, (
                "younger entries go into another archive manifest"
            )
            await watched.write(20)
            await asyncio.sleep(5)
            await watched.hold(8, 60_000)
            await tale.set(retention_ms="-1")
            await asyncio.sleep(5)  # the segments that expired last are deleted too
        (line,) = [one for one in logged if one["event"] == "archive manifest unreadable"]
        assert (line["object"], line["log_level"]) == (path, "error")
        assert not [one for one in logged if one["event"].startswith("tiering stopped")]
        assert watched.hosted.metrics.delete_errors == 1
        sweep(tale.store, now_ms=watched.now_ms() + 1, grace_ms=0)
        await watched.check()
        await tale.machine.stop()

    with patch.object(tier_writer, "SPILL_LIMITS", SpillLimits(4, 2, 6)):
        tell(story)
