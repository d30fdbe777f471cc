"""Offsets that a power cut took out of the middle of a log, once the log is tiered: readers continue behind them.

Method: the tale of `test_tier_service.py`. The bucket is down, a closed segment's file vanishes, and the segments
around it are tiered later. A fetch within the gap must find the next records, in the bucket or on the disk.
"""

import asyncio

import pytest
from tests.sim.records import read_all, values_in
from tests.sim.test_tier_service import BATCHES, LONGEST_BACKOFF_S, Tale, tell

from stratalog.log.segment import LOG, segment_path


@pytest.mark.parametrize("from_end", [1, 2, 4], ids=["before the disk", "one segment", "several"])
def test_a_fetch_at_a_gap_in_the_bucket_finds_the_next_records(from_end: int) -> None:
    async def story(tale: Tale) -> None:
        tale.store.down = True
        await tale.start_once_without_a_bucket()
        await tale.start()
        await tale.create()
        written = await tale.write()
        closed = tale.machine.partition("t").log.segments[:-1]
        first, end = closed[-from_end].base_offset, closed[-from_end].next_offset
        await tale.machine.kill()
        tale.world.disks["/data"].unlink(segment_path("t-0", first, LOG))
        await tale.start()
        tale.store.down = False
        await asyncio.sleep(LONGEST_BACKOFF_S)
        log = tale.machine.partition("t").log
        assert log.local_start_offset == log.tiered_end >= end
        left = {at: value for at, value in written.items() if not first <= at < end}
        assert await read_all(tale.client, "t", 0, 2 * BATCHES) == left
        for offset in range(first, end):
            fetched = await tale.client.fetch("t", 0, offset)
            assert isinstance(fetched.records, memoryview)
            assert next(values_in(fetched.records)) == (end, written[end])
        await tale.machine.stop()

    tell(story)
