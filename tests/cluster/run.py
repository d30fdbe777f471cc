"""One run of a cluster of real nodes under faults, from a seed.

In: a seed, and perhaps a shorter list of faults than its own. Out: counts of what happened; raises `Broken` where a
property does not hold, and `Stuck` where the healed cluster makes no progress. Both carry a trace.

Three nodes, each broker and controller, hold every partition (`min.insync.replicas=2`). A third of the runs has a
fourth node, a broker alone, and replicas move between the brokers (`placements.py`). In half of the runs the log names
the voters, and they change. Clients produce and read, write once (`idempotent.py`) and in transactions
(`transactions.py`), form a group (`groups.py`), commit offsets, create and delete topics, and change a setting
(`registers.py`). Meanwhile faults strike (`faults.py`). With `tiered`, the first topic's history goes to a bucket, and
a fifth of the bucket's calls fail. Then all faults end.
The clients must go on, every replica must reach the same log, byte for byte, and every answer that a client got
must still be true.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Any, TypeVar

from tests.cluster.bucket_checks import WatchedStore
from tests.cluster.checks import (
    MIN_ISR,
    Broken,
    Stuck,
    Watch,
    check_metadata,
    check_replicas,
    holders,
    log_bytes,
    newest,
    partitions_of,
    quorums,
)
from tests.cluster.clients import Ledger, Producer, Reader, Session
from tests.cluster.faults import FIRST, SECOND, Faults
from tests.cluster.groups import GROUP, Group, GroupMember, quick_sessions
from tests.cluster.idempotent import IdempotentProducer
from tests.cluster.late_archiver import LateArchiver
from tests.cluster.placements import Mover
from tests.cluster.quorum_checks import QuorumChecks
from tests.cluster.registers import Histories, HistoryOf
from tests.cluster.schedule import Fault, draw, late_archiver
from tests.cluster.transactions import CommittedReader, TransactionalProducer, committed_in
from tests.faulty_store import Fault as StoreFault
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.records import in_bucket, read_all, values_in
from tests.sim.store import FaultyStore
from tests.sim.world import World

from stratalog.broker.storage.first_voters import Begin
from stratalog.client.admin import alter_configs, fetch_offsets
from stratalog.client.aio import Client
from stratalog.client.calls import TOPIC as OF_TOPIC
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition

T = TypeVar("T")
TOPIC, TRANSACTIONAL = "t", "x"
PARTITIONS = 3
TRANSACTIONAL_PARTITIONS = 2
NODES = 3
"""Voters, and replicas of each partition."""
WITH_A_FOURTH = 0.34
"""The part of the runs with a fourth broker, to which replicas move."""
MEMBERS = 3
HEALED_WITHIN_S = 60.0
ATTEMPTS = 100
TRACE_LINES = 60
SETTINGS = {
    "default.replication.factor": str(NODES),
    "min.insync.replicas": str(MIN_ISR),
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.dirs": f"{FIRST},{SECOND}",
    "transaction.state.log.num.partitions": "2",
    "metadata.log.max.record.bytes.between.snapshots": "8000",
}
BUCKET = "memory://bucket"
OF_THE_BUCKET = {
    "tier.url": BUCKET,
    "tier.max.lag.ms": "3600000",
    "remote.log.manager.task.retry.backoff.max.ms": "2000",
}
BUCKET_TROUBLE = 0.2
BUCKET_FAULTS = tuple(StoreFault)
"""Among them 503, a time-out after success, a list that is out of date, a read of damaged bytes."""
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "1000",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "100",
}
LAGS_MS = 1000, 5000
"""With the first, a leader that is cut off shrinks the ISR before it notices the loss of its controller."""
NEEDED = (
    "acknowledged",
    "acknowledged once",
    "read",
    "read by the group",
    "commits of the group",
    "moves",
    "read committed",
    "transactions committed",
    "transactions aborted",
    "changes of objects",
    "elections",
    "ISR changes",
    "truncations",
    "restarts",
    "voter changes",
    "kill",
    "loss of power",
    "cut",
    "cut in one direction",
    "pause",
    "late proposal",
    "bad network",
    "slow disk",
    "stalled disk",
    "clock step",
)


def run_seed(
    seed: int,
    faults: list[Fault] | None = None,
    *,
    tiered: bool = False,
    kind: "type[Run] | None" = None,
) -> Counter[str]:
    """Run a seed in virtual time; return the count of each event. `faults`: another list than the seed's.

    `tiered`: the first topic's history goes to a bucket, which fails too. `kind`: a run with more than that.
    """
    return finished(seed, faults, tiered=tiered, kind=kind).counts


def finished(
    seed: int,
    faults: list[Fault] | None = None,
    *,
    tiered: bool = False,
    kind: "type[Run] | None" = None,
) -> "Run":
    """Do as `run_seed`; return the run itself."""

    async def whole() -> Run:
        one = (kind or Run)(seed, faults, tiered=tiered)
        try:
            with one.quorum_checks.watching(), quick_sessions():
                await one.carry_out()
        except Exception as error:
            error.add_note(one.trace())
            for machine in one.cluster.machines.values():
                if machine.is_up:
                    machine.resume()
            raise
        return one

    return run(whole())


class Run:
    """See the module."""

    settings: Mapping[str, str] = SETTINGS
    disks_keep_order = True
    """As `SimDisk.keeps_order`."""

    def __init__(
        self, seed: int, faults: list[Fault] | None = None, *, tiered: bool = False
    ) -> None:
        chance = Random(seed)
        nodes = self.nodes_of(seed)
        self.faults = self.faults_of(seed, tiered=tiered) if faults is None else faults
        self.counts: Counter[str] = Counter()
        self.quorum_checks = QuorumChecks(self.counts)
        self._voters_change = chance.random() < 0.5
        begins = {1: Begin(standalone=True)} if self._voters_change else None
        settings = {**self.settings, "replica.lag.time.max.ms": str(chance.choice(LAGS_MS))}
        world = World(seed, disks_keep_order=self.disks_keep_order)
        self._bucket: FaultyStore | None = None
        self._watched: WatchedStore | None = None
        if tiered:
            self._watched = WatchedStore(world.store("memory://under"))
            self._bucket = FaultyStore(self._watched, Random(f"bucket {seed}"))
            world.stores[BUCKET] = self._bucket
            settings |= OF_THE_BUCKET
        roles = dict.fromkeys(range(NODES + 1, nodes + 1), "broker")
        self.cluster = Cluster(world, nodes, settings, roles, begins)
        self._skew_clocks(Random(f"clocks {seed}"))
        self._ledger = Ledger(TOPIC, PARTITIONS)
        given = self.cluster, self.counts
        seeds = iter(chance.sample(range(1 << 30), 20))
        self._producers = [
            Producer(one, given[0], self._ledger, given[1], next(seeds)) for one in (1, 2)
        ]
        self._once = IdempotentProducer(1, given[0], self._ledger, given[1], next(seeds))
        self._group = Group(TOPIC, PARTITIONS)
        self._members = [
            GroupMember(given[0], self._group, given[1], next(seeds)) for _ in range(MEMBERS)
        ]
        self._mover = None if nodes == NODES else Mover(*given, next(seeds), _names())
        self._reader = Reader(self.cluster, self._ledger, self.counts, next(seeds))
        place = TRANSACTIONAL, TRANSACTIONAL_PARTITIONS
        self._writers = [TransactionalProducer(one, *given, next(seeds), *place) for one in (1, 2)]
        self._committed = CommittedReader(*given, next(seeds), *place)
        self._histories = Histories(*given, next(seeds), TOPIC)
        late = None
        if self._bucket is not None and self._watched is not None:
            late = LateArchiver(self.cluster, self._bucket, self._watched, TOPIC)
        self._striker = Faults(
            *given, self._note, voters_change=self._voters_change, late_archiver=late
        )
        self._clients: list[Any] = [
            *self._producers,
            self._once,
            self._reader,
            *self._members,
            *self._writers,
            self._committed,
            *([self._mover] if self._mover else []),
        ]
        self._lines: list[str] = []
        self._beside: list[asyncio.Task[None]] = []
        self._is_over = False

    def histories(self) -> list[HistoryOf]:
        """Return what clients did with the objects whose histories must be linearizable."""
        return self._histories.all()

    def _skew_clocks(self, chance: Random) -> None:
        """Let the clocks of the machines differ: in speed, in their zero, and in the time of day."""
        for machine in self.cluster.machines.values():
            clock = machine.host.clock
            clock.rate = chance.uniform(0.99, 1.01)
            clock.zero_ms = chance.randint(0, 1 << 40)
            clock.step_ms = chance.randint(-30_000, 30_000)

    @staticmethod
    def nodes_of(seed: int) -> int:
        """Return how many nodes a seed's cluster has."""
        return NODES + (Random(f"nodes {seed}").random() < WITH_A_FOURTH)

    @classmethod
    def faults_of(cls, seed: int, *, tiered: bool = False) -> list[Fault]:
        """Return the faults that a seed draws; half of the runs with a bucket have a late archiver too."""
        faults = draw(Random(f"faults {seed}"), cls.nodes_of(seed))
        chance = Random(f"late {seed}")
        is_late = tiered and chance.random() < 0.5
        return [*faults, late_archiver(chance, faults)] if is_late else faults

    def trace(self) -> str:
        """Return the faults and the last notes."""
        faults = "\n".join(f"  {one.shown()}" for one in self.faults)
        return f"faults:\n{faults}\ntrace:\n" + "\n".join(self._lines[-TRACE_LINES:])

    def _note(self, line: str) -> None:
        self._lines.append(f"  {asyncio.get_running_loop().time():8.3f} s: {line}")

    async def carry_out(self) -> None:
        """Run to the end."""
        await self._begin()
        watch = Watch(self.cluster, self.counts, self._note, TOPIC, self._raise_found)
        works = [self._again(one.step) for one in self._clients]
        works += [self._again(partial(self._histories.step, worker)) for worker in (0, 1)]
        self._beside = [asyncio.create_task(one) for one in (watch.look_again_and_again(), *works)]
        self._note("the faults begin")
        self._trouble(BUCKET_TROUBLE)
        await self._go_on(self._striker.carry_out(self.faults))
        self._note("the faults have ended")
        self._trouble(0.0)
        await self._go_on(self._heal())
        self._is_over = True
        await self._go_on(self._until(self._clients_are_done, "an end of each client's step", 120))
        await self._change_metadata()
        await self._until(self._logs_agree, "all logs end at the high watermark")
        await self._check()
        self._beside[0].cancel()
        self.counts["messages"] += self.cluster.world.network.messages
        await self.cluster.stop()

    def _raise_found(self) -> None:
        self.quorum_checks.raise_found()
        if self._watched is not None:
            self._watched.raise_found()

    async def _begin(self) -> None:
        """Start the nodes, have the log name all voters, create the topics."""
        await self.cluster.start()
        if self._voters_change:
            for node_id in range(2, NODES + 1):
                await self._striker.voters.add(node_id)
        nodes = len(self.cluster.machines)
        await self._until(lambda: len(self._active_brokers()) == nodes, "all brokers", 60)
        session = Session(self.cluster, self.counts)
        wanted = [
            NewTopic(TOPIC, PARTITIONS, NODES, configs=TIERED if self._bucket else {}),
            NewTopic(TRANSACTIONAL, TRANSACTIONAL_PARTITIONS, NODES),
        ]
        created = await session.ask(lambda client: client.create_topics(wanted))
        if created is None or any(one.error is not ErrorCode.none for one in created):
            raise Stuck(f"no topics: {created}")
        await session.close()

    async def _change_metadata(self) -> None:
        """Have the controller write a last record: the records of voters alone do not move its image."""
        change = alter_configs(OF_TOPIC, TRANSACTIONAL, {"max.message.bytes": "1000000"})
        await self._asked(lambda client: client.on_controller(change))

    def _trouble(self, probability: float) -> None:
        """Let this part of the calls of the bucket fail."""
        if self._bucket is not None:
            self._bucket.trouble = probability
            self._bucket.kinds = BUCKET_FAULTS

    async def _again(self, step: Callable[[], Awaitable[None]]) -> None:
        while not self._is_over:
            await step()

    async def _go_on(self, part: Coroutine[None, None, None]) -> None:
        """Wait for a part of the story; raise what a client or the watch finds meanwhile."""
        task = asyncio.create_task(part)
        watched = self._beside[:1] if self._is_over else self._beside
        await asyncio.wait((task, *watched), return_when=asyncio.FIRST_COMPLETED)
        for one in self._beside:
            if one.done():
                one.result()
        await task

    async def _until(
        self, holds: Callable[[], bool], what: str, within_s: float = HEALED_WITHIN_S
    ) -> None:
        try:
            await self.cluster.until(holds, what, within_s)
        except AssertionError as error:
            raise Stuck(f"{error}; {self._left()}") from error

    async def _heal(self) -> None:
        """Wait until all is in sync, and each kind of client has gone on."""
        if self._mover is not None:
            self._mover.is_over = True
        await self._until(self._is_in_sync, "all replicas in sync")
        before = self.counts.copy()
        kinds = (
            "acknowledged",
            "acknowledged once",
            "read by the group",
            "commits of the group",
            "transactions committed",
            "changes of objects",
        )
        self._histories.may_go_on()
        await self._until(
            lambda: all(self.counts[kind] > before[kind] for kind in kinds),
            f"after the faults, each of: {', '.join(kinds)}",
        )

    def _active_brokers(self) -> list[int]:
        image = newest(self.cluster)
        return [] if image is None else [one.id for one in image.brokers.values() if one.is_active]

    def _is_in_sync(self) -> bool:
        image = newest(self.cluster)
        names = [] if image is None else [one.name for one in image.topics_by_id.values()]
        return all(one.is_up for one in self.cluster.machines.values()) and all(
            len(one.isr) == len(one.replicas) and one.leader >= 0 and not one.adding_replicas
            for name in names
            for one in partitions_of(image, name).values()
        )

    def _left(self) -> str:
        """Return what is not in sync, for people."""
        image = newest(self.cluster)
        lines = [f"{name} is down" for name, one in self.cluster.machines.items() if not one.is_up]
        for topic in () if image is None else image.topics_by_id.values():
            for index, one in topic.partitions.items():
                if one.leader < 0 or len(one.isr) < len(one.replicas):
                    lines.append(
                        f"{topic.name}-{index}: leader {one.leader}, ISR {one.isr}, eligible "
                        f"{one.eligible_leader_replicas}, replicas {one.replicas}"
                    )
        return "; ".join(lines)

    def _clients_are_done(self) -> bool:
        return all(one.done() for one in self._beside[1:])

    def _logs_agree(self) -> bool:
        """Return whether all replicas end at the high watermark, and all nodes have the same image."""
        offsets = {one.image.image.offset for one in quorums(self.cluster).values()}
        return self._is_in_sync() and len(offsets) == 1 and self._ends_agree(_names())

    def _ends_agree(self, names: list[TopicPartition]) -> bool:
        for name in names:
            ends = set()
            for machine in holders(self.cluster, name):
                try:
                    hosted = machine.partition(*name)
                except Rejected:
                    return False  # it has not acted on the newest image yet
                ends |= {hosted.log.log_end_offset, hosted.high_watermark}
            if len(ends) != 1:
                return False
        return True

    async def _check(self) -> None:
        """Compare what the clients were answered with what the cluster has."""
        for one in self._writers:
            await one.finish()
        await self._until(self._are_decided, "an end of each transaction", 60)
        await self._until(self._logs_agree, "all logs end at the high watermark")
        visible = {}
        found: dict[int, set[int]] = {}
        for name in _names():
            if name.topic == TRANSACTIONAL:
                visible[name.partition] = committed_in(check_replicas(self.cluster, name))[0]
                continue
            if self._bucket is not None:
                values = await self._read_tiered(self._bucket, name)
            else:
                values = dict(values_in(check_replicas(self.cluster, name)))
            self._ledger.check(name.partition, values)
            self._once.check(name.partition, values)
            found[name.partition] = set(values)
        self._group.check(await self._group_offsets(), found)
        if self._mover is not None:
            self._mover.check()
        for one in self._writers:
            await one.check(visible)
        self._committed.check(visible)
        await self._histories.check()
        check_metadata(self.cluster)
        if self._bucket is not None:
            self.counts["bucket faults"] += self._bucket.failures
        for machine in self.cluster.machines.values():
            if machine.broken_tasks or machine.reasons_to_stop:
                reasons = [*machine.broken_tasks, *machine.reasons_to_stop]
                raise Broken(f"{machine.host.name}: {reasons}")
        for client in self._clients:
            await client.close()

    async def _asked(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """Return the answer to a request that the healed cluster must answer."""
        session = Session(self.cluster, self.counts)
        for _ in range(ATTEMPTS):  # a client that connects at its first time may be refused
            answer = await session.ask(request)
            if answer is not None:
                await session.close()
                return answer
        raise Stuck("the healed cluster answers no request")

    async def _group_offsets(self) -> dict[TopicPartition, int]:
        return await self._asked(lambda client: client.on_coordinator(GROUP, fetch_offsets(GROUP)))

    async def _read_tiered(self, bucket: FaultyStore, name: TopicPartition) -> dict[int, bytes]:
        """Read a partition through its leader, from the bucket and from the leader's disk; compare with the bucket."""
        end = holders(self.cluster, name)[0].partition(*name).log.log_end_offset
        found = await self._asked(
            lambda client: read_all(client, name.topic, 0, end, partition=name.partition)
        )
        _manifest, tiered = in_bucket(bucket.store, *name)
        self.counts["archived"] += len(tiered)
        if any(found.get(offset) != value for offset, value in tiered.items()):
            raise Broken(
                f"TierEqualsLog: {name}: the bucket has other records than the broker serves"
            )
        return found

    def _are_decided(self) -> bool:
        return not any(
            committed_in(log_bytes(holders(self.cluster, name)[0], name))[1]
            for name in _names()
            if name.topic == TRANSACTIONAL
        )


def _names() -> list[TopicPartition]:
    return [TopicPartition(TOPIC, index) for index in range(PARTITIONS)] + [
        TopicPartition(TRANSACTIONAL, index) for index in range(TRANSACTIONAL_PARTITIONS)
    ]


def check_counts(counts: Counter[str]) -> None:
    """Raise Broken unless the runs had every kind of event that could have broken a property."""
    missing = [what for what in NEEDED if not counts[what]]
    if missing:
        raise Broken(f"the runs had no {', '.join(missing)}")
