"""Goal: each API asks the authorizer for the rights it declares, and answers a denied part with Kafka's error.

Method: the real node under authorizers that deny everything, one right, or one topic and one group. The requests of
each API stand in `authorization_cases.py`; an API without requests fails.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from tests.produce import produce_body
from tests.sim.authorization_case import NONE, Case, Named
from tests.sim.authorization_cases import CASES
from tests.sim.controller_listener import Either, connect_controller
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body
from tests.sim.records import batch
from tests.sim.world import START_MS, World
from tests.unit.metadata.test_acls import image_of

from stratalog.broker.apis import APIS
from stratalog.broker.network.audit import Audit
from stratalog.broker.network.authorizer import (
    CLUSTER_NAME,
    DENIED,
    SUPPORTED,
    Authorizer,
    Operation,
    Resource,
    Right,
)
from stratalog.broker.network.session import Principal, Session
from stratalog.broker.network.standard_authorizer import StandardAuthorizer
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.metadata.acls import Acl, Acls
from stratalog.metadata.rights import PatternType, Permission
from stratalog.ports import Security
from stratalog.quorum.delegation_tokens import NewToken
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

BY_NAME = {api.name: api for api in APIS.values()}
SECRET, HIDDEN = "secret", "hidden"
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.two.phase.commit.enable": "true",
    "delegation.token.secret.key": "k",
    "telemetry.series.enable": "true",
}
ENOUGH_WITHOUT = {
    ("CreateTopics", Right(Operation.CREATE, Resource.CLUSTER)),
    ("CreateTopics", Right(Operation.CREATE, Resource.TOPIC)),
    ("DeleteTopics", Right(Operation.DELETE, Resource.CLUSTER)),
    ("DeleteTopics", Right(Operation.DELETE, Resource.TOPIC)),
    ("DeleteTopics", Right(Operation.DESCRIBE, Resource.TOPIC)),
    ("DescribeDelegationToken", Right(Operation.DESCRIBE, Resource.DELEGATION_TOKEN)),
    ("DescribeDelegationToken", Right(Operation.DESCRIBE_TOKENS, Resource.USER)),
    ("DescribeCluster", Right(Operation.DESCRIBE, Resource.CLUSTER)),
    ("DescribeTransactions", Right(Operation.DESCRIBE, Resource.TOPIC)),
    ("InitProducerId", Right(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)),
    ("InitProducerId", Right(Operation.WRITE, Resource.TOPIC)),
    ("ListGroups", Right(Operation.DESCRIBE, Resource.CLUSTER)),
    ("ListGroups", Right(Operation.DESCRIBE, Resource.GROUP)),
    ("ListTransactions", Right(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID)),
    ("Metadata", Right(Operation.CREATE, Resource.CLUSTER)),
    ("Metadata", Right(Operation.CREATE, Resource.TOPIC)),
    ("Metadata", Right(Operation.DESCRIBE, Resource.CLUSTER)),
    ("OffsetForLeaderEpoch", Right(Operation.CLUSTER_ACTION, Resource.CLUSTER)),
    ("OffsetForLeaderEpoch", Right(Operation.DESCRIBE, Resource.TOPIC)),
}
"""Rights that another right includes, or without which an answer only shows less."""
FOLLOWERS = ("Fetch", Right(Operation.CLUSTER_ACTION, Resource.CLUSTER))
"""A follower without this right gets the error of the topic."""


class Denying(Authorizer):
    """An authorizer that denies by `denies`, and keeps each requested right."""

    def __init__(self, denies: Callable[[Right, str], bool]) -> None:
        self.asked: set[Right] = set()
        self._denies = denies

    def allows(
        self, _session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool:
        right = Right(operation, resource)
        self.asked.add(right)
        return not self._denies(right, name)

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        return self.allows(session, operation, resource, "")


def story(tell: Callable[[Machine, Either, Named], Coroutine[Any, Any, None]]) -> None:
    """Run a story on a node with the topics `t` and `secret`, the groups `g` and `hidden`, and a transaction `open`."""

    async def whole() -> None:
        machine = Machine(World(4), SETTINGS)
        client = await machine.restart()
        await client.create_topics([NewTopic("t"), NewTopic(SECRET)])
        raw = await Raw.connect(machine.world.network)
        for topic in ("t", SECRET):
            await raw.ask(9, produce_body(topic, batch([b"1", b"2", b"3"], START_MS)))
        await machine.broker.groups.ensure_topic()
        for group in ("g", HIDDEN):
            await raw.ask(8, commit_of(group))
        transactions = machine.broker.transactions
        await transactions.ensure_topic()
        await asyncio.sleep(1)
        found = await transactions.initialise("open", 900_000, None)
        producer = found.producer_id, found.producer_epoch
        await transactions.add_partitions("open", producer, frozenset({TopicPartition("t", 0)}))
        token = NewToken(f"User:{HIDDEN}", f"User:{HIDDEN}")
        await machine.broker.local_controller.create_token(token)
        topics = dict(machine.broker.metadata.image.topic_ids_by_name)
        named = Named({name: topics[name] for name in ("t", SECRET)}, ["g", HIDDEN])
        either = Either(raw, await connect_controller(machine))
        authenticate(machine)
        async with asyncio.timeout(60):
            await tell(machine, either, named)
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


def authenticate(machine: Machine) -> None:
    """Let the node take its clients for authenticated ones: others may do nothing with delegation tokens."""
    for connection in machine.node._connections:
        connection.session.listener.security = Security("SASL_PLAINTEXT")


def commit_of(group: str) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1, committed_metadata=None
                    )
                ],
            )
            for topic in ("t", SECRET)
        ],
    )


def state(machine: Machine) -> Any:
    """Return all state that a request may change."""
    broker = machine.broker
    logs = [
        (str(hosted.name), hosted.log.log_start_offset, hosted.log.log_end_offset)
        for hosted in broker.hosting.all()
    ]
    groups = [repr(group) for group in broker.groups.committed()]
    ids = len(broker.producer_ids._block)
    return broker.metadata.image.offset, sorted(logs, key=str), sorted(groups), ids


def codes(answer: Any) -> Counter[int]:
    """Return every error code in an answer, at any depth."""
    found = map(int, re.findall(r"error_code=(-?\d+)", repr(answer)))
    return Counter(code for code in found if code)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_client_without_rights_gets_kafkas_error_and_changes_nothing(name: str) -> None:
    async def tell(machine: Machine, raw: Either, named: Named) -> None:
        before = state(machine)
        machine.broker.authorizer = nothing = Denying(lambda _right, _name: True)
        for case in CASES[name]:
            answer = await raw.ask(case.version, case.ask(named))
            expected = set() if case.denied == NONE else {case.denied}
            assert set(codes(answer)) == expected, answer
            if case.hides:
                assert not re.search(f"'({SECRET}|{HIDDEN}|t|g)'", repr(answer)), answer
            if name in ("Metadata", "DescribeCluster"):
                assert answer.cluster_authorized_operations in (0, -(2**31))
        assert nothing.asked <= set(BY_NAME[name].rights)
        assert state(machine) == before

    story(tell)


class Lines(list[str]):
    """An audit's file."""

    lines_dropped = 0

    def write(self, line: str, _holder: Hashable) -> None:
        self.append(line)

    def close(self) -> None: ...


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_each_denial_has_its_line_in_the_audit(name: str) -> None:
    async def tell(machine: Machine, raw: Either, named: Named) -> None:
        lines = Lines()
        machine.broker.authorizer = Denying(lambda _right, _name: True)
        machine.broker.audit = Audit(lines, machine.broker.clock, has_data_requests=False)
        for case in CASES[name]:
            del lines[:]
            answer = await raw.ask(case.version, case.ask(named))
            found = [json.loads(line) for line in lines]
            if codes(answer).keys() & set(DENIED.values()):
                (line,) = found
                assert (line["event"], line["api"]) == ("denied", name)
                rights = {
                    Right(Operation[one[0]], Resource[one[1]])
                    for one in map(str.split, line["denied"])
                }
                assert rights
                assert rights <= set(BY_NAME[name].rights)
            else:
                assert not found, "nothing was denied"

    story(tell)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_each_declared_right_is_requested_and_decides(name: str) -> None:
    asked: set[Right] = set()

    async def without(right: Right, machine: Machine, raw: Either, named: Named) -> None:
        machine.broker.authorizer = one = Denying(lambda asked, _name: asked == right)
        found: Counter[int] = Counter()
        for case in CASES[name]:
            found += codes(await raw.ask(case.version, case.ask(named)))
        resource = Resource.TOPIC if (name, right) == FOLLOWERS else right.resource
        assert (DENIED[resource] in found) != ((name, right) in ENOUGH_WITHOUT), found
        asked.update(one.asked)

    for right in BY_NAME[name].rights:
        story(partial(without, right))
    assert asked >= set(BY_NAME[name].rights)


