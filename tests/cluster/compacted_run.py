"""A run of a cluster under faults that has a compacted topic too (`compacted.py`), and brokers whose cleaners work.

In: as `run.py`. Out: as `run.py`; raises `Broken` too where a key has not its last value.
"""

from collections.abc import Mapping
from functools import partial
from random import Random

from tests.cluster import compacted
from tests.cluster.checks import Stuck, holders
from tests.cluster.clients import Session
from tests.cluster.compacted import COMPACTED, NAMES, KeyReader, KeyWriter, Table
from tests.cluster.run import NODES, SETTINGS, Run
from tests.cluster.schedule import Fault

from stratalog.client.admin import alter_configs
from stratalog.client.calls import TOPIC as OF_TOPIC
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode


class CompactedRun(Run):
    """See the module."""

    settings: Mapping[str, str] = {**SETTINGS, **compacted.OF_BROKERS}

    def __init__(
        self, seed: int, faults: list[Fault] | None = None, *, tiered: bool = False
    ) -> None:
        super().__init__(seed, faults, tiered=tiered)
        chance = Random(f"compacted {seed}")
        self._is_tiered = tiered
        self._table = Table()
        given = self.cluster, self.counts
        self._clients += [
            KeyWriter(*given, chance.getrandbits(30), self._table),
            KeyReader(*given, chance.getrandbits(30), self._table),
        ]

    async def _begin(self) -> None:
        await super()._begin()
        session = Session(self.cluster, self.counts)
        configs = compacted.CONFIGS | (compacted.TIERED_CONFIGS if self._is_tiered else {})
        wanted = [NewTopic(COMPACTED, compacted.PARTITIONS, NODES, configs=configs)]
        created = await session.ask(lambda client: client.create_topics(wanted))
        if created is None or any(one.error is not ErrorCode.none for one in created):
            raise Stuck(f"no compacted topic: {created}")
        await session.close()

    def _logs_agree(self) -> bool:
        return super()._logs_agree() and self._ends_agree(NAMES)

    async def _change_metadata(self) -> None:
        change = alter_configs(OF_TOPIC, COMPACTED, {"cleanup.policy": "compact"})
        await self._asked(lambda client: client.on_controller(change))
        await super()._change_metadata()

    async def _check(self) -> None:
        await self._check_tables()
        await super()._check()

    def _trouble(self, probability: float) -> None:
        super()._trouble(
            probability / 4
        )  # a cleaning has many calls: with each fifth one failing none would end

    async def _check_tables(self) -> None:
        """Compare what the leaders serve, and what each place has, with the table."""
        store = self.cluster.world.store("memory://under") if self._is_tiered else None
        for name in NAMES:
            end = holders(self.cluster, name)[0].partition(*name).high_watermark
            read = partial(compacted.read_whole, partition=name.partition, end=end)
            found = await self._asked(read)
            self._table.check(name.partition, found, "what the leader serves")
        compacted.check_places(self.cluster, self._table, store)
