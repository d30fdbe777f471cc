"""A second broker in a node's cluster, as the controller sees it: a few requests on a controller's listener.

In: the node. Out: registrations, heartbeats and changes of ISRs. It replicates nothing, so topics that it leads stay
empty.
"""

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from tests.sim.controller_listener import connect_controller
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.metadata.image import Partition
from stratalog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from stratalog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from stratalog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)

DIRECTORY = UUID(int=500)
VERSION = Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)
TRANSACTIONS = Feature(name="transaction.version", min_supported_version=0, max_supported_version=2)
ELIGIBLE = Feature(
    name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1
)


class SecondBroker:
    """Broker 2, as far as a controller sees it."""

    def __init__(self, machine: Machine, raw: Raw) -> None:
        self.epoch = -1
        self._machine = machine
        self._raw = raw

    async def register(self, **changed: Any) -> int:
        """Register a new incarnation; return the error."""
        fields: dict[str, Any] = {
            "broker_id": 2,
            "cluster_id": self._machine.broker.cluster.cluster_id,
            "incarnation_id": self._machine.world.outside.entropy.uuid(),
            "listeners": [Listener(name="PLAINTEXT", host="second", port=9, security_protocol=0)],
            "features": [ELIGIBLE, TRANSACTIONS, VERSION],
            "rack": "r2",
            "log_dirs": [DIRECTORY],
        }
        answer = await self._raw.ask(4, BrokerRegistrationRequest(**(fields | changed)))
        self.epoch = answer.broker_epoch
        return answer.error_code

    async def beat(self, **wanted: Any) -> Any:
        """Send a heartbeat of a broker that has read all metadata."""
        fields: dict[str, Any] = {
            "broker_id": 2,
            "broker_epoch": self.epoch,
            "current_metadata_offset": self._machine.broker.metadata.image.offset,
            "want_fence": False,
            "want_shut_down": False,
        }
        return await self._raw.ask(2, BrokerHeartbeatRequest(**(fields | wanted)))

    async def shrink(self, key: tuple[UUID, int], isr: list[int]) -> Any:
        """Ask for this ISR of a partition that the broker leads."""
        image = self._machine.broker.metadata.image
        one = image.topics_by_id[key[0]].partitions[key[1]]
        members = [BrokerState(broker_id=id_, broker_epoch=image.brokers[id_].epoch) for id_ in isr]
        data = AlterPartitionRequestPartitionData(
            partition_index=key[1],
            leader_epoch=one.leader_epoch,
            new_isr_with_epochs=members,
            partition_epoch=one.partition_epoch,
        )
        topic = AlterPartitionRequestTopicData(topic_id=key[0], partitions=[data])
        asked = AlterPartitionRequest(broker_id=2, broker_epoch=self.epoch, topics=[topic])
        answer = await self._raw.ask(3, asked)
        assert answer.error_code == 0
        return answer.topics[0].partitions[0]


Story = Callable[[Machine, Client, Raw, SecondBroker], Coroutine[Any, Any, None]]


def story(tell: Story) -> None:
    async def whole() -> None:
        machine = Machine(World(5))
        client = await machine.restart()
        raw = await connect_controller(machine)
        await tell(machine, client, raw, SecondBroker(machine, raw))
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


def partition(machine: Machine, name: str, index: int = 0) -> Partition:
    topic = machine.broker.metadata.topic(name)
    assert topic is not None
    return topic.partitions[index]


async def joined(second: SecondBroker) -> None:
    assert await second.register() == 0
    answer = await second.beat()
    assert (answer.error_code, answer.is_fenced, answer.is_caught_up) == (0, False, True)


async def create(client: Client, name: str, assignments: dict[int, tuple[int, ...]]) -> None:
    await client.create_topics([NewTopic(name, assignments=assignments)])
