"""One run of transactional producers on a real node under kills, from a seed, compared with a model.

In: a seed. Out: counts of what happened; raises `Broken` where a reader of committed records sees what the model does
not allow, or where a transaction never ends.

Producers of a few transactional ids write, commit, abort, leave transactions open, and wait past their time-out. A
producer that a newer one of its id has fenced writes again. Meanwhile the process is killed. The model knows of each
transaction whether its producer has asked for the commit, and the answer:

- A value is seen only if its producer has asked for the commit, and no answer said otherwise.
- What was seen stays, in its order, each value once.
- In the end each transaction is there in all its partitions or in none, and the acknowledged ones are there.
- No transaction stays open: its time-out ends it.
- A fenced producer's write is refused.

Producers also read, in their transactions. The history of all clients has none of the anomalies of Jepsen's Kafka
workload (`anomalies.py`).

Some producers have one of the last epochs, and some ask for the next one with the present one after a time-out. They
stage offsets in their transactions, also of a topic that is deleted meanwhile; a slow one does so as the offset before
expires. What readers may see of these is in `offsets.py`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from msgspec.structs import replace
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.transactional import Producer, committed, polled
from tests.sim.world import World
from tests.txn.anomalies import ALLOWED, At, End, Operation, first_anomaly
from tests.txn.broken import Broken
from tests.txn.offsets import RETENTION_S, Offsets, Staged

from stratalog.client.calls import NewTopic
from stratalog.coordinators.transaction import EPOCH_LAST
from stratalog.errors import ErrorCode
from stratalog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

A = TypeVar("A")
Step = Callable[[Producer], Coroutine[Any, Any, ErrorCode]]
IDS = ("a", "b", "c")
PARTITIONS = 3
TIMEOUT_MS = 4_000
KILLS = 3
READS = 0.5
"""How many transactions read before they end."""
OFFSETS = 0.5
"""How many transactions stage an offset."""
RAISED = 0.3
"""How many producers have one of the last epochs."""
GOES_ON = 0.5
"""How many producers go on after a time-out."""
RAISES = 0.5
"""How many producers speak the second protocol."""
RUN_S = 60
ENDED_WITHIN_S = 60.0
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "1000",
}
PASSING = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
}
NEEDED = (
    "first protocol",
    "second protocol",
    "committed",
    "aborted",
    "left open",
    "too late",
    "kills",
    "refused writes",
    "reads",
    "reads in transactions",
    "offsets",
    "reads of offsets",
    "offsets that expired",
    "deletions",
    "last epochs",
    "new producer ids",
    "went on",
    "G0",
)


class Lost(Exception):
    """The connection ended before the answer."""


class Transaction:
    """A transaction as its producer knows it."""

    def __init__(self, value: bytes, session: str) -> None:
        self.value = value
        self.did = Operation(session)
        self.partitions: list[int] = []
        """Where its value was written, and acknowledged."""
        self.may_commit = False
        """The producer has asked for the commit."""
        self.is_committed = False
        """The commit was acknowledged."""
        self.staged: Staged | None = None
        """Its offset."""

    def ask(self, *, commit: bool) -> None:
        """Note that the producer asks for the end."""
        self.may_commit = commit
        if self.staged is not None:
            self.staged.may_commit = commit

    def acknowledge(self, now_s: float) -> None:
        """Note that the broker has acknowledged the end."""
        self.is_committed = self.may_commit
        if self.staged is not None and self.may_commit:
            self.staged.committed_s = now_s


def run_seed(seed: int) -> Counter[str]:
    """Run a seed in virtual time; return the count of each event."""

    async def whole() -> Counter[str]:
        one = Run(seed)
        await one.carry_out()
        return one.counts

    return run(whole())


class Run:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.counts: Counter[str] = Counter()
        self.machine = Machine(World(seed), SETTINGS)
        self.by_value: dict[bytes, Transaction] = {}
        self.seen: dict[int, list[bytes]] = {one: [] for one in range(PARTITIONS)}
        self.offsets = Offsets()
        self._polls: list[Operation] = []
        self._sessions = 0
        self._is_over = False

    async def carry_out(self) -> None:
        """Run to the end."""
        client = await self.machine.restart()
        await client.create_topics([NewTopic("t", PARTITIONS), NewTopic("gone", 1)])
        raw = await self._connected()
        await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        tasks = [asyncio.create_task(self._produce(name)) for name in IDS]
        others = (self._read, self._read_offsets, self._delete, self._stage_late)
        tasks += [asyncio.create_task(work()) for work in others]
        for _ in range(KILLS):
            await asyncio.wait(tasks, timeout=RUN_S / KILLS, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
            await self.machine.kill()
            await asyncio.sleep(self.chance.uniform(0, 2))
            await self.machine.restart()
            self.offsets.started_s = self._now_s
            self.counts["kills"] += 1
        self._is_over = True
        await asyncio.gather(*tasks)
        await self._until_ended()
        raw = await self._connected()
        for partition in range(PARTITIONS):
            self._look(partition, await self._answer(raw, committed(raw, partition)))
        await asyncio.sleep(4)
        await self._look_at_offsets(raw)
        self._check_whole()
        self._check_history()
        await self.machine.stop()

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _connected(self) -> Raw:
        while True:
            try:
                return await Raw.connect(self.machine.world.network)
            except OSError:
                await asyncio.sleep(0.2)

    @staticmethod
    async def _answer(raw: Raw, asking: Coroutine[Any, Any, A]) -> A:
        """Return an answer. Raises Lost where the connection ended first."""
        task = asyncio.ensure_future(asking)
        await asyncio.wait((task, raw.closed), return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled():
            return task.result()
        task.cancel()
        raise Lost

    # Producers

    async def _produce(self, name: str) -> None:
        """Run one producer of an id after the other."""
        old: Producer | None = None
        number = 0
        while not self._is_over:
            try:
                raw = await self._connected()
                producer = Producer(raw, name, raises=self.chance.random() < RAISES)
                self.counts["second protocol" if producer.raises else "first protocol"] += 1
                await self._repeated(producer, lambda one: one.begin(timeout_ms=TIMEOUT_MS))
                if old is not None:
                    await self._write_again(raw, old)
                self._raise(producer)
                session, positions = self._session(name), dict.fromkeys(range(PARTITIONS), 0)
                for _ in range(self.chance.randint(1, 6)):
                    number += 1
                    one = Transaction(f"{name}-{number}".encode(), session)
                    self.by_value[one.value] = one
                    if await self._carry_out(producer, one, positions):
                        continue
                    if self.chance.random() >= GOES_ON or not await self._goes_on(producer):
                        break
                old = producer
            except Lost:
                await asyncio.sleep(0.2)

    def _raise(self, producer: Producer) -> None:
        """Give some producers one of the last epochs."""
        if self.chance.random() < RAISED:
            epoch = EPOCH_LAST - self.chance.randrange(3)
            self.counts["last epochs"] += producer.raise_to(self.machine, epoch)

    async def _goes_on(self, producer: Producer) -> bool:
        """Ask for the next epoch with the present one; return whether the producer got it."""
        before = producer.id
        code = await self._repeated(producer, lambda one: one.begin_again(timeout_ms=TIMEOUT_MS))
        self.counts["went on"] += code is ErrorCode.none
        self.counts["new producer ids"] += producer.id != before
        return code is ErrorCode.none

    async def _stage(self, producer: Producer, one: Transaction, group: str, topic: str) -> bool:
        """Stage an offset in a transaction; return whether the producer may go on."""
        offset = self.offsets.stage((group, topic), self._now_s)
        one.staged = self.offsets.all[offset]
        code = await self._repeated(producer, lambda it: it.add_offsets(group))
        if code is ErrorCode.none:
            absent = ErrorCode.unknown_topic_or_partition
            code = await self._repeated(
                producer,
                lambda it: it.commit_offset(offset, group_id=group, topic=topic),
                but=absent,
            )
            if code is absent:
                return True  # the topic is deleted: there is no offset, and the transaction goes on
        if code is not ErrorCode.none:
            return False
        one.staged.ended_s = self._now_s
        self.counts["offsets"] += 1
        return True

    async def _stage_late(self) -> None:
        """Stage an offset right before the one before expires, and commit it right after."""
        while not self._is_over:
            producer = Producer(
                await self._connected(), "late", raises=self.chance.random() < RAISES
            )
            try:
                await self._repeated(producer, lambda one: one.begin(timeout_ms=TIMEOUT_MS))
                one = Transaction(b"", "late")
                if not await self._stage(producer, one, "slow", "t"):
                    continue
                await asyncio.sleep(2.5)
                one.ask(commit=True)
                if await self._repeated(producer, lambda it: it.end(commit=True)) is ErrorCode.none:
                    one.acknowledge(self._now_s)
                    assert one.staged is not None
                    rest_s = one.staged.began_s + RETENTION_S - self._now_s
                    await asyncio.sleep(max(rest_s - self.chance.uniform(0.3, 2), 0))
                else:
                    one.ask(commit=False)
            except Lost:
                await asyncio.sleep(0.2)

    async def _repeated(
        self, producer: Producer, step: Step, *, but: ErrorCode = ErrorCode.none
    ) -> ErrorCode:
        """Repeat a step while its error asks for that, `but` not after that one; return the last error."""
        for _ in range(round(ENDED_WITHIN_S / 0.05)):
            code = await self._answer(producer.raw, step(producer))
            if code not in PASSING or code is but:
                return code
            await asyncio.sleep(0.05)
        raise Broken(f"{producer.name} gets {code.name} for {ENDED_WITHIN_S:g} s")

    def _session(self, name: str) -> str:
        self._sessions += 1
        return f"{name}/{self._sessions}"

    async def _poll(
        self, raw: Raw, partition: int, positions: dict[int, int], did: Operation
    ) -> None:
        """Read on from a session's position."""
        records, positions[partition] = await self._answer(
            raw, polled(raw, partition, positions[partition])
        )
        did.read += [At(partition, offset, value) for offset, value in records]

    async def _carry_out(
        self, producer: Producer, one: Transaction, positions: dict[int, int]
    ) -> bool:
        """Run one transaction; return whether the producer may go on."""
        chance = self.chance
        partitions = chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS))
        if await self._repeated(producer, lambda it: it.add(*partitions)) is not ErrorCode.none:
            return False
        for partition in partitions:
            one.did.sent.append(At(partition, None, one.value))
            code = await self._repeated(producer, lambda it, at=partition: it.write(at, one.value))
            if code is not ErrorCode.none:
                return False
            one.did.sent[-1] = At(partition, producer.offset, one.value)
            one.partitions.append(partition)
            await asyncio.sleep(chance.uniform(0, 0.3))  # others write in between
        if chance.random() < READS:
            await self._poll(producer.raw, chance.randrange(PARTITIONS), positions, one.did)
            self.counts["reads in transactions"] += 1
        if chance.random() < OFFSETS and not await self._stage(
            producer, one, "g", chance.choice(("t", "gone"))
        ):
            return False
        await asyncio.sleep(chance.uniform(0, 1.5))
        ending = chance.choices(("commit", "abort", "leave", "late"), (5, 3, 1, 1))[0]
        if ending == "leave":
            self.counts["left open"] += 1
            return False
        if ending == "late":
            await asyncio.sleep(chance.uniform(2, 20))
        one.ask(commit=ending != "abort")
        before = producer.id
        code = await self._repeated(producer, lambda it: it.end(commit=one.may_commit))
        self.counts["new producer ids"] += producer.id != before
        if code is ErrorCode.none:
            one.acknowledge(self._now_s)
            self.counts["committed" if one.may_commit else "aborted"] += 1
            return True
        one.ask(commit=False)
        self.counts["too late"] += 1
        return False

    async def _write_again(self, raw: Raw, old: Producer) -> None:
        """Have a fenced producer write: it must be refused."""
        old.raw = raw
        one = Transaction(f"fenced-{len(self.by_value)}".encode(), self._session("fenced"))
        self.by_value[one.value] = one
        partition = self.chance.randrange(PARTITIONS)
        code = await self._repeated(old, lambda it: it.write(partition, one.value))
        if code is ErrorCode.none:
            raise Broken(f"a fenced producer of {old.name} wrote into partition {partition}")
        self.counts["refused writes"] += 1

    # Readers

    async def _read(self) -> None:
        """Read committed records all the time."""
        while not self._is_over:
            raw = await self._connected()
            session, positions = self._session("reader"), dict.fromkeys(range(PARTITIONS), 0)
            try:
                while not self._is_over:
                    partition = self.chance.randrange(PARTITIONS)
                    did = Operation(session, end=End.COMMITTED)
                    self._polls.append(did)
                    await self._poll(raw, partition, positions, did)
                    self._look(partition, await self._answer(raw, committed(raw, partition)))
                    self.counts["reads"] += 1
                    await asyncio.sleep(self.chance.uniform(0.2, 1))
            except Lost:
                await asyncio.sleep(0.2)

    async def _read_offsets(self) -> None:
        """Read stable offsets all the time."""
        while not self._is_over:
            raw = await self._connected()
            try:
                while not self._is_over:
                    await self._look_at_offsets(raw)
                    await asyncio.sleep(self.chance.uniform(0.2, 1))
            except Lost:
                await asyncio.sleep(0.2)

    async def _look_at_offsets(self, raw: Raw) -> None:
        places = [("g", "t"), ("g", "gone"), ("slow", "t")]
        asked_s = self._now_s
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])],
                )
                for group, topic in places
            ],
            require_stable=True,
        )
        # A group may be named once: each place has a request of its own.
        for place, wanted in zip(places, request.groups, strict=True):
            answer = await self._answer(raw, raw.ask(8, replace(request, groups=[wanted])))
            (found,) = answer.groups
            if found.error_code:
                continue
            (part,) = found.topics[0].partitions
            if part.error_code:
                continue
            self.offsets.look(place, part.committed_offset, asked_s, self._now_s)
            self.counts["reads of offsets"] += 1
            is_gone = part.committed_offset < 0 and any(
                one.committed_s is not None for one in self.offsets.all if one.place == place
            )
            self.counts["offsets that expired"] += is_gone and place[1] == "t"

    async def _delete(self) -> None:
        """Delete a topic and create it again, from time to time."""
        topic = CreatableTopic(
            name="gone", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        while not self._is_over:
            raw = await self._connected()
            try:
                while not self._is_over:
                    await asyncio.sleep(self.chance.uniform(1, 10))
                    asked_s = self._now_s
                    await self._answer(
                        raw, raw.ask(5, DeleteTopicsRequest(topic_names=["gone"], timeout_ms=9_000))
                    )
                    self.offsets.deleted_s = asked_s, self._now_s
                    self.counts["deletions"] += 1
                    await asyncio.sleep(self.chance.uniform(0, 8))
                    await self._answer(raw, raw.ask(5, CreateTopicsRequest(topics=[topic])))
            except Lost:
                await asyncio.sleep(0.2)

    def _look(self, partition: int, values: list[bytes]) -> None:
        before = self.seen[partition]
        if values[: len(before)] != before:
            raise Broken(f"partition {partition}: what was seen has changed")
        if len(set(values)) != len(values):
            raise Broken(f"partition {partition}: a value is there twice")
        for value in values:
            if not self.by_value[value].may_commit:
                raise Broken(f"partition {partition}: {value!r} is seen, and not committed")
        self.seen[partition] = values

    async def _until_ended(self) -> None:
        """Wait until no transaction is open."""
        for _ in range(round(ENDED_WITHIN_S / 0.1)):
            hosted = [self.machine.partition("t", one) for one in range(PARTITIONS)]
            if all(one.last_stable_offset == one.log.log_end_offset for one in hosted):
                return
            await asyncio.sleep(0.1)
        raise Broken(f"a transaction is open after {ENDED_WITHIN_S:g} s")

    def _check_whole(self) -> None:
        for one in self.by_value.values():
            where = [at for at in range(PARTITIONS) if one.value in self.seen[at]]
            if where and where != sorted(one.partitions):
                raise Broken(f"{one.value!r} is in {where} of {sorted(one.partitions)}")
            if one.is_committed and not where:
                raise Broken(f"{one.value!r} was committed, and is lost")

    def _check_history(self) -> None:
        """Raise Broken for an anomaly. Operations are in each session's order; that is what the checkers need."""
        for one in self.by_value.values():
            ends = {(True, True): End.COMMITTED, (True, False): End.UNKNOWN}
            one.did.end = ends.get((one.may_commit, one.is_committed), End.ABORTED)
        history = [*(one.did for one in self.by_value.values()), *self._polls]
        found = first_anomaly(history)
        if found is not None:
            raise Broken(found)
        for name, checker in ALLOWED.items():
            self.counts[name] += len(list(checker(history)))


def check_counts(counts: Counter[str]) -> None:
    """Raise Broken unless the runs had every kind of event that could have broken a property."""
    missing = [what for what in NEEDED if not counts[what]]
    if missing:
        raise Broken(f"the runs had no {', '.join(missing)}")
