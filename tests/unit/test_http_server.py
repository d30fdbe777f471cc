"""No client keeps a connection of the monitor or the console without asking, and no address keeps all of them.

Method: the real server on a real port, with short limits. On a connection that must end, a read returns at its end.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from stratalog.adapters.network import TcpNetwork
from stratalog.http_server import HttpLimits, HttpServer

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 8 << 20
SHORT_S = 0.2
LONG_S = 3600.0
ENDS_S = 20.0
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Opened = Callable[..., Awaitable[Client]]
KEPT_S = 1.0


async def application(scope: Any, _receive: Any, send: Any) -> None:
    """Answer at once; `/never` gets no answer, `/large` one that fills each buffer on the way."""
    if scope["path"] == "/never":
        await asyncio.Event().wait()
    body = bytes(LARGE) if scope["path"] == "/large" else b"well"
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(limits: HttpLimits) -> AsyncIterator[Opened]:
    server = HttpServer(application, limits)
    port = await server.open(TcpNetwork(), "127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []

    async def opened(host: str = "127.0.0.1") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writers.append(writer)
        return reader, writer

    try:
        async with asyncio.timeout(ENDS_S):
            yield opened
    finally:
        for writer in writers:
            writer.close()
        await server.close()


async def answer(client: Client, request: bytes = HEAD) -> bytes:
    """Return the answer, b"" where the connection ends instead."""
    reader, writer = client
    writer.write(request)
    try:
        return await reader.readuntil(b"well")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def until_ended(client: Client) -> None:
    with suppress(ConnectionError):
        while await client[0].read(1 << 16):
            pass


BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "then"),
    [
        (b"", b""),
        (b"", b"G"),
        (HEAD, b"G"),
        (HEAD + b"G", b""),
        (HEAD, b"GET / HTTP/1.1\r\nHost: loc"),
        (BODY, b""),
        (BODY, b"x"),
    ],
    ids=["nothing", "a byte", "asked", "at once", "half a head", "no body", "some body"],
)
def test_a_client_that_falls_silent_loses_its_connection(request_: bytes, then: bytes) -> None:
    async def story() -> None:
        async with serving(HttpLimits(silent_s=SHORT_S)) as opened:
            client = await opened()
            if request_:
                assert await answer(client, request_)
            client[1].write(then)
            await until_ended(client)

    asyncio.run(story())


def test_a_client_that_does_not_take_its_answer_loses_its_connection() -> None:
    async def story() -> None:
        limits = HttpLimits(connections_max=1, silent_s=LONG_S, answer_s=SHORT_S)
        async with serving(limits) as opened:
            reader, writer = await opened()
            request = HEAD.replace(b"/ ", b"/large ").replace(
                b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"
            )
            writer.write(request)
            while not await answer(await opened()):
                await asyncio.sleep(SHORT_S)  # the first client takes nothing meanwhile
            with suppress(ConnectionError):
                assert len(await reader.read(-1)) < LARGE

    asyncio.run(story())


def test_a_client_that_asks_again_in_time_keeps_its_connection() -> None:
    async def story() -> None:
        async with serving(HttpLimits(silent_s=KEPT_S)) as opened:
            client = await opened()
            assert await answer(client)
            await asyncio.sleep(1.5 * KEPT_S)
            assert await answer(client), "silence between two requests may last longer"

    asyncio.run(story())


def test_a_new_client_takes_the_place_of_the_longest_silent_one() -> None:
    async def story() -> None:
        async with serving(HttpLimits(connections_max=3, silent_s=LONG_S)) as opened:
            clients = [await opened() for _ in range(3)]
            for client in (clients[0], clients[2]):
                assert await answer(client)
            assert await answer(await opened())
            await until_ended(clients[1])
            for client in (clients[0], clients[2]):
                assert await answer(client)

    asyncio.run(story())


def test_an_address_with_all_places_gives_one_to_another_address() -> None:
    async def story() -> None:
        async with serving(HttpLimits(connections_max=3, silent_s=LONG_S)) as opened:
            greedy = [await opened() for _ in range(3)]
            for _, writer in greedy:
                writer.write(HEAD.replace(b"/ ", b"/never "))
            assert not await answer(await opened()), "its own answers keep their places"
            honest = await opened("127.0.0.2")
            assert await answer(honest)
            for _ in range(3):
                await opened()
            assert await answer(honest)

    asyncio.run(story())
