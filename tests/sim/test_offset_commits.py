"""Goal: offset commits share the log's commits: a slow commit costs each caller its own latency, and no queue of them.

Method: the real node with a drive that takes 5 ms for each call, in virtual time; 64 consumers that commit one after
another. The rate is printed by `python -m tests.sim.test_offset_commits`.
"""

import asyncio

from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.coordinators.messages import CommitPartition, CommitTopic, OffsetCommit
from stratalog.errors import ErrorCode

CONSUMERS = 64
COMMITS = 20
COMMIT_MS = 5


async def seconds_for_commits() -> float:
    """Return the virtual seconds that all commits of all consumers take."""
    world = World(1)
    machine = Machine(world, {"offsets.topic.num.partitions": "1"})
    await machine.restart()
    groups = machine.broker.groups
    await groups.ensure_topic()
    while not groups.coordinated:
        await asyncio.sleep(0.01)
    machine.take_ms(COMMIT_MS)

    async def consume(group: str) -> None:
        for offset in range(COMMITS):
            topics = (CommitTopic("t", (CommitPartition(0, offset),)),)
            answer = await groups.commit(OffsetCommit(group, topics, -1, ""))
            assert answer.topics[0].partitions[0].error is ErrorCode.none

    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as consumers:
        for number in range(CONSUMERS):
            consumers.create_task(consume(f"g{number}"))
    took = asyncio.get_running_loop().time() - began
    await machine.stop()
    return took


def test_commits_of_many_consumers_share_the_log_s_commits() -> None:
    # One by one they take 64 * 20 * 5 ms = 6.4 s.
    assert run(seconds_for_commits()) < 3 * COMMITS * COMMIT_MS / 1000


if __name__ == "__main__":
    print(f"{CONSUMERS * COMMITS / run(seconds_for_commits()):,.0f} commits/s")
