"""Transfers to and from the bucket stay within their limits: bytes a second, reads at a time, time to wait; and
read-ahead fetches every byte once.

Method: the real node in virtual time; the world's trace has every byte that crossed to the bucket.
"""

import asyncio
from itertools import accumulate

from tests.sim.raw import fetch_body, records_of
from tests.sim.records import batch, read_all
from tests.sim.test_tier_service import TIERED, Tale, tell
from tests.sim.world import START_MS

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.tier.reading.reader import open_bucket

PARTITIONS = 64
VALUE = b"v" * 1000
RATE = 10_000
WINDOW_S = 2
COPY = "remote.log.manager.copy."
FETCH = "remote.log.manager.fetch."


def limited(tale: Tale, what: str) -> None:
    tale.machine.settings |= {
        f"{what}max.bytes.per.second": str(RATE),
        f"{what}quota.window.num": str(WINDOW_S),
        f"{what}quota.window.size.seconds": "1",
    }


def crossed(tale: Tale, operation: str, since_s: float = 0) -> list[tuple[float, str, int]]:
    """(virtual second, object, bytes) of every put or ranged get of a segment."""
    return [
        (event[0] / 1e6, event[2], event[-1])
        for event in tale.world.trace
        if event[1] == operation and event[2].endswith(".seg") and event[0] / 1e6 >= since_s
    ]


def within_rate(sizes: list[tuple[float, int]], biggest: int) -> None:
    """No window of any length has more than the quota lets through, and one transfer more."""
    for at, (begin, _) in enumerate(sizes):
        sums = accumulate(size for _, size in sizes[at:])
        for (end, _), total in zip(sizes[at:], sums, strict=True):
            allowed = RATE * (end - begin + WINDOW_S) + 2 * biggest
            assert total <= allowed, f"{total} bytes in {end - begin:.1f} s"


def test_partitions_that_roll_in_the_same_second_share_the_copy_quota_and_all_are_copied() -> None:
    async def story(tale: Tale) -> None:
        limited(tale, COPY)
        await tale.start()
        (made,) = await tale.client.create_topics([NewTopic("t", PARTITIONS, configs=TIERED)])
        assert made.error == ErrorCode.none
        await tale.client.metadata(["t"])
        for step in range(2):  # the second batch of each closes the segment with the first
            for index in range(PARTITIONS):
                await tale.client.produce("t", index, batch([VALUE], START_MS + step * 2000))
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(30)
        logs = [tale.machine.partition("t", index).log for index in range(PARTITIONS)]
        assert all(log.tiered_end == 1 for log in logs), "the archiver must catch up"
        bucket = open_bucket(tale.store)
        topic = bucket.topic("t")
        assert topic is not None
        sizes = {
            segment.path: segment.entry.data_size
            for manifest in bucket.manifests(topic).values()
            for segment in bucket.live(manifest)
        }
        puts = [(at, sizes[path]) for at, path, _ in crossed(tale, "put")]
        assert len(puts) == PARTITIONS
        within_rate(puts, max(sizes.values()))
        total = sum(sizes.values())
        assert puts[-1][0] - began >= total / RATE - WINDOW_S - 1, (
            "the quota must delay the uploads"
        )
        await tale.machine.stop()

    tell(story)


def test_history_is_read_at_the_fetch_quota_and_a_fetch_beyond_it_is_answered_empty() -> None:
    async def story(tale: Tale) -> None:
        limited(tale, FETCH)
        tale.machine.settings["tier.cache.bytes"] = "0"
        await tale.start()
        await tale.create()
        for number in range(20):
            await tale.client.produce("t", 0, batch([VALUE * 10], START_MS + number * 1100))
        await asyncio.sleep(10)
        await tale.machine.kill()  # so that nothing of it is in memory
        await tale.start()
        loop = asyncio.get_running_loop()
        began = loop.time()
        offset = empty = 0
        while offset < 18:
            asked = loop.time()
            fetched = await tale.client.fetch("t", 0, offset, max_bytes=1, max_wait_ms=0)
            assert loop.time() - asked < 0.6, "remote.fetch.max.wait.ms"
            assert isinstance(fetched.records, memoryview)
            offset += len(fetched.records) > 0
            empty += not len(fetched.records)
        assert empty > 3
        gets = [(at, size) for at, _, size in crossed(tale, "get_range", began)]
        within_rate(gets, max(size for _, size in gets))
        await tale.machine.stop()

    tell(story)


