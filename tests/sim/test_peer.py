"""Goal: a connection to another node answers, breaks and opens again. Method: a started machine in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.network import STORY
from tests.sim.world import World

from stratalog.client.peer import Peer
from stratalog.client.security import Dialer
from stratalog.errors import Rejected, Unavailable
from stratalog.wire.messages.describe_cluster import DescribeClusterRequest
from stratalog.wire.messages.vote import VoteRequest

TIMEOUT_S = 2.0


def story(tell: Callable[[Machine, Peer], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        machine = Machine(World(3))
        await machine.start()
        host, port = machine.address.split(":")
        network = machine.world.network
        peer = Peer(Dialer(network), host, int(port), client_id="node 2", timeout_s=TIMEOUT_S)
        await tell(machine, peer)
        peer.close()
        await machine.stop()

    run(whole())


async def brokers(peer: Peer) -> list[int]:
    answer = await peer.request(DescribeClusterRequest(include_cluster_authorized_operations=False))
    return [one.broker_id for one in answer.brokers]


def test_requests_share_one_connection() -> None:
    async def tell(machine: Machine, peer: Peer) -> None:
        assert await asyncio.gather(*(brokers(peer) for _ in range(3))) == [[1]] * 3
        assert len(machine.node._connections) == 1

    story(tell)


def test_an_api_that_the_node_does_not_serve_is_refused() -> None:
    async def tell(_machine: Machine, peer: Peer) -> None:
        request = VoteRequest(cluster_id=None, voter_id=1, topics=[])
        with pytest.raises(Rejected, match="does not serve API 52"):
            await peer.request(request)
        assert await brokers(peer) == [1]

    story(tell)


def test_a_broken_connection_fails_its_requests_and_the_next_one_connects_again() -> None:
    async def tell(machine: Machine, peer: Peer) -> None:
        assert await brokers(peer) == [1]
        await machine.kill()
        with pytest.raises(Unavailable, match="unreachable"):
            await brokers(peer)
        await machine.start()
        assert await brokers(peer) == [1]

    story(tell)


def test_a_silent_node_costs_the_timeout() -> None:
    async def tell(machine: Machine, peer: Peer) -> None:
        assert await brokers(peer) == [1]
        network, loop = machine.world.network, asyncio.get_running_loop()
        network.cut(machine.host.name, STORY)
        began = loop.time()
        with pytest.raises(Unavailable, match="did not answer in 2 s"):
            await brokers(peer)
        assert loop.time() - began == pytest.approx(TIMEOUT_S, abs=0.1)
        network.heal(machine.host.name, STORY)
        assert await brokers(peer) == [1]

    story(tell)


def test_each_request_has_its_own_timeout() -> None:
    async def tell(machine: Machine, peer: Peer) -> None:
        network, loop = machine.world.network, asyncio.get_running_loop()
        assert await brokers(peer) == [1]  # the timer of the link begins with this request
        await asyncio.sleep(TIMEOUT_S * 0.75)
        network.cut(machine.host.name, STORY)
        began = loop.time()
        with pytest.raises(Unavailable, match="did not answer in 2 s"):
            await brokers(peer)
        assert loop.time() - began == pytest.approx(TIMEOUT_S, abs=0.1)

    story(tell)


def test_a_closed_peer_refuses_requests() -> None:
    async def tell(_machine: Machine, peer: Peer) -> None:
        opening = asyncio.create_task(brokers(peer))
        await asyncio.sleep(0)
        peer.close()
        for pending in (opening, brokers(peer)):
            with pytest.raises(Unavailable):
                await pending

    story(tell)
