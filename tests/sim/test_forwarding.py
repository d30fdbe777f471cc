"""Goal: any broker accepts requests that the controller decides, and returns the controller's answer.

Method: the parts of a real node serve a second listener without its controller, which they reach over the network.
"""

import asyncio
import copy
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest
from tests.sim.authorization_case import Case, Named
from tests.sim.authorization_cases import CASES
from tests.sim.controller_listener import PORT, connect_controller
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.test_authorization import authenticate
from tests.sim.test_controller_channel import Quorum, channel_to
from tests.sim.world import World

from stratalog.broker.apis import APIS
from stratalog.broker.coordination.forwarding import Forwarding, encode_principal
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.metrics import error_codes
from stratalog.broker.network.authorizer import Authorizer, Operation, Resource
from stratalog.broker.network.dispatch import Dispatcher
from stratalog.broker.network.session import ANONYMOUS, ListenerContext, Session
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.metadata.image import ResourceType
from stratalog.ports import PLAINTEXT, Security
from stratalog.wire.envelope import encode_request
from stratalog.wire.messages import Request, alter_configs, incremental_alter_configs
from stratalog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from stratalog.wire.messages.alter_configs import AlterConfigsRequest
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from stratalog.wire.messages.envelope import EnvelopeRequest
from stratalog.wire.messages.metadata import MetadataRequest

FORWARDED = [
    (api.name, number)
    for api in APIS.values()
    if api.is_forwarded
    for number in range(len(CASES[api.name]))
]
ELSEWHERE = 9094
VARIES = {
    "topic_id",
    "high_watermark",
    "log_end_offset",
    "last_fetch_timestamp",
    "last_caught_up_timestamp",
}
"""Fields that differ from run to run."""


class Story:
    """A node, a listener that has its controller beside it, and one that has it elsewhere."""

    def __init__(self, machine: Machine, quorum: Quorum, here: Raw, elsewhere: Raw) -> None:
        self.machine = machine
        self.quorum = quorum
        self.here = here
        self.elsewhere = elsewhere

    def named(self) -> Named:
        topics = self.machine.broker.metadata.image.topic_ids_by_name
        return Named({name: topics[name] for name in ("t", "u")}, ["g"])


def story(
    tell: Callable[[Story], Coroutine[Any, Any, None]], authorizer: Authorizer | None = None
) -> None:
    async def whole() -> None:
        machine = Machine(World(4))
        client = await machine.restart()
        await client.create_topics([NewTopic("t"), NewTopic("u")])
        quorum = Quorum()
        network = machine.world.network
        await connect_controller(machine)
        machine.broker.authorizer = authorizer
        broker = copy.copy(machine.broker)
        broker.local_controller = LocalController(lambda: None, machine.world.outside.entropy)
        broker.forwarding = Forwarding(
            broker.local_controller, channel_to(machine, quorum), broker.config, broker.authorizer
        )
        node = machine.node
        dispatcher = Dispatcher(broker, node._connections.turns)
        context = ListenerContext("PLAINTEXT", security=Security("SASL_PLAINTEXT"))
        accepting = node._connections.accepting(dispatcher.serve, context)
        listener = await network.listen("127.0.0.1", ELSEWHERE, accepting, PLAINTEXT)
        await listener.accept()
        here = await Raw.connect(network)
        elsewhere = await Raw.connect(network, port=ELSEWHERE)
        await here.ask(2, ApiVersionsRequest())
        authenticate(machine)
        await tell(Story(machine, quorum, here, elsewhere))
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


@pytest.mark.parametrize(("name", "number"), FORWARDED)
def test_the_answer_is_the_controllers(name: str, number: int) -> None:
    case: Case = CASES[name][number]
    answers: list[Any] = []

    async def ask(scene: Story, raw: Raw) -> None:
        answers.append(await raw.ask(case.version, case.ask(scene.named())))
        answers.append(scene.machine.broker.metadata.image.topic_ids_by_name)

    story(lambda scene: ask(scene, scene.here))
    story(lambda scene: ask(scene, scene.elsewhere))
    assert without_chance(answers[0]) == without_chance(answers[2])
    assert answers[1].keys() == answers[3].keys()


