"""The effects of a broker's settings, and that dynamic ones take effect without a restart.

Method: the real node in virtual time, altered by a client as Kafka's tools do. `test_every_dynamic_setting_is_shown`
holds the tests complete: a setting that becomes dynamic without one fails it.
"""

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace
from tests.sim import test_connection_settings, test_tier_settings
from tests.sim.altering import alter, story
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, records_of
from tests.sim.records import batch
from tests.sim.test_connection_settings import LIMITS
from tests.sim.test_moves import until
from tests.sim.test_roles import OTHER, change, other_broker, write
from tests.sim.test_throttles import RATES
from tests.sim.test_tier_settings import TIER_THREADS
from tests.sim.world import World

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
from stratalog.ports import Disk
from stratalog.quorum.electorate import ElectionDefaults
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from stratalog.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from stratalog.wire.records import BatchBuilder

LOG_DEFAULTS: Final = {
    topic.synonyms[0].name: name.replace(".", "_")
    for name, topic in TOPIC_SETTINGS.items()
    if topic.synonyms and not topic.setting.inert and name != "unclean.leader.election.enable"
} | {"producer.id.expiration.ms": "producer_id_expiration_ms"}
"""Broker settings that are defaults of topics, and the log's attribute of each (effects: test_topic_settings.py)."""
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
    "cordoned.log.dirs": "test_directories_are_cordoned_at_work",
    "transaction.partition.verification.enable": "test_verification_changes_at_work",
    "follower.fetch.last.tiered.offset.enable": "test_replicas_skip_the_bucket_as_set_at_work",
    "sasl.enabled.mechanisms": "test_mechanisms_and_users_change_at_work",
    **dict.fromkeys(
        ("ssl.cipher.suites", "ssl.client.auth", "ssl.enabled.protocols"),
        "test_settings_of_a_listener_change_at_work",
    ),
    **dict.fromkeys(
        (
            "ssl.key.password",
            "ssl.keystore.certificate.chain",
            "ssl.keystore.key",
            "ssl.keystore.location",
            "ssl.keystore.password",
            "ssl.truststore.certificates",
            "ssl.truststore.location",
            "ssl.truststore.password",
        ),
        "test_keys_of_a_listener_change_at_work",
    ),
}

NOT_SHOWN: Final = {
    # The content of a file decides, whatever its type is said to be.
    "ssl.keystore.type",
    "ssl.truststore.type",
    # A node as a client of other nodes takes them at its start (docs/limits.md).
    "sasl.mechanism.inter.broker.protocol",
    "ssl.endpoint.identification.algorithm",
}


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
    assert dynamic - NOT_SHOWN == SHOWN_BY.keys()
    tests = {*globals(), *vars(test_connection_settings), *vars(test_tier_settings)}
    of_listeners = Path(__file__).parents[1] / "integration" / "test_listener_changes.py"
    tests |= set(re.findall(r"^def (test_\w+)", of_listeners.read_text(), re.MULTILINE))
    assert not set(SHOWN_BY.values()) - tests


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


def test_directories_are_cordoned_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        def cordoned() -> int:
            return len(machine.broker.metadata.image.brokers[1].cordoned_directories or ())

        assert cordoned() == 0
        await alter(client, "cordoned.log.dirs", machine.broker.config.log_dirs[0], "1")
        await until(lambda: cordoned() == 1)
        wrong = alter_configs(Resource.BROKER, "1", {"cordoned.log.dirs": "/nowhere"})
        refused = await client.on_controller(wrong)
        assert refused.error is ErrorCode.invalid_request
        assert "'/nowhere' is not accepted" in (refused.message or "")
        assert cordoned() == 1
        await alter(client, "cordoned.log.dirs", None, "1")
        await until(lambda: cordoned() == 0)

    story(tell)


def test_verification_changes_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        await client.create_topics([NewTopic("verified")])
        verification = machine.broker.verification

        def is_needed() -> bool:
            return verification.is_needed(machine.partition("verified"), (1, 0))

        assert is_needed()
        await alter(client, "transaction.partition.verification.enable", "false")
        await until(lambda: not is_needed())
        await alter(client, "transaction.partition.verification.enable", None)
        await until(is_needed)

    story(tell)


def test_settings_of_cleaners_change_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[int, float]] = []

    def plan(
        found: Cleanable,
        wall_ms: int,
        memory_bytes: int,
        load_factor: float,
        bucket_cleaned_end: int,
    ) -> Plan:
        plans.append((memory_bytes, load_factor))
        return plan_cleaning(
            found, wall_ms, memory_bytes, load_factor, bucket_cleaned_end=bucket_cleaned_end
        )

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


def test_rates_of_replication_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        for value in ("12345", None):
            for name in RATES:
                await alter(client, name, value)
            rates = [one.rate for one in machine.broker.replication.throttles.values()]
            assert rates == [int(value or LONG_MAX)] * 2

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
