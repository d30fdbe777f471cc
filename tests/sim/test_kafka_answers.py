"""Goal: error codes and their places are those of Apache Kafka 4.3, where its own tests showed a difference.

Method: the real node, and requests written from the schemas. `tests/compat/test_differential.py` sends the same ones to
a real Apache Kafka.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from tests.produce import produce_body
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import batch
from tests.sim.world import START_MS, World

from stratalog.client.admin import alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.config.rules import Resource
from stratalog.config.security_settings import KEYSTORE_SETTINGS
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.metadata_batches import METADATA_TOPIC
from stratalog.wire.batch import scan
from stratalog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from stratalog.wire.messages.offset_delete import OffsetDeleteRequest
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from stratalog.wire.records import Record, build_batch, read_records

PRODUCE, METADATA, FIND_COORDINATOR, OFFSET_FETCH, API_VERSIONS, CREATE_TOPICS = 0, 3, 10, 9, 18, 19
ALTER_REPLICA_LOG_DIRS, OFFSET_DELETE = 34, 47
STRANGER = UUID(int=77)
Tell = Callable[[Machine, Client, Raw], Coroutine[Any, Any, None]]


def story(tell: Tell, **configs: str) -> None:
    """Run a story on a node with the topic `t` of two partitions."""

    async def whole() -> None:
        machine = Machine(World(3))
        client = await machine.restart()
        named = {name.replace("_", "."): value for name, value in configs.items()}
        await client.create_topics([NewTopic("t", partitions=2, configs=named)])
        raw = await Raw.connect(machine.world.network)
        async with asyncio.timeout(60):
            await tell(machine, client, raw)
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


# Writes


@pytest.mark.parametrize(
    ("replicas", "isr", "refused"),
    [((1,), (1,), False), ((1, 2), (1,), True), ((1, 2), (1, 2), False), ((1, 2, 3), (1,), True)],
)
def test_acks_all_never_needs_more_replicas_than_the_partition_has(
    replicas: tuple[int, ...], isr: tuple[int, ...], refused: bool
) -> None:
    async def tell(machine: Machine, _client: Client, _raw: Raw) -> None:
        hosted = machine.partition("t")
        hosted.replica.replicas, hosted.replica.isr = replicas, isr
        if not refused:
            hosted.replica.check_min_isr()
            return
        with pytest.raises(Rejected, match="2 are needed") as caught:
            hosted.replica.check_min_isr()
        assert caught.value.code is ErrorCode.not_enough_replicas

    story(tell, min_insync_replicas="2")


def test_one_replica_accepts_writes_for_any_min_insync_replicas() -> None:
    async def tell(_machine: Machine, client: Client, _raw: Raw) -> None:
        assert (await client.produce("t", 0, batch([b"x"], START_MS))).base_offset == 0

    story(tell, min_insync_replicas="3")


def test_a_record_out_of_time_is_refused_in_kafkas_words() -> None:
    async def tell(machine: Machine, _client: Client, raw: Raw) -> None:
        now_ms = machine.world.clock.now_ms()
        times = (now_ms, now_ms + 9_000, now_ms - 9_000)
        data = bytes(build_batch([Record(0, at, None, b"v") for at in times]))
        (topic,) = (await raw.ask(9, produce_body("t", data))).responses
        (answer,) = topic.partition_responses
        assert answer.error_code == ErrorCode.invalid_timestamp
        assert (
            answer.error_message
            == "One or more records have been rejected due to invalid timestamp"
        )
        texts = {one.batch_index: one.batch_index_error_message for one in answer.record_errors}
        assert texts.keys() == {1, 2}
        for index, text in texts.items():
            assert text is not None
            said, _, bounds = text.partition(" The timestamp should be within ")
            wanted = f"Timestamp {times[index]} of message with offset {index} is out of range."
            assert said == wanted
            earliest, latest = (int(one) for one in bounds.strip("[]").split(", "))
            assert latest - earliest == 6000

    story(
        tell,
        message_timestamp_after_max_ms="1000",
        message_timestamp_before_max_ms="5000",
    )


BEFORE_1970 = (-86_400_000, -2, -(1 << 50))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_records_from_before_1970_are_taken_and_keep_their_times(codec: str) -> None:
    """The header's largest timestamp is -1, as in Kafka: no record is later."""

    async def tell(_machine: Machine, client: Client, _raw: Raw) -> None:
        times = [*BEFORE_1970, 5]
        for made in (BEFORE_1970, times):
            records = [Record(0, at, None, b"v") for at in made]
            await client.produce("t", 0, build_batch(records, codec=codec))
        data = bytes((await client.fetch("t", 0, 0)).records)
        headers = [header for _, header in scan(data)]
        assert [one.max_timestamp for one in headers] == [-1, 5]
        found = [
            record.timestamp
            for at, header in scan(data)
            for record in read_records(data[at : at + header.size])
        ]
        assert found == [*BEFORE_1970, *times]

    story(tell)


