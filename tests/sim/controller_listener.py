"""A controller's listener on a node that has none in its configuration.

In: a started machine. Out: that listener, or a connection to it. The listener serves the APIs of a controller to
brokers.
"""

from typing import Any, cast

from tests.sim.machine import Machine
from tests.sim.raw import Raw

from stratalog.broker.apis import APIS
from stratalog.broker.network.dispatch import Dispatcher
from stratalog.broker.network.session import ListenerContext
from stratalog.ports import PLAINTEXT
from stratalog.wire.apis import ListenerKind

PORT = 9093


async def listen_as_controller(machine: Machine, host: str = "127.0.0.1") -> None:
    """Open the listener."""
    node = machine.node
    dispatcher = Dispatcher(machine.broker, node._connections.turns)
    context = ListenerContext("CONTROLLER", ListenerKind.CONTROLLER)
    bound = await machine.world.network.listen(
        host,
        PORT,
        node._connections.accepting(dispatcher.serve, context),
        PLAINTEXT,
    )
    await bound.accept()
    cast(Any, node)._listening.append(bound)


async def connect_controller(machine: Machine) -> Raw:
    """Open the listener, and connect to it."""
    await listen_as_controller(machine)
    return await Raw.connect(machine.world.network, port=PORT)


class Either:
    """Sends a broker's requests to its listener, and all others to the controller's."""

    def __init__(self, broker: Raw, controller: Raw) -> None:
        self._broker = broker
        self._controller = controller

    def ask(self, version: int, body: Any) -> Any:
        served = ListenerKind.BROKER in APIS[body.KEY].listeners
        return (self._broker if served else self._controller).ask(version, body)
