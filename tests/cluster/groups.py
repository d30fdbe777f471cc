"""Clients of a run that form a consumer group: they join, read, commit, leave, and die without a word.

In: a cluster under faults, a topic. Out: raises `Broken` where a generation gives one partition to two members, where a
member is sent back behind a commit that was acknowledged, or where the group has passed a record that no member read.

As in Kafka, a coordinator answers OffsetFetch from its memory, and one that was cut off does not know yet that it is
none. So a member that gets an older offset asks again, for as long as such a fault may last.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from random import Random
from unittest.mock import patch

from tests.cluster.checks import Broken
from tests.cluster.clients import PAUSE_S, TIMEOUT_S, kind_of
from tests.cluster.schedule import LONGEST_S
from tests.sim.cluster import Cluster, host_of
from tests.sim.records import values_in

from stratalog.client import membership
from stratalog.client.admin import fetch_offsets
from stratalog.client.aio import Client
from stratalog.client.membership import Member
from stratalog.errors import Rejected, Unavailable
from stratalog.wire.ids import TopicPartition

GROUP = "readers"
SESSION_MS, REBALANCE_MS = 6000, 8000
STALE_S = LONGEST_S + 10.0
FAILURES = (Unavailable, Rejected, TimeoutError)


@contextmanager
def quick_sessions() -> Iterator[None]:
    """Let members have shorter time-outs than our client's."""
    with (
        patch.object(membership, "SESSION_MS", SESSION_MS),
        patch.object(membership, "REBALANCE_MS", REBALANCE_MS),
    ):
        yield


class Group:
    """What all members of the group know together."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.owners: dict[tuple[int, TopicPartition], object] = {}
        """(generation, partition): the one member that has it."""
        self.acknowledged: dict[TopicPartition, int] = {}
        """The highest committed offset that a member got an answer for."""
        self.read: dict[TopicPartition, set[int]] = {}
        """The offsets of records that members have read."""

    def assigned(self, generation: int, partitions: tuple[TopicPartition, ...], to: object) -> None:
        """Note an assignment. Raises Broken."""
        for one in partitions:
            owner = self.owners.setdefault((generation, one), to)
            if owner is not to:
                raise Broken(f"OneOwner: {one} has two members in generation {generation}")

    def check(self, committed: Mapping[TopicPartition, int], found: Mapping[int, set[int]]) -> None:
        """Compare with the group's offsets and with the offsets of each partition's records. Raises Broken."""
        for one, least in self.acknowledged.items():
            if committed.get(one, -1) < least:
                raise Broken(f"CommitsSurvive: {one}: {committed.get(one)} after {least}")
        for one, offset in committed.items():
            passed = {at for at in found[one.partition] if at < offset}
            missed = passed - self.read.get(one, set())
            if missed:
                raise Broken(f"NothingSkipped: {one}: committed {offset}, unread {min(missed)}")


class GroupMember:
    """One consumer. It has two connections: a JoinGroup waits, and a connection answers in order."""

    def __init__(self, cluster: Cluster, group: Group, counts: Counter[str], seed: int) -> None:
        self._cluster = cluster
        self._group = group
        self._counts = counts
        self._chance = Random(seed)
        self._clients: list[Client] = []
        self._member: Member | None = None
        self._positions: dict[TopicPartition, int] = {}

    async def step(self) -> None:
        """Join where needed; read a little and commit; sometimes leave, or die."""
        try:
            async with asyncio.timeout(6 * TIMEOUT_S):
                await self._go_on()
        except FAILURES as error:
            self._counts[f"group refused: {kind_of(error)}"] += 1
            await self.close()
            await asyncio.sleep(PAUSE_S)

    async def _go_on(self) -> None:
        if self._member is None:
            self._clients = [await self._connected(REBALANCE_MS / 1000 + TIMEOUT_S)]
            self._clients.append(await self._connected(TIMEOUT_S))
            self._member = Member(self._clients[0], GROUP, [self._group.topic])
            await self._join(self._member)
        member = self._member
        if self._chance.random() < 0.03:
            await self._go(member)
            return
        if not await member.beat():
            await self._join(member)
        if self._positions:
            await self._read(self._chance.choice(list(self._positions)))
        if self._chance.random() < 0.5:
            await self._commit(member)
        await asyncio.sleep(self._chance.uniform(0, 0.3))

    async def _connected(self, timeout_s: float) -> Client:
        servers = ",".join(f"{host_of(one)}:9092" for one in self._cluster.machines)
        return await Client.connect(self._cluster.world.network, servers, timeout_s=timeout_s)

    async def _go(self, member: Member) -> None:
        if self._chance.random() < 0.5:
            await member.leave()
        self._counts["members gone"] += 1
        await self.close()

    async def _join(self, member: Member) -> None:
        self._positions = {}
        partitions = await member.join()
        generation = member.generation
        self._group.assigned(generation, partitions, self)
        self._counts["joined"] += 1
        if not partitions:
            return
        least = {one: self._group.acknowledged.get(one, 0) for one in partitions}
        ends_s = asyncio.get_running_loop().time() + STALE_S
        while True:
            offsets = await self._clients[0].on_coordinator(GROUP, fetch_offsets(GROUP))
            behind = {one: offsets.get(one, 0) for one in least if offsets.get(one, 0) < least[one]}
            if not behind:
                break
            if asyncio.get_running_loop().time() > ends_s:
                raise Broken(f"CommitsSurvive: generation {generation}: {behind} after {least}")
            self._counts["stale offsets of the group"] += 1
            await asyncio.sleep(PAUSE_S)
            if not await member.beat():
                return
        self._positions = {one: offsets.get(one, 0) for one in partitions}

    async def _read(self, one: TopicPartition) -> None:
        offset = self._positions[one]
        fetched = await self._clients[1].fetch(*one, offset, max_wait_ms=100)
        for at, _ in values_in(fetched.records):
            if at >= offset:
                self._group.read.setdefault(one, set()).add(at)
                self._positions[one] = at + 1
                self._counts["read by the group"] += 1

    async def _commit(self, member: Member) -> None:
        offsets = {one: at for one, at in self._positions.items() if at}
        if not offsets:
            return
        if await member.commit(offsets):
            known = self._group.acknowledged
            for one, at in offsets.items():
                known[one] = max(known.get(one, 0), at)
            self._counts["commits of the group"] += 1
        else:
            self._positions = {}

    async def close(self) -> None:
        clients, self._clients, self._member = self._clients, [], None
        self._positions = {}
        for client in clients:
            with suppress(*FAILURES):
                await client.close()
