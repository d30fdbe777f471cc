"""The tier of three nodes: new replicas begin from the bucket, and fetch from their peers the tail alone.

Method: real nodes in one world share a bucket. Idempotent producers write with acks=all, each record with a value of
its own. After each change of replicas, a reader reads the whole topic through the new leader, and the producer of the
oldest batch repeats it: only the bucket knows this producer.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.cluster import CLUSTER_ID, Cluster, host_of
from tests.sim.loop import run
from tests.sim.raw import Raw, fetch_body, records_of
from tests.sim.records import read_all, values_in
from tests.sim.store import FaultyStore
from tests.sim.world import START_MS, World

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.replication import source
from stratalog.broker.replication.leader_offsets import ask_offsets
from stratalog.broker.storage.claim import format_directory
from stratalog.client.admin import alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import LATEST_TIERED, NewTopic, Produced
from stratalog.client.cluster_admin import PREFERRED, alter_reassignments, elect_leaders
from stratalog.config.rules import Resource
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.metadata.image import Partition
from stratalog.tier.checking.verify import verify
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder

URL = "memory://bucket"
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "1000",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "100",
    "min.insync.replicas": "1",
}
SETTINGS = {"tier.url": URL, "replica.lag.time.max.ms": "3000", "tier.max.lag.ms": "3600000"}
PADDING = b"." * 500
Tell = Callable[["Tale"], Coroutine[Any, Any, None]]


class Tale:
    """A cluster with a bucket, a tiered topic, and its producer."""

    def __init__(self, seed: int) -> None:
        world = World(seed)
        self.store = FaultyStore(world.store("memory://under"), world.chance)
        world.stores[URL] = self.store
        self.cluster = Cluster(world, 3, SETTINGS)
        self.written: dict[int, bytes] = {}
        self._lives: dict[int, int] = {}
        self._life = 0
        self._producers = [(-1, -1)] * 2
        self._count = 0
        self._client: Client | None = None

    async def client(self) -> Client:
        if self._client is None:
            up = [host_of(one) for one, machine in self.cluster.machines.items() if machine.is_up]
            addresses = ",".join(f"{host}:9092" for host in up)
            self._client = await Client.connect(self.cluster.world.network, addresses)
        return self._client

    async def forget_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def create(self, *replicas: int, **configs: str) -> None:
        named = TIERED | {key.replace("_", "."): text for key, text in configs.items()}
        client = await self.client()
        topic = NewTopic("t", assignments={0: list(replicas)}, configs=named)
        (created,) = await client.create_topics([topic])
        assert created.error is ErrorCode.none, created
        await self.forget_client()  # the next one knows the topic
        client = await self.client()
        self._producers = [await client.init_producer_id() for _ in range(2)]

    async def send(self, number: int) -> Produced:
        """Write batch `number`, or repeat it. Nearly each batch closes a segment: they are a second apart.

        The first batch is the only one of its producer.
        """
        builder = BatchBuilder()
        builder.add(None, self.value(number), START_MS + 1100 * number)
        producer_id, epoch = self._producers[min(number, 1)]
        data = builder.build(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=max(number - 1, 0)
        )
        for _ in range(100):
            try:
                client = await self.client()
                return await client.produce("t", 0, bytearray(data))
            except (Rejected, Unavailable):
                await self.forget_client()
                await asyncio.sleep(0.2)
        raise AssertionError(f"batch {number} is not acknowledged")

    async def write(self, count: int) -> None:
        for number in range(self._count, self._count + count):
            produced = await self.send(number)
            assert produced.base_offset == number
            self.written[number] = self.value(number)
        self._count += count

    def value(self, number: int) -> bytes:
        return b"%d" % number + PADDING + b"!" * self._lives.setdefault(number, self._life)

    def lose(self, end: int) -> None:
        """Note that the records from `end` on are lost: later ones at their offsets have other values."""
        self.written = {at: value for at, value in self.written.items() if at < end}
        self._lives = {at: life for at, life in self._lives.items() if at < end}
        self._count = end
        self._life += 1

    def partition(self) -> Partition:
        image = max(
            (one.image.image for one in self.cluster.quorums().values()), key=lambda one: one.offset
        )
        topic = image.topic("t")
        assert topic is not None
        return topic.partitions[0]

    def hosted(self, node: int) -> HostedPartition:
        return self.cluster.machines[node].partition("t")

    async def until_tiered(self, node: int) -> None:
        """Wait until the leader has everything but its active segment in the bucket alone."""

        def holds() -> bool:
            log = self.hosted(node).log
            return log.local_start_offset == log.segments[-1].base_offset == log.tiered_end > 0

        await self.cluster.until(holds, "the history in the bucket alone", 60)

    async def until_in_sync(self, *nodes: int) -> None:
        await self.cluster.until(
            lambda: (
                sorted(self.partition().isr) == sorted(nodes)
                and all(self.cluster.machines[one].is_up for one in nodes)
                and len({self.hosted(one).log.log_end_offset for one in nodes}) == 1
            ),
            f"{nodes} in sync",
            120,
        )

    async def reassign(self, *replicas: int) -> None:
        moved = alter_reassignments({TopicPartition("t", 0): replicas})
        (outcome,) = await (await self.client()).on_controller(moved)
        assert outcome.error is ErrorCode.none, outcome
        await self.cluster.until(
            lambda: self.partition().replicas == replicas, f"replicas {replicas}", 120
        )
        await self.until_in_sync(*replicas)

    async def lead(self, node: int) -> None:
        """Make a replica lead: it must be the first one."""
        elected = elect_leaders(PREFERRED, [TopicPartition("t", 0)])
        await (await self.client()).on_controller(elected)
        await self.cluster.until(lambda: self.partition().leader == node, f"{node} leads")
        await self.cluster.until(lambda: self.hosted(node).replica.leads, f"{node} knows it")
        await self.forget_client()

    async def check(self) -> None:
        """Read the whole topic through its leader; repeat the first batch, which the log has already."""
        leader = self.partition().leader
        await self.cluster.until(lambda: self.hosted(leader).replica.leads, "a leader")
        hosted = self.hosted(leader)
        end = len(self.written)
        await self.cluster.until(lambda: hosted.high_watermark == end, "all committed")
        assert hosted.log.log_start_offset == 0
        await self.send(0)
        assert hosted.log.log_end_offset == end, "a repeated batch is in the log twice"
        found = await read_all(await self.client(), "t", 0, end)
        assert found == self.written

    def lose_disk(self, node: int) -> None:
        """Give a machine that is down an empty disk, formatted with its id."""
        host = self.cluster.machines[node].host
        del host.disks["/data"]
        format_directory("/data", host.disk("/data"), node, CLUSTER_ID, host.outside.entropy)


def story(tell: Tell, seed: int = 1) -> None:
    async def whole() -> None:
        tale = Tale(seed)
        async with asyncio.timeout(3600):
            await tale.cluster.start()
            await tell(tale)
            await tale.forget_client()
            await tale.cluster.stop()
        assert [one.broken_tasks for one in tale.cluster.machines.values()] == [[], [], []]

    run(whole())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("skips", ["true", "false"])
def test_a_new_replica_begins_where_the_bucket_ends_and_leads_with_the_whole_history(
    seed: int, skips: str
) -> None:
    async def tell(tale: Tale) -> None:
        for machine in tale.cluster.machines.values():
            machine.settings["follower.fetch.last.tiered.offset.enable"] = skips
        await tale.create(1, 2)
        await tale.write(20)
        await tale.until_tiered(1)
        await tale.write(3)
        await tale.reassign(3, 1, 2)
        leader, new = tale.hosted(1).log, tale.hosted(3).log
        assert new.log_start_offset == 0
        assert new.local_start_offset >= 15
        assert new.epochs.entries() == leader.epochs.entries()
        await tale.lead(3)
        await tale.check()
        await tale.write(5)
        await tale.check()

    story(tell, seed)


def moved_bytes(history: int) -> int:
    """Return the bytes that peers send to a new replica of a topic with so many batches of history."""
    sent = []

    async def tell(tale: Tale) -> None:
        await tale.create(1, 2)
        await tale.write(history)
        await tale.until_tiered(1)
        await tale.reassign(3, 1, 2)
        sent.append(tale.hosted(3).metrics.replication_bytes_in)
        await tale.lead(3)
        await tale.check()

    story(tell)
    return sent[0]


def test_a_new_replica_moves_the_same_bytes_however_long_the_history_is() -> None:
    few, more, many = moved_bytes(8), moved_bytes(80), moved_bytes(400)
    assert 0 < few < 1500, "about one batch: the active segment"
    assert abs(more - few) <= 10, "the numbers in the values have more digits"
    assert abs(many - few) <= 10


def test_a_new_replica_skips_the_history_that_its_leader_has_too() -> None:
    async def tell(tale: Tale) -> None:
        await tale.create(1, 2, local_retention_bytes="-1")
        await tale.write(40)
        await tale.cluster.until(
            lambda: tale.hosted(1).log.tiered_end == tale.hosted(1).log.segments[-1].base_offset,
            "all closed segments in the bucket",
        )
        assert tale.hosted(1).log.local_start_offset == 0
        await tale.reassign(3, 1, 2)
        assert tale.hosted(3).metrics.replication_bytes_in < 1500
        await tale.lead(3)
        await tale.check()

    story(tell)


def test_a_broker_without_its_disk_rebuilds_from_the_bucket_and_the_tail() -> None:
    async def tell(tale: Tale) -> None:
        await tale.create(3, 1, 2)
        await tale.write(40)
        await tale.until_tiered(3)
        await tale.until_in_sync(1, 2, 3)
        machine = tale.cluster.machines[3]
        await machine.kill()
        await tale.forget_client()
        tale.lose_disk(3)
        await tale.write(10)
        await tale.until_tiered(tale.partition().leader)
        await machine.start()
        await tale.until_in_sync(1, 2, 3)
        assert tale.hosted(3).metrics.replication_bytes_in < 1500, "the active segment alone"
        await tale.lead(3)
        await tale.check()

    story(tell)


async def until_small(tale: Tale, *nodes: int) -> None:
    """Wait until no replica has more than its active segment."""

    def holds() -> bool:
        logs = [tale.hosted(node).log for node in nodes]
        return all(log.local_start_offset == log.segments[-1].base_offset > 0 for log in logs)

    await tale.cluster.until(holds, "small local logs everywhere", 60)


async def fail_over(tale: Tale, leader: int) -> None:
    """Kill the leader, start it again, and let the next node lead."""
    await tale.forget_client()
    await tale.cluster.machines[leader].kill()
    await tale.cluster.until(lambda: tale.partition().leader not in (leader, -1), "a new leader")
    await tale.cluster.machines[leader].start()
    await tale.until_in_sync(1, 2, 3)
    await tale.reassign(leader + 1, *{1, 2, 3} - {leader + 1})
    await tale.lead(leader + 1)


def test_followers_delete_what_the_bucket_has_and_then_lead_with_all_of_it() -> None:
    async def tell(tale: Tale) -> None:
        await tale.create(1, 2, 3)
        for leader in (1, 2, 3):
            await tale.write(15)
            await tale.until_tiered(leader)
            await until_small(tale, 1, 2, 3)
            await tale.check()
            if leader < 3:
                await fail_over(tale, leader)

    story(tell)


async def read_from(tale: Tale, node: int) -> dict[int, bytes]:
    """Read the whole topic from one replica, whether or not it leads."""
    raw = await Raw.connect(tale.cluster.world.network, host_of(node))
    topic_id = tale.hosted(node).key.topic_id
    tale.hosted(node).log.tail.clear()  # what it keeps in memory
    found: dict[int, bytes] = {}
    while len(found) < len(tale.written):
        answer = await raw.ask(18, fetch_body([(topic_id, 0, len(found))]))
        (part,) = answer.responses[0].partitions
        assert part.error_code == 0, part
        found |= dict(values_in(records_of(part)))
    raw.close()
    return found


def test_a_follower_serves_consumers_the_whole_history() -> None:
    async def tell(tale: Tale) -> None:
        await tale.create(1, 2, 3)
        for _ in range(3):
            await tale.write(15)
            await until_small(tale, 1, 2, 3)
            await asyncio.sleep(5)  # small segments are merged, and the old objects go
            for node in (2, 3):
                assert await read_from(tale, node) == tale.written
        assert tale.hosted(2).metrics.remote_reads > 0
        await tale.reassign(2, 1, 3)
        await tale.lead(2)
        for node in (1, 2, 3):
            assert await read_from(tale, node) == tale.written

    story(tell)


@pytest.mark.parametrize("ending", ["stop", "kill", "lose_power"])
def test_a_follower_that_has_the_tail_alone_keeps_the_log_start_through_an_end(ending: str) -> None:
    async def tell(tale: Tale) -> None:
        await tale.create(2, 1, 3)
        await tale.write(15)
        await until_small(tale, 1, 2, 3)
        await asyncio.sleep(6)  # checkpoints
        await tale.forget_client()
        machine = tale.cluster.machines[1]
        await getattr(machine, ending)()
        await tale.write(3)
        await machine.start()
        await tale.until_in_sync(1, 2, 3)
        assert tale.hosted(1).log.log_start_offset == 0
        await tale.reassign(1, 2, 3)
        await tale.lead(1)
        await tale.check()

    story(tell)


def test_the_objects_of_a_deleted_topic_go_though_the_brokers_that_held_it_are_dead() -> None:
    async def tell(tale: Tale) -> None:
        await tale.create(3)
        await tale.write(10)
        await tale.until_tiered(3)
        await tale.forget_client()
        await tale.cluster.machines[3].kill()
        (deleted,) = await (await tale.client()).delete_topics(["t"])
        assert deleted.error is ErrorCode.none
        await asyncio.sleep(60)
        assert not [info for info in tale.store.list("") if ".seg" in info.path]
        now_ms = tale.cluster.world.clock.now_ms()
        assert not verify(tale.store, now_ms=now_ms, grace_ms=0)

    story(tell)


def test_a_tier_that_comes_back_takes_no_local_copy_by_old_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader's answer of before the removal arrives after the return."""
    known = 1 << 62
    held: list[object] = []
    release = asyncio.Event()

    async def ask_late(*asked: Any) -> Any:
        found = await ask_offsets(*asked)
        newest = found[TopicPartition("t", 0)]
        if LATEST_TIERED in asked and isinstance(newest, int) and newest >= known:
            held.append(found)
            await release.wait()
        return found

    async def tell(tale: Tale) -> None:
        nonlocal known
        await tale.create(1, 2, 3)
        await tale.write(15)
        await until_small(tale, 1, 2, 3)
        followers = [tale.hosted(2).log, tale.hosted(3).log]
        known = followers[0].tiered_end
        await tale.write(5)
        await tale.cluster.until(lambda: len(held) == 2, "the answers are on their way")
        client = await tale.client()
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        await client.on_controller(alter_configs(Resource.TOPIC, "t", off))
        await asyncio.sleep(3)
        on = {
            "remote.storage.enable": "true",
            "remote.log.delete.on.disable": None,
        }
        await client.on_controller(alter_configs(Resource.TOPIC, "t", on))
        await tale.cluster.until(
            lambda: all(log.config.remote_storage_enable for log in followers), "the tier is back"
        )
        release.set()
        await asyncio.sleep(0.01)
        assert [log.tiered_end for log in followers] == [0, 0]

    monkeypatch.setattr(source, "ask_offsets", ask_late)
    story(tell)
