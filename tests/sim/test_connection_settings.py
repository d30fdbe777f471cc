"""The effects of the settings of listeners and connections, and that limits change without a restart.

Method: the real node in virtual time; raw connections come and are refused.
"""

import asyncio
import gc
import weakref
from typing import Final

from tests.sim.altering import alter, story
from tests.sim.machine import Machine
from tests.sim.raw import Raw

from stratalog.client.aio import Client
from stratalog.config.rules import Resource
from stratalog.ports import SocketBuffers
from stratalog.wire.messages.metadata import MetadataRequest

LIMITS: Final = ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides")


def test_socket_buffers_are_those_that_were_set() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        assert machine.world.network.buffers == [SocketBuffers(4_000_000, -1)]

    settings = {"socket.send.buffer.bytes": "4000000", "socket.receive.buffer.bytes": "-1"}
    story(tell, settings)


def test_an_ended_connection_is_free_without_the_garbage_collector() -> None:
    """The collector runs seldom, and a connection holds its client's session and buffers."""

    async def tell(machine: Machine, client: Client) -> None:
        gc.disable()
        try:
            before = set(machine.node._connections)
            raw = await Raw.connect(machine.world.network)
            await asyncio.sleep(1)
            alive = weakref.ref((set(machine.node._connections) - before).pop())
            raw.close()
            await asyncio.sleep(1)
            assert alive() is None
        finally:
            gc.enable()

    story(tell)


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