def without_chance(answer: Any) -> Any:
    """Return an answer without the fields that differ from run to run."""
    if isinstance(answer, dict):
        return {key: without_chance(value) for key, value in answer.items() if key not in VARIES}
    if isinstance(answer, list | tuple):
        return [without_chance(one) for one in answer]
    if isinstance(answer, msgspec.Struct):
        return without_chance(msgspec.structs.asdict(answer))
    return answer


@pytest.mark.parametrize(("name", "number"), FORWARDED)
def test_without_a_controller_the_answer_is_a_time_out(name: str, number: int) -> None:
    case: Case = CASES[name][number]

    async def tell(scene: Story) -> None:
        scene.quorum.move(None)
        before = scene.machine.broker.metadata.image.offset
        answer = await scene.elsewhere.ask(case.version, case.ask(scene.named()))
        if name != "DescribeQuorum":  # its answer is this node's own view
            assert set(error_codes(answer)) == {ErrorCode.request_timed_out}, answer
        assert scene.machine.broker.metadata.image.offset == before

    story(tell)


def test_the_controllers_quota_mutes_the_client_of_the_broker_that_forwards() -> None:
    async def tell(scene: Story) -> None:
        loop = asyncio.get_running_loop()
        entity = [AlterClientQuotasRequestEntityData(entity_type="user", entity_name="ANONYMOUS")]
        ops = [OpData(key="controller_mutation_rate", value=1.0, remove=False)]
        entry = AlterClientQuotasRequestEntryData(entity=entity, ops=ops)
        altered = await scene.here.ask(
            1, AlterClientQuotasRequest(entries=[entry], validate_only=False)
        )
        assert altered.entries[0].error_code == 0
        answers = []
        for name in ("x", "y"):
            topic = CreatableTopic(
                name=name, num_partitions=13, replication_factor=1, assignments=(), configs=()
            )
            body = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
            answers.append(await scene.elsewhere.ask(7, body))
        first, second = answers
        assert (first.topics[0].error_code, first.throttle_time_ms) == (0, 0)
        assert second.topics[0].error_code == ErrorCode.throttling_quota_exceeded
        assert 1500 < second.throttle_time_ms <= 2000
        began_s = loop.time()
        await scene.elsewhere.ask(9, MetadataRequest(topics=[]))
        assert loop.time() - began_s > 1.5

    story(tell)


DIRECTORIES = "cordoned.log.dirs"


@pytest.mark.parametrize("way", ["here", "elsewhere"])
@pytest.mark.parametrize("is_incremental", [True, False])
def test_the_asked_broker_checks_its_own_directories(way: str, is_incremental: bool) -> None:
    """It refuses paths that are none of its own, and those of a broker that it cannot check; the rest is done."""

    async def tell(scene: Story) -> None:
        raw, image = getattr(scene, way), scene.machine.broker.metadata

        async def alter(*wanted: tuple[ResourceType, str, str, str]) -> dict[str, tuple[int, str]]:
            request = altering(wanted, is_incremental=is_incremental)
            answer = await raw.ask(1 if is_incremental else 2, request)
            return {
                one.resource_name: (one.error_code, one.error_message or "")
                for one in answer.responses
            }

        broker, topic = ResourceType.BROKER, ResourceType.TOPIC
        answers = await alter(
            (broker, "1", DIRECTORIES, "/nowhere"), (topic, "t", "retention.ms", "7000")
        )
        assert answers["t"] == (ErrorCode.none, "")
        assert image.topic_configs("t") == {"retention.ms": "7000"}
        assert answers["1"][0] == ErrorCode.invalid_request
        assert "'/nowhere' is not accepted; accepted: *, or of log.dirs: " in answers["1"][1]
        code, said = (await alter((broker, "2", DIRECTORIES, "/data")))["2"]
        assert code == ErrorCode.invalid_request
        assert said.endswith("does not know its directories; accepted: *, or ask broker 2")
        assert (broker, "1") not in image.image.configs

    story(tell)


