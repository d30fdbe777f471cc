"""The node over a bucket that fails in every way, seed by seed; its backoff; a full disk; an emptied bucket.

Method: `tier_faults.py` plays the random runs, and has a command for long ones; the rest are stories in virtual time.
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
def test_tier_and_local_log_keep_every_record_under_bucket_faults(seed: int) -> None:
    played = play(seed)
    assert played.reads > 20, "too few reads: the run proves nothing"


def test_retries_to_a_failing_bucket_back_off_and_spread_out() -> None:
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
        for _ in range(40):  # each batch closes a segment, which the archiver uploads at once
            for name in ("a", "b", "c"):
                await tale.write(name, 1)
            await asyncio.sleep(3)
        times = [[at - began for at in each] for each in asked.values()]
        assert len(times) == 4, "three partitions, and the upload of the cluster's state"
        for each in times:
            waits = [later - earlier for earlier, later in itertools.pairwise(each)]
            assert len(each) < 14, (
                "the backoff starts at 0.5 s and doubles up to 30 s, for two minutes"
            )
            assert max(waits) > 20
            assert max(waits) < 33, "at most 30 s and the time of a call"
        starts = sorted(each[3] for each in times)
        assert min(b - a for a, b in itertools.pairwise(starts)) > 0.005, "jitter"
        tale.store.fault = tale.store._draw
        await asyncio.sleep(35)
        for name in ("a", "b", "c"):
            log = tale.machine.partition(name).log
            assert log.tiered_end == log.local_start_offset > 70, "the archiver catches up"
        await tale.machine.stop()

    tell(story)


def test_when_the_disk_is_full_producers_get_an_error_and_nothing_is_lost() -> None:
    """The bucket is unreachable, so nothing may leave the disk; then the disk is full. Later both work again."""

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


def test_reads_of_an_emptied_bucket_fail_and_never_return_other_data() -> None:
    """An operator removed every object. The local log continues, and later records are kept."""

    async def story(tale: Tale) -> None:
        tale.machine.settings["tier.cache.bytes"] = "0"
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        lost = tale.machine.partition("t").log.tiered_end
        assert lost > 0
        await tale.machine.kill()  # a kill empties the read cache, which has the youngest segments
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
        # The node claims the bucket again without a restart, and archives what the local log has.
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


def test_a_recreated_bucket_that_another_cluster_claimed_gets_no_upload() -> None:
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
        assert await tale.write(), "producers are not affected"
        await asyncio.sleep(40)
        assert sorted(info.path for info in tale.store.list("")) == before
        await tale.machine.stop()

    tell(story)
