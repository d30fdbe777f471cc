"""A simulated node with the topic `t`, whose settings a client alters as Kafka's tools do.

In: what a test does with the node and its client. Out: the node started, and stopped without broken tasks.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.client.admin import alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.config.rules import Resource
from stratalog.errors import ErrorCode


def story(
    tell: Callable[[Machine, Client], Coroutine[Any, Any, None]],
    settings: dict[str, str] | None = None,
) -> None:
    async def whole() -> None:
        machine = Machine(World(3), settings)
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        await tell(machine, client)
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


async def alter(client: Client, name: str, value: str | None, broker: str = "") -> None:
    done = await client.on_controller(alter_configs(Resource.BROKER, broker, {name: value}))
    assert done.error == ErrorCode.none, done
