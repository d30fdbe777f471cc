"""Goal: a broker joins a node's cluster, leads and is fenced. Method: raw requests on a controller's listener."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import batch
from tests.sim.second_broker import (
    ELIGIBLE,
    VERSION,
    SecondBroker,
    create,
    joined,
    partition,
    story,
)
from tests.sim.world import START_MS

from stratalog.broker.coordination import local_controller
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum import brokers
from stratalog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from stratalog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)
from stratalog.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from stratalog.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from stratalog.wire.messages.metadata import MetadataRequest
from stratalog.wire.messages.unregister_broker import UnregisterBrokerRequest

CONTROLLERS_ONLY = {56, 58, 62, 63, 67, 73}


def test_a_second_broker_joins_leads_and_is_fenced_when_it_falls_silent() -> None:
    async def tell(machine: Machine, client: Client, _raw: Raw, second: SecondBroker) -> None:
        assert await second.register() == 0
        behind = await second.beat(current_metadata_offset=0)
        assert (behind.is_caught_up, behind.is_fenced) == (False, True)
        assert not (await second.beat()).is_fenced
        await create(client, "t", {0: (2, 1), 1: (1, 2)})
        asked = MetadataRequest(topics=None)
        clients = await Raw.connect(machine.world.network)
        metadata = await clients.ask(12, asked)
        assert {(one.node_id, one.host) for one in metadata.brokers} >= {(2, "second")}
        assert [list(one.offline_replicas) for one in metadata.topics[0].partitions] == [[], []]
        assert (partition(machine, "t").leader, partition(machine, "t").isr) == (2, (2, 1))
        for _ in range(10):
            # The node extends its own session, and the second broker's as long as that one asks.
            await asyncio.sleep(5)
            assert not (await second.beat()).is_fenced
        assert partition(machine, "t").leader == 2
        await asyncio.sleep(12)
        assert (partition(machine, "t").leader, partition(machine, "t").isr) == (1, (1,))
        assert partition(machine, "t", 1).isr == (1,)
        assert machine.broker.metadata.image.brokers[2].fenced
        assert not machine.broker.metadata.image.brokers[1].fenced
        metadata = await clients.ask(12, asked)
        assert [one.node_id for one in metadata.brokers] == [1]
        rows = metadata.topics[0].partitions
        assert [(one.leader_id, list(one.offline_replicas)) for one in rows] == [(1, [2])] * 2

    story(tell)


def test_a_controller_that_was_paused_waits_for_heartbeats_before_it_fences() -> None:
    async def tell(machine: Machine, _client: Client, _raw: Raw, second: SecondBroker) -> None:
        await joined(second)
        for _ in range(3):
            assert not (await second.beat()).is_fenced
            await asyncio.sleep(1)
            machine.pause()
            await asyncio.sleep(9.5)
            machine.resume()
            await asyncio.sleep(0.3)
            assert not machine.broker.metadata.image.brokers[2].fenced
        await asyncio.sleep(9.5)
        assert machine.broker.metadata.image.brokers[2].fenced

    story(tell)


def test_a_broker_stays_unfenced_while_its_many_partitions_get_it_as_their_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The elections take longer than its session, and it waits for their answer."""
    monkeypatch.setattr(brokers, "ELECTED_AT_ONCE", 1)
    monkeypatch.setattr(local_controller, "ELECTED_AT_ONCE", 1)

    async def tell(machine: Machine, client: Client, _raw: Raw, second: SecondBroker) -> None:
        await joined(second)
        await create(client, "t", dict.fromkeys(range(6), (2,)))
        await asyncio.sleep(12)
        assert partition(machine, "t", 5).leader == -1
        machine.take_ms(3000)
        began = asyncio.get_running_loop().time()
        assert not (await second.beat()).is_fenced
        assert asyncio.get_running_loop().time() - began > 12
        assert not machine.broker.metadata.image.brokers[2].fenced
        assert {partition(machine, "t", index).leader for index in range(6)} == {2}
        machine.take_ms(1)

    story(tell)


def test_invalid_requests_of_a_broker_get_their_errors() -> None:
    async def tell(machine: Machine, _client: Client, raw: Raw, second: SecondBroker) -> None:
        assert await second.register(cluster_id="other") == ErrorCode.inconsistent_cluster_id
        assert await second.register(log_dirs=[]) == ErrorCode.invalid_registration
        assert await second.register(features=[ELIGIBLE]) == ErrorCode.invalid_registration
        assert await second.register(features=[VERSION]) == ErrorCode.unsupported_version
        assert (await second.beat()).error_code == ErrorCode.stale_broker_epoch
        await joined(second)
        epoch = second.epoch
        assert await second.register() == ErrorCode.duplicate_broker_registration
        second.epoch = epoch
        ids = await raw.ask(0, AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch))
        assert (ids.error_code, ids.producer_id_len) == (0, 1000)
        stale = await raw.ask(0, AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch + 1))
        assert stale.error_code == ErrorCode.stale_broker_epoch

    story(tell)


