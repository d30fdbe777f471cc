"""A node whose bucket is another cluster's, or cannot be used, when it starts.

Method: the real node over a bucket that a test switches off and on, in virtual time.
"""

import asyncio

import pytest
from tests.sim.test_tier_service import Tale, tell
from tests.sim.world import START_MS

from stratalog.errors import UserError
from stratalog.tier.bucket.identity import claim_bucket


def test_another_clusters_bucket_is_refused_at_the_start_and_later() -> None:
    async def story(tale: Tale) -> None:
        claim_bucket(tale.store, "AnotherClusterAltogeth", START_MS)
        with pytest.raises(UserError, match="belongs to cluster AnotherClusterAltogeth"):
            await tale.machine.start()
        tale.store.down = True
        await tale.start_once_without_a_bucket()
        await tale.start()
        await tale.create()
        await tale.write()
        tale.store.down = False
        before = sorted(info.path for info in tale.store.list(""))
        await asyncio.sleep(30)
        assert sorted(info.path for info in tale.store.list("")) == before, (
            "no byte may be uploaded"
        )
        assert await tale.write(count=1), "producers must not be affected"
        await tale.machine.stop()

    tell(story)


def test_only_the_first_start_of_a_cluster_needs_its_bucket() -> None:
    async def story(tale: Tale) -> None:
        tale.store.down = True
        with pytest.raises(UserError, match=r"tier\.url: "):
            await tale.machine.start()
        tale.store.down = False
        await tale.start()
        await tale.machine.stop()
        tale.store.down = True
        await tale.start()
        await tale.create()
        assert await tale.write(count=1)
        await tale.machine.stop()

    tell(story)
