"""`python -m tests.sim.tier_faults --runs 1000`: a broker over a bucket that fails in every way, for many seeds.

In: a seed. Out: nothing, or the checker that failed with the seed that repeats it. Method: one machine starts and
ends many times, by a stop, kill -9 or loss of power. Each life has its own kind of faults, while clients write two
topics and read their history. The checkers (DESIGN §10):

- AckedRecordsSurvive and no gap, after every life (`lives.py`);
- CorruptionIsNoData: under any faults, a reader gets only the written records;
- NothingLocalDroppedEarly: the disk never begins above what the bucket's newest manifest names;
- NothingInRetentionDeleted: once records expired, a topic still keeps at least its `retention.bytes`;
- ProducingGoesOn: while nothing but the bucket fails, batches are acknowledged;
- TierEqualsLog: at the end the bucket holds the log's bytes at the same offsets;
- NoOrphansAfterCleanup: a sweep removes every leftover object and nothing else.
"""

import argparse
import asyncio
import logging
import time
from random import Random
from unittest.mock import patch

import structlog
from tests.faulty_store import Fault
from tests.sim.lives import Story, look, write_for_a_while
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import in_bucket, values_in
from tests.sim.store import FaultyStore
from tests.sim.world import World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Rejected, Unavailable, UserError
from stratalog.ports import ObjectStore
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.writing import tier_writer
from stratalog.tier.writing.spilling import SpillLimits