def altering(
    wanted: Sequence[tuple[ResourceType, str, str, str]], *, is_incremental: bool
) -> Request[Any]:
    """Return either request with one setting of each resource."""
    if not is_incremental:
        rows = [
            alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=resource,
                configs=[alter_configs.AlterableConfig(name=name, value=value)],
            )
            for kind, resource, name, value in wanted
        ]
        return AlterConfigsRequest(resources=rows, validate_only=False)
    changes = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind,
            resource_name=resource,
            configs=[
                incremental_alter_configs.AlterableConfig(
                    name=name, config_operation=0, value=value
                )
            ],
        )
        for kind, resource, name, value in wanted
    ]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=changes, validate_only=False
    )


def test_a_client_without_the_right_learns_no_directory() -> None:
    class Denies(Authorizer):
        def allows(
            self, _session: Session, operation: Operation, _resource: Resource, _name: str
        ) -> bool:
            return operation is Operation.CLUSTER_ACTION

        def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
            return self.allows(session, operation, resource, "")

    async def tell(scene: Story) -> None:
        wanted = [(ResourceType.BROKER, "1", DIRECTORIES, "/nowhere")]
        for raw in (scene.here, scene.elsewhere):
            answer = await raw.ask(1, altering(wanted, is_incremental=True))
            (one,) = answer.responses
            assert one.error_code == ErrorCode.cluster_authorization_failed
            assert "log.dirs" not in (one.error_message or "")

    story(tell, Denies())


def test_a_request_waits_for_the_next_controller() -> None:
    async def tell(scene: Story) -> None:
        scene.quorum.move(None)
        topic = CreatableTopic(
            name="late", num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        waiting = scene.elsewhere.ask(7, CreateTopicsRequest(topics=[topic]))
        await asyncio.sleep(3)
        assert not waiting.done()
        scene.quorum.move(("127.0.0.1", PORT))
        assert (await waiting).topics[0].error_code == ErrorCode.none
        metadata = await scene.elsewhere.ask(12, MetadataRequest(topics=None))
        assert {one.name for one in metadata.topics} == {"late", "t", "u"}

    story(tell)


def test_the_controller_sees_the_client_and_not_the_broker() -> None:
    class Watching(Authorizer):
        def __init__(self) -> None:
            self.seen: list[tuple[str, str, Operation]] = []

        def allows(
            self, session: Session, operation: Operation, _resource: Resource, _name: str
        ) -> bool:
            self.seen.append((str(session.principal), session.host, operation))
            return operation is Operation.CLUSTER_ACTION

        def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
            return self.allows(session, operation, resource, "")

    async def tell(scene: Story) -> None:
        watching = scene.machine.broker.authorizer = Watching()
        (case,) = CASES["UnregisterBroker"]
        answer = await scene.elsewhere.ask(case.version, case.ask(scene.named()))
        assert answer.error_code == ErrorCode.cluster_authorization_failed
        assert [one[2] for one in watching.seen] == [Operation.CLUSTER_ACTION, Operation.ALTER]
        assert watching.seen[1][0] == "User:ANONYMOUS"
        assert watching.seen[1][1] != ""

    story(tell)


def test_envelopes_are_refused_as_kafka_refuses_them() -> None:
    async def tell(scene: Story) -> None:
        raw = await Raw.connect(scene.machine.world.network, port=PORT)
        fine = data(AlterConfigsRequest(resources=(), validate_only=False), 2)
        principal, host = encode_principal(ANONYMOUS), bytes(4)

        async def code(request: bytes, principal: bytes | None, host: bytes) -> int:
            envelope = EnvelopeRequest(
                request_data=request, request_principal=principal, client_host_address=host
            )
            return (await raw.ask(0, envelope)).error_code

        assert await code(fine, principal, host) == ErrorCode.none
        assert await code(fine, principal, b"") == ErrorCode.invalid_request
        for bad in (None, b"", b"\x00\x07"):
            assert await code(fine, bad, host) == ErrorCode.principal_deserialization_failure
        other = data(MetadataRequest(topics=None), 12)
        assert await code(other, principal, host) == ErrorCode.invalid_request
        for bad in (b"", fine[:5], fine[:2] + b"\x00\x63" + fine[4:], fine[:-1]):
            assert await code(bad, principal, host) == ErrorCode.unsupported_version
        scene.machine.broker.quorum.active = None
        assert await code(fine, principal, host) == ErrorCode.not_controller

    story(tell)


def data(request: Request[Any], version: int) -> bytes:
    return b"".join(bytes(piece) for piece in encode_request(version, 7, "c", request))[4:]
