"""A bucket that fails in every way, seed by seed; how it is asked again; what a full disk and an emptied bucket do.

Method: `tier_faults.py` plays the runs (by command as many as wanted); the rest are stories in virtual time.
"""

import asyncio
import errno
import itertools

import pytest
from tests.sim.raw import fetch_body, records_of
from tests.sim.records import read_all
from tests.sim.test_tier_service import Tale, tell
from tests.sim.tier_faults import play

from stratalog.errors import ErrorCode, Rejected
from stratalog.tier.bucket.cluster_state import newest_state
from stratalog.tier.bucket.identity import claim_bucket
from stratalog.tier.checking.verify import verify
from stratalog.tier.reading.reader import open_bucket


@pytest.mark.parametrize("seed", range(16))
def test_tier_and_local_are_the_log_whatever_the_bucket_does(seed: int) -> None:
    told = play(seed)
    assert told.reads > 20, "hardly anything was read: the run shows nothing"


def test_a_bucket_that_fails_is_asked_less_and_less_and_not_by_all_at_once() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        for name in ("a", "b", "c"):
            await tale.create(name)
            await tale.write(name, 2)
        await asyncio.sleep(10)
        loop = asyncio.get_running_loop()
        asked: dict[str, list[float]] = {}

        def refuse(_operation: str, path: str) -> str:
            asked.setdefault(path.rpartition("/")[0], []).append(loop.time())
            return "before"

        tale.store.fault = refuse
        began = loop.time()
        for _ in range(40):  # every one closes a segment, which wants to be copied at once
            for name in ("a", "b", "c"):
                await tale.write(name, 1)
            await asyncio.sleep(3)
        times = [[at - began for at in each] for each in asked.values()]
        assert len(times) == 4, "a partition each, and what the bucket is told of the cluster"
        for each in times:
            waits = [later - earlier for earlier, later in itertools.pairwise(each)]
            assert len(each) < 14, "0.5 s, twice as long each time, up to 30 s: for two minutes"
            assert max(waits) > 20
            assert max(waits) < 33, "30 s, and the time of a call"
        starts = sorted(each[3] for each in times)
        assert min(b - a for a, b in itertools.pairwise(starts)) > 0.005, "jitter"
        tale.store.fault = tale.store._draw
        await asyncio.sleep(35)
        for name in ("a", "b", "c"):
            log = tale.machine.partition(name).log
            assert log.tiered_end == log.local_start_offset > 70, "it catches up"
        await tale.machine.stop()

    tell(story)


def test_when_the_disk_is_full_producers_get_an_error_and_nothing_is_lost() -> None:
    """The bucket is away, so nothing may leave the disk; then the disk has no room. Later both are well again."""

    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        tale.store.down = True
        more = await tale.write()
        disk = tale.world.disks["/data"]
        watched = disk.before

        def full(operation: str, path: str) -> None:
            if operation == "append" and path.startswith("t-0/"):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            watched(operation, path)

        disk.before = full
        with pytest.raises(Rejected) as refused:
            await tale.write(count=1)
        assert refused.value.code == ErrorCode.kafka_storage_error
        await tale.machine.kill()
        disk.before = watched
        tale.store.down = False
        await tale.start()
        await asyncio.sleep(10)
        assert await read_all(tale.client, "t", 0, len(written | more)) == written | more
        assert await tale.write(count=1)
        await tale.machine.stop()

    tell(story)


def test_what_an_emptied_bucket_held_is_an_error_and_never_other_data() -> None:
    """A person removed every object. The rest of the log goes on, and what is written from then on is kept."""

    async def story(tale: Tale) -> None:
        tale.machine.settings["tier.cache.bytes"] = "0"
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        lost = tale.machine.partition("t").log.tiered_end
        assert lost > 0
        await tale.machine.kill()  # or the youngest of it would be in memory still
        await tale.start()
        tale.store.delete([info.path for info in tale.store.list("")])
        raw = await tale.raw()
        answer = await raw.ask(12, fetch_body([("t", 0, 0)]))
        first = answer.responses[0].partitions[0]
        assert (first.error_code, len(records_of(first))) == (ErrorCode.corrupt_message, 0)
        assert await read_all(tale.client, "t", lost, len(written)) == {
            at: value for at, value in written.items() if at >= lost
        }
        more = await tale.write()
        await asyncio.sleep(40)
        assert tale.machine.partition("t").log.tiered_end > len(written)
        both = written | more
        assert await read_all(tale.client, "t", lost, len(both)) == {
            at: value for at, value in both.items() if at >= lost
        }
        # It is this cluster's again, without a restart, and enough to begin anew with what it has.
        bucket = open_bucket(tale.store)
        assert bucket.cluster_id == tale.machine.broker.cluster.cluster_id
        assert [topic.name for topic in bucket.topics()] == ["t"]
        await asyncio.sleep(30)
        state, _ = newest_state(tale.store, bucket.cluster_id, 0)
        assert state is not None
        assert "t" in {topic.name for topic in state.topics}
        later = tale.world.clock.now_ms() + 1
        problems = verify(tale.store, now_ms=later, grace_ms=0)
        assert problems
        assert all("missing" in one.what and one.path.endswith(".seg") for one in problems)
        await tale.machine.stop()

    tell(story)


def test_a_bucket_made_anew_that_another_cluster_took_first_gets_nothing() -> None:
    async def story(tale: Tale) -> None:
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(10)
        tale.store.delete([info.path for info in tale.store.list("")])
        claim_bucket(tale.store, "AnotherClusterAltogeth", 1)
        await tale.write()
        await asyncio.sleep(40)
        before = sorted(info.path for info in tale.store.list(""))
        assert await tale.write(), "producers never notice"
        await asyncio.sleep(40)
        assert sorted(info.path for info in tale.store.list("")) == before
        await tale.machine.stop()

    tell(story)