def test_the_isr_elections_and_directories_follow_requests() -> None:
    async def tell(machine: Machine, client: Client, raw: Raw, second: SecondBroker) -> None:
        await joined(second)
        await create(client, "t", {0: (1, 2), 1: (2, 1)})
        topic = machine.broker.metadata.topic("t")
        assert topic is not None
        row = await second.shrink((topic.id, 1), [2])
        assert (row.error_code, row.leader_id, list(row.isr), row.partition_epoch) == (0, 2, [2], 1)
        refused = await second.shrink((topic.id, 0), [2])
        assert refused.error_code == ErrorCode.invalid_request
        replica = AssignReplicasToDirsRequestPartitionData(partition_index=1)
        of = AssignReplicasToDirsRequestTopicData(topic_id=topic.id, partitions=[replica])
        failed = AssignReplicasToDirsRequestDirectoryData(id=UUID(int=501), topics=[of])
        asked = AssignReplicasToDirsRequest(
            broker_id=2, broker_epoch=second.epoch, directories=[failed]
        )
        answer = await raw.ask(0, asked)
        assert answer.directories[0].topics[0].partitions[0].error_code == 0
        assert partition(machine, "t", 1).leader == -1
        wanted = [TopicPartitions(topic="t", partitions=[0, 1, 1])]
        elect = ElectLeadersRequest(election_type=1, topic_partitions=wanted)
        rows = (await raw.ask(2, elect)).replica_election_results[0].partition_result
        assert [row.error_code for row in rows] == [ErrorCode.election_not_needed, 0, 0]
        assert partition(machine, "t", 1).leader == 1

    story(tell)


@pytest.mark.parametrize("is_unclean", [True, False])
def test_a_replica_that_is_not_in_sync_leads_only_after_an_unclean_election(
    *, is_unclean: bool
) -> None:
    async def tell(machine: Machine, client: Client, _raw: Raw, second: SecondBroker) -> None:
        await joined(second)
        configs = {"unclean.leader.election.enable": str(is_unclean).lower()}
        await client.create_topics([NewTopic("t", assignments={0: (2, 1)}, configs=configs)])
        topic = machine.broker.metadata.topic("t")
        assert topic is not None
        assert (await second.shrink((topic.id, 0), [2])).error_code == 0
        await asyncio.sleep(12)  # the second broker falls silent, and is fenced
        assert machine.broker.metadata.image.brokers[2].fenced
        found = partition(machine, "t")
        if is_unclean:
            assert (found.leader, found.isr) == (1, (1,))
            assert (await client.produce("t", 0, batch([b"value"], START_MS))).base_offset == 0
        else:
            assert (found.leader, found.isr) == (-1, ())
            assert found.eligible_leader_replicas == (2,)
            with pytest.raises(Rejected) as refused:
                await client.produce("t", 0, batch([b"value"], START_MS))
            assert refused.value.code == ErrorCode.leader_not_available

    story(tell)


def test_a_reassignment_begins_is_listed_and_is_cancelled() -> None:
    async def tell(machine: Machine, client: Client, raw: Raw, second: SecondBroker) -> None:
        await joined(second)
        await create(client, "t", {0: (1,)})

        async def reassign(replicas: list[int] | None) -> int:
            one = ReassignablePartition(partition_index=0, replicas=replicas)
            topic = ReassignableTopic(name="t", partitions=[one])
            answer = await raw.ask(1, AlterPartitionReassignmentsRequest(topics=[topic]))
            code: int = answer.responses[0].partitions[0].error_code
            return code

        async def ongoing() -> list[Any]:
            listed = await raw.ask(0, ListPartitionReassignmentsRequest())
            return [
                (topic.name, list(one.replicas), list(one.adding_replicas))
                for topic in listed.topics
                for one in topic.partitions
            ]

        assert await reassign([1, 3]) == ErrorCode.invalid_replica_assignment
        assert await reassign([1, 2]) == 0
        assert await ongoing() == [("t", [1, 2], [2])]
        assert await reassign(None) == 0
        assert await ongoing() == []
        assert partition(machine, "t").replicas == (1,)
        assert await reassign(None) == ErrorCode.no_reassignment_in_progress

    story(tell)


def test_an_unregistered_broker_is_gone() -> None:
    async def tell(machine: Machine, client: Client, raw: Raw, second: SecondBroker) -> None:
        await joined(second)
        await create(client, "t", {0: (2, 1)})
        gone = await raw.ask(0, UnregisterBrokerRequest(broker_id=2))
        assert gone.error_code == 0
        assert (partition(machine, "t").leader, 2 in machine.broker.metadata.image.brokers) == (
            1,
            False,
        )
        again = await raw.ask(0, UnregisterBrokerRequest(broker_id=2))
        assert again.error_code == ErrorCode.broker_id_not_registered

    story(tell)


@pytest.mark.parametrize("is_controllers", [True, False])
def test_only_a_controllers_listener_offers_what_brokers_ask_of_it(is_controllers: bool) -> None:
    async def tell(machine: Machine, _client: Client, raw: Raw, _second: SecondBroker) -> None:
        one = raw if is_controllers else await Raw.connect(machine.world.network)
        software: dict[str, Any] = {"client_software_name": "test", "client_software_version": "1"}
        answer = await one.ask(3, ApiVersionsRequest(**software))
        offered = {api.api_key for api in answer.api_keys}
        assert offered & CONTROLLERS_ONLY == (CONTROLLERS_ONLY if is_controllers else set())

    story(tell)
