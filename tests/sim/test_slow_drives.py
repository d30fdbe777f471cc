"""A slow drive does not make the ISR flap.

Method: each call of one machine's drive takes so long, in virtual time, under a steady load. The leader counts the
replicas that leave its ISR and come back. `replica.lag.time.max.ms` is 3 s here.

The rule: two appends must fit into `replica.lag.time.max.ms`, because a follower's fetch says that it caught up with
the log's end at its previous fetch. A follower with a slower drive leaves the ISR once. It comes back when it reaches
the high watermark, which is after the load or the slowness, and not while both last. For that the high watermark waits
for a follower outside of the ISR only where an append takes less than half of the lag.
"""

import asyncio

import pytest
from tests.sim.cluster import Cluster
from tests.sim.records import batch
from tests.sim.test_moves import until
from tests.sim.test_replication import create, partition, story
from tests.sim.world import START_MS

from stratalog.client.aio import Client

LOADED_S = 30


def be_slow(cluster: Cluster, node: int, milliseconds: float) -> None:
    """Make each call of a node's drive take this long; no append is made on the event loop."""
    cluster.machines[node].take_ms(milliseconds)
    cluster.world.quickness = 0.0


async def write(client: Client, acks: int) -> None:
    """Write all the time."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + LOADED_S
    while loop.time() < until_s:
        await client.produce("t", 0, batch([b"x" * 100], START_MS), acks=acks)
        await asyncio.sleep(0.05)


def changes(cluster: Cluster) -> tuple[int, int]:
    """Return how many replicas left the leader's ISR, and how many joined it."""
    proposals = cluster.machines[1].broker.replication.proposals
    return proposals.shrinks, proposals.expansions


@pytest.mark.parametrize(
    ("node", "milliseconds", "during", "after"),
    [
        pytest.param(3, 1000, (0, 0), (0, 0), id="a follower's drive, two appends in the lag"),
        pytest.param(3, 2000, (1, 0), (1, 1), id="a follower's drive, one append in the lag"),
        pytest.param(3, 5000, (1, 0), (1, 1), id="a follower's drive, no append in the lag"),
        pytest.param(1, 1000, (0, 0), (0, 0), id="the leader's drive"),
    ],
)
def test_a_slow_drive_does_not_make_the_isr_flap(
    node: int, milliseconds: float, during: tuple[int, int], after: tuple[int, int]
) -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2, 3], min_insync_replicas="2")
        await client.produce("t", 0, batch([b"x"], START_MS), acks=-1)
        be_slow(cluster, node, milliseconds)
        await write(client, acks=1)
        assert changes(cluster) == during
        cluster.machines[node].take_ms(1)
        await until(lambda: len(partition(cluster).isr) == 3)
        await asyncio.sleep(10)
        assert changes(cluster) == after

    story(tell)