def test_a_fetch_that_the_bucket_keeps_waiting_is_answered_and_the_next_finds_the_bytes() -> None:
    async def story(tale: Tale) -> None:
        tale.machine.settings["remote.fetch.max.wait.ms"] = "1"
        await tale.start()
        await tale.create()
        await tale.write()
        await asyncio.sleep(10)
        await tale.machine.kill()
        tale.machine.slowness = 1.0  # a call takes 10 to 500 ms
        await tale.start()
        await asyncio.sleep(10)
        raw = await tale.raw()
        body = fetch_body([("t", 0, 0)], max_wait_ms=0)  # it looks once
        first = (await raw.ask(12, body)).responses[0].partitions[0]
        assert (first.error_code, records_of(first)) == (ErrorCode.none, b"")
        await asyncio.sleep(1)
        before = len(crossed(tale, "get_range"))
        second = (await raw.ask(12, body)).responses[0].partitions[0]
        assert second.records, "cached bytes must be returned without a thread"
        assert len(crossed(tale, "get_range")) == before, "the cache must keep the bytes"
        await tale.machine.stop()

    tell(story)


def test_more_reads_than_may_wait_are_refused_and_come_again() -> None:
    async def story(tale: Tale) -> None:
        tale.machine.settings |= {
            "remote.log.reader.threads": "1",
            "remote.log.reader.max.pending.tasks": "2",
        }
        await tale.start()
        await tale.create()
        written = await tale.write()
        await asyncio.sleep(10)
        await tale.machine.kill()
        tale.machine.slowness = 1.0
        await tale.start()
        await asyncio.sleep(10)
        connections = [await tale.raw() for _ in range(6)]
        answers = await asyncio.gather(
            *(
                one.ask(12, fetch_body([("t", 0, 2 * number)]))
                for number, one in enumerate(connections)
            )
        )
        codes = [answer.responses[0].partitions[0].error_code for answer in answers]
        assert codes.count(ErrorCode.kafka_storage_error) == 3
        assert codes.count(ErrorCode.none) == 3
        tale.machine.slowness = 0.0
        await tale.machine.kill()
        await tale.start()
        assert await read_all(tale.client, "t", 0, len(written)) == written
        await tale.machine.stop()

    tell(story)


async def history(tale: Tale) -> dict[int, bytes]:
    """A topic whose every closed segment is in the bucket only, and the broker freshly started."""
    await tale.start()
    await tale.create()
    written = await tale.write(count=30)
    await asyncio.sleep(10)
    await tale.machine.kill()
    await tale.start()
    await asyncio.sleep(5)
    return written


def test_a_consumer_on_its_way_finds_what_comes_next_and_each_byte_is_brought_once() -> None:
    async def story(tale: Tale) -> None:
        written = await history(tale)
        began = asyncio.get_running_loop().time()
        end = tale.machine.partition("t").log.local_start_offset
        fetched = await tale.client.fetch("t", 0, 0, max_bytes=1)
        assert len(crossed(tale, "get_range", began)) == 2, (
            "the first read requests an index and a range, and nothing ahead"
        )
        fetched = await tale.client.fetch("t", 0, 2, max_bytes=1)
        await asyncio.sleep(1)
        ahead = {path for _, path, _ in crossed(tale, "get_range", began)}
        assert len(ahead) > 3, "a sequential reader must have the next segments in flight"
        assert fetched.records
        found = await read_all(tale.client, "t", 0, end, max_bytes=1)
        assert found == {at: written[at] for at in range(end)}
        gets = crossed(tale, "get_range", began)
        segments = {path for _, path, _ in gets}
        assert len(gets) == 2 * len(segments), "one index and one range of each segment, once"
        again = asyncio.get_running_loop().time()
        await asyncio.gather(*(read_all(tale.client, "t", 0, end) for _ in range(3)))
        assert not crossed(tale, "get_range", again), (
            "a group behind the reader must need no request"
        )
        await tale.machine.stop()

    tell(story)


def test_random_reads_get_no_read_ahead_and_the_tail_reads_nothing_from_the_bucket() -> None:
    async def story(tale: Tale) -> None:
        written = await history(tale)
        began = asyncio.get_running_loop().time()
        for offset in (40, 10, 30, 0, 20):
            await tale.client.fetch("t", 0, offset, max_bytes=1)
            await asyncio.sleep(1)
        assert len({path for _, path, _ in crossed(tale, "get_range", began)}) == 5
        at_tail = asyncio.get_running_loop().time()
        calls = len(tale.store.calls)
        start = tale.machine.partition("t").log.local_start_offset
        tail = await read_all(tale.client, "t", start, len(written))
        assert tail == {at: value for at, value in written.items() if at >= start}
        assert not crossed(tale, "get_range", at_tail)
        assert len(tale.store.calls) == calls
        await tale.machine.stop()

    tell(story)
