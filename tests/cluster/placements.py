"""A client of a run that moves replicas between brokers: AlterPartitionReassignments, and its cancellation.

In: a cluster of more brokers than a partition has replicas. Out: the targets that were accepted; raises `Broken` at the
end where a partition is elsewhere. It asks for one move after another.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.cluster.checks import Broken, newest, partitions_of
from tests.cluster.clients import Session
from tests.sim.cluster import Cluster

from stratalog.client.cluster_admin import alter_reassignments
from stratalog.errors import ErrorCode
from stratalog.wire.ids import TopicPartition

SLOW_S = 1.0
"""A request that took longer may have been sent twice, and its first copy may arrive late."""


@dataclass
class Targets:
    """Where a partition may end: at `last`, which was accepted, or where a late request puts it."""

    last: set[int] | None = None
    late: list[set[int]] = field(default_factory=list)
    is_anywhere: bool = False
    """Whether a cancellation may arrive late: its result depends on the moment."""


class Mover:
    """Asks for moves of the given partitions."""

    def __init__(
        self, cluster: Cluster, counts: Counter[str], seed: int, partitions: list[TopicPartition]
    ) -> None:
        self._cluster = cluster
        self._counts = counts
        self._chance = Random(seed)
        self._session = Session(cluster, counts)
        self._targets = {one: Targets() for one in partitions}
        self.is_over = False
        """Whether to ask for no more moves."""

    async def step(self) -> None:
        """Ask for one move, or for the end of one."""
        if self.is_over:
            await asyncio.sleep(1.0)
            return
        one = self._chance.choice(list(self._targets))
        targets = self._targets[one]
        began_s = asyncio.get_running_loop().time()
        if self._chance.random() < 0.2:
            targets.last = None
            is_done = await self._asked(one, None)
            self._counts["cancelled moves"] += is_done
            targets.is_anywhere |= not is_done or self._is_slow(began_s)
        else:
            target = self._chance.sample(list(self._cluster.machines), 3)
            is_done = await self._asked(one, tuple(target))
            self._counts["moves"] += is_done
            if is_done:
                targets.last = set(target)
            if not is_done or self._is_slow(began_s):
                targets.late.append(set(target))
        await asyncio.sleep(self._chance.uniform(0.5, 4))

    def _is_slow(self, began_s: float) -> bool:
        return asyncio.get_running_loop().time() - began_s > SLOW_S

    async def _asked(self, one: TopicPartition, target: tuple[int, ...] | None) -> bool:
        answers = await self._session.ask(
            lambda client: client.on_controller(alter_reassignments({one: target}))
        )
        return answers is not None and all(each.error is ErrorCode.none for each in answers)

    def check(self) -> None:
        """Compare with where the replicas are, once all moves have ended. Raises Broken."""
        image = newest(self._cluster)
        for one, targets in self._targets.items():
            replicas = set(partitions_of(image, one.topic)[one.partition].replicas)
            if targets.last is None or targets.is_anywhere:
                continue
            if replicas not in (targets.last, *targets.late):
                raise Broken(f"MovesArrive: {one} is on {replicas}, asked for {targets}")

    async def close(self) -> None:
        await self._session.close()
