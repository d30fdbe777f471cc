"""Goal: a broker reaches the active controller on another node, or learns in time that it cannot.

Method: the channel of a second broker, which is no more than that, against a real node's controller listener.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast
from uuid import UUID

import pytest
from tests.sim.controller_listener import PORT, listen_as_controller
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.client.security import Dialer
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Endpoint
from stratalog.quorum.controller import BrokerHeartbeat, BrokerRegistration, NewTopic
from stratalog.quorum.isr import IsrChange
from stratalog.wire.ids import TopicIdPartition

DIRECTORY = UUID(int=500)
SESSION_S, REQUEST_S = 9.0, 30.0


class Quorum:
    """The quorum as a node sees it that leads nothing: a test says where the leader is."""

    def __init__(self) -> None:
        self.active: ActiveController | None = None
        self.on_leader_change: list[Callable[[], None]] = []
        self.address: tuple[str, int] | None = ("127.0.0.1", PORT)

    def leader_address(self) -> tuple[str, int] | None:
        return self.address

    def move(self, address: tuple[str, int] | None) -> None:
        self.address = address
        for react in self.on_leader_change:
            react()


def channel_to(machine: Machine, quorum: Quorum) -> ControllerChannel:
    local = LocalController(lambda: quorum.active, machine.world.outside.entropy)
    return ControllerChannel(
        cast(Any, quorum),
        local,
        Dialer(machine.world.network),
        cluster_id=machine.broker.cluster.cluster_id,
        session_timeout_s=SESSION_S,
        request_timeout_s=REQUEST_S,
    )


def registration(incarnation: int = 1) -> BrokerRegistration:
    endpoint = Endpoint("PLAINTEXT", "second", 9)
    return BrokerRegistration(2, UUID(int=incarnation), (endpoint,), directories=(DIRECTORY,))


def beat(machine: Machine, epoch: int, **wanted: Any) -> BrokerHeartbeat:
    return BrokerHeartbeat(2, epoch, machine.broker.metadata.image.offset, **wanted)


Story = Callable[[Machine, Quorum, ControllerChannel], Coroutine[Any, Any, None]]


def story(tell: Story) -> None:
    async def whole() -> None:
        machine = Machine(World(5))
        await machine.start()
        await machine.process.run(listen_as_controller(machine))
        quorum = Quorum()
        channel = channel_to(machine, quorum)
        await tell(machine, quorum, channel)
        channel.close()
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


def test_a_broker_does_all_that_it_does_over_the_network() -> None:
    async def tell(machine: Machine, _quorum: Quorum, channel: ControllerChannel) -> None:
        epoch = await channel.register_broker(registration())
        assert machine.broker.metadata.image.brokers[2].epoch == epoch
        answer = await channel.heartbeat(beat(machine, epoch))
        assert (answer.is_caught_up, answer.is_fenced) == (True, False)
        block = await channel.allocate_producer_ids(2, epoch)
        assert len(block) == 1000
        assert (await channel.allocate_producer_ids(2, epoch)).start == block.stop
        created, clash = await channel.create_topics(
            [NewTopic("t", -1, -1, {0: (2, 1)}), NewTopic("bad name")]
        )
        assert (created.error, clash.error) == (
            ErrorCode.none,
            ErrorCode.invalid_topic_exception,
        )
        key = TopicIdPartition(created.topic_id, 0)
        codes = await channel.assign_directories(2, epoch, {key: DIRECTORY})
        assert codes == {key: ErrorCode.none}
        partition = machine.broker.metadata.image.partition(*key)
        assert partition is not None
        assert (partition.leader, partition.directory_of(2)) == (2, DIRECTORY)
        change = IsrChange(key, partition.leader_epoch, partition.partition_epoch, ((2, epoch),))
        (answered,) = await channel.alter_isrs(2, epoch, [change])
        assert answered.partition is not None
        assert answered.partition.isr == (2,)
        (again,) = await channel.alter_isrs(2, epoch, [change])
        assert again.error is ErrorCode.invalid_update_version
        with pytest.raises(Rejected) as refused:
            await channel.heartbeat(beat(machine, epoch - 1))
        assert refused.value.code is ErrorCode.stale_broker_epoch

    story(tell)


def test_a_broker_without_a_controller_learns_it_in_time() -> None:
    async def tell(machine: Machine, quorum: Quorum, channel: ControllerChannel) -> None:
        quorum.move(None)
        began = asyncio.get_running_loop().time()
        for wait_s, request in (
            (SESSION_S, channel.register_broker(registration())),
            (REQUEST_S, channel.allocate_producer_ids(2, 1)),
        ):
            with pytest.raises(Rejected) as refused:
                await request
            assert refused.value.code is ErrorCode.request_timed_out
            now = asyncio.get_running_loop().time()
            assert wait_s - 1 < now - began <= wait_s
            began = now
        waiting = asyncio.create_task(channel.register_broker(registration()))
        await asyncio.sleep(3)
        quorum.move(("127.0.0.1", PORT))
        assert await waiting == machine.broker.metadata.image.brokers[2].epoch

    story(tell)


def test_a_request_to_a_leader_that_hangs_goes_to_the_next_one_at_once() -> None:
    async def tell(machine: Machine, quorum: Quorum, channel: ControllerChannel) -> None:
        epoch = await channel.register_broker(registration())
        world = machine.world
        other = Machine(world, {"listeners": "PLAINTEXT://10.0.0.2:9092", "node.id": "3"})
        await other.start()
        await listen_as_controller(other, "10.0.0.2")
        machine.pause()
        heartbeat = beat(machine, epoch)
        waiting = asyncio.create_task(channel.heartbeat(heartbeat))
        await asyncio.sleep(1)
        assert not waiting.done()
        quorum.move(("10.0.0.2", PORT))
        began = asyncio.get_running_loop().time()
        with pytest.raises(
            Rejected
        ) as refused:  # it does not know the broker, as a cluster of its own
            await waiting
        assert refused.value.code is ErrorCode.stale_broker_epoch
        assert asyncio.get_running_loop().time() - began < 1
        machine.resume()
        await other.stop()

    story(tell)


def test_an_old_leader_is_not_believed() -> None:
    async def tell(machine: Machine, _quorum: Quorum, channel: ControllerChannel) -> None:
        epoch = await channel.register_broker(registration())
        active, machine.broker.quorum.active = machine.broker.quorum.active, None
        waiting = asyncio.create_task(channel.heartbeat(beat(machine, epoch)))
        creating = asyncio.create_task(channel.create_topics([NewTopic("t")]))
        await asyncio.sleep(2)
        assert not waiting.done()
        assert not creating.done()
        machine.broker.quorum.active = active
        assert not (await waiting).is_fenced
        assert [one.error for one in await creating] == [ErrorCode.none]

    story(tell)


def test_a_broker_that_may_stop_is_replaced_at_once() -> None:
    async def tell(machine: Machine, _quorum: Quorum, channel: ControllerChannel) -> None:
        epoch = await channel.register_broker(registration())
        await channel.heartbeat(beat(machine, epoch))
        with pytest.raises(Rejected) as refused:
            await channel.register_broker(registration(2))
        assert refused.value.code is ErrorCode.duplicate_broker_registration
        answer = await channel.heartbeat(beat(machine, epoch, want_shutdown=True))
        assert answer.should_shut_down
        assert await channel.register_broker(registration(2)) > epoch

    story(tell)
