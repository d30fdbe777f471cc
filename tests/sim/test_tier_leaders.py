"""The tier through changes of leaders: archiving goes on, late leaders are fenced, unclean ones lose nothing tiered.

Method: the tale of `test_tier_in_cluster.py`. Stories kill, pause and cut off leaders, elect unclean ones, and switch
the bucket off. At the end every reader finds the records, and the bucket has all but those of the active segment.
"""

import asyncio
from unittest.mock import patch

import pytest
from tests.sim.cluster import host_of
from tests.sim.records import in_bucket
from tests.sim.test_tier_in_cluster import Tale, fail_over, story

from stratalog.client.admin import alter_configs
from stratalog.client.cluster_admin import UNCLEAN, elect_leaders
from stratalog.config.rules import Resource
from stratalog.errors import ErrorCode
from stratalog.tier.bucket import commit
from stratalog.wire.ids import TopicPartition

LONGEST_BACKOFF_S = 40
"""Longer than remote.log.manager.task.retry.backoff.max.ms, whatever its jitter."""


async def check(tale: Tale) -> None:
    """Check the whole log, and that the bucket has all but its active segment."""
    await tale.check()
    leader = tale.partition().leader
    await tale.until_tiered(leader)
    manifest, tiered = in_bucket(tale.store, "t")
    assert manifest is not None
    assert manifest.tiered_end >= len(tale.written) - 2
    assert tiered == {at: tale.written[at] for at in range(manifest.tiered_end)}


async def led_by_another(tale: Tale, leader: int) -> int:
    """Wait for another leader."""
    await tale.forget_client()
    await tale.cluster.until(lambda: tale.partition().leader not in (leader, -1), "a new leader")
    return tale.partition().leader


def cut(tale: Tale, node: int, *, off: bool) -> None:
    """Cut a machine off from the others, both ways, or connect it again. The bucket is not cut."""
    network = tale.cluster.world.network
    change = network.cut if off else network.heal
    for other in tale.cluster.machines:
        if other != node:
            change(host_of(node), host_of(other))
            change(host_of(other), host_of(node))


def test_each_new_leader_serves_history_and_archives_also_one_that_comes_back() -> None:
    async def tell(tale: Tale) -> None:
        await tale.create(1, 2, 3)
        for leader in (1, 2, 3):
            await tale.write(10)
            await tale.until_tiered(leader)
            await check(tale)
            if leader < 3:
                await fail_over(tale, leader)
        await tale.reassign(1, 2, 3)
        await tale.lead(1)
        await tale.write(10)
        await check(tale)

    story(tell)


async def wake_late(tale: Tale) -> None:
    """Pause a leader until its retention is outdated; wake it where it sees the bucket and no broker."""
    await tale.create(1, 2, 3, retention_ms="300000", min_insync_replicas="2")
    await tale.write(15)
    await tale.until_tiered(1)
    await tale.until_in_sync(1, 2, 3)
    late = tale.cluster.machines[1]
    late.pause()
    leader = await led_by_another(tale, 1)
    client = await tale.client()
    keeps = alter_configs(Resource.TOPIC, "t", {"retention.ms": "-1"})
    assert (await client.on_controller(keeps)).error is ErrorCode.none
    await tale.write(10)
    await tale.until_tiered(leader)
    await asyncio.sleep(400)
    cut(tale, 1, off=True)
    late.resume()
    await asyncio.sleep(10)
    assert late.partition("t").replica.leads, "it learned of its successor"
    manifest, _ = in_bucket(tale.store, "t")
    assert manifest is not None
    assert manifest.start_offset == 0, "a late leader removed records"
    cut(tale, 1, off=False)
    await tale.until_in_sync(1, 2, 3)
    await check(tale)
    await tale.reassign(1, 2, 3)
    await tale.lead(1)
    await tale.write(5)
    await check(tale)


def test_a_leader_that_wakes_up_late_removes_nothing() -> None:
    story(wake_late)


def test_without_the_fence_a_leader_that_wakes_up_late_removes_records() -> None:
    with (
        patch.object(commit, "_refuse_if_fenced", lambda *_: None),
        pytest.raises(AssertionError, match="a late leader removed records"),
    ):
        story(wake_late)


async def elect_uncleanly(tale: Tale, node: int) -> None:
    async def elected() -> bool:
        (outcome,) = await (await tale.client()).on_controller(
            elect_leaders(UNCLEAN, [TopicPartition("t", 0)])
        )
        return outcome.error is ErrorCode.none

    for _ in range(60):
        if await elected():
            break
        await asyncio.sleep(1)
    await tale.cluster.until(lambda: tale.partition().leader == node, f"{node} is elected")
    await tale.forget_client()