def test_a_topic_that_takes_the_brokers_time_takes_any_time_of_a_client() -> None:
    async def tell(machine: Machine, client: Client, _raw: Raw) -> None:
        for at in (*BEFORE_1970, 1 << 62, -(1 << 62), (1 << 63) - 1):
            await client.produce("t", 0, build_batch([Record(0, at, None, b"v")]))
        data = bytes((await client.fetch("t", 0, 0)).records)
        now_ms = machine.world.clock.now_ms()
        assert all(0 <= now_ms - header.max_timestamp < 60_000 for _, header in scan(data))

    story(tell, message_timestamp_type="LogAppendTime")


def test_the_oldest_time_alone_decides_what_is_too_old() -> None:
    async def tell(machine: Machine, client: Client, _raw: Raw) -> None:
        limit_ms = machine.world.clock.now_ms() + 10_000
        configs = {"message.timestamp.before.max.ms": str(limit_ms)}
        await client.create_topics([NewTopic("u", configs=configs)])
        await client.produce("u", 0, build_batch([Record(0, -5_000, None, b"v")]))
        for at in (-20_000, -(1 << 62)):
            with pytest.raises(Rejected) as caught:
                await client.produce("u", 0, build_batch([Record(0, at, None, b"v")]))
            assert caught.value.code is ErrorCode.invalid_timestamp

    story(tell)


def test_the_metadata_log_cannot_be_created_as_a_topic() -> None:
    async def tell(_machine: Machine, client: Client, raw: Raw) -> None:
        (created,) = await client.create_topics([NewTopic(METADATA_TOPIC)])
        assert created.error == ErrorCode.invalid_request
        assert created.message == "Creation of internal topic __cluster_metadata is prohibited."
        body = MetadataRequest(
            topics=[MetadataRequestTopic(name=METADATA_TOPIC)],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        (found,) = (await raw.ask(9, body)).topics
        assert found.error_code == ErrorCode.unknown_topic_or_partition

    story(tell)


# Versions


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "software_version", "valid"),
    [
        ("apache-kafka-java", "4.3.1", True),
        ("a", "1", True),
        ("a" * 300, "1", True),
        ("", "1", False),
        ("ok", "", False),
        ("two words", "1", False),
        ("ok", "-1", False),
        ("ok", "1.", False),
        ("é", "1", False),
        ("ok\n", "1", False),
    ],
)
def test_api_versions_checks_the_name_of_the_client_software(
    version: int, name: str, software_version: str, valid: bool
) -> None:
    async def tell(_machine: Machine, _client: Client, raw: Raw) -> None:
        body = ApiVersionsRequest(
            client_software_name=name, client_software_version=software_version
        )
        answer = await raw.ask(version, body)
        wanted = ErrorCode.none if valid else ErrorCode.invalid_request
        assert answer.error_code == wanted
        assert bool(answer.api_keys) is valid
        assert not raw.closed.done()

    story(tell)


# Groups


async def find(raw: Raw, group: str) -> None:
    """Create `__consumer_offsets`, and wait until its partitions have leaders."""
    body = FindCoordinatorRequest(key=group)
    while (await raw.ask(0, body)).error_code != ErrorCode.none:
        await asyncio.sleep(0.1)


async def offsets(raw: Raw, version: int, *indexes: int) -> Any:
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=list(indexes))
    body = OffsetFetchRequest(group_id="g", topics=[topic])
    return await raw.ask(version, body)


def test_offset_fetch_1_has_an_error_of_the_group_at_each_partition() -> None:
    async def tell(_machine: Machine, _client: Client, raw: Raw) -> None:
        (topic,) = (await offsets(raw, 1, 0, 5)).topics
        assert topic.name == "t"
        rows = [(p.partition_index, p.committed_offset, p.metadata) for p in topic.partitions]
        assert rows == [(0, -1, ""), (5, -1, "")]
        assert {p.error_code for p in topic.partitions} == {ErrorCode.not_coordinator}
        newer = await offsets(raw, 7, 0, 5)
        assert (newer.error_code, list(newer.topics)) == (ErrorCode.not_coordinator, [])
        await find(raw, "g")
        (topic,) = (await offsets(raw, 1, 0, 5)).topics
        assert {p.error_code for p in topic.partitions} == {ErrorCode.none}

    story(tell)


