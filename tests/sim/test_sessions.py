"""Each connection has a session of its own, and the authorizer decides the rights of its principal."""

import asyncio

from msgspec.structs import replace
from tests.sim.controller_listener import PORT, connect_controller
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.broker.apis import APIS
from stratalog.broker.network.authorizer import NOT_REQUESTED, Authorizer, Operation, Resource
from stratalog.broker.network.session import ANONYMOUS, Session
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.ports import PLAINTEXT
from stratalog.wire.apis import ListenerKind
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from stratalog.wire.messages.create_topics import CreateTopicsRequest
from stratalog.wire.messages.fetch import FetchRequest
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic


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
        assert session.listener.name == machine.node.config.listeners[0].name
        assert session.host
        assert str(session.principal) == "User:ANONYMOUS"
        assert session.listener.security == PLAINTEXT
        assert session.sasl is None
        assert session.software == "lib 1.2"
        bad = ApiVersionsRequest(client_software_name="-", client_software_version="1.2")
        assert (await other.ask(3, bad)).error_code == ErrorCode.invalid_request
        libraries = {one.software for one in sessions(machine, "raw")}
        assert libraries == {"lib 1.2", ""}, "of its own connection alone, and only a sound name"
        one.close()
        other.close()
        await machine.stop()

    run(story())


READ = {Operation.READ, Operation.DESCRIBE}


class AllowReads(Authorizer):
    """Allows an anonymous client to read the topic `t`."""

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        asked = session.principal, resource, name
        return operation in READ and asked == (ANONYMOUS, Resource.TOPIC, "t")

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        return self.allows(session, operation, resource, "t")


def test_clients_see_what_the_authorizer_allows() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        await machine.start()
        client = await machine.connect()
        await client.create_topics([NewTopic("t", 1), NewTopic("u", 1)])
        machine.broker.authorizer = AllowReads()
        raw = await Raw.connect(machine.world.network)
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in "tu"],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        answer = await raw.ask(8, asked)
        found = {one.name: one.topic_authorized_operations for one in answer.topics}
        assert found == {"t": 1 << Operation.READ | 1 << Operation.DESCRIBE, "u": NOT_REQUESTED}
        assert answer.cluster_authorized_operations == 0
        raw.close()
        await machine.stop()

    run(story())


def test_a_listener_serves_the_apis_of_its_kind_alone() -> None:
    async def story() -> None:
        # Without a receiver of clients' metrics their two APIs are not served.
        machine = Machine(World(1), {"telemetry.series.enable": "true"})
        await machine.start()
        raw = await Raw.connect(machine.world.network)
        shown = {one.api_key for one in (await raw.ask(2, ApiVersionsRequest())).api_keys}
        assert shown == {key for key in APIS if ListenerKind.BROKER in APIS[key].listeners}
        assert {FetchRequest.KEY, CreateTopicsRequest.KEY, MetadataRequest.KEY} <= shown
        assert BrokerHeartbeatRequest.KEY not in shown
        stranger = await Raw.connect(machine.world.network)
        heartbeat = BrokerHeartbeatRequest(
            broker_id=2, current_metadata_offset=0, want_fence=False, want_shut_down=False
        )
        stranger.tell(0, heartbeat)
        await stranger.closed
        (session,) = sessions(machine, "raw")
        session.listener = replace(session.listener, kind=ListenerKind.CONTROLLER)
        shown = {one.api_key for one in (await raw.ask(2, ApiVersionsRequest())).api_keys}
        assert shown == {key for key in APIS if ListenerKind.CONTROLLER in APIS[key].listeners}
        assert {FetchRequest.KEY, CreateTopicsRequest.KEY, BrokerHeartbeatRequest.KEY} <= shown
        assert MetadataRequest.KEY not in shown
        raw.tell(9, MetadataRequest(topics=None))
        await raw.closed
        await machine.stop()

    run(story())


def test_a_controllers_listener_has_limits_of_its_own() -> None:
    async def story() -> None:
        machine = Machine(World(1), {"listener.name.controller.max.connections": "1"})
        await machine.start()
        first = await connect_controller(machine)
        assert (await first.ask(2, ApiVersionsRequest())).error_code == ErrorCode.none
        assert len(sessions(machine, "raw")) == 1
        refused = await Raw.connect(machine.world.network, port=PORT)
        await refused.closed
        broker = await Raw.connect(machine.world.network)
        assert (await broker.ask(2, ApiVersionsRequest())).error_code == ErrorCode.none
        await machine.stop()

    run(story())
