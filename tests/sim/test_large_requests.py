"""Large requests: a thread decodes one at a time, and their decoded size counts as memory of clients."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from tests.fuzz.large import TOPIC, large_requests
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.calls import NewTopic

LARGE = large_requests(UUID(int=0))
LIMIT = 800_000
"""The limit of a frame, and of a decoded request's memory."""
COUNT = 2500
MEMORY = 50_000
WAIT_S = 60


def story(tell: Callable[[Machine], Coroutine[Any, Any, None]], **settings: str) -> None:
    async def whole() -> None:
        limits = {"socket.request.max.bytes": str(LIMIT)}
        limits |= {name.replace("__", "."): value for name, value in settings.items()}
        machine = Machine(World(7), limits)
        await machine.start()
        client = await machine.connect()
        await client.create_topics([NewTopic(TOPIC, partitions=1, configs={})])
        await tell(machine)
        assert machine.broken_tasks == []
        await machine.stop()
        memory = machine.node._connections.memory
        assert (memory.requests, memory.answers) == (0, 0), (
            "memory of ended requests is still counted"
        )

    run(whole())


async def ask(machine: Machine, name: str, count: int) -> "tuple[Raw, asyncio.Future[Any]]":
    raw = await Raw.connect(machine.world.network)
    large = LARGE[name]
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    raw._waiting.append((large.key, large.version, answer))
    raw.send(large.frame(count))
    return raw, answer


def test_a_large_request_is_decoded_on_a_thread_and_answered() -> None:
    async def tell(machine: Machine) -> None:
        started = machine.workers_started
        _, few = await ask(machine, "ListOffsets topics", 100)
        assert len((await few).topics) == 100
        assert not [name for name, *_ in started if name == "large-requests"]
        _, many = await ask(machine, "ListOffsets topics", 1500)
        assert len((await many).topics) == 1500
        assert [name for name, *_ in started if name == "large-requests"]

    story(tell)


def test_a_request_that_would_become_too_much_closes_its_connection() -> None:
    async def tell(machine: Machine) -> None:
        raw, answer = await ask(machine, "Metadata topics", LIMIT // 20)
        await asyncio.wait_for(raw.closed, 10)
        assert answer.cancelled()
        memory = machine.node._connections.memory
        assert memory.requests == 0

    story(tell)


def test_no_setting_lets_a_request_become_more_than_its_bound() -> None:
    """40 MiB, though the frame may have 100: no client asks for 300,000 things at once."""

    async def tell(machine: Machine) -> None:
        raw, answer = await ask(machine, "Metadata topics", 300_000)
        await asyncio.wait_for(raw.closed, 10)
        assert answer.cancelled()

    story(tell, socket__request__max__bytes=str(100 << 20))


def test_a_large_request_waits_while_others_decoded_ones_take_the_memory() -> None:
    """The test takes the memory that requests in work take, and gives it back one by one."""

    async def tell(machine: Machine) -> None:
        memory = machine.node._connections.memory
        held = [MEMORY // 2, MEMORY // 2]
        for size in held:
            memory.take(size)
        asked = [await ask(machine, "Metadata topics", COUNT) for _ in range(3)]
        await asyncio.sleep(WAIT_S)
        received = memory.requests - sum(held)
        assert not [answer for _, answer in asked if answer.done()]
        memory.give_back(held.pop())
        await asyncio.sleep(WAIT_S)
        assert not [answer for _, answer in asked if answer.done()], (
            "the received bytes must count too"
        )
        assert memory.requests == received + sum(held), "no request may be decoded meanwhile"
        memory.give_back(held.pop())
        for _, answer in asked:
            assert len((await asyncio.wait_for(answer, WAIT_S)).topics) == COUNT

    story(tell, queued__max__request__bytes=str(MEMORY))


def test_a_client_that_goes_away_meanwhile_leaves_nothing() -> None:
    async def tell(machine: Machine) -> None:
        for wait_s in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.01):
            gone = [await ask(machine, "ListOffsets topics", 1500) for _ in range(3)]
            await asyncio.sleep(wait_s)
            for raw, _ in gone:
                raw.close()
        _, answer = await ask(machine, "ListOffsets topics", 1500)
        assert len((await answer).topics) == 1500

    story(tell, queued__max__request__bytes="200000")
