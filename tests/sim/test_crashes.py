"""A broker dies repeatedly while clients write to it and its history moves into a bucket.

Method: lives of one machine, each ended by a stop, by kill -9 or by a loss of power, drawn from the seed, with drives
that are slow and a bucket that fails now and then. Between lives the test reads all records back, and the checkers
assert:

- AckedRecordsSurvive: after a stop or kill -9 every acknowledged record is there; after a loss of power at least every
  record that was synced or in the bucket;
- TierEqualsLog: the bucket holds exactly the records that the log gave those offsets;
- an offset that was read once is never read as another record, unless a loss of power took it;
- there is no gap, but where a loss of power took records that were not durable, and left others behind them.
"""

import asyncio

import pytest
from tests.sim.lives import Story, look, write_for_a_while
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import in_bucket
from tests.sim.store import FaultyStore
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.tier.checking.verify import verify

TIERED, SYNCED = "tiered", "synced"
URL = "memory://bucket"
LIVES = 8
SETTINGS = {
    TIERED: {
        "remote.storage.enable": "true",
        "segment.ms": "300",
        "retention.ms": "-1",
        "local.retention.bytes": "1",
        "file.delete.delay.ms": "100",
    },
    SYNCED: {"flush.messages": "1", "segment.ms": "500", "retention.ms": "-1"},
}


async def lives(seed: int) -> tuple[World, list[Story], int]:
    world = World(seed)
    store = world.stores[URL] = FaultyStore(world.store("memory://under"), world.chance)
    machine = Machine(world, {"tier.url": URL})
    machine.slowness = world.chance.choice((0.0, 0.02, 0.2))
    client = await machine.restart()
    topics = [NewTopic(name, partitions=1, configs=configs) for name, configs in SETTINGS.items()]
    assert all(result.error == 0 for result in await client.create_topics(topics))
    stories, numbers = [Story(TIERED), Story(SYNCED, synced=True)], [0]
    for _life in range(LIVES):
        store.trouble = world.chance.choice((0.0, 0.1, 0.4))
        writing = [
            asyncio.create_task(write_for_a_while(machine, client, story, numbers))
            for story in (stories[0], *stories)
        ]
        await asyncio.sleep(world.chance.choice((0.2, 1, 3, 5)) * world.chance.random())
        for story in stories:
            story.note_durable(machine)
        ending = world.chance.choice(("power", "power", "power", "kill", "kill", "stop"))
        lost_power = ending == "power"
        await {"power": machine.lose_power, "kill": machine.kill, "stop": machine.stop}[ending]()
        await asyncio.wait(writing)
        while world.chance.random() < 0.3:
            lost_power = True
            await machine.lose_power_starting(world.chance.uniform(0, 0.03))
        store.trouble = 0.0
        client = await machine.restart()
        for story in stories:
            await look(machine, client, story, lost_power=lost_power)
    await asyncio.sleep(30)  # the archiver uploads every segment closed by now
    for story in stories:
        await look(machine, client, story, lost_power=False)
    await machine.stop()
    manifest, tiered = in_bucket(store, TIERED)
    assert manifest is not None
    assert list(tiered) == [at for at in range(manifest.tiered_end) if at not in stories[0].lost]
    assert tiered == {at: stories[0].acknowledged[at] for at in tiered}, "TierEqualsLog"
    problems = verify(store, now_ms=world.clock.now_ms(), grace_ms=1 << 60)
    assert not problems
    return world, stories, manifest.tiered_end


@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_and_kept_records_survive_every_crash(seed: int) -> None:
    _world, stories, tiered_end = run(lives(seed))
    assert tiered_end > 0, "nothing was tiered: the run proves nothing"
    assert all(len(story.acknowledged) > 10 for story in stories)