class Described:
    """What an authorizer follows: ACLs that permit a client to describe everything."""

    def __init__(self) -> None:
        kinds = (one for one in Resource if Operation.DESCRIBE in SUPPORTED.get(one, ()))
        more = (PatternType.LITERAL, "User:ANONYMOUS", "*", Operation.DESCRIBE, Permission.ALLOW)
        of_kinds = {
            UUID(int=kind): Acl(kind, CLUSTER_NAME if kind is Resource.CLUSTER else "*", *more)
            for kind in kinds
        }
        self.acls = Acls()
        self.acls.follow(image_of(of_kinds))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_client_that_may_only_describe_changes_nothing(name: str) -> None:
    """With real ACLs: no operation is implied by the right to describe."""

    async def tell(machine: Machine, raw: Either, named: Named) -> None:
        before = state(machine)
        machine.broker.authorizer = StandardAuthorizer(Described(), [], default=False)
        found: Counter[int] = Counter()
        for case in CASES[name]:
            found += codes(await raw.ask(case.version, case.ask(named)))
        assert state(machine) == before
        needs_more = {
            right
            for right in BY_NAME[name].rights
            if right.operation is not Operation.DESCRIBE and (name, right) not in ENOUGH_WITHOUT
        }
        assert bool(needs_more) <= bool(set(DENIED.values()) & set(found)), found

    story(tell)


