"""Faults of several steps, each aimed at a proof of Raft: chance alone takes thousands of seeds to line them up.

In: a world in its time of faults. Out: cuts, crashes, snapshots and lost messages of that world, at times that its seed
draws. It checks nothing.
"""

from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

from tests.raft.node import Node

from stratalog.quorum.messages import FetchResponse, Response
from stratalog.wire.batch import scan


class Stories:
    """The stories of one world, which calls `is_hidden` for each response of a leader."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._chance = world.chance
        self._hiding: dict[int, int] = {}
        """Of a leader, the epoch whose records its network loses."""
        self.all: tuple[Callable[[], None], ...] = (self._bridge, self._lonely_leader)

    def _bridge(self) -> None:
        """Leave one node that reaches all others, which reach no one else, and restart the leader.

        Several candidates of one epoch then need the same voter, and do not learn of each other.
        """
        world = self._world
        middle, leader = world.any_node(), world.leader()
        if leader is None or leader is middle:
            return
        world.counts["bridges"] += 1
        world.cuts |= {pair for pair in permutations(world.nodes, 2) if middle.id not in pair}
        world.crash_node(leader)
        world.at(world.now + self._chance.choice([10, 100, 400]), world.cuts.clear)

    def _lonely_leader(self) -> None:
        """Let a leader that is cut off append, its successor take a snapshot of other records, and both meet.

        The successor's log then begins above the place where the two logs part.
        """
        world, chance = self._world, self._chance
        alone = world.leader()
        if alone is None:
            return
        world.counts["lonely leaders"] += 1
        world.isolate_node(alone)
        for number in range(chance.randint(1, 12)):
            world.at(world.now + number, partial(alone.write, b"alone %d" % number))
        incarnation = alone.incarnation

        def meet() -> None:
            for one in world.nodes.values():
                if one is not alone and one.raft is not None and one.raft.is_leader:
                    one.take_snapshot(keep=0)
            if alone.incarnation == incarnation:
                world.cuts.clear()

        world.at(world.now + chance.uniform(1, 3) * world.timeouts.fetch_ms, meet)

    def hide(self, node: Node) -> None:
        """Lose every record of a new leader's own epoch for a while, and then the leader.

        It then replicates only what earlier leaders left. A majority that has these records commits none of them (the
        Raft paper, 5.4.2).
        """
        world = self._world
        assert node.raft is not None
        world.counts["epochs hidden"] += 1
        self._hiding[node.id] = node.raft.epoch
        end = partial(self._end_hiding, node, node.incarnation)
        world.at(world.now + self._chance.uniform(2, 12) * world.delay_ms, end)

    def _end_hiding(self, node: Node, incarnation: int) -> None:
        self._hiding.pop(node.id, None)
        world = self._world
        if node.incarnation == incarnation and world.now < world.faults_ms:
            world.crash_node(node)

    def is_hidden(self, node: Node, response: Response) -> bool:
        """Return whether the network loses a response for its records."""
        epoch = self._hiding.get(node.id)
        if epoch is None or not isinstance(response, FetchResponse) or not len(response.records):
            return False
        return any(header.leader_epoch == epoch for _, header in scan(response.records))
