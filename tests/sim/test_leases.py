"""Read leases on a real broker: pinned objects outlive their topic, and a dead reader's lease ends."""

import asyncio

import pytest
from tests.sim.records import in_bucket, read_all
from tests.sim.test_tier_service import Tale, in_bucket_segments, tell

from stratalog.errors import Rejected
from stratalog.tier.bucket.leases import LEASE_MS, Lease, put_lease, release_lease
from stratalog.tier.checking.verify import verify
from stratalog.tier.formats.manifest import Manifest
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)


def lease_on(pinned: Manifest) -> Lease:
    versions = {pinned.topic_id: {"0": pinned.version}}
    return Lease(cluster_id=pinned.cluster_id, id="A" * 22, holder="story", versions=versions)


async def delete_records(tale: Tale, before: int) -> int:
    """The low watermark in the answer."""
    raw = await tale.raw()
    cut = DeleteRecordsPartition(partition_index=0, offset=before)
    topics = [DeleteRecordsTopic(name="t", partitions=[cut])]
    answer = await raw.ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
    return int(answer.topics[0].partitions[0].low_watermark)


def test_records_deleted_under_a_read_lease_leave_the_bucket_when_the_reader_has_ended() -> None:
    """Clients see them no more at once, after a crash neither; the reader reads on, and then their segments go."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        pinned, all_of_it = in_bucket(tale.store, "t")
        assert pinned is not None
        assert len(all_of_it) > 15
        before = in_bucket_segments(tale)
        lease = lease_on(pinned)
        put_lease(tale.store, lease)
        assert await delete_records(tale, 9) == 9
        await asyncio.sleep(30)
        await tale.machine.kill()
        await tale.start()
        await asyncio.sleep(30)
        assert tale.machine.partition("t").log.log_start_offset == 9
        kept = {at: value for at, value in written.items() if at >= 9}
        assert await read_all(tale.client, "t", 9, len(written)) == kept
        with pytest.raises(Rejected):
            await tale.client.fetch("t", 0, 8)
        assert in_bucket_segments(tale)[: len(before)] == before
        release_lease(tale.store, lease)
        await asyncio.sleep(30)
        manifest, left = in_bucket(tale.store, "t")
        assert manifest is not None
        assert manifest.start_offset == 9
        assert min(left) in {8, 9}, "the broker must remove whole segments"
        assert len(in_bucket_segments(tale)) == sum(one.segments for one in manifest.live_totals())
        assert not verify(tale.store, now_ms=tale.world.clock.now_ms(), grace_ms=0)
        await tale.machine.stop()

    tell(story)


def test_a_topic_deleted_under_a_read_lease_goes_when_the_reader_has_ended() -> None:
    """The lease is renewed for an hour, while clocks are set; then its reader dies."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(10)
        pinned, _ = in_bucket(tale.store, "t")
        assert pinned is not None
        lease = lease_on(pinned)
        put_lease(tale.store, lease)
        await tale.client.delete_topics(["t"])
        segments = in_bucket_segments(tale)
        assert segments
        for number in range(15):
            await asyncio.sleep(240)
            tale.world.clock.step_ms = (-1) ** number * 7_200_000
            put_lease(tale.store, lease)
            assert in_bucket_segments(tale) == segments
        await asyncio.sleep(LEASE_MS / 1000 + 100)
        assert not in_bucket_segments(tale)
        assert not [info.path for info in tale.store.list("") if "/leases/" in info.path]
        await tale.machine.stop()

    tell(story)
