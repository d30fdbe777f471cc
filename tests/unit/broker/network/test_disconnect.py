"""A client disconnects in the turn in which its request started: the request's coroutines are still awaited.

Otherwise Python warns of a coroutine that nothing awaited, long after, and no line says of which request.
"""

import asyncio
from collections.abc import Coroutine
from time import perf_counter_ns
from typing import Any

from stratalog.broker.network.answers import Answer, Later, as_it_is
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.connection import Connection, Shared
from stratalog.broker.network.session import ListenerContext, Session
from stratalog.broker.network.turns import Turns
from stratalog.wire.frames import SCRATCH_BYTES


class NoTransport(asyncio.Transport):
    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default


def test_a_request_that_starts_as_the_client_disconnects_is_awaited_and_cancelled() -> None:
    assert asyncio.run(steps_of_a_request()) == ["started", "cancelled"]


async def steps_of_a_request() -> list[str]:
    steps: list[str] = []

    async def handle() -> None:
        steps.append("started")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    async def answer(result: Coroutine[Any, Any, None]) -> Answer:
        await result
        return [b"answer"]

    connection = Connection(
        lambda _session, _frame: Later(answer(handle()), as_it_is),
        Shared(1 << 20, bytearray(SCRATCH_BYTES), ClientMemory(-1, -1), Turns(perf_counter_ns)),
        Session(ListenerContext("T")),
        opened=lambda _: True,
        closed=lambda _: None,
    )
    connection.connection_made(NoTransport())
    frame = (4).to_bytes(4, "big") + b"\0\x03ab"
    connection.get_buffer(len(frame))[: len(frame)] = frame
    connection.buffer_updated(len(frame))
    connection.connection_lost(None)
    for _ in range(5):  # more turns of the loop than the two steps need
        await asyncio.sleep(0)
    return steps
