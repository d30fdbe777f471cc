"""A run of a cluster under faults in which nodes send damaged answers to other nodes too (`lies.py`).

In: as `run.py`. Out: as `run.py`. No damaged answer may end a process or a task, or change what a client was answered.
"""

from collections.abc import Collection
from random import Random

from tests.cluster.lies import Liars
from tests.cluster.run import Run
from tests.cluster.schedule import LIE, Fault
from tests.sim.lies import lying

LIES = 8


class LyingRun(Run):
    """See the module."""

    apis: Collection[int] | None = None
    """The APIs whose answers are damaged; None for all."""

    def __init__(
        self, seed: int, faults: list[Fault] | None = None, *, tiered: bool = False
    ) -> None:
        super().__init__(seed, faults, tiered=tiered)
        self._striker.liars = self._liars = Liars(Random(f"liars {seed}"), self.counts)
        self._liars.apis = self.apis

    @classmethod
    def faults_of(cls, seed: int, *, tiered: bool = False) -> list[Fault]:
        """Return the faults of the seed, and lies at times between them."""
        faults = super().faults_of(seed, tiered=tiered)
        chance, nodes = Random(f"lies {seed}"), cls.nodes_of(seed)
        end_s = max(one.at_s for one in faults)
        lies = [
            Fault(
                chance.uniform(0, end_s),
                LIE,
                chance.randint(1, nodes),
                chance.uniform(0.5, 10),
                chance.random(),
            )
            for _ in range(LIES)
        ]
        return sorted([*faults, *lies], key=lambda one: one.at_s)

    async def carry_out(self) -> None:
        with lying(self._liars):
            await super().carry_out()

    async def _check(self) -> None:
        for machine in self.cluster.machines.values():
            self.counts["damaged answers"] += sum(machine.broker.answers.counts.values())
        await super()._check()