def test_offset_fetch_10_lists_unknown_topics_behind_the_known() -> None:
    async def tell(_machine: Machine, client: Client, raw: Raw) -> None:
        await find(raw, "g")
        known = (await client.metadata(["t"])).topics["t"].topic_id
        topics = [
            OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0])
            for one in (STRANGER, known)
        ]
        group = OffsetFetchRequestGroup(
            group_id="g", member_id=None, member_epoch=-1, topics=topics
        )
        body = OffsetFetchRequest(groups=[group], require_stable=False)
        (answer,) = (await raw.ask(10, body)).groups
        found = [(one.topic_id, one.partitions[0].error_code) for one in answer.topics]
        assert found == [(known, ErrorCode.none), (STRANGER, ErrorCode.unknown_topic_id)]

    story(tell)


def test_offsets_of_a_group_without_a_name_are_not_deleted() -> None:
    async def tell(_machine: Machine, _client: Client, raw: Raw) -> None:
        await find(raw, "")
        for group, error in (("", ErrorCode.invalid_group_id), ("g", ErrorCode.group_id_not_found)):
            body = OffsetDeleteRequest(group_id=group, topics=[])
            assert (await raw.ask(0, body)).error_code == error

    story(tell)


# Log directories


@pytest.mark.parametrize(
    ("path", "name", "error"),
    [
        ("/data", "x" * 214, ErrorCode.invalid_topic_exception),
        ("/nowhere", "x" * 214, ErrorCode.invalid_topic_exception),
        ("/data", "x" * 213, ErrorCode.unknown_topic_or_partition),
        ("/nowhere", "x" * 213, ErrorCode.log_dir_not_found),
        ("/nowhere", "absent", ErrorCode.log_dir_not_found),
        ("/nowhere", "t", ErrorCode.log_dir_not_found),
        ("/data", "t", ErrorCode.none),
    ],
)
def test_a_move_is_refused_for_kafkas_reasons_in_kafkas_order(
    path: str, name: str, error: ErrorCode
) -> None:
    async def tell(_machine: Machine, _client: Client, raw: Raw) -> None:
        topic = AlterReplicaLogDirTopic(name=name, partitions=[0])
        body = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
        (result,) = (await raw.ask(2, body)).results
        assert result.partitions[0].error_code == error

    story(tell)


# Settings


def test_keys_and_certificates_of_a_running_broker_are_those_of_one_listener(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def tell(_machine: Machine, client: Client, _raw: Raw) -> None:
        async def alter(name: str, value: str | None) -> ErrorCode:
            altered = await client.on_controller(alter_configs(Resource.BROKER, "1", {name: value}))
            return ErrorCode(altered.error)

        for name in sorted(KEYSTORE_SETTINGS):
            assert await alter(name, "planted") is ErrorCode.invalid_request
            assert await alter(f"listener.name.plaintext.{name}", "planted") is ErrorCode.none
            assert await alter(name, None) is ErrorCode.none
        assert await alter("ssl.protocol", "TLSv1.3") is ErrorCode.none
        (described,) = await client.describe_configs([(Resource.BROKER, "1")])
        found = {entry.name: entry for entry in described.entries}
        assert found["listener.name.plaintext.ssl.truststore.type"].value == "planted"
        assert found["listener.name.plaintext.ssl.key.password"].value is None

    story(tell)
    lines = [one for one in capsys.readouterr().out.splitlines() if "ssl.key.password" in one]
    assert lines
    assert not any("planted" in one for one in lines)


def test_a_new_topics_setting_without_a_value_is_refused() -> None:
    async def tell(_machine: Machine, client: Client, raw: Raw) -> None:
        config = CreatableTopicConfig(name="retention.ms", value=None)
        topics = [
            CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=configs
            )
            for name, configs in (("unset", [config]), ("plain", []))
        ]
        body = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)
        answers = {one.name: one for one in (await raw.ask(7, body)).topics}
        assert answers["unset"].error_code == ErrorCode.invalid_config
        assert answers["unset"].error_message == "retention.ms without a value"
        assert answers["plain"].error_code == ErrorCode.none
        assert "unset" not in (await client.metadata()).topics

    story(tell)


def test_a_new_topic_is_answered_with_kafkas_settings_and_those_it_sets() -> None:
    async def tell(_machine: Machine, _client: Client, raw: Raw) -> None:
        async def create(name: str, **configs: str) -> dict[str, Any]:
            settings = [
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ]
            topic = CreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=settings,
            )
            body = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
            (answer,) = (await raw.ask(7, body)).topics
            assert answer.error_code == ErrorCode.none, answer.error_message
            return {one.name: one.value for one in answer.configs or ()}

        plain = await create("plain")
        assert "retention.ms" in plain
        assert not plain.keys() & {"tier.max.lag.ms", "internal.segment.bytes"}
        chosen = await create("chosen", tier_max_lag_ms="5", internal_segment_bytes="100")
        assert (chosen["tier.max.lag.ms"], chosen["internal.segment.bytes"]) == ("5", "100")

    story(tell)