def named_cases() -> Iterator[Any]:
    """Yield the cases that name topics or groups, and are not decided by a right on the cluster."""
    some, more = Named({"t": UUID(int=1)}, ["g"]), Named({SECRET: UUID(int=2)}, [HIDDEN])
    for name, cases in CASES.items():
        for place, case in enumerate(cases):
            is_followers = name == "Fetch" and "replica_id=2" in repr(case.ask(some))
            is_clusters = is_followers or case.denied == DENIED[Resource.CLUSTER]
            if repr(case.ask(some)) != repr(case.ask(more)) and not is_clusters:
                yield pytest.param(case, id=f"{name}-{place}")


@pytest.mark.parametrize("case", list(named_cases()))
def test_one_denied_topic_or_group_is_refused_alone(case: Case) -> None:
    answers: list[Counter[int]] = []

    def is_denied(right: Right, name: str) -> bool:
        return right.resource is Resource.CLUSTER or name in (SECRET, HIDDEN)

    async def ask(machine: Machine, raw: Either, named: Named) -> None:
        machine.broker.authorizer = Denying(is_denied)
        before = secret_of(machine)
        answers.append(codes(await raw.ask(case.version, case.ask(named))))
        assert secret_of(machine) == before

    story(lambda machine, raw, n: ask(machine, raw, Named({"t": n.topics["t"]}, ["g"])))
    story(ask)
    denied = {DENIED[Resource.TOPIC], DENIED[Resource.GROUP]}
    assert not denied & set(answers[0]), "the other parts must be answered as without an authorizer"
    refused = answers[1] - answers[0]
    assert refused
    # All partitions of a transaction are added, or none.
    assert set(refused) - {ErrorCode.operation_not_attempted} <= denied


def secret_of(machine: Machine) -> Any:
    """Return the node's state of the denied topic and group."""
    broker = machine.broker
    image = broker.metadata.image
    logs = [
        (hosted.log.log_start_offset, hosted.log.log_end_offset)
        for hosted in broker.hosting.all()
        if hosted.name.topic == SECRET
    ]
    configs = [value for (_, name), value in image.configs.items() if name in (SECRET, HIDDEN)]
    offsets = [
        repr(one)
        for group, kept in broker.groups.committed()
        for one in kept
        if group == HIDDEN and one[0] == SECRET
    ]
    return image.topic(SECRET), logs, configs, offsets


def test_a_waiting_fetch_is_answered_by_the_rights_of_its_own_client() -> None:
    """Fetches that wait for the same records share one read, unless their clients' rights may differ."""

    async def tell(machine: Machine, raw: Either, _named: Named) -> None:
        await asyncio.sleep(1)  # the connections of `raw` are accepted by then
        known = set(machine.node._connections)
        bob = await Raw.connect(machine.world.network)
        await bob.ask(2, ApiVersionsRequest())
        (bobs,) = set(machine.node._connections) - known
        bobs.session.principal = Principal("User", "bob")
        denied: set[Principal] = set()

        class DenySome(Denying):
            def allows(
                self, session: Session, _operation: Operation, _resource: Resource, _name: str
            ) -> bool:
                return session.principal not in denied

        machine.broker.authorizer = DenySome(lambda _right, _name: False)
        waiting = [
            client.ask(12, fetch_body([("t", 0, 3)], max_wait_ms=5_000)) for client in (raw, bob)
        ]
        await asyncio.sleep(1)
        assert not any(one.done() for one in waiting)
        denied.add(bobs.session.principal)
        other = await Raw.connect(machine.world.network)
        await other.ask(9, produce_body("t", batch([b"4"], START_MS)))
        allowed, refused = [(await one).responses[0].partitions[0] for one in waiting]
        assert (allowed.error_code, bool(allowed.records)) == (NONE, True)
        assert (refused.error_code, bool(refused.records)) == (DENIED[Resource.TOPIC], False)

    story(tell)
