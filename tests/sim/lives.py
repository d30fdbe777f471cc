"""Writers of a topic on a machine that dies repeatedly, and checks of the surviving records.

In: a topic's name. Out: writers for as long as the broker lives, and checks between its lives. It never ends a life.
"""

import asyncio
from random import Random

from tests.sim.machine import Machine
from tests.sim.records import batch, read_all

from stratalog.client.aio import Client
from stratalog.errors import Rejected, Unavailable


class Story:
    """The records written to one topic, and those that must survive. `synced`: the topic syncs every batch."""

    def __init__(self, topic: str, *, synced: bool = False) -> None:
        self.topic = topic
        self.synced = synced
        self.acknowledged: dict[int, bytes] = {}
        self.sent: set[bytes] = set()
        self.kept_below = 0
        """Offsets below are durable in any case, as of the last check before the power loss."""
        self.lost: set[int] = set()
        """Offsets that losses of power took, although records behind them survived (docs/limits.md)."""

    async def write(self, client: Client, clock_ms: int, number: int, chance: Random) -> None:
        values = [
            b"%s-%d-%d" % (self.topic.encode(), number, n) for n in range(chance.randint(1, 5))
        ]
        self.sent.update(values)
        produced = await client.produce(self.topic, 0, batch(values, clock_ms))
        for place, value in enumerate(values):
            self.acknowledged[produced.base_offset + place] = value

    def note_durable(self, machine: Machine) -> None:
        log = machine.partition(self.topic).log
        self.kept_below = max(self.kept_below, log.tiered_end, log.recovery_point)
        if self.synced:
            self.kept_below = log.log_end_offset

    def check(self, found: dict[int, bytes], *, lost_power: bool, start: int = 0) -> None:
        """Check `found`, all readable records of a log that starts at `start`."""
        end = max(found, default=start - 1) + 1
        assert list(found) == sorted(found)
        gaps = set(range(start, end)) - found.keys()
        if lost_power:
            kept = {at for at in gaps - self.lost if at < self.kept_below}
            assert not kept, f"{self.topic} lost {sorted(kept)}, durable to {self.kept_below}"
            self.lost |= gaps
            assert end >= self.kept_below, (
                f"{self.topic} ends at {end}, durable to {self.kept_below}"
            )
            self.acknowledged = {at: v for at, v in self.acknowledged.items() if at < end}
        assert gaps <= self.lost, "the offsets have a gap"
        self.acknowledged = {
            at: v for at, v in self.acknowledged.items() if at >= start and at not in gaps
        }
        for offset, value in self.acknowledged.items():
            assert found.get(offset) == value, f"{self.topic} {offset}: {value!r}"
        assert set(found.values()) <= self.sent
        assert len(set(found.values())) == len(found), "the log has a record twice"
        self.acknowledged = found


async def write_for_a_while(
    machine: Machine, client: Client, story: Story, numbers: list[int]
) -> None:
    """Write until the broker is gone; `numbers[0]` counts the batches of all writers."""
    chance = machine.world.chance
    try:
        while True:
            numbers[0] += 1
            await story.write(client, machine.world.clock.now_ms(), numbers[0], chance)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 1))
    except (Unavailable, Rejected):
        pass  # the broker died, or a bucket's fault failed the call; the log may have the unacknowledged batch or not


async def look(machine: Machine, client: Client, story: Story, *, lost_power: bool) -> None:
    """Read everything back, as a consumer does, and check it."""
    hosted = machine.partition(story.topic)
    start, end = hosted.log.log_start_offset, hosted.high_watermark
    found = await read_all(client, story.topic, start, end)
    story.check(found, lost_power=lost_power, start=start)
