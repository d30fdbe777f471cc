"""Read leases in a broker's life: what a query has pinned outlives its topic, and a reader that died lets go."""

import asyncio

from tests.sim.records import in_bucket
from tests.sim.test_tier_service import Tale, in_bucket_segments, tell

from stratalog.tier.leases import LEASE_MS, Lease, put_lease


def test_a_topic_deleted_under_a_read_lease_goes_when_the_reader_has_ended() -> None:
    """The lease is renewed for an hour, while clocks are set; then its reader dies."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(10)
        pinned, _ = in_bucket(tale.store, "t")
        assert pinned is not None
        versions = {pinned.topic_id: {"0": pinned.version}}
        lease = Lease(cluster_id=pinned.cluster_id, id="A" * 22, holder="story", versions=versions)
        put_lease(tale.store, lease)
        await tale.client.delete_topics(["t"])
        segments = in_bucket_segments(tale)
        assert segments
        for number in range(15):
            await asyncio.sleep(240)
            tale.world.clock.step_ms = (-1) ** number * 7_200_000
            renewed = tale.store.list(lease.path)
            before = [info.modified_ms for info in renewed]
            while [info.modified_ms for info in tale.store.list(lease.path)] == before:
                put_lease(tale.store, lease)
            assert in_bucket_segments(tale) == segments
        await asyncio.sleep(LEASE_MS / 1000 + 100)
        assert not in_bucket_segments(tale)
        assert not [info.path for info in tale.store.list("") if "/leases/" in info.path]
        await tale.machine.stop()

    tell(story)
