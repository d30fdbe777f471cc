"""Clients that create and delete topics, set a setting, and commit offsets; their histories must be linearizable.

In: a cluster under faults. Out: one history for each object (`linear.py`); raises `Broken` at the end where no order
explains a history.

A broker answers reads from its memory, as Kafka's does. One that was paused or cut off answers with an old state until
it learns of the new one. So a read during the faults may be as old as the longest fault; the read at the end may not.
"""

import asyncio
from collections import Counter
from collections.abc import Hashable
from random import Random
from typing import NamedTuple

from tests.cluster.checks import Broken, Stuck
from tests.cluster.clients import Session
from tests.cluster.linear import Apply, Operation, is_linearizable, presence, register
from tests.cluster.schedule import LONGEST_S
from tests.sim.cluster import Cluster

from stratalog.client.admin import alter_configs, commit_offsets, fetch_offsets
from stratalog.client.aio import Client
from stratalog.client.calls import TOPIC, NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition

SETTING = "retention.ms"
SETTING_BASE = 10**12
STALE_S = LONGEST_S + 5.0
"""The longest fault, and the time until a new leader."""
MOST = 40
"""Operations on one object: with each the search for an order takes longer."""


class HistoryOf(NamedTuple):
    """What clients did with one object, and the object's rule."""

    name: str
    rule: Apply
    initial: Hashable
    operations: list[Operation]


class Offset:
    """A group's committed offset."""

    rule = staticmethod(register)
    initial: Hashable = None

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self._at = TopicPartition(topic, 0)

    def planned(self, number: int) -> tuple[str, Hashable]:
        return "write", number

    async def change(self, client: Client, planned: tuple[str, Hashable]) -> bool:
        await client.on_coordinator(self.name, commit_offsets(self.name, {self._at: planned[1]}))
        return True

    async def read(self, client: Client) -> tuple[Hashable]:
        found = await client.on_coordinator(self.name, fetch_offsets(self.name))
        return (found.get(self._at),)


class Setting:
    """A setting of a topic."""

    rule = staticmethod(register)
    initial: Hashable = None

    def __init__(self, topic: str) -> None:
        self.name = topic

    def planned(self, number: int) -> tuple[str, Hashable]:
        return "write", str(SETTING_BASE + number)

    async def change(self, client: Client, planned: tuple[str, Hashable]) -> bool:
        answer = await client.on_controller(alter_configs(TOPIC, self.name, {SETTING: planned[1]}))
        return answer.error is ErrorCode.none

    async def read(self, client: Client) -> tuple[Hashable]:
        (found,) = await client.describe_configs([(TOPIC, self.name)])
        if found.error is not ErrorCode.none:
            raise Rejected(found.error, "no settings")
        (value,) = (one.value for one in found.entries if one.name == SETTING)
        return (value if int(value) >= SETTING_BASE else None,)


class Presence:
    """A topic that is created and deleted."""

    rule = staticmethod(presence)
    initial: Hashable = False

    def __init__(self, topic: str) -> None:
        self.name = topic

    def planned(self, number: int) -> tuple[str, Hashable]:
        return ("delete", None) if number % 2 else ("create", None)

    async def change(self, client: Client, planned: tuple[str, Hashable]) -> bool:
        if planned[0] == "create":
            (answer,) = await client.create_topics([NewTopic(self.name, 1, 3)])
        else:
            (answer,) = await client.delete_topics([self.name])
        return answer.error is ErrorCode.none

    async def read(self, client: Client) -> tuple[Hashable]:
        found = (await client.metadata()).topics
        return (self.name in found,)


class Histories:
    """Two clients for each object, and what they did."""

    def __init__(self, cluster: Cluster, counts: Counter[str], seed: int, topic: str) -> None:
        self._cluster = cluster
        self._counts = counts
        self._chance = Random(seed)
        self._objects = [Offset("g1", topic), Offset("g2", topic), Setting(topic)]
        self._objects += [Presence("made-1"), Presence("made-2")]
        self._sessions = [Session(cluster, counts), Session(cluster, counts)]
        self._histories: dict[str, list[Operation]] = {one.name: [] for one in self._objects}
        self._most = MOST

    def may_go_on(self) -> None:
        """Let each history have some more operations: the faults have ended."""
        self._most = MOST + 10

    async def step(self, worker: int) -> None:
        """Change or read one object."""
        one = self._chance.choice(self._objects)
        history = self._histories[one.name]
        if len(history) < self._most:
            if self._chance.random() < 0.3:
                await self._read(one, worker, STALE_S)
            else:
                await self._change(one, worker)
        await asyncio.sleep(self._chance.uniform(0, 1))

    async def _change(self, one, worker: int) -> None:
        history = self._histories[one.name]
        planned = one.planned(len(history))
        at = len(history)
        called = self._now()
        history.append(Operation(*planned, called))
        if await self._sessions[worker].ask(lambda client: one.change(client, planned)):
            history[at] = Operation(*planned, called, self._now())
            self._counts["changes of objects"] += 1

    async def _read(self, one, worker: int, stale_s: float) -> bool:
        called = self._now() - stale_s
        answer = await self._sessions[worker].ask(one.read)
        if answer is None:
            return False
        operation = Operation("read", answer[0], called, self._now())
        self._histories[one.name].append(operation)
        return True

    def all(self) -> list[HistoryOf]:
        """Return every history."""
        return [
            HistoryOf(one.name, one.rule, one.initial, self._histories[one.name])
            for one in self._objects
        ]

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def check(self) -> None:
        """Read each object a last time. Raises Broken where no order explains a history."""
        for one in self._objects:
            for _ in range(20):
                if await self._read(one, 0, 0.0):
                    break
            else:
                raise Stuck(f"{one.name} is never read")
            history = self._histories[one.name]
            if not is_linearizable(history, one.rule, one.initial):
                lines = "\n".join(f"    {operation}" for operation in history)
                raise Broken(f"Linearizable: no order explains {one.name}:\n{lines}")
        for session in self._sessions:
            await session.close()
