"""What settings of a broker do, and that those which may be given another value at work take effect without a restart.

Method: the real node in virtual time, altered by a client as Kafka's tools do. `test_every_dynamic_setting_is_shown`
holds the tests complete: a setting that becomes dynamic without one fails it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, list_offsets_body, records_of
from tests.sim.records import batch, read_all
from tests.sim.test_moves import until
from tests.sim.test_roles import OTHER, change, other_broker, write
from tests.sim.test_throttles import RATES
from tests.sim.world import START_MS, World

from stratalog.broker.partitions import cleaning
from stratalog.client.admin import alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.describe import ConfigSource
from stratalog.config.kinds import LONG_MAX, BadValue, Dynamic, Kind, OneOf, Setting
from stratalog.config.rules import Resource
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import ErrorCode
from stratalog.log.cleaning.choosing import Cleanable, plan_cleaning
from stratalog.log.cleaning.cleaner import Plan
from stratalog.ports import Disk, SocketBuffers
from stratalog.quorum.electorate import ElectionDefaults
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages import Request
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from stratalog.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from stratalog.wire.messages.metadata import MetadataRequest
from stratalog.wire.records import BatchBuilder

R = TypeVar("R")

LOG_DEFAULTS: Final = {
    topic.synonyms[0].name: name.replace(".", "_")
    for name, topic in TOPIC_SETTINGS.items()
    if topic.synonyms and not topic.setting.inert and name != "unclean.leader.election.enable"
} | {"producer.id.expiration.ms": "producer_id_expiration_ms"}
"""Broker settings behind those of logs, and where the log has them; what each does to a log: test_topic_settings.py."""
TIER_THREADS: Final = {
    "remote.log.manager.copier.thread.pool.size": "tier-copy /data",
    "remote.log.manager.expiration.thread.pool.size": "tier-expire",
    "remote.log.reader.threads": "tier-read",
}
LIMITS: Final = ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides")
SHOWN_BY: Final = {
    **dict.fromkeys(LOG_DEFAULTS, "test_defaults_of_logs_change_at_work"),
    "unclean.leader.election.enable": "test_the_defaults_of_elections_change_at_work",
    "log.cleaner.threads": "test_settings_of_cleaners_change_at_work",
    "log.cleaner.backoff.ms": "test_settings_of_cleaners_change_at_work",
    "log.cleaner.dedupe.buffer.size": "test_settings_of_cleaners_change_at_work",
    "log.cleaner.io.buffer.load.factor": "test_settings_of_cleaners_change_at_work",
    "log.cleaner.io.max.bytes.per.second": "test_settings_of_cleaners_change_at_work",
    **dict.fromkeys(TIER_THREADS, "test_threads_of_the_tier_change_at_work"),
    "remote.fetch.max.wait.ms": "test_waits_for_the_tier_change_at_work",
    "remote.list.offsets.request.timeout.ms": "test_waits_for_the_tier_change_at_work",
    "remote.log.manager.copy.max.bytes.per.second": "test_rates_of_the_tier_change_at_work",
    "remote.log.manager.fetch.max.bytes.per.second": "test_rates_of_the_tier_change_at_work",
    "max.connection.creation.rate": "test_new_connections_wait_for_their_turn",
    **dict.fromkeys(LIMITS, "test_limits_of_connections_change_at_work"),
    **dict.fromkeys(RATES, "test_rates_of_replication_change_at_work"),
    "num.replica.fetchers": "test_the_number_of_fetchers_changes_at_work",
    "follower.fetch.last.tiered.offset.enable": "test_replicas_skip_the_bucket_as_set_at_work",
}
URL: Final = "memory://bucket"


def story(
    tell: Callable[[Machine, Client], Coroutine[Any, Any, None]],
    settings: dict[str, str] | None = None,
) -> None:
    async def whole() -> None:
        machine = Machine(World(3), settings)
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        await tell(machine, client)
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


async def alter(client: Client, name: str, value: str | None, broker: str = "") -> None:
    done = await client.on_controller(alter_configs(Resource.BROKER, broker, {name: value}))
    assert done.error == ErrorCode.none, done


def another(setting: Setting) -> str:
    """A value that is not the default."""
    candidates = ["12345", "2000000", "7", "5", "2", "1", "true", "false"]
    if isinstance(setting.check, OneOf):
        candidates = list(setting.check.words)
    for text in candidates:
        try:
            if setting.parse(text) != setting.default:
                return text
        except BadValue:
            continue
    raise AssertionError(setting.name)


def test_every_dynamic_setting_is_shown() -> None:
    dynamic = {
        name
        for name, setting in BROKER_SETTINGS.items()
        if setting.dynamic is not Dynamic.READ_ONLY and not setting.inert
    }
    assert dynamic == SHOWN_BY.keys()
    assert not set(SHOWN_BY.values()) - set(globals())


def test_defaults_of_logs_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        log = machine.partition("t").log
        for name, field in LOG_DEFAULTS.items():
            setting, before = BROKER_SETTINGS[name], getattr(log.config, field)
            text = another(setting)
            await alter(client, name, text)
            assert getattr(log.config, field) == setting.parse(text) != before, name
            # With eligible leader replicas the cluster's own value cannot be removed.
            back = str(before) if name == "min.insync.replicas" else None
            await alter(client, name, back)
            assert getattr(log.config, field) == before, name

    story(tell)


def test_the_number_of_fetchers_changes_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        followed = machine.broker.replication.followed
        await client.create_topics([NewTopic("followed", 8)])
        await write(machine, other_broker())
        for index in range(8):
            await change(machine, "followed", index, leader=OTHER)

        def sources() -> list[int]:
            return [len(one) for one in followed._sources.values() if len(one)]

        await until(lambda: sources() == [8])
        await alter(client, "num.replica.fetchers", "2")
        await until(lambda: sources() == [4, 4])
        await alter(client, "num.replica.fetchers", None)
        await until(lambda: sources() == [8])

    story(tell)


def test_replicas_skip_the_bucket_as_set_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        skips = machine.broker.replication.followed._around.skips_tiered
        for text, expected in (("false", False), (None, True)):
            await alter(client, "follower.fetch.last.tiered.offset.enable", text)
            assert skips() is expected

    story(tell)


def test_settings_of_cleaners_change_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[int, float]] = []

    def plan(found: Cleanable, wall_ms: int, memory_bytes: int, load_factor: float) -> Plan:
        plans.append((memory_bytes, load_factor))
        return plan_cleaning(found, wall_ms, memory_bytes, load_factor)

    monkeypatch.setattr(cleaning, "plan_cleaning", plan)

    async def whole() -> None:
        world = World(3)
        rates: list[float] = []

        def disk(path: str, rate: float) -> Disk:
            rates.append(rate)
            return world.disk(path)

        host = world.host("127.0.0.1")
        host.outside = replace(host.outside, paced_disk=disk)
        machine = Machine(world, {"log.cleaner.threads": "0"})
        client = await machine.restart()
        configs = {"cleanup.policy": "compact", "segment.ms": "1", "flush.messages": "1"}
        await client.create_topics([NewTopic("c", 1, configs=configs)])

        async def write() -> None:
            for _ in range(5):
                builder = BatchBuilder()
                builder.add(b"key", b"value", world.clock.now_ms())
                await client.produce("c", 0, builder.build())
                await asyncio.sleep(0.1)

        await write()
        await asyncio.sleep(60)
        assert not plans, "there is no cleaner"
        await alter(client, "log.cleaner.dedupe.buffer.size", "4800000")
        await alter(client, "log.cleaner.io.buffer.load.factor", "0.5")
        await alter(client, "log.cleaner.io.max.bytes.per.second", "3000")
        await alter(client, "log.cleaner.backoff.ms", "50")
        await alter(client, "log.cleaner.threads", "2")
        await asyncio.sleep(1)
        assert set(plans) == {(2_400_000, 0.5)}
        assert set(rates) == {1500.0}
        seen = len(plans)
        await write()
        await asyncio.sleep(1)
        assert len(plans) > seen, "it looks again after 50 ms, not 15 s"
        await machine.stop()

    run(whole())


def test_the_defaults_of_elections_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        broker = machine.node.broker
        assert broker is not None
        controller = broker.local_controller._active
        assert controller.election_defaults() == ElectionDefaults(1, unclean_election=False)
        await alter(client, "unclean.leader.election.enable", "true")
        await alter(client, "min.insync.replicas", "2")
        assert controller.election_defaults() == ElectionDefaults(2, unclean_election=True)

    story(tell)


class History:
    """A tiered topic that grows: all but its newest records are in the bucket only."""

    def __init__(self, machine: Machine, client: Client) -> None:
        self.machine = machine
        self.client = client
        self.written: dict[int, bytes] = {}

    @classmethod
    async def begin(cls, machine: Machine, client: Client) -> "History":
        tiered = {
            "remote.storage.enable": "true",
            "segment.ms": "1000",
            "local.retention.ms": "0",
            "retention.ms": "-1",
        }
        await client.create_topics([NewTopic("tiered", 1, configs=tiered)])
        return cls(machine, client)

    @property
    def in_bucket(self) -> int:
        return self.machine.partition("tiered").log.tiered_end

    async def grow(self) -> None:
        for number in range(len(self.written), len(self.written) + 5):
            made = batch([b"%d" % number], START_MS + number * 1100)
            await self.client.produce("tiered", 0, made)
            self.written[number] = b"%d" % number
        await asyncio.sleep(60)

    async def check(self) -> None:
        assert self.in_bucket >= len(self.written) - 2
        assert await read_all(self.client, "tiered", 0, len(self.written)) == self.written

    async def ask(self, version: int, body: Request[R]) -> R:
        raw = await Raw.connect(self.machine.world.network)
        try:
            return await raw.ask(version, body)
        finally:
            raw.close()

    async def has_beginning(self) -> bool:
        """Whether a fetch of the oldest record, which looks once, brings it from the bucket."""
        self.machine.partition("tiered").log.tail.clear()
        body = fetch_body([("tiered", 0, 0)], max_wait_ms=0)
        return len(records_of((await self.ask(12, body)).responses[0].partitions[0])) > 0


def test_socket_buffers_are_those_that_were_set() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        assert machine.world.network.buffers == [SocketBuffers(4_000_000, -1)]

    settings = {"socket.send.buffer.bytes": "4000000", "socket.receive.buffer.bytes": "-1"}
    story(tell, settings)


def test_threads_of_the_tier_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        history = await History.begin(machine, client)
        await history.grow()
        await history.check()
        for threads, (name, worker) in enumerate(TIER_THREADS.items(), 11):
            await alter(client, name, str(threads))
            await history.grow()
            await history.check()
            assert machine.workers_started[-1] == (worker, threads, True)
        for name, _, in_background in machine.workers_started:
            assert in_background == name.startswith("tier-"), name

    story(tell, {"tier.url": URL})


def test_rates_of_the_tier_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        history = await History.begin(machine, client)
        await history.grow()
        await history.check()
        await alter(client, "remote.log.manager.copy.max.bytes.per.second", "1")
        before = history.in_bucket
        await history.grow()
        assert history.in_bucket < before + 3
        await alter(client, "remote.log.manager.copy.max.bytes.per.second", None)
        await history.grow()
        await asyncio.sleep(600)  # whose turn was given waits for it
        await history.check()
        await alter(client, "remote.log.manager.fetch.max.bytes.per.second", "1")
        assert await history.has_beginning(), "what is over the rate is paid for afterwards"
        assert not await history.has_beginning()
        await alter(client, "remote.log.manager.fetch.max.bytes.per.second", None)
        await history.check()

    story(tell, {"tier.url": URL, "tier.cache.bytes": "0"})


def test_waits_for_the_tier_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        history = await History.begin(machine, client)
        await history.grow()
        await history.check()
        machine.be_slow(1.0)
        by_time = list_offsets_body("tiered", START_MS)
        for wait_ms, waits in ((1, False), (5000, True)):
            await alter(client, "remote.fetch.max.wait.ms", str(wait_ms))
            assert await history.has_beginning() == waits
            await alter(client, "remote.list.offsets.request.timeout.ms", str(wait_ms))
            found = (await history.ask(10, by_time)).topics[0].partitions[0]
            assert found.error_code == (ErrorCode.none if waits else ErrorCode.request_timed_out)

    story(tell, {"tier.url": URL, "tier.cache.bytes": "0"})


def test_limits_of_connections_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        async def is_welcome() -> bool:
            raw = await Raw.connect(machine.world.network)
            await asyncio.sleep(0.1)
            welcome = not raw.closed.done()
            raw.close()
            await asyncio.sleep(0.1)
            return welcome

        here = len(machine.node._connections)
        for name, refusing, welcoming in (
            ("max.connections", str(here), str(here + 1)),
            ("listener.name.plaintext.max.connections", str(here), str(here + 1)),
            ("listener.name.plaintext.max.connection.creation.rate", "0", "100"),
            ("max.connections.per.ip", str(here), str(here + 1)),
            ("max.connections.per.ip.overrides", f"127.0.0.1:{here}", f"127.0.0.1:{here + 1}"),
        ):
            broker = "1" if name.startswith("listener.") else ""
            await alter(client, name, refusing, broker)
            assert not await is_welcome(), name
            await alter(client, name, welcoming, broker)
            assert await is_welcome(), name
            await alter(client, name, None, broker)

    story(tell)


def test_a_listener_has_limits_of_its_own() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        network = machine.world.network
        others = [await Raw.connect(network, port=9093) for _ in range(3)]
        many = [await Raw.connect(network) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert [raw.closed.done() for raw in others] == [False, False, True]
        assert not any(raw.closed.done() for raw in many)
        others[0].close()
        await asyncio.sleep(0.1)
        again = await Raw.connect(network, port=9093)
        await asyncio.sleep(0.1)
        assert not again.closed.done(), "a place is free again"
        described = await client.describe_configs([(Resource.BROKER, "1")])
        values = {entry.name: entry.value for entry in described[0].entries}
        assert values["listener.name.other.max.connections"] == "2"

    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,OTHER://127.0.0.1:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        "listener.name.other.max.connections": "2",
    }
    story(tell, settings)


def test_rates_of_replication_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        for value in ("12345", None):
            for name in RATES:
                await alter(client, name, value)
            rates = [one.rate for one in machine.broker.replication.throttles.values()]
            assert rates == [int(value or LONG_MAX)] * 2

    story(tell)


def test_new_connections_wait_for_their_turn() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        async def served_after() -> float:
            loop = asyncio.get_running_loop()
            began = loop.time()
            raw = await Raw.connect(machine.world.network)
            await raw.ask(1, MetadataRequest(topics=None))
            raw.close()
            return loop.time() - began

        async def crowd() -> list[float]:
            return sorted(await asyncio.gather(*(served_after() for _ in range(10))))

        assert max(await crowd()) < 0.5
        await alter(client, "max.connection.creation.rate", "4")
        waits = await crowd()
        assert waits[3] < 0.5, "a second's worth at once"
        assert [round(wait * 4) for wait in waits[4:]] == [1, 2, 3, 4, 5, 6], "then one in its turn"
        await alter(client, "max.connection.creation.rate", "0")
        raw = await Raw.connect(machine.world.network)
        await asyncio.sleep(0.1)
        assert raw.closed.done()
        await alter(client, "max.connection.creation.rate", None)
        assert max(await crowd()) < 0.5

    story(tell)


def test_settings_without_effect_are_kept_and_described_as_in_kafka() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        await alter(client, "log.cleaner.io.buffer.size", "600000")
        refused = await client.on_controller(
            alter_configs(Resource.BROKER, "", {"num.replica.alter.log.dirs.threads": "3"})
        )
        assert refused.error == ErrorCode.invalid_request
        (described,) = await client.describe_configs([(Resource.BROKER, "1")])
        found = {entry.name: entry for entry in described.entries}
        assert found.keys() == {n for n, one in BROKER_SETTINGS.items() if not one.unlisted}
        buffer = found["log.cleaner.io.buffer.size"]
        assert buffer.value == "600000"
        assert buffer.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        assert found["num.io.threads"].value == "16", "as the file says"
        assert found["num.network.threads"].value == "3", "Kafka's default"
        assert found["ssl.key.password"].value is None
        secrets = [name for name, one in BROKER_SETTINGS.items() if one.kind is Kind.PASSWORD]
        assert secrets
        assert all(found[name].sensitive for name in secrets)

    story(tell, {"num.io.threads": "16", "ssl.key.password": "hush"})


@pytest.mark.parametrize(("version", "code"), [(1, 42), (6, 73)])
def test_delete_topic_enable(version: int, code: int) -> None:
    async def tell(machine: Machine, client: Client) -> None:
        raw = await Raw.connect(machine.world.network)
        body = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        if version >= 6:
            topics = [DeleteTopicState(name="t", topic_id=ZERO_ID)]
            body = DeleteTopicsRequest(topics=topics, timeout_ms=1000)
        answer = await raw.ask(version, body)
        assert [one.error_code for one in answer.responses] == [code]
        assert (await client.metadata(["t"])).topics["t"].error == ErrorCode.none

    story(tell, {"delete.topic.enable": "false"})


def test_fetch_max_bytes() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        for number in range(6):
            await client.produce("t", 0, batch([bytes(900)], number))
        raw = await Raw.connect(machine.world.network)
        answer = await raw.ask(12, fetch_body([("t", 0, 0)], max_bytes=1 << 30))
        assert 1900 < len(records_of(answer.responses[0].partitions[0])) < 2500

    story(tell, {"fetch.max.bytes": "2500"})


def test_max_request_partition_size_limit() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        await client.create_topics([NewTopic("wide", 5)])
        raw = await Raw.connect(machine.world.network)
        body = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name="wide")], response_partition_limit=100, cursor=None
        )
        answer = await raw.ask(0, body)
        assert len(answer.topics[0].partitions) == 3
        assert answer.next_cursor is not None
        assert answer.next_cursor.partition_index == 3

    story(tell, {"max.request.partition.size.limit": "3"})