async def lose_the_leader(tale: Tale) -> int:
    """Let the follower fall behind, tier more records, and lose the leader; return the bucket's end.

    The follower, on node 2, is started again and elected uncleanly.
    """
    await tale.create(1, 2)
    await tale.write(10)
    await tale.until_in_sync(1, 2)
    await tale.forget_client()
    await tale.cluster.machines[2].kill()
    await tale.cluster.until(lambda: tale.partition().isr == (1,), "an ISR of the leader")
    await tale.write(20)
    await tale.until_tiered(1)
    end = tale.hosted(1).log.tiered_end
    assert end > 25
    await tale.forget_client()
    await tale.cluster.machines[1].kill()
    tale.lose(end)
    return end


@pytest.mark.parametrize("seed", [1, 2])
def test_an_unclean_leader_continues_at_the_buckets_end(seed: int) -> None:
    async def tell(tale: Tale) -> None:
        end = await lose_the_leader(tale)
        await tale.cluster.machines[2].start()
        await elect_uncleanly(tale, 2)
        await tale.write(5)
        log = tale.hosted(2).log
        assert log.epochs.epoch_of(end - 1) < log.epochs.epoch_of(end)
        await check(tale)
        await tale.forget_client()
        await tale.cluster.machines[1].start()
        await tale.until_in_sync(1, 2)
        await tale.reassign(1, 2)
        await tale.lead(1)
        await tale.write(5)
        await check(tale)

    story(tell, seed)


def test_an_unclean_leader_waits_for_the_bucket() -> None:
    async def tell(tale: Tale) -> None:
        await lose_the_leader(tale)
        tale.store.down = True
        await tale.cluster.machines[2].start()
        await elect_uncleanly(tale, 2)
        await asyncio.sleep(30)
        assert not tale.hosted(2).replica.leads, "its records would hide those of the bucket"
        tale.store.down = False
        await tale.cluster.until(
            lambda: tale.hosted(2).replica.leads, "a leader", LONGEST_BACKOFF_S
        )
        await tale.write(5)
        await check(tale)
        await tale.forget_client()
        await tale.cluster.machines[1].start()

    story(tell)


def test_an_unclean_leader_drops_records_that_the_bucket_contradicts() -> None:
    """Node 2 led alone, with the bucket out of reach, and wrote more than node 1 did later."""

    async def tell(tale: Tale) -> None:
        await tale.create(2, 1)
        await tale.write(10)
        await tale.until_tiered(2)
        await tale.until_in_sync(1, 2)
        await tale.forget_client()
        tale.store.down = True
        await tale.cluster.machines[1].kill()
        await tale.cluster.until(lambda: tale.partition().isr == (2,), "an ISR of the leader")
        await tale.write(40)
        await tale.forget_client()
        await tale.cluster.machines[2].kill()
        tale.lose(10)
        tale.store.down = False
        await tale.cluster.machines[1].start()
        await elect_uncleanly(tale, 1)
        await tale.write(20)
        await tale.until_tiered(1)
        end = tale.hosted(1).log.tiered_end
        await tale.forget_client()
        await tale.cluster.machines[1].kill()
        tale.lose(end)
        await tale.cluster.machines[2].start()
        await elect_uncleanly(tale, 2)
        await tale.write(5)
        await check(tale)
        await tale.forget_client()
        await tale.cluster.machines[1].start()

    story(tell)


async def replace_the_disk(tale: Tale, ending: str) -> None:
    """End the broker of the only replica, on node 3, and give it an empty disk."""
    await tale.create(3)
    await tale.write(20)
    await tale.until_tiered(3)
    end = tale.hosted(3).log.tiered_end
    await tale.forget_client()
    await getattr(tale.cluster.machines[3], ending)()
    tale.lose_disk(3)
    tale.lose(end)


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_the_only_replica_continues_at_the_buckets_end_after_its_disk_was_replaced(
    ending: str,
) -> None:
    async def tell(tale: Tale) -> None:
        await replace_the_disk(tale, ending)
        end = len(tale.written)
        await tale.cluster.machines[3].start()
        await tale.write(10)
        log = tale.hosted(3).log
        assert log.log_start_offset == 0
        assert log.epochs.epoch_of(end - 1) < log.epochs.epoch_of(end)
        await check(tale)
        await tale.reassign(1)
        await tale.write(5)
        await check(tale)

    story(tell)


def test_the_only_replica_with_an_empty_disk_waits_for_the_bucket() -> None:
    async def tell(tale: Tale) -> None:
        await replace_the_disk(tale, "kill")
        tale.store.down = True
        await tale.cluster.machines[3].start()
        await asyncio.sleep(30)
        assert not tale.hosted(3).replica.leads, "its records would hide those of the bucket"
        await tale.forget_client()
        await tale.cluster.machines[3].kill()
        await tale.cluster.machines[3].start()
        await asyncio.sleep(30)
        assert not tale.hosted(3).replica.leads, "its log is still empty"
        tale.store.down = False
        await tale.cluster.until(
            lambda: tale.hosted(3).replica.leads, "a leader", LONGEST_BACKOFF_S
        )
        await tale.write(5)
        await check(tale)

    story(tell)
