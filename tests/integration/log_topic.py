"""A topic `access_log` with given lines, as `./run` makes and fills it.

In: a broker, lines. Out: a record for each.
"""

import asyncio
from pathlib import Path

from load import create_topic, load, survey
from tests.integration.server_process import Server

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.idempotent import IdempotentPipeline


def append(server: Server, path: Path, lines: list[str], *, create: bool) -> None:
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")

    async def fill() -> int:
        seen = survey([path], lambda _: None)
        async with await Client.connect(TcpNetwork(), server.address) as client:
            if create:
                await create_topic(client, "access_log", seen)
            async with IdempotentPipeline(client) as pipeline:
                return await load(pipeline, "access_log", [path], seen, lambda _: None)

    assert asyncio.run(fill()) == len(lines)
