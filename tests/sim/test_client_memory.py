"""The memory limit for clients: large requests wait for memory in turn, none for ever; small ones never wait.

In virtual time, with limits small enough to be reached by a few requests.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.admin import alter_configs
from stratalog.client.calls import NewTopic
from stratalog.errors import UserError
from stratalog.wire.records import Record, build_batch

BROKER = 4  # Kafka: ConfigResource.Type
LIMIT = 100_000
LARGE = 400_000


def story(
    tell: Callable[[Machine], Coroutine[Any, Any, None]], settings: dict[str, str] | None = None
) -> None:
    async def whole() -> None:
        limits = {"queued.max.request.bytes": str(LIMIT), **(settings or {})}
        machine = Machine(World(5), limits)
        await machine.start()
        client = await machine.connect()
        await client.create_topics([NewTopic("events", partitions=1, configs={})])
        await tell(machine)
        assert machine.broken_tasks == []
        await machine.stop()
        memory = machine.node._connections.memory
        assert (memory.requests, memory.answers) == (0, 0), (
            "memory of ended requests is still counted"
        )

    run(whole())


def large_batch() -> bytearray:
    return build_batch([Record(0, 1_700_000_000_000, None, b"x" * LARGE)])


def half_sent(raw: Raw, size: int) -> None:
    raw.send((10 * LARGE).to_bytes(4, "big") + bytes(size))


def test_requests_larger_than_the_limit_are_served_one_after_another() -> None:
    async def tell(machine: Machine) -> None:
        clients = [await machine.connect() for _ in range(6)]
        batches = [client.produce("events", 0, large_batch()) for client in clients]
        offsets = [one.base_offset for one in await asyncio.gather(*batches)]
        assert sorted(offsets) == list(range(6))

    story(tell)


def test_half_sent_requests_are_dropped_when_memory_is_short() -> None:
    async def tell(machine: Machine) -> None:
        network = machine.world.network
        stuck = [await Raw.connect(network) for _ in range(4)]
        for raw in stuck:
            half_sent(raw, 60_000)
            await asyncio.sleep(0.1)
        memory = machine.node._connections.memory
        assert memory.is_short
        assert memory.requests < 4 * 65_536 * 32, (
            "only received bytes count, not the announced size"
        )
        light = await machine.connect()
        assert (await light.metadata(["events"])).topics, "a small request is served at once"
        produced = asyncio.create_task(light.produce("events", 0, large_batch()))
        await asyncio.sleep(2)
        assert not produced.done(), "the large request waits for its turn"
        assert (await produced).base_offset == 0
        assert memory.requests < memory.requests_max
        assert sum(raw.closed.done() for raw in stuck) >= 2

    story(tell)


def test_connection_limits_can_be_changed_while_clients_connect() -> None:
    async def tell(machine: Machine) -> None:
        network = machine.world.network
        kept = [await Raw.connect(network) for _ in range(3)]
        await asyncio.sleep(1)
        assert not any(raw.closed.done() for raw in kept)
        client = await machine.connect()
        await client.call(alter_configs(BROKER, "", {"max.connections.per.ip": "2"}))
        refused = await Raw.connect(network)
        await asyncio.sleep(1)
        assert refused.closed.done()
        assert not any(raw.closed.done() for raw in kept), "open connections stay open"
        more = {"max.connections.per.ip.overrides": "127.0.0.1:50"}
        await client.call(alter_configs(BROKER, "", more))
        again = await Raw.connect(network)
        await asyncio.sleep(1)
        assert not again.closed.done()

    story(tell)


@pytest.mark.parametrize(
    ("setting", "value", "admitted"),
    [
        ("max.connections", "2", 1),
        ("max.connections.per.ip", "3", 2),
        ("max.connections.per.ip.overrides", "127.0.0.1:4,::1:0", 3),
        ("max.connections.per.ip.overrides", "10.0.0.1:0", 5),
    ],
)
def test_a_limit_admits_a_further_connection_when_one_closes(
    setting: str, value: str, admitted: int
) -> None:
    async def tell(machine: Machine) -> None:
        network = machine.world.network
        raws = [await Raw.connect(network) for _ in range(5)]  # beside the story's own client
        await asyncio.sleep(1)
        assert [raw.closed.done() for raw in raws] == [n >= admitted for n in range(5)]
        raws[0].close()
        await asyncio.sleep(1)
        late = await Raw.connect(network)
        await asyncio.sleep(1)
        assert not late.closed.done()

    story(tell, {setting: value})


@pytest.mark.parametrize("value", ["localhost:5", "127.0.0.1", "127.0.0.1:x", ":5", "1.2.3:4"])
def test_an_override_that_is_no_address_and_count_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=r"per\.ip\.overrides.*address:count"):
        run(cast(Any, Machine(World(1), {"max.connections.per.ip.overrides": value}).start()))


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    async def tell(machine: Machine) -> None:
        raw = await Raw.connect(machine.world.network)
        await asyncio.sleep(3)
        assert not raw.closed.done()
        await asyncio.sleep(20)
        assert raw.closed.done()

    story(tell, {"connections.max.idle.ms": "5000"})
