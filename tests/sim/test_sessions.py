"""Each connection has a session of its own: its listener, its client's address, principal and software."""

import asyncio

from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.broker.network.session import Session
from stratalog.errors import ErrorCode
from stratalog.wire.messages.api_versions import ApiVersionsRequest


def sessions(machine: Machine, client_id: str) -> list[Session]:
    found = [one.session for one in machine.node._connections]
    return [one for one in found if one.client_id == client_id]


def test_a_session_is_made_at_accept_and_learns_the_clients_software() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        await machine.start()
        network = machine.world.network
        one, other = await Raw.connect(network), await Raw.connect(network)
        await asyncio.sleep(0.1)
        assert len(sessions(machine, "")) == 2, "before the first request"
        named = ApiVersionsRequest(client_software_name="lib", client_software_version="1.2")
        assert (await one.ask(3, named)).error_code == ErrorCode.none
        (session,) = sessions(machine, "raw")
        assert session.listener == machine.node.config.listeners[0].name
        assert session.host
        assert str(session.principal) == "User:ANONYMOUS"
        assert session.security_protocol == "PLAINTEXT"
        assert session.authenticated_until_ms is None
        assert session.software == "lib 1.2"
        bad = ApiVersionsRequest(client_software_name="-", client_software_version="1.2")
        assert (await other.ask(3, bad)).error_code == ErrorCode.invalid_request
        libraries = {one.software for one in sessions(machine, "raw")}
        assert libraries == {"lib 1.2", ""}, "of its own connection alone, and only a sound name"
        one.close()
        other.close()
        await machine.stop()

    run(story())