URL = "memory://bucket"
LIVES = 6
KEPT_BYTES = 2500
KEEPS, EXPIRES = "keeps", "expires"
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "300",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "100",
}
TOPICS = {
    KEEPS: TIERED,
    EXPIRES: {**TIERED, "retention.bytes": str(KEPT_BYTES), "local.retention.bytes": "0"},
}
ANY = tuple(Fault)
WEATHERS: dict[str, tuple[float, tuple[Fault, ...]]] = {
    "fine": (0, ANY),
    "unreachable": (1, (Fault.BEFORE,)),  # keys revoked and a bucket deleted look the same
    "slowing down": (0.5, (Fault.BEFORE,)),
    "slow": (0, ANY),
    "timing out": (0.3, (Fault.AFTER, Fault.LATE)),
    "breaking off": (0.3, (Fault.PARTIAL,)),
    "damaged": (0.3, (Fault.TORN, Fault.WRONG)),
    "stale": (0.5, (Fault.STALE, Fault.BEFORE)),
    "all of it": (0.2, ANY),
}
QUICK = {
    "remote.log.manager.task.retry.backoff.ms": "50",
    "remote.log.manager.task.retry.backoff.max.ms": "2000",
    # A late request must arrive before the grace of its object ends.
    "remote.delete.grace.ms": "1000",
}


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.chance: Random = self.world.chance
        self.truth: ObjectStore = self.world.store("memory://under")
        self.store = FaultyStore(self.truth, self.chance)
        self.world.stores[URL] = self.store
        self.machine = Machine(self.world, {"tier.url": URL, **QUICK})
        self.stories = {name: Story(name) for name in TOPICS}
        self.numbers = [0]
        self.kept_bytes = KEPT_BYTES
        self.reads = 0
        self.refusals = 0

    async def play(self) -> None:
        client = await self.machine.restart()
        wanted = [NewTopic(name, 1, configs=configs) for name, configs in TOPICS.items()]
        assert all(result.error == 0 for result in await client.create_topics(wanted))
        for _life in range(LIVES):
            client = await self._live(client)
        await asyncio.sleep(30)  # the archiver uploads all closed segments
        await self._look(client, lost_power=False)
        await self.machine.stop()
        self._check_bucket()
        assert not self.machine.broken_tasks, self.machine.broken_tasks

    async def _live(self, client: Client) -> Client:
        """Play one life and start the next; return a client of the next."""
        name = self.chance.choice(list(WEATHERS))
        self.store.trouble, self.store.kinds = WEATHERS[name]
        self.store.skew_ms = self.chance.choice((0, 0, -600_000, 600_000))
        writing = [
            asyncio.create_task(write_for_a_while(self.machine, client, story, self.numbers))
            for story in self.stories.values()
        ]
        reading = asyncio.create_task(self._read_history())
        lasts_s = self.chance.choice((0.3, 1, 3, 5))
        before = self._acknowledged()
        await asyncio.sleep(lasts_s)
        if not self.machine.slowness:
            assert self._acknowledged() > before, f"ProducingGoesOn: none while {name}"
        for story in self.stories.values():
            story.note_durable(self.machine)
        ending = self.chance.choice(("power", "kill", "stop"))
        ends = {"power": self.machine.lose_power, "kill": self.machine.kill}
        await ends.get(ending, self.machine.stop)()
        reading.cancel()
        await asyncio.wait((*writing, reading))
        for task in writing:
            task.result()
        if not reading.cancelled():
            reading.result()
        self.machine.slowness = 0.3 if self.chance.random() < 0.2 else 0.0
        if self.chance.random() < 0.7:
            self.store.trouble = 0.0
        try:
            client = await self.machine.restart()
        except UserError:  # the bucket's claim was read damaged, which is a UserError
            self.store.trouble = 0.0
            client = await self.machine.restart()
        self.store.trouble = 0.0
        self.store.arrive()
        await asyncio.sleep(2.5)  # every backoff ends within this time
        await self._look(client, lost_power=ending == "power")
        return client

    def _acknowledged(self) -> int:
        return sum(len(story.acknowledged) for story in self.stories.values())

    async def _look(self, client: Client, *, lost_power: bool) -> None:
        for story in self.stories.values():
            await look(self.machine, client, story, lost_power=lost_power)
            self._check_disk(story.topic)
        log = self.machine.partition(EXPIRES).log
        if log.log_start_offset:
            fetched = 0
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                data = (await client.fetch(EXPIRES, 0, offset, max_bytes=4096)).records
                assert isinstance(data, memoryview)
                fetched += len(data)
                offset = max(at for at, _ in values_in(data)) + 1
            if lost_power:  # which truncates records that retention had counted
                self.kept_bytes = min(self.kept_bytes, fetched)
            assert fetched >= self.kept_bytes, f"NothingInRetentionDeleted: {fetched} bytes left"
            if fetched >= KEPT_BYTES:
                self.kept_bytes = KEPT_BYTES

    def _check_disk(self, topic: str) -> None:
        start = self.machine.partition(topic).log.local_start_offset
        manifest, _ = in_bucket(self.truth, topic)
        named = 0 if manifest is None else manifest.tiered_end
        assert start <= named, f"NothingLocalDroppedEarly: {topic} from {start}, bucket to {named}"

    async def _read_history(self) -> None:
        """Read at random offsets under the current faults."""
        client = await self.machine.connect()
        while True:
            story = self.stories[self.chance.choice(list(TOPICS))]
            offset = self.chance.randrange(max(story.acknowledged, default=0) + 1)
            await asyncio.sleep(self.chance.uniform(0, 0.1))
            try:
                fetched = await client.fetch(story.topic, 0, offset, max_bytes=2048)
            except Rejected:
                self.refusals += 1
                continue
            except Unavailable:
                return  # the broker is gone
            self.reads += 1
            assert isinstance(fetched.records, memoryview)
            for at, value in values_in(fetched.records):
                assert value in story.sent, "CorruptionIsNoData"
                assert story.acknowledged.get(at, value) == value, "CorruptionIsNoData"

    def _check_bucket(self) -> None:
        story = self.stories[KEEPS]
        manifest, tiered = in_bucket(self.truth, KEEPS)
        assert manifest is not None
        assert manifest.tiered_end > 0, "nothing was tiered: the run proves nothing"
        assert len(list(manifest.recent())) < 5 or any(manifest.archives), "nothing was spilled"
        assert tiered == {at: story.acknowledged[at] for at in range(manifest.tiered_end)}
        now_ms = self.world.clock.now_ms() + (1 << 40)
        problems = verify(self.truth, now_ms=now_ms, grace_ms=0)
        damage = [one for one in problems if not one.orphan and not one.path.endswith(".seg")]
        assert not damage, damage
        sweep(self.truth, now_ms=now_ms, grace_ms=0)
        left = verify(self.truth, now_ms=now_ms, grace_ms=0)
        assert not left, f"NoOrphansAfterCleanup: {left}"
        assert in_bucket(self.truth, KEEPS)[1] == tiered, (
            "the sweep removed objects that the manifest names"
        )


def play(seed: int) -> Run:
    """Play one run and return it. Raises AssertionError that names the checker."""

    async def main() -> Run:
        made = Run(seed)
        await made.play()
        return made

    with patch.object(tier_writer, "SPILL_LIMITS", SpillLimits(4, 2, 12)):
        return run(main())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.tier_faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first run; each next is one more"
    )
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began = time.monotonic()
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        try:
            played = play(seed)
        except BaseException:  # print the seed for every failure
            print(f"failed: python -m tests.sim.tier_faults --runs 1 --seed {seed}")
            raise
        print(
            f"seed {seed}: {played._acknowledged()} records, {played.store.failures} faults, "
            f"{played.reads} reads of history, {played.refusals} refused, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
